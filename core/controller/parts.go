package controller

import (
	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/wire"
)

// Of an operation that names shards one by one, each worker is sent its own part: of a Put the devices that it has, of
// a Transfer the moves that begin or end at them, of a Graph the moves of its transfers, and the runs that it takes
// part in. So a worker's message grows with its own shards, and that of one worker alone is the client's message.
//
// Where a worker's part would not fit into a message, or the worker does not know of moves' indices, it is sent all of
// it, as the client sent it. That says the same: a worker leaves out what concerns others.

// dispatchParts is dispatch of a Put or a Transfer for several workers.
func (st *State) dispatchParts(g *gang) {
	st.tell(g.s, g.to)
	st.enter(g, g.to, g.conns)
	var head []byte
	var own [][]byte // by slot: what follows head
	switch m := g.message.(type) {
	case *wire.Put:
		head = encoded(&wire.Put{Op: m.Op, Object: m.Object, Array: m.Array})
		own = st.ownDevices(g.s, m.Devices)
	case *wire.Transfer:
		head = encoded(&wire.Transfer{Op: m.Op, Object: m.Object, Array: m.Array})
		st.introduceEnds(g.s, m.Moves)
		own = st.ownMoves(g.s, m.Moves)
	}
	_, isPut := g.message.(*wire.Put) // whose parts need no indices
	var whole []uint64                // those that are sent all of it
	g.to.each(func(slot int) {
		w := st.workers[slot]
		if w == nil || w.gone != nil {
			return
		}
		if w.protocol < wire.ProtocolParts && !isPut || len(head)+len(own[slot]) > maxOperation {
			whole = append(whole, w.to[0])
			return
		}
		st.part = append(append(st.part[:0], head...), own[slot]...)
		st.deliverDispatch(w.to[:], g.number, g.s, g.kind, st.part)
	})
	if len(whole) > 0 {
		st.deliverDispatch(whole, g.number, g.s, g.kind, g.payload)
	}
	g.message, g.payload = nil, nil
	if cap(st.part) > maxScratch {
		st.part = nil
	}
}

// encoded encodes a message that has been decoded, so that its text is UTF-8.
func encoded(m proto.Message) []byte {
	b, _ := proto.Marshal(m)
	return b
}

// ownDevices returns the fields of a Put that name devices, by the slots of their workers.
func (st *State) ownDevices(s *session, devices []uint32) [][]byte {
	by := make([][]uint32, len(st.workers))
	for _, d := range devices {
		by[s.slots[d]] = append(by[s.slots[d]], d)
	}
	own := make([][]byte, len(by))
	for slot, mine := range by {
		own[slot] = wire.AppendDevices(nil, mine)
	}
	return own
}

// ownMoves returns the fields of a Transfer that are moves, by the slots of the workers at their ends.
func (st *State) ownMoves(s *session, moves []*wire.Move) [][]byte {
	own := make([][]byte, len(st.workers))
	for i, m := range moves {
		m.Index = uint32(i + 1)
		from, to := s.slots[m.From], s.slots[m.To]
		own[from] = wire.AppendMove(own[from], m)
		if to != from {
			own[to] = wire.AppendMove(own[to], m)
		}
	}
	return own
}

// sendGraph sends a graph, which was checked, to its workers.
func (st *State) sendGraph(s *session, g *graph, m *wire.Graph, payload []byte) {
	for _, n := range m.Nodes {
		if n.Transfer != nil && len(g.all.conns) > 1 {
			st.introduceEnds(s, n.Transfer.Moves)
		}
	}
	var whole []uint64 // those that are sent all of it
	g.all.workers.each(func(slot int) {
		w := st.workers[slot]
		if w.gone != nil {
			return
		}
		if w.protocol >= wire.ProtocolParts && len(g.all.conns) > 1 {
			if part := graphFor(s, g, m, slot); proto.Size(part) <= maxOperation {
				st.send(w.to[:], wire.KindGraph, part)
				return
			}
		}
		whole = append(whole, w.to[0])
	})
	if len(whole) > 0 {
		from := len(st.buffer)
		st.buffer = wire.AppendGraph(st.buffer, payload, s.id)
		st.deliver(whole, wire.KindGraph, st.buffer[from:])
	}
}

// graphFor returns a graph as a worker is sent it, which has a part in it.
func graphFor(s *session, g *graph, m *wire.Graph, slot int) *wire.Graph {
	part := &wire.Graph{Graph: m.Graph, Inputs: m.Inputs, Nodes: make([]*wire.Node, len(m.Nodes)), Outputs: m.Outputs,
		Given: m.Given, Session: s.id}
	for i, n := range m.Nodes {
		switch here := g.nodes[i].over.workers.has(slot); {
		case here && n.Transfer != nil:
			part.Nodes[i] = &wire.Node{Makes: n.Makes, Trace: n.Trace, Transfer: &wire.Transfer{Array: n.Transfer.Array,
				Moves: ownRows(s, n.Transfer.Moves, slot)}}
		case here:
			part.Nodes[i] = n
		case n.Transfer != nil:
			part.Nodes[i] = &wire.Node{Makes: n.Makes, Transfer: new(wire.Transfer)}
		default: // the worker may have the program all the same, and Only says that it does not run it
			part.Nodes[i] = &wire.Node{Makes: n.Makes, Run: &wire.Run{Program: n.Run.Program, Only: n.Run.Only}}
		}
	}
	return part
}

// ownRows returns those of a graph's moves that begin or end at a worker's devices. A row of moves is cut to these.
func ownRows(s *session, moves []*wire.Move, slot int) (own []*wire.Move) {
	index := uint32(1)
	for _, m := range moves {
		var row *wire.Move // that is being made
		for k := range max(1, m.Count) {
			if s.slots[m.From+k] != slot && s.slots[m.To+k] != slot {
				row = nil
				continue
			}
			if row != nil {
				row.Count = max(1, row.Count) + 1
				continue
			}
			row = &wire.Move{Source: m.Source, From: m.From + k, To: m.To + k, Start: m.Start, Size: m.Size, At: m.At,
				Shard: m.Shard, Index: index + k}
			own = append(own, row)
		}
		index += max(1, m.Count)
	}
	return own
}
