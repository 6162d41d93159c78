package controller

import (
	"cmp"
	"slices"

	"github.com/openpathways/pathways/core/placement"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// Slices, and requests that wait for one, survive a restart of the controller. They are on its disk, and clients say
// which of them they still want.
//
// # Why an exclusive slice is no one else's
//
// A client hears of a grant, or of other devices of a slice, only once that is on disk (Action.AfterKept), so a client
// knows no slice that the disk does not have. Facts are written in order, so those on disk are the facts of one moment
// before the controller ended; only the newest are missing, which no client has heard of. At that moment no device was
// in two exclusive slices, so restoreSlices can restore all of them. It does so before any process has come back, and
// until all have, no request is served and no operation is performed. A slice that its client no longer names was
// released; it ends before anything is performed (slices). A session whose client does not come back ends, as always,
// and its slices with it.
//
// # Why a request keeps its place
//
// Before a client is told the place of its request, everything that determines the request's turn is on disk: when it
// was made, its priority, and the order of requests that were made at the same time. A client repeats all requests that
// were not answered. Those on disk continue as they were, or are answered again. Those that are not on disk are new,
// and come after the others.

// keepSlice keeps a slice that was granted, or whose devices were chosen again.
func (st *State) keepSlice(s *placement.Slice) {
	if st.config.Keeps {
		st.keep(tableSlices, programKey(s.Session, s.Number), &wire.KeptSlice{Session: s.Session,
			Request: requestOf(s.Number, s.Want), Devices: numbersOf(s.Devices)})
	}
}

// keepRequest keeps a request that waits.
func (st *State) keepRequest(r *placement.Request) {
	if st.config.Keeps {
		k := &wire.KeptSlice{Session: r.Session, Request: requestOf(r.Number, r.Want), Asked: st.config.Unix + r.Asked,
			Until: st.config.Unix + r.Until, Arrived: r.Arrived()}
		k.Request.Priority = int32(r.Priority)
		st.keep(tableSlices, programKey(r.Session, r.Number), k)
	}
}

// letRequest removes a request that has ended without a slice.
func (st *State) letRequest(r *placement.Request) {
	if st.asked[r].kept {
		st.letSlice(r.Session, r.Number)
	}
}

func (st *State) letSlice(session uint32, number uint64) {
	st.keep(tableSlices, programKey(session, number), nil)
}

// requestOf returns the message that asks for a slice like this one.
func requestOf(number uint64, w placement.Want) *wire.SliceRequest {
	return &wire.SliceRequest{Slice: number, Devices: uint32(w.Devices), Topology: numbersOf(w.Topology), Island: w.Island,
		Kind: w.Kind, Exclusive: w.Exclusive}
}

func numbersOf(all []int) (numbers []uint32) {
	numbers = slices.Grow(numbers, len(all))
	for _, n := range all {
		numbers = append(numbers, uint32(n))
	}
	return numbers
}

// restoreSlices makes the slices of sessions, and the requests that wait. If one cannot be made, its client will find
// that it is missing.
func (st *State) restoreSlices(all []*wire.KeptSlice) {
	slices.SortFunc(all, func(a, b *wire.KeptSlice) int {
		return cmp.Or(cmp.Compare(a.Arrived, b.Arrived), cmp.Compare(a.Session, b.Session),
			cmp.Compare(a.GetRequest().GetSlice(), b.GetRequest().GetSlice()))
	})
	for _, k := range all {
		if k.Request == nil {
			continue
		}
		s := st.sessions[k.Session]
		if s == nil || st.restoreSlice(s, k) != nil {
			st.letSlice(k.Session, k.Request.Slice)
		}
	}
}

func (st *State) restoreSlice(s *session, k *wire.KeptSlice) error {
	r := st.requestFor(s, k.Request)
	if len(k.Devices) > 0 {
		devices := make([]int, len(k.Devices))
		for i, d := range k.Devices {
			devices[i] = int(d)
		}
		return st.layout.Regrant(r, devices)
	}
	// Clocks of the same machine, which may have been set meanwhile.
	r.Asked = min(st.now, k.Asked-st.config.Unix)
	r.Until = r.Asked + max(0, k.Until-k.Asked)
	if err := st.layout.Ask(r); err != nil {
		return err
	}
	st.asked[r] = &sliceWait{s: s, kept: true}
	return nil
}

// slices ends those slices and requests of a session that its client has released.
func (r *rebuilding) slices(s *session) {
	var said []uint64
	for _, m := range r.of[s.conn] {
		said = append(said, m.Slices...)
	}
	slices.Sort(said)
	var released []uint64
	add := func(number uint64) {
		if _, ok := slices.BinarySearch(said, number); !ok {
			released = append(released, number)
		}
	}
	for _, slice := range r.st.layout.Slices(s.id) {
		add(slice.Number)
	}
	for _, request := range r.st.layout.WaitingOf(s.id) {
		add(request.Number)
	}
	r.st.releaseSlices(s, released)
}

// lacksSlice returns an error if a client has a slice that the controller does not know.
func (r *rebuilding) lacksSlice(s *session) error {
	asks := map[uint64]bool{}
	for _, one := range r.sent {
		if m, ok := one.ev.Message.(*wire.SliceRequest); ok && one.s == s && m.Devices > 0 {
			asks[m.Slice] = true
		}
	}
	for _, m := range r.of[s.conn] {
		for _, number := range m.Slices {
			if !asks[number] && r.st.layout.Slice(s.id, number) == nil {
				return status.New(status.Unavailable, "the controller has started again, and slice %d was not on its disk", number)
			}
		}
	}
	return nil
}

// askAgain repeats a session's request for a slice, unless the session has the slice, or waits for it, already.
func (r *rebuilding) askAgain(s *session, m *wire.SliceRequest) {
	slice := r.st.layout.Slice(s.id, m.Slice)
	switch {
	case m.Devices == 0 && slice != nil:
		// Its client does not know whether the devices were chosen again before the controller ended. If they cannot be
		// chosen now, it is told those that the slice has, so that both agree.
		if chosen, err := r.st.layout.Remap(s.id, m.Slice, r.st.occupied()); err == nil {
			slice = chosen
		}
		r.st.changed(slice)
		r.st.answer(s, m.Slice, slice, nil)
	case m.Devices > 0 && slice != nil: // the answer was lost
		r.st.tellSlice(s, m.Slice, slice, nil)
	case m.Devices > 0 && r.st.layout.Waiting(s.id, m.Slice) != nil: // it is told its place
	default:
		r.st.slice(s, m)
	}
}
