package controller

import (
	"github.com/openpathways/pathways/core/wire"
)

// A session's operations are performed, and get their memory, one after the other. From there on, those wait for each
// other that have a device in common, and no others: while a run waits for its place in the order of its island, what
// the session does on other devices goes on.
//
// # Why the order of a device is enough
//
// An operation that needs another one to be dispatched before it has a device in common with it. An operation that
// reads or donates an array has devices where the array is; what makes it has all of these; and a free waits on all
// devices of its array. Between devices bytes are carried by transfers, which have the devices at both ends. So in any
// order that keeps the session's on each device, a reader comes after the maker, and what frees or donates after the
// readers. Puts read nothing, and what reads them waits for them by itself: they wait for nothing. What only lets go
// keeps nothing back.
//
// A fetch makes nothing, so it waits for what makes its array alone: a script that reads what it computed some steps
// ago gets it while later steps wait for their places. (To read what was donated or freed before is an error of the
// client's, and it may read what was there.)
//
// # Why nothing waits without end
//
// An entry waits for earlier ones of its session alone. The first one of those that have not gone is a run which waits
// for its place; it was admitted, so it needs nothing but that, and the schedule has it start or fail.
//
// # What it costs
//
// A transfer has the devices at both ends, so later operations on the receiving one wait until the maker of its array
// has a place, whether they read that array or not. Places are given ahead for a window of device time only: a session
// that submits operations earlier than in the order in which they begin keeps other devices idle. Pipelines and MPMD
// programs are submitted in that order (python/pathways/_schedule.py, mpmd/_timetable.py).
//
// To have only what reads a transfer's array wait for it there would be enough for the above, but not for a controller
// that starts again: it takes what a worker has of a device to be all that came before it in the session (lost.go).
//
// # What is looked at twice
//
// When an operation is performed, those before it may not have started yet, and may fail before they do. Workers then
// never hear of what they were to make. So what an operation reads is looked at again when its turn comes.

// entry is something of a session that waits for its turn, or a run that waits for its place: then it has its turn, and
// those behind it wait for that. It is of one of four kinds, or of none if its operation has failed.
type entry struct {
	s      *session
	on     set          // virtual devices
	g      *gang        // an operation
	reads  uint64       // of a fetch: the array that it reads
	free   *wire.Free   // arrays to release
	forget *wire.Forget // programs and graphs
	play   *play        // with node: releases what no node behind that one uses
	node   int          //
	waits  int          // entries that it waits for
	then   []*entry     // those that wait for it
	before *entry       // neighbors in the line; before also links those to be used again
	behind *entry       //
}

// isPassive reports whether those that come later need not wait for an entry: it only lets go.
func (e *entry) isPassive() bool {
	return e.g == nil && (e.free != nil || e.forget != nil || e.play != nil)
}

// line is the operations of a session that wait for their turn, in order.
type line struct {
	first, last *entry
	length      int
}

// newEntry returns an entry that is in no line yet.
func (st *State) newEntry(s *session) *entry {
	e := st.freeEntries
	if e == nil {
		return &entry{s: s}
	}
	st.freeEntries, e.before, e.s = e.before, nil, s
	return e
}

// dropEntry keeps an entry to be used again.
func (st *State) dropEntry(e *entry) {
	clear(e.then)
	*e = entry{on: e.on[:0], then: e.then[:0], before: st.freeEntries}
	st.freeEntries = e
}

// makes reports whether an entry is of an operation that makes an array.
func (e *entry) makes(id uint64) bool {
	return e.g != nil && id >= e.g.first && id < e.g.first+uint64(e.g.makes)
}

// lineUp has an entry wait if one before it has a device in common with it; a fetch, if that makes its array. Otherwise
// it drops it, and returns false: its turn is now. To wait for the last one on each device is enough, and for the
// fetches behind that one, since it waits for those before it.
func (st *State) lineUp(e *entry) bool {
	rest := append(st.rest[:0], e.on...)
	for p := e.s.line.last; p != nil; p = p.before {
		if p.isPassive() || !rest.meets(p.on) || e.reads != 0 && !p.makes(e.reads) {
			continue
		}
		p.then = append(p.then, e)
		e.waits++
		if p.reads != 0 {
			continue
		}
		if rest.without(p.on); rest.count() == 0 {
			break
		}
	}
	st.rest = rest
	if e.waits == 0 {
		st.dropEntry(e)
		return false
	}
	e.s.line.append(e)
	return true
}

func (l *line) append(e *entry) {
	l.length++
	if e.before = l.last; e.before != nil {
		e.before.behind = e
	} else {
		l.first = e
	}
	l.last = e
}

func (l *line) remove(e *entry) {
	l.length--
	if e.before != nil {
		e.before.behind = e.behind
	} else {
		l.first = e.behind
	}
	if e.behind != nil {
		e.behind.before = e.before
	} else {
		l.last = e.before
	}
}

// waitsForTurn reports whether an operation that was admitted has to wait for others of its session, and has it do so.
func (st *State) waitsForTurn(g *gang) bool {
	if g.s.line.length == 0 || g.kind == wire.KindPut {
		return false
	}
	e := st.newEntry(g.s)
	e.g = g
	switch m := g.asked.(type) {
	case *wire.Fetch:
		e.reads = m.Object
		e.on = append(e.on, g.place.has...)
	case *wire.Transfer:
		e.on = append(e.on, g.place.has...)
		for i := range g.cut.sources {
			e.on.union(g.cut.sources[i].on)
		}
	default:
		on := g.place.has
		if g.play != nil {
			on = g.play.g.nodes[g.node].over.has
		}
		e.on = append(e.on, on...)
	}
	if !st.lineUp(e) {
		return false
	}
	g.entry = e
	g.keepPayload()
	return true
}

// keepInLine has later operations wait for a run which waits for its place.
func (st *State) keepInLine(g *gang) {
	if g.entry == nil {
		e := st.newEntry(g.s)
		e.g, e.on = g, append(e.on, g.place.has...)
		g.entry = e
		g.s.line.append(e)
		g.keepPayload()
	}
}

// leaveLine is behind an operation that was dispatched, or has failed.
func (st *State) leaveLine(g *gang) {
	e := g.entry
	if e == nil {
		return
	}
	g.entry, e.g = nil, nil
	if e.waits == 0 {
		st.pass(e)
	} // otherwise those behind it wait for what it waits for
}

// freeInTurn releases arrays once all before has been dispatched that uses them.
func (st *State) freeInTurn(s *session, m *wire.Free) {
	s.freeing -= len(m.Objects) + rowsIn(m.Rows)
	if s.line.length > 0 {
		e := st.newEntry(s)
		e.free = m
		for _, id := range m.Objects {
			e.on.unionOf(s.objects[id])
		}
		for _, rows := range m.Rows {
			e.on.unionOf(s.objects[rows.GetObject()])
		}
		if st.lineUp(e) {
			return
		}
	}
	st.free(s, m)
}

// unionOf adds the devices of an array, if there is one.
func (s *set) unionOf(o *object) {
	if o != nil {
		s.union(o.place.has)
	}
}

// forgetInTurn forgets programs and graphs once all before has been dispatched.
func (st *State) forgetInTurn(s *session, m *wire.Forget) {
	if s.line.length > 0 {
		e := st.newEntry(s)
		e.forget = m
		for p := s.line.last; p != nil; p = p.before {
			e.on.union(p.on)
		}
		if st.lineUp(e) {
			return
		}
	}
	st.forgetNow(s, m)
}

func (st *State) forgetNow(s *session, m *wire.Forget) {
	st.forgetGraphs(s, m.Graphs)
	st.forgetPrograms(s, m)
}

// freeBehindInTurn releases the arrays that no later node uses, once the nodes that use them have been dispatched.
func (st *State) freeBehindInTurn(p *play, node int) {
	if p.s.line.length > 0 && len(p.g.nodes[node].frees) > 0 {
		e := st.newEntry(p.s)
		e.play, e.node = p, node
		for _, object := range p.g.nodes[node].frees {
			e.on.unionOf(p.s.objects[p.object(object)])
		}
		if st.lineUp(e) {
			p.out++
			return
		}
	}
	st.freeBehind(p, node)
}

// pass takes an entry out of its line that waits for nothing any more, and has those go on that waited for it alone.
func (st *State) pass(e *entry) {
	st.passing = append(st.passing, e)
	if len(st.passing) > 1 {
		return // below, further up
	}
	for i := 0; i < len(st.passing); i++ {
		e := st.passing[i]
		s := e.s
		s.line.remove(e)
		for _, next := range e.then {
			if next.waits--; next.waits == 0 {
				st.comesUp(next)
			}
		}
		st.dropEntry(e)
		st.stir() // its memory may be what a gang that is held waits for
		st.wake(s)
	}
	clear(st.passing)
	st.passing = st.passing[:0]
}

// comesUp is the turn of an entry.
func (st *State) comesUp(e *entry) {
	g := e.g
	if g == nil {
		switch s := e.s; {
		case e.free != nil:
			st.free(s, e.free)
		case e.forget != nil:
			st.forgetNow(s, e.forget)
		case e.play != nil:
			st.freeBehind(e.play, e.node)
			st.settled(e.play)
		}
		st.pass(e)
		return
	}
	if err := st.usable(g); err != nil {
		st.refused(g, err)
		return
	}
	st.goOn(g)
}

// usable returns why an operation cannot go on that has waited.
func (st *State) usable(g *gang) error {
	switch m := g.asked.(type) {
	case *wire.Fetch:
		return st.fetchable(g.s, m, g.place)
	case *wire.Transfer:
		return st.transferable(g, m)
	}
	switch {
	case g.play != nil:
		return st.nodeReadable(g.play, g.node)
	case g.program != nil:
		return st.readable(g.s, g.program, g.place, g.run)
	}
	return nil // it reads nothing
}

// dropLine drops the operations that wait for their turn, of a session that has ended.
func (st *State) dropLine(s *session, why error) {
	for e := s.line.first; e != nil; {
		g, next := e.g, e.behind
		if g != nil {
			g.entry = nil
			if !g.isPlacing() { // the schedule ends those
				st.refused(g, why)
			}
		}
		st.dropEntry(e)
		e = next
	}
	s.line = line{}
}

// isPlacing reports whether a run waits for its place.
func (g *gang) isPlacing() bool { return g.island != nil && g.number == 0 }

// inLine returns the operation of that number which waits for its turn, or its place, nil if there is none.
func (s *session) inLine(op uint64) *gang {
	for e := s.line.first; e != nil; e = e.behind {
		if e.g != nil && e.g.op == op {
			return e.g
		}
	}
	return nil
}
