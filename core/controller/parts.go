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
	var head []byte
	var own [][]byte // by slot: what follows head
	switch m := g.message.(type) {
	case *wire.Put:
		head = encoded(&wire.Put{Op: m.Op, Object: m.Object, Array: m.Array, Laid: m.Laid})
		own = st.ownDevices(g.place.in, m.Devices)
	case *wire.Transfer:
		head = encoded(&wire.Transfer{Op: m.Op, Object: m.Object, Array: m.Array})
		st.introducePairs(g.cut.pairs)
		own = g.cut.own
	}
	to.each(func(slot int) {
		if w := st.workers[slot]; w != nil && w.gone == nil {
			st.deliverDispatch(w.to[:], g.number, g.waited, g.s, g.kind, true, head, own[slot])
		}
	})
}

// encoded encodes a message that has been decoded, so that its text is UTF-8.
func encoded(m proto.Message) []byte {
	b, _ := proto.Marshal(m)
	return b
}

// ownDevices returns the fields of a Put that name devices, by the slots of their workers.
func (st *State) ownDevices(b *binding, devices []uint32) [][]byte {
	by := make([][]uint32, len(st.workers))
	for _, d := range devices {
		slot := b.slot(d)
		by[slot] = append(by[slot], d)
	}
	own := make([][]byte, len(by))
	for slot, mine := range by {
		own[slot] = wire.AppendDevices(nil, mine)
	}
	return own
}
