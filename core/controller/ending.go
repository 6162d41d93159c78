package controller

import (
	"cmp"
	"math/bits"

	"github.com/openpathways/pathways/core/ledger"
	"github.com/openpathways/pathways/core/schedule"
	"github.com/openpathways/pathways/core/wire"
)

// This file decides when bytes leave the ledger: those of freed arrays, and of sessions that have ended, as gangs end.

// retire removes a freed object from the ledger as soon as all gangs of the session that may read it have ended. Puts
// are not waited for, since they read nothing, wait for their clients, and may never end; but an object stays until its
// own put has ended.
func (st *State) retire(s *session, o *object) {
	if o.charge == 0 {
		return
	}
	s.gave = st.now
	if put := st.gangs.Get(o.put); o.put != 0 && put != nil {
		freed := *o
		put.retires = append(put.retires, &freed)
		st.rechargeFreed(put, &freed)
	} else {
		st.retireCharge(s, o.charge)
	}
	o.charge = 0
	st.stir()
}

func (st *State) retireCharge(s *session, charge ledger.ID) {
	if s.readers.first == nil {
		st.ledger.Free(charge)
	} else {
		st.ledger.Retire(charge, s.entered)
	}
}

// gangs is a list of gangs, in the order of their numbers.
type gangs = linkedList[gang, *gang]

// listOf returns the list that a gang under way is in.
func (s *session) listOf(g *gang) *gangs {
	if g.kind == wire.KindPut {
		return &s.putters
	}
	return &s.readers
}

// list appends a gang to those of its session that are under way.
func (s *session) list(g *gang) {
	s.entered++
	g.turn = s.entered
	s.listOf(g).add(g)
}

// unlist removes a gang that has ended from its list. Objects leave the ledger that were freed before all gangs still
// under way were dispatched.
func (st *State) unlist(g *gang) {
	s, first := g.s, g.before == nil
	all := s.listOf(g)
	all.remove(g)
	for _, o := range g.retires {
		st.retireCharge(s, o.charge)
	}
	if !first || all != &s.readers {
		return
	}
	ended := s.entered
	if all.first != nil {
		ended = all.first.turn - 1
	}
	if st.ledger.Passed(ledger.Owner(s.id), ended) {
		st.stir()
	}
}

// dispatched yields the session's gangs that are under way, by rising number. No other than the one yielded may end
// meanwhile.
func (s *session) dispatched(yield func(*gang) bool) {
	reader, putter := s.readers.first, s.putters.first
	for reader != nil || putter != nil {
		next := &putter
		if putter == nil || reader != nil && reader.turn < putter.turn {
			next = &reader
		}
		g := *next
		if *next = g.behind; !yield(g) {
			return
		}
	}
}

// isThrough reports whether a session has nothing under way.
func (s *session) isThrough() bool { return s.readers.first == nil && s.putters.first == nil }

// outlive keeps counting a gang for its session, which has ended, until its workers have reported the gang. A run keeps
// its place in the schedule, too: its devices are not free before their workers have reported it, and its device time
// is charged to its tenant.
func (st *State) outlive(g *gang) {
	st.gangs.Delete(g.number)
	g.waits.each(func(slot int) { st.busy[slot]-- })
	st.leaving.Set(g.number, g)
	st.left++
	g.s.out--
	st.leavesDevices(g)
}

// TakePart takes a worker's report in place of Step if it says that one part of a gang has succeeded, others are left,
// and nothing follows from that. Most reports of gangs of many workers are such. There are no actions, and no time
// passes: the worker counts as heard of at the time of the last Step. If the report is for Step, TakePart does nothing
// and returns false.
func (st *State) TakePart(conn uint64, m *wire.Completed) bool {
	c := st.conns.Get(conn)
	if c == nil || c.w == nil || len(m.Ok) != 1 || len(m.Failed) > 0 || len(c.w.remains) > 0 {
		return false
	}
	w, g := c.w, st.gangs.Get(m.Ok[0])
	if g == nil || g.left == 1 || g.err != nil || !g.waits.has(w.slot) || st.partsMatter(g, g.left-1) {
		return false
	}
	w.heard = st.now
	st.partDone(g, w, m, 0)
	return true
}

// partsMatter reports whether to tell the schedule that a part of a run has ended while others have not, so that its
// devices are free for the next run. That does not matter if nothing else waits, and it matters little if a collective
// ends all parts together, or if the run is short. While more than a few parts are under way, the schedule is told only
// when half as many are left as the last time.
func (st *State) partsMatter(g *gang, left int) bool {
	const few = 16
	if g.island == nil || g.ran == nil || g.ran.collective || len(st.sessions) < 2 && g.island.sched.Queued() == 0 {
		return false
	}
	// Telling about all parts takes some 300 ns per device: a hundredth of this.
	isShort := g.ran.usual > 0 && g.ran.usual < 30e3*int64(len(g.place.rows))
	return !isShort && (left <= few || bits.OnesCount(uint(left)) == 1)
}

// leavesDevices tells the schedule on which devices a run has ended. On the others, if the run has failed or its
// session has ended, it may wait for a computation that does not end; that must not keep the devices that are free from
// other runs.
func (st *State) leavesDevices(g *gang) {
	if g.island == nil {
		return
	}
	var on []int
	for _, d := range g.place.rows {
		if !g.waits.has(g.place.in.slot(d)) {
			on = append(on, g.place.in.view.Device(int(d)).Number)
		}
	}
	if len(on) > 0 {
		st.feed(g.island, schedule.Event{Kind: schedule.Left, ID: g.ticket, Gang: schedule.Gang{
			Devices: schedule.Devices(on...)}, Time: int64(g.spent) / int64(len(on))})
	}
}

// outlived handles the end of a worker's part of a gang whose session has ended. Spent and err are those of through.
func (st *State) outlived(g *gang, w *worker, spent uint64, err error) {
	if g == nil || !g.waits.has(w.slot) {
		return
	}
	g.waits.remove(w.slot)
	g.spent += min(spent, maxSpent)
	g.err = cmp.Or(g.err, err)
	if g.left--; g.left > 0 {
		st.leavesDevices(g)
		return
	}
	st.leaving.Delete(g.number)
	st.left++
	st.computed(g)
	st.unlist(g)
	if g.s.isThrough() {
		st.ledger.DropOwner(ledger.Owner(g.s.id))
	}
	st.stir()
	is, ticket, time := g.island, g.ticket, st.charge(g)
	st.recycle(g)
	if is != nil {
		st.feed(is, schedule.Event{Kind: schedule.Completed, ID: ticket, Time: time})
	}
}
