package controller

import (
	"fmt"
	"math"
	"slices"

	"github.com/openpathways/pathways/core/placement"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// sliceWait is a request for a slice that waits, with what its client was told last.
type sliceWait struct {
	s        *session
	kept     bool // on disk, where the controller keeps facts
	position int
	quota    int                   // its tenant's, if it waits for that; 0: for devices
	holders  []*wire.Report_Holder // see Report.SliceWait
	text     string                // the same for people
}

// slice asks for a slice for a session, or chooses its devices again.
func (st *State) slice(s *session, m *wire.SliceRequest) {
	if m.Devices == 0 {
		granted, err := st.layout.Remap(s.id, m.Slice, st.occupied())
		st.changed(granted)
		st.answer(s, m.Slice, granted, err)
		return
	}
	r := st.requestFor(s, m)
	if err := st.layout.Ask(r); err != nil {
		st.answer(s, m.Slice, nil, err)
		return
	}
	st.asked[r] = &sliceWait{s: s}
	st.serve = true
}

// requestFor returns a session's request, made now.
func (st *State) requestFor(s *session, m *wire.SliceRequest) *placement.Request {
	owner, class := s.owns()
	r := &placement.Request{Session: s.id, Number: m.Slice, View: s.newest().view, Owner: owner, Class: class,
		Priority: int(m.Priority), Asked: st.now, Until: st.now + int64(min(m.WaitMs, wire.LongestWait))*1e6,
		Quota: s.tenant.terms.SliceDevices,
		Want:  placement.Want{Devices: int(m.Devices), Island: m.Island, Kind: m.Kind, Exclusive: m.Exclusive}}
	for _, n := range m.Topology[:min(len(m.Topology), placement.MaxDimensions+1)] { // one more, which is refused
		r.Want.Topology = append(r.Want.Topology, int(n))
	}
	return r
}

// owns returns the owner whose exclusive devices count for the turns of a session's requests, and its class. The owner
// is the session's tenant if it has one, otherwise its user, who may have several sessions.
func (s *session) owns() (owner string, class int) {
	switch {
	case s.tenant.terms.Name != "":
		return s.tenant.owner(), int(s.tenant.terms.Class)
	case s.user != "":
		return "user " + s.user, 0
	}
	return fmt.Sprintf("session %d", s.id), 0
}

// answer tells a client that it has a slice, or why not.
func (st *State) answer(s *session, number uint64, granted *placement.Slice, err error) {
	if err != nil {
		st.note(s.about(wire.EventDenied), fmt.Sprintf("%s did not get slice %d", s.owner(), number), err)
	} else {
		st.keepSlice(granted)
		alone := ""
		if granted.Want.Exclusive {
			alone = ", for itself alone"
		}
		st.note(s.about(wire.EventGranted), fmt.Sprintf("%s got slice %d, of %s%s", s.owner(), number,
			status.Count(len(granted.Devices), "device"), alone), nil)
	}
	st.tellSlice(s, number, granted, err)
}

// tellSlice sends the answer to a request.
func (st *State) tellSlice(s *session, number uint64, granted *placement.Slice, err error) {
	answer := &wire.SliceAnswer{Slice: number, Status: wire.Of(err)}
	if granted != nil {
		answer.Devices = numbersOf(granted.Devices)
	}
	st.sendKept(s.to(), wire.KindSliceAnswer, answer)
}

// The time that searches for slices take, in nanoseconds: measured by BenchmarkSteps.
const (
	weightOfSearch = 15  // a device of the cluster, for a step of a request's search
	weightOfPlace  = 100 // of a request in the queue whose client may have to be told
	weightOfHolder = 3   // a session, for each 64 devices, of a request that lacks some
)

// serves reports whether a request for a slice may be granted, or clients have to be told of their places.
func (st *State) serves() bool {
	// While processes come back, it is not known which devices are in use.
	return st.comeback == nil && (st.serve || st.looking || st.untold > 0)
}

// isSliceDue reports whether a request for a slice may be granted without an event: time has passed, or sessions occupy
// other devices.
func (st *State) isSliceDue() bool {
	switch {
	case len(st.asked) == 0:
		return false
	case st.until <= st.now || st.layout.IsDue(st.now):
		return true
	}
	st.findUse()
	return st.lookedAt != st.occupancy.found
}

// serveSlices grants slices whose turn has come, and tells the clients of others their places in the queue. It does so
// for about the time that Weigh says, but at least for one step of a search; serves reports whether more is left.
func (st *State) serveSlices() {
	if len(st.asked) == 0 {
		st.serve, st.looking, st.untold, st.until = false, false, 0, 0
		return
	}
	if st.serve && !st.looking {
		st.serve, st.looking = false, true
		st.lookedAt = ^uint64(0)
	}
	if st.looking {
		st.lookForSlices()
	}
	if !st.looking {
		st.tellPlaces()
	}
}

// lookForSlices looks for devices for requests.
func (st *State) lookForSlices() {
	most := math.MaxInt
	if st.weight > 0 {
		most = max(1, int(st.weight)/(weightOfSearch*max(1, st.numbered)))
	}
	occupied := st.occupied()
	ended, more := st.layout.Serve(st.now, occupied, most)
	st.looking, st.lookedAt = more, min(st.lookedAt, st.occupancy.found)
	for _, r := range ended {
		s := st.asked[r].s
		granted, err := r.Result()
		if granted == nil && err == nil {
			err = st.outOfTime(r)
		}
		if granted == nil {
			st.letRequest(r)
		}
		delete(st.asked, r)
		st.changed(granted)
		st.answer(s, r.Number, granted, err)
	}
	if kept := st.layout.Kept(); kept != st.keeping {
		st.keeping = kept
		st.reach++
	}
	if more {
		return
	}
	st.until = 0
	for _, r := range st.layout.Requests() {
		if st.until == 0 || r.Until < st.until {
			st.until = r.Until
		}
	}
	st.untold = len(st.layout.Requests())
}

// tellPlaces tells clients the places of their requests in the queue, and which sessions have the devices that these
// lack, or come first for them.
func (st *State) tellPlaces() {
	all := st.layout.Requests()
	st.untold = min(st.untold, len(all))
	for spent := int64(0); st.untold > 0 && (st.weight == 0 || spent < st.weight); st.untold-- {
		if st.tellNext >= len(all) {
			st.tellNext = 0
		}
		r := all[st.tellNext]
		st.tellNext++
		w := st.asked[r]
		if spent += weightOfPlace; r.IsBeyondQuota() {
			spent += weightOfHolder * int64(len(w.s.tenant.sessions))
		} else if len(r.Lacks()) > 0 {
			spent += weightOfHolder * int64(len(st.sessions)*len(r.Lacks()))
		}
		text := st.findHolders(r)
		if w.position == r.Position() && w.text == text {
			continue
		}
		if !w.kept {
			w.kept = true
			st.keepRequest(r)
			st.note(w.s.about(wire.EventQueued), fmt.Sprintf("%s waits for slice %d, of %s", w.s.owner(), r.Number,
				status.Count(r.Want.Devices, "device")), nil)
		}
		w.position, w.text = r.Position(), text
		st.sendKept(w.s.to(), wire.KindSliceAnswer,
			&wire.SliceAnswer{Slice: r.Number, Position: uint32(w.position), Lacks: text})
	}
}

// findHolders finds the sessions that have what a request waits for, or come first for it, and returns a text that
// names them.
func (st *State) findHolders(r *placement.Request) (text string) {
	w := st.asked[r]
	if w.quota = 0; r.IsBeyondQuota() {
		w.quota, w.holders = r.Quota, st.sliceHolders(w.s.tenant)
	} else {
		w.holders = append(st.ahead(r), st.lacking(r)...)
	}
	return wire.LacksText(st.sliceWait(r))
}

// sliceWait returns a request that waits, for a report.
func (st *State) sliceWait(r *placement.Request) *wire.Report_SliceWait {
	w := st.asked[r]
	report := &wire.Report_SliceWait{Session: r.Session, Slice: r.Number, Devices: uint32(r.Want.Devices),
		Island: r.Want.Island, Kind: r.Want.Kind, Exclusive: r.Want.Exclusive, Priority: int32(r.Priority),
		SinceMs: (st.now - r.Asked) / 1e6, LeftMs: (r.Until - st.now) / 1e6, Lacks: uint32(r.Lacks().Count()),
		Tenant: w.s.tenant.terms.Name, Quota: uint32(w.quota), Holders: w.holders}
	if report.LeftMs > wire.LongestWait/2 {
		report.LeftMs = -1
	}
	return report
}

// outOfTime is the error of a request whose wait is over, or that wants more than its tenant may have.
func (st *State) outOfTime(r *placement.Request) error {
	if r.Quota > 0 && r.Want.Devices > r.Quota {
		return status.New(status.ResourceExhausted, "tenant %s may have %s in slices, and this one needs %d: ask for fewer, "+
			"or ask the cluster's operator for a larger quota (slice-devices)", st.asked[r].s.tenant.terms.Name,
			status.Count(r.Quota, "device"), r.Want.Devices)
	}
	what := "a slice of " + status.Count(r.Want.Devices, "device")
	if r.Want.Exclusive {
		what = "an exclusive slice of " + status.Count(r.Want.Devices, "device")
	}
	text, or := st.findHolders(r), "or ask for fewer devices"
	if r.IsBeyondQuota() {
		or = "release a slice, or ask the cluster's operator for a larger quota (slice-devices)"
	}
	if r.Until == r.Asked {
		return status.New(status.ResourceExhausted, "%s was asked for: %s; pass wait= to wait for it in a queue, %s", what,
			text, or)
	}
	return status.New(status.ResourceExhausted, "%s did not come within %.4g s: %s; pass a longer wait=, %s", what,
		float64(r.Until-r.Asked)/1e9, text, or)
}

// changed records a slice that was granted or whose devices were chosen again.
func (st *State) changed(granted *placement.Slice) {
	if granted != nil && granted.Want.Exclusive {
		st.reach++
	}
	st.serve = true
}

// releaseSlices releases slices that a session no longer needs, and cancels requests.
func (st *State) releaseSlices(s *session, numbers []uint64) {
	changed := false
	for _, number := range numbers {
		if r := st.layout.Cancel(s.id, number); r != nil {
			st.letRequest(r)
			delete(st.asked, r)
			changed = true
		} else if st.layout.Release(s.id, number) {
			st.letSlice(s.id, number)
			st.note(s.about(wire.EventReleased), fmt.Sprintf("%s released slice %d", s.owner(), number), nil)
			changed = true
		}
	}
	if changed {
		st.released()
	}
}

// released records that a session has released slices and cancelled requests.
func (st *State) released() {
	st.reach++
	st.serve = true
}

// excluded returns why a session may not use a place: another session has one of its devices for itself, or is about
// to. A request for an exclusive slice keeps free devices from sessions that have begun since. It returns nil if the
// session may use the place.
func (st *State) excluded(p *place) error {
	name := func(i int) (row int, device string) {
		at := slices.IndexFunc(p.rows, func(d uint32) bool { return p.in.number(d) == p.numbers[i] })
		row = int(p.rows[at])
		return row, fmt.Sprintf("%s/%d", p.in.behind(p.rows[at]).name, p.in.view.Device(row).Local)
	}
	if st.layout.HasExclusive() {
		if slice, i := st.layout.Excluded(p.s.id, p.numbers); slice != nil {
			row, device := name(i)
			return status.New(status.FailedPrecondition, "device %d (%s) is in an exclusive slice of %s; use other devices, "+
				"such as those of a slice of your own, or wait until it is released: add_slice(devices=…, wait=60)", row, device,
				st.ownerOf(slice.Session))
		}
	}
	if p.in.view.Sized() { // its devices are not among those that requests keep
		return nil
	}
	if r, i := st.layout.Keeper(p.s.id, p.s.begun, p.numbers); r != nil {
		row, device := name(i)
		return status.New(status.FailedPrecondition, "device %d (%s) is kept for a while for %s, which has waited for an "+
			"exclusive slice since before this session began; use other devices, or ask for some that are yours: "+
			"pathways.init(devices=…, wait=60)", row, device, st.ownerOf(r.Session))
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
	made, out := make([]wire.Span, len(all)), make([]*wire.Span, len(all))
	for i, span := range all {
		out[i] = &made[i]
		made[i].Worker, made[i].Local, made[i].Count = span.Worker, uint32(span.Local), uint32(span.Count)
	}
	return out
}
