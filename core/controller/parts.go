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
	deliver := func(slot int, head, own []byte) {
		if w := st.workers[slot]; w != nil && w.gone == nil && to.has(slot) {
			st.deliverDispatch(w.to[:], g.number, g.waited, g.s, g.kind, true, head, own)
		}
	}
	switch m := g.message.(type) {
	case *wire.Put:
		head := encoded(&wire.Put{Op: m.Op, Object: m.Object, Array: m.Array, Laid: m.Laid})
		for _, p := range g.place.own() {
			deliver(p.slot, head, p.devices)
		}
	case *wire.Transfer:
		head := encoded(&wire.Transfer{Op: m.Op, Object: m.Object, Array: m.Array})
		st.introducePairs(g.cut.pairs)
		to.each(func(slot int) { deliver(slot, head, g.cut.own[slot]) })
	}
}

// ownDevices is the devices of a place that are a worker's own, as fields of a Put.
type ownDevices struct {
	slot    int
	devices []byte
}

// own returns the devices of a place by worker, whose slots ascend. They do not change.
func (p *place) own() []ownDevices {
	if p.ownAt == nil {
		by := map[int][]uint32{}
		for _, d := range p.rows {
			slot := p.in.slot(d)
			by[slot] = append(by[slot], d)
		}
		p.ownAt = make([]ownDevices, 0, len(by))
		p.workers.each(func(slot int) {
			p.ownAt = append(p.ownAt, ownDevices{slot, wire.AppendDevices(nil, by[slot])})
		})
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
