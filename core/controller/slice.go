package controller

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/openpathways/pathways/core/placement"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// sliceWait is a request for a slice that waits, with what its client was told last.
type sliceWait struct {
	s        *session
	position int
	holders  []*wire.Report_Holder // of the devices that it lacks
	text     string                // the same for people
}

// slice asks for a slice for a session, or chooses its devices again.
func (st *State) slice(s *session, m *wire.SliceRequest) {
	if n := len(m.Topology); n > placement.MaxDimensions {
		st.answer(s, m.Slice, nil, placement.TooManyDimensions(n))
		return
	}
	if m.Devices == 0 {
		granted, err := st.layout.Remap(s.id, m.Slice, s.view, st.occupied())
		st.changed(granted)
		st.answer(s, m.Slice, granted, err)
		return
	}
	r := &placement.Request{Session: s.id, Number: m.Slice, View: s.view, Owner: s.ownerName(), Priority: int(m.Priority),
		Asked: st.now, Until: st.now + int64(min(m.WaitMs, wire.LongestWait))*1e6,
		Want: placement.Want{Devices: int(m.Devices), Island: m.Island, Kind: m.Kind, Exclusive: m.Exclusive}}
	for _, n := range m.Topology {
		r.Want.Topology = append(r.Want.Topology, int(n))
	}
	err := st.maySlice(s.tenant, r.Want.Devices)
	if err == nil {
		err = st.layout.Ask(r)
	}
	if err != nil {
		st.answer(s, m.Slice, nil, err)
		return
	}
	st.asked[r] = &sliceWait{s: s}
	st.serve = true
}

// ownerName is whose exclusive devices count for the turns of a session's requests: a tenant's if it has one, otherwise
// a user's, who may have several sessions.
func (s *session) ownerName() string {
	return cmp.Or(s.tenant.terms.Name, s.user, fmt.Sprint(s.id))
}

// answer tells a client that it has a slice, or why not.
func (st *State) answer(s *session, number uint64, granted *placement.Slice, err error) {
	answer := &wire.SliceAnswer{Slice: number, Status: wire.Of(err)}
	if err != nil {
		st.note(s.about(wire.EventDenied), fmt.Sprintf("%s did not get slice %d", s.owner(), number), err)
	} else {
		for _, d := range granted.Devices {
			answer.Devices = append(answer.Devices, uint32(d))
		}
		alone := ""
		if granted.Want.Exclusive {
			alone = ", for itself alone"
		}
		st.note(s.about(wire.EventGranted), fmt.Sprintf("%s got slice %d, of %s%s", s.owner(), number,
			status.Count(len(granted.Devices), "device"), alone), nil)
	}
	st.send(s.to(), wire.KindSliceAnswer, answer)
}

// serveSlices grants slices whose turn has come, and tells the clients of others of their places in the queue.
func (st *State) serveSlices() {
	if !st.serve {
		return
	}
	st.serve, st.until = false, 0
	if len(st.asked) == 0 {
		return
	}
	for _, r := range st.layout.Serve(st.now, st.occupied()) {
		s := st.asked[r].s
		delete(st.asked, r)
		granted, err := r.Result()
		if granted == nil && err == nil {
			err = st.outOfTime(r)
		}
		st.changed(granted)
		st.answer(s, r.Number, granted, err)
	}
	for _, r := range st.layout.Requests() {
		if st.until == 0 || r.Until < st.until {
			st.until = r.Until
		}
		w := st.asked[r]
		w.holders = st.lacking(r)
		text := wire.LacksText(w.holders)
		if w.position == r.Position() && w.text == text {
			continue
		}
		if w.position == 0 {
			st.note(w.s.about(wire.EventQueued), fmt.Sprintf("%s waits for slice %d, of %s", w.s.owner(), r.Number,
				status.Count(r.Want.Devices, "device")), nil)
		}
		w.position, w.text = r.Position(), text
		st.send(w.s.to(), wire.KindSliceAnswer, &wire.SliceAnswer{Slice: r.Number, Position: uint32(w.position), Lacks: text})
	}
}

// outOfTime is the error of a request whose wait has ended.
func (st *State) outOfTime(r *placement.Request) error {
	what := "a slice of " + status.Count(r.Want.Devices, "device")
	if r.Want.Exclusive {
		what = "an exclusive slice of " + status.Count(r.Want.Devices, "device")
	}
	text := wire.LacksText(st.lacking(r))
	if r.Until == r.Asked {
		return status.New(status.ResourceExhausted, "%s was asked for: %s; pass wait= to wait for it in a queue, or ask for "+
			"fewer devices", what, text)
	}
	return status.New(status.ResourceExhausted, "%s did not come within %.4g s: %s; pass a longer wait=, or ask for "+
		"fewer devices", what, float64(r.Until-r.Asked)/1e9, text)
}

// changed takes note of a slice that was granted or whose devices were chosen again.
func (st *State) changed(granted *placement.Slice) {
	if granted != nil && granted.Want.Exclusive {
		st.reach++
	}
	st.serve = true
}

// releaseSlices ends the grants of slices that a session does not need any more, and cancels requests.
func (st *State) releaseSlices(s *session, numbers []uint64) {
	waits := map[uint64]bool{}
	for r, w := range st.asked {
		if w.s == s {
			waits[r.Number] = true
		}
	}
	changed := false
	for _, number := range numbers {
		switch {
		case waits[number]:
			st.layout.Cancel(s.id, number)
			changed = true
		case st.layout.Release(s.id, number):
			st.note(s.about(wire.EventReleased), fmt.Sprintf("%s released slice %d", s.owner(), number), nil)
			changed = true
		}
	}
	if changed {
		st.released(s)
	}
}

// released takes note that a session has released slices and cancelled requests.
func (st *State) released(s *session) {
	waits := st.layout.Requests()
	maps.DeleteFunc(st.asked, func(r *placement.Request, w *sliceWait) bool {
		return w.s == s && !slices.Contains(waits, r)
	})
	st.reach++
	st.serve = true
}

// excluded returns why a session may not use a place of which another session has a device for itself.
func (st *State) excluded(p *place) error {
	if !st.layout.HasExclusive() {
		return nil
	}
	for _, row := range p.rows {
		at := p.s.view.Device(int(row))
		slice := st.layout.Excluded(p.s.id, at)
		if slice == nil {
			continue
		}
		return status.New(status.FailedPrecondition, "device %d (%s/%d) is in an exclusive slice of %s; use other devices, "+
			"such as those of a slice of your own, or wait until it is released: add_slice(devices=…, wait=60)", row,
			st.workers[p.s.slots[row]].name, at.Local, st.ownerOf(slice.Session))
	}
	return nil
}

func (st *State) ownerOf(session uint32) string {
	if s := st.sessions[session]; s != nil {
		return s.owner()
	}
	return fmt.Sprintf("session %d", session)
}

// spans writes devices in their order, run-length coded.
func spans(all []placement.Span) []*wire.Span {
	out := make([]*wire.Span, len(all))
	for i, span := range all {
		out[i] = &wire.Span{Worker: span.Worker, Local: uint32(span.Local), Count: uint32(span.Count)}
	}
	return out
}
