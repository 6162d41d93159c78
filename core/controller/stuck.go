package controller

import (
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/chain"
	"github.com/openpathways/pathways/core/schedule"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// A deadlocked computation never ends by itself: a worker was stopped in the middle of a collective, or devices took
// different paths through a program and wait in collectives that do not match. Such a gang is aborted on all its
// workers once it has stood still for Config.StuckAfter.
//
// A gang stands still while each of its parts under way does, according to the last report of the part's worker. A part
// stands still if it is
//
//	in a collective     for which no byte has come
//	not begun           because of earlier gangs on its devices, which all stand still
//	on a silent worker  one that has sent nothing for some heartbeats
//
// Everything else counts as progress: a device that computes, a function of a client, a program that is being loaded,
// and a part of which nothing is known. So a long computation is never aborted, nor are those that wait for it.
//
// Of the gangs that stand still, only those with a cause of their own are aborted: those that wait behind no other
// gang, and those with one part on a worker that was silent for Config.StuckAfter and another part elsewhere. The
// others may proceed when these are gone. A gang waits only behind gangs with lower numbers, so if some stand still, at
// least one has such a cause.
//
// A transfer computes nothing, so it stands still if it has a part on a worker that was silent for so long, and another
// part elsewhere.
//
// The decision is made at a Tick, from the reports alone. Only while a worker is silent for so long, the gangs with
// parts there and elsewhere are recorded, so that a Tick examines only these and the held ones. Otherwise runs pay
// nothing for this.

// muted are the gangs that wait for workers that were silent for Config.StuckAfter.
type muted struct {
	slots set
	any   bool     // there are such workers
	gangs []uint64 // those with parts there and elsewhere, and some that have ended since
}

// enters records a gang that begins.
func (m *muted) enters(g *gang) {
	if m.any && g.left > 1 && g.waits.meets(m.slots) {
		m.gangs = append(m.gangs, g.number)
	}
}

// update determines which workers are silent, and which gangs wait for them.
func (m *muted) update(st *State) {
	var now set
	m.any = false
	for _, w := range st.workers {
		if w != nil && w.gone == nil && st.now-w.heard >= st.config.StuckAfter {
			now.add(w.slot)
			m.any = true
		}
	}
	waits := func(g *gang) bool { return g != nil && g.left > 1 && g.waits.meets(now) }
	if m.slots.covers(now) {
		m.gangs = slices.DeleteFunc(m.gangs, func(n uint64) bool { return !waits(st.gangs.Get(n)) })
	} else { // a worker has become silent
		m.gangs = m.gangs[:0]
		for n, g := range st.gangs.All() {
			if waits(g) {
				m.gangs = append(m.gangs, n)
			}
		}
	}
	m.slots = now
}

// stillness finds the gangs that stand still at a Tick.
type stillness struct {
	st    *State
	since map[uint64]standstill // what was found
}

// standstill says how long a gang has stood still.
type standstill struct {
	is     bool
	since  int64
	behind bool // some part of it waits behind another gang
}

// endStuck aborts the gangs that have stood still for too long.
func (st *State) endStuck() {
	after := st.config.StuckAfter
	if after <= 0 {
		return
	}
	look := &stillness{st: st, since: map[uint64]standstill{}}
	var stuck []*gang
	for _, n := range look.candidates() {
		g := st.gangs.Get(n)
		if g == nil || g.err != nil {
			continue
		}
		switch g.kind {
		case wire.KindPut, wire.KindFetch: // a client waits for one worker, or one worker for a client
		case wire.KindTransfer:
			if look.cut(g) {
				stuck = append(stuck, g)
			}
		default:
			if s := look.at(n); s.is && st.now-s.since >= after && (!s.behind || look.cut(g)) {
				stuck = append(stuck, g)
			}
		}
	}
	for _, g := range stuck {
		st.abortStuck(g)
	}
	if st.muted.any {
		st.endDependents()
	}
}

// endDependents fails runs that wait for their places on workers that were silent for StuckAfter and read failed
// objects: their turn would not come before the worker is back.
func (st *State) endDependents() {
	for _, is := range st.islands {
		var waits []uint64 // tickets
		for t, g := range is.held {
			if g.place.workers.meets(st.muted.slots) {
				waits = append(waits, t)
			}
		}
		slices.Sort(waits)
		for _, t := range waits {
			if g := is.held[t]; g != nil {
				if err := st.usable(g); err != nil {
					st.feed(is, schedule.Event{Kind: schedule.Cancel, ID: t, Err: err})
				}
			}
		}
	}
}

// candidates returns, by rising number, the gangs that devices were in by their workers' last reports, and those with
// parts both on workers that were silent for StuckAfter and elsewhere. As far as is known, no other gang has stood
// still for so long.
func (l *stillness) candidates() []uint64 {
	found := map[uint64]bool{}
	for _, w := range l.st.workers {
		if w == nil || w.gone != nil {
			continue
		}
		for _, m := range w.last.GetStanding() {
			found[m.GetGang()] = true
		}
	}
	l.st.muted.update(l.st)
	for _, n := range l.st.muted.gangs {
		found[n] = true
	}
	return slices.Sorted(maps.Keys(found))
}

// cut reports whether a gang has parts both on a worker that was silent for StuckAfter and elsewhere. A gang on one
// worker alone waits for no other worker, and may be computing.
func (l *stillness) cut(g *gang) bool {
	gone, there := 0, 0
	g.waits.each(func(slot int) {
		if w := l.st.workers[slot]; l.st.isSilent(w) && l.st.now-w.heard >= l.st.config.StuckAfter {
			gone++
		} else {
			there++
		}
	})
	return gone > 0 && there > 0
}

// at reports whether a gang stands still.
func (l *stillness) at(number uint64) standstill {
	if s, ok := l.since[number]; ok {
		return s
	}
	g := l.st.gangs.Get(number)
	if g == nil {
		g = l.st.leaving.Get(number)
	}
	if g == nil { // it has ended meanwhile
		return standstill{}
	}
	s, some := standstill{is: true, since: max(g.began, l.st.resumed)}, false
	g.waits.each(func(slot int) {
		if s.is {
			some = l.part(g, l.st.workers[slot], &s) || some
		}
	})
	s.is = s.is && some
	l.since[number] = s
	return s
}

// part adds the state of a worker's part of a gang. It reports whether the part is known to wait for something, since
// silent workers alone do not make a gang stand still.
func (l *stillness) part(g *gang, w *worker, s *standstill) (waits bool) {
	if w == nil || w.gone != nil {
		s.is = false
		return false
	}
	if l.st.isSilent(w) {
		s.since = max(s.since, w.heard)
		return false
	}
	stands := map[uint32]bool{}  // devices that do, for this gang
	missing := map[uint32]bool{} // those that they wait for
	for _, m := range w.last.GetStanding() {
		if m.GetGang() != g.number {
			continue
		}
		if m.At == wire.AtFunction || m.At == "" && !m.Behind {
			s.is = false
			return false
		}
		s.since = max(s.since, w.beat-m.StillMs*1e6)
		for _, d := range m.Devices {
			stands[d], missing[d] = true, missing[d] || m.At == ""
		}
		for _, d := range m.Missing {
			missing[d] = true
		}
	}
	for _, r := range w.last.GetRunning() {
		if r.GetGang() != g.number {
			continue
		}
		for _, d := range r.Devices {
			if !stands[d] {
				s.is = false // it computes
				return false
			}
		}
	}
	waits = len(stands) > 0
	if !waits && (g.place == nil || w.last.GetMoreRunning()+w.last.GetMoreStanding() > 0) {
		s.is = false
		return false
	}
	concerns := func(devices []uint32) bool {
		if !waits { // nothing of it has come to its turn
			return slices.ContainsFunc(devices, func(d uint32) bool { return slices.Contains(g.place.numbers, w.base+int(d)) })
		}
		return slices.ContainsFunc(devices, func(d uint32) bool { return missing[d] })
	}
	behind := false
	for n, devices := range w.under() {
		if n >= g.number || !concerns(devices) {
			continue
		}
		before := l.at(n)
		s.is, behind = s.is && before.is, true
	}
	s.is, s.behind = s.is && (waits || behind), s.behind || behind
	return waits || behind
}

// under yields the gangs that a worker's devices compute or wait in.
func (w *worker) under() func(yield func(uint64, []uint32) bool) {
	return func(yield func(uint64, []uint32) bool) {
		for _, m := range w.last.GetStanding() {
			if !yield(m.GetGang(), m.GetDevices()) {
				return
			}
		}
		for _, r := range w.last.GetRunning() {
			if !yield(r.GetGang(), r.GetDevices()) {
				return
			}
		}
	}
}

// abortStuck ends a gang on all its workers, with what it waits for as its error.
func (st *State) abortStuck(g *gang) {
	err := status.New(status.DeadlineExceeded,
		"%s stood still for %v and was aborted (--stuck-after): none of its devices computed, and no byte came that they "+
			"waited for\n%s", g.name(), time.Duration(st.config.StuckAfter), strings.Join(st.chain(g), "\n"))
	st.warn(g.about(wire.EventStuck), "aborted "+g.name()+" of "+g.s.owner()+", which stood still", err)
	st.fail(g, err)
}

// chain returns what a gang waits for, for its own session: it names no lines of other sessions.
func (st *State) chain(g *gang) []string {
	c := &chain.Chain{Report: &wire.Report{HeartbeatMs: st.config.Heartbeat / 1e6}, Ended: map[uint64]bool{}}
	all := new(wire.Report_Island)
	g.to.each(func(slot int) {
		w := st.workers[slot]
		if w == nil || w.gone != nil {
			return
		}
		last := proto.CloneOf(w.last)
		for _, m := range last.GetStanding() {
			if m.Session != g.s.id {
				m.Line = ""
			}
		}
		for _, r := range last.GetRunning() {
			if r.Session != g.s.id {
				r.Line = ""
			}
		}
		all.Workers = append(all.Workers, &wire.Report_Worker{Process: w.process, Last: last,
			SilentMs: (st.now - w.heard) / 1e6, LostInMs: st.lostIn(w) / 1e6})
		if !g.waits.has(slot) {
			c.Ended[w.process.Number] = true
		}
	})
	c.Report.Islands = []*wire.Report_Island{all}
	c.Gang(&wire.Report_SessionReport{Session: g.s.id}, g.number)
	if len(c.Lines) == 0 { // it is behind other gangs, and cut
		for _, w := range all.Workers {
			c.Silent(w, true, 1)
		}
	}
	return c.Lines
}
