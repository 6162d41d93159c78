package controller

import (
	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/wire"
)

// If an operation names single shards, each worker is sent its own part: its own devices of a Put, the moves of a
// Transfer that begin or end at its devices, and, of a Graph, such moves and the runs that it takes part in. So a
// worker's message grows with its own shards. If there is only one worker, it is sent the client's message. A move
// whose other end is on another worker names that worker, since a worker knows only its own devices of a session
// (tellDevices).

// dispatchParts is dispatch for a Put or a Transfer of several workers.
func (st *State) dispatchParts(g *gang) {
	st.tell(g.s, g.to)
	st.enter(g, g.to, g.conns)
	st.deliverParts(g, g.to)
	g.message, g.payload, g.cut = nil, nil, nil
}

// deliverParts sends their parts to some workers.
func (st *State) deliverParts(g *gang, to set) {
	switch m := g.message.(type) {
	case *wire.Put:
		head := encoded(&wire.Put{Op: m.Op, Object: m.Object, Array: m.Array, Laid: m.Laid})
		st.deliverOwnParts(g, to, head, g.place.own())
	case *wire.Transfer:
		head := encoded(&wire.Transfer{Op: m.Op, Object: m.Object, Array: m.Array})
		st.introducePairs(g.cut.pairs)
		st.deliverOwnParts(g, to, head, g.cut.own)
	}
}

// deliverOwnParts sends each of some workers its own part of an operation, behind what is the same for all.
func (st *State) deliverOwnParts(g *gang, to set, head []byte, own ownParts) {
	m := wire.Dispatch{Gang: g.number, Session: g.s.id, Kind: uint32(g.kind), Client: g.s.process.Number, Waited: g.waited}
	for _, p := range own {
		conns, parts := st.receivers(p, to)
		size := len(head) + p.size
		if size >= lateSize {
			for i, part := range parts {
				st.deliverDispatchLate(conns[i:i+1], g.number, g.waited, g.s, g.kind, true, [][]byte{head, part})
			}
			continue
		}
		st.room(wire.MaxDispatch + len(head))
		from := len(st.buffer)
		st.buffer = append(m.AppendBefore(st.buffer, size), head...)
		st.deliverOwn(conns, wire.KindDispatch, st.buffer[from:], parts)
	}
}

// receivers returns the connections of those workers of a list that are among others and have not gone, and their
// parts.
func (st *State) receivers(l *partList, among set) (conns []uint64, parts [][]byte) {
	conns = make([]uint64, 0, len(l.slots))
	for _, slot := range l.slots {
		if conn := st.peers[slot].conn; conn != 0 && among.has(slot) {
			conns = append(conns, conn)
		}
	}
	if len(conns) == len(l.slots) {
		return conns, l.parts
	}
	for i, slot := range l.slots {
		if st.peers[slot].conn != 0 && among.has(slot) {
			parts = append(parts, l.parts[i])
		}
	}
	return conns, parts
}

// ownParts is what workers are sent each for itself. It does not change. Parts of the same length are in one list,
// since what precedes them in a message is the same. So one action has the messages of ten thousand workers.
type ownParts []*partList

// partList is the parts of some workers.
type partList struct {
	size  int // of each, if they have the same
	slots []int
	parts [][]byte
}

func (l *partList) add(slot int, part []byte) {
	l.slots, l.parts = append(l.slots, slot), append(l.parts, part)
}

// partsOf returns the parts of these workers.
func partsOf(workers set, part func(slot int) []byte) (own ownParts) {
	by := map[int]*partList{}
	var last *partList
	workers.each(func(slot int) {
		b := part(slot)
		if last == nil || last.size != len(b) {
			if last = by[len(b)]; last == nil {
				last = &partList{size: len(b)}
				by[len(b)] = last
				own = append(own, last)
			}
		}
		last.add(slot, b)
	})
	return own
}

// own returns the devices of a place that are a worker's own, as fields of a Put, for each worker.
func (p *place) own() ownParts {
	if p.ownAt == nil {
		by := map[int][]uint32{}
		for _, d := range p.rows {
			slot := p.in.slot(d)
			by[slot] = append(by[slot], d)
		}
		p.ownAt = partsOf(p.workers, func(slot int) []byte { return wire.AppendDevices(nil, by[slot]) })
	}
	return p.ownAt
}

// surveyPut returns work on a put's devices that needs nothing which changes, where they are many and the session has
// no place of them.
func (st *State) surveyPut(ev *Event, s *session, m *wire.Put) func() {
	if len(m.Devices) < placeBeforehand || s.places[string(appendRows(nil, m.Devices))] != nil {
		return nil
	}
	b := s.binding
	return func() {
		if p, err := b.newPlace(s, m.Devices); err == nil { // otherwise Step says why
			p.own()
			ev.at = p
			ev.tells(p)
		}
	}
}

// encoded encodes a message that has been decoded, so that its text is UTF-8.
func encoded(m proto.Message) []byte {
	b, _ := proto.Marshal(m)
	return b
}
