package controller

import (
	"github.com/openpathways/pathways/core/wire"
)

// A session's operations are performed, and get their memory, one after the other. From then on an operation waits only
// for earlier ones that share a device with it: while a run waits for its place in the order of its island, the
// session's work on other devices proceeds.
//
// # Why the order of a device is enough
//
// If an operation has to be dispatched after another one, they share a device. An operation that reads or donates an
// array uses devices that have it; the operation that makes the array uses all of these; and a free waits on all
// devices of its array. Transfers, which move bytes between devices, use the devices at both ends. So in any order that
// keeps the session's order on each device, readers come after the maker, and frees and donations after the readers.
// Puts read nothing, and their readers wait for them separately, so puts wait for nothing. Entries that only release
// something delay no others.
//
// A fetch makes nothing, so it waits only for the operation that makes its array: a script that reads what it computed
// some steps ago gets it while later steps wait for their places. (Reading an array that was donated or freed before is
// the client's error; it may get the old contents.)
//
// # Why nothing waits without end
//
// An entry waits only for earlier ones of its session. The first entry in line is a run that waits for its place. It
// was admitted, so it needs nothing else, and the schedule starts or fails it.
//
// # What it costs
//
// A transfer uses the devices at both ends, so later operations on the receiving device wait until the maker of its
// array has a place, whether they read that array or not. Places are given only for a window of device time ahead. So a
// session should submit operations in the order in which they can begin, or it keeps devices idle. Pipelines and MPMD
// programs do so (python/pathways/_schedule.py, mpmd/_timetable.py).
//
// For the above it would be enough that only readers of a transfer's array wait for it. But a controller that starts
// again assumes that a worker which has an operation on a device has had all of the session's earlier ones on that
// device (lost.go).
//
// # What is checked twice
//
// When an operation is performed, earlier ones may not have started yet, and may fail before they do. Then workers
// never hear of their objects. So an operation's inputs are checked again when its turn comes.

// entry is an operation or a release that waits for its turn, or a run that has had its turn, waits for its place, and
// makes others wait. It is of one of four kinds, or of none if its operation has failed.
type entry struct {
	s            *session
	on           set          // virtual devices
	g            *gang        // an operation
	reads        uint64       // of a fetch: the array that it reads
	free         *wire.Free   // arrays to release
	forget       *wire.Forget // programs and graphs
	play         *play        // with node: releases what no node behind that one uses
	node         int          //
	waits        int          // entries that it waits for
	then         []*entry     // those that wait for it
	links[entry]              // in the line; before also links those to be used again
}

// isPassive reports whether later entries need not wait for this one: it only releases something.
func (e *entry) isPassive() bool {
	return e.g == nil && (e.free != nil || e.forget != nil || e.play != nil)
}

// line is the operations of a session that wait for their turn, in order.
type line struct {
	linkedList[entry, *entry]
	length int
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
	*e = entry{on: e.on[:0], then: e.then[:0], links: links[entry]{before: st.freeEntries}}
	st.freeEntries = e
}

// makes reports whether an entry is of an operation that makes an array.
func (e *entry) makes(id uint64) bool {
	return e.g != nil && id >= e.g.first && id < e.g.first+uint64(e.g.makes)
}

// lineUp makes an entry wait if an earlier one shares a device with it; a fetch, only if that one makes its array.
// Otherwise it drops the entry and returns false: its turn is now. It is enough to wait for the last one on each
// device, which waits for those before it, and for the fetches after that one.
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
	l.add(e)
}

func (l *line) remove(e *entry) {
	l.length--
	l.linkedList.remove(e)
}

// waitsForTurn reports whether an admitted operation has to wait for others of its session, and puts it into the line
// if so.
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

// keepInLine makes later operations wait for a run that waits for its place.
func (st *State) keepInLine(g *gang) {
	if g.entry == nil {
		e := st.newEntry(g.s)
		e.g, e.on = g, append(e.on, g.place.has...)
		g.entry = e
		g.s.line.append(e)
		g.keepPayload()
	}
}

// leaveLine removes an operation that was dispatched, or has failed, from the line.
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

// freeInTurn releases arrays once all earlier operations that use them have been dispatched.
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

// forgetInTurn forgets programs and graphs once all earlier operations have been dispatched.
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

// pass removes an entry that waits for nothing any more from its line. Entries that waited only for it have their turn.
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

// usable returns why an operation that has waited cannot proceed; nil if it can.
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

// inLine returns the operation of that number if it waits for its turn or its place; otherwise nil.
func (s *session) inLine(op uint64) *gang {
	for e := s.line.first; e != nil; e = e.behind {
		if e.g != nil && e.g.op == op {
			return e.g
		}
	}
	return nil
}
