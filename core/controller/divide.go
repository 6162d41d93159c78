package controller

import (
	graphs "github.com/openpathways/pathways/core/graph"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// Each worker is sent its own part of a graph: all nodes in their order, but for nodes of other workers only what
// determines the numbers of arrays, and for transfers only the moves that begin or end at its devices. Dividing a graph
// takes time and memory in proportion to its nodes and to all their shards. Workers' messages are put together from the
// pieces; the longer ones only when they are sent.

// latePart is the size in bytes from which a worker's part of a graph is encoded only when it is sent. Shorter ones of
// a thousand workers are encoded in a millisecond.
const latePart = 4 << 10

// parts is a divided graph. It does not change any more.
type parts struct {
	head  []byte // all but the nodes
	nodes []piece
	short partList    // messages of fewer than latePart bytes
	long  []int       // slots of the workers that are sent longer ones
	sizes map[int]int // of all messages, by slot; nil if there is one worker, which is sent all of it
}

// piece is an encoded node, as workers are sent it.
type piece struct {
	others []byte         // those that take no part in it
	run    []byte         // those that do, of a run
	on     set            // their slots
	moves  map[int][]byte // those that do, of a transfer, by slot
}

func (p *piece) at(slot int) []byte {
	if p.run != nil && p.on.has(slot) {
		return p.run
	}
	if b := p.moves[slot]; b != nil {
		return b
	}
	return p.others
}

// divide makes the parts of a graph that was resolved.
func (d *sketch) divide() {
	workers := d.g.all.workers
	if workers.count() == 1 {
		return
	}
	p, m := &d.parts, d.m
	p.head = encoded(&wire.Graph{Graph: m.Graph, Inputs: m.Inputs, Outputs: m.Outputs, Given: m.Given, Session: d.s.id,
		Names: d.names})
	p.nodes = make([]piece, len(m.Nodes))
	cutter := &cutter{in: d.in, met: map[[2]int]bool{}}
	others := len(p.head) // bytes of a worker that takes part in nothing
	p.sizes = map[int]int{}
	for i, n := range m.Nodes {
		one := &p.nodes[i]
		one.on = d.g.nodes[i].over.workers
		if n.Transfer != nil {
			one.others = wire.AppendNode(nil, &wire.Node{Makes: n.Makes, Transfer: new(wire.Transfer)})
			one.moves = cutter.node(n)
		} else { // a worker may have the program all the same, and Only says that it does not run it
			one.others = wire.AppendNode(nil, &wire.Node{Makes: n.Makes,
				Run: &wire.Run{Program: n.Run.Program, Only: n.Run.Only}})
			one.run = wire.AppendNode(nil, n)
		}
		others += len(one.others)
		one.on.each(func(slot int) { p.sizes[slot] += len(one.at(slot)) - len(one.others) })
	}
	d.pairs = cutter.pairs
	workers.each(func(slot int) {
		if p.sizes[slot] += others; p.sizes[slot] < latePart {
			p.short.add(slot, p.bytes(slot))
			return
		}
		if p.long = append(p.long, slot); p.sizes[slot] > wire.MaxFrame {
			d.g.err = status.New(status.InvalidArgument, "one worker's part of the graph is a message of %d bytes, of at most "+
				"%d; capture fewer operations at a time", p.sizes[slot], wire.MaxFrame)
		}
	})
}

// movedPrograms names the programs whose results a graph moves, since who moves them need not have the program.
func movedPrograms(pg *graphs.Graph) (names []*wire.ProgramName) {
	seen := map[uint64]bool{}
	for i, maker := range pg.Makers() {
		if maker < 0 || maker == i {
			continue
		}
		id := pg.Nodes[maker].Run.Program
		if name := pg.Programs[id].Name; name != "" && !seen[id] {
			seen[id] = true
			names = append(names, &wire.ProgramName{Program: id, Name: name})
		}
	}
	return names
}

// bytes returns the message of a worker that takes part in the graph.
func (p *parts) bytes(slot int) []byte {
	b := append(make([]byte, 0, p.sizes[slot]), p.head...)
	for i := range p.nodes {
		b = append(b, p.nodes[i].at(slot)...)
	}
	return b
}

// cutter cuts rows of moves into those of each worker.
type cutter struct {
	in    *binding
	pairs [][2]int // of workers that exchange bytes for the nodes so far
	met   map[[2]int]bool
	rows  [][]*row // by slot; scratch of node
	used  []int    // slots that have some
}

// row is a part of a row of moves.
type row struct {
	of   *wire.Move
	last uint32 // of the moves of that row
	move *wire.Move
}

// node returns the encoded node of a transfer for each worker of its moves.
func (c *cutter) node(n *wire.Node) map[int][]byte {
	index, before := uint32(1), [2]int{}
	for _, m := range n.Transfer.Moves {
		for k := range max(1, m.Count) {
			from, to := c.in.slot(m.From+k), c.in.slot(m.To+k)
			if to == from {
				c.add(from, m, k, index, 0)
				continue
			}
			c.add(from, m, k, index, c.in.view.Device(int(m.To+k)).Worker)
			c.add(to, m, k, index, c.in.view.Device(int(m.From+k)).Worker)
			pair := [2]int{min(from, to), max(from, to)}
			if pair != before && !c.met[pair] {
				c.met[pair] = true
				c.pairs = append(c.pairs, pair)
			}
			before = pair
		}
		index += max(1, m.Count)
	}
	nodes := make(map[int][]byte, len(c.used))
	for _, slot := range c.used {
		t := &wire.Transfer{Array: n.Transfer.Array}
		for _, r := range c.rows[slot] {
			t.Moves = append(t.Moves, r.move)
		}
		nodes[slot] = wire.AppendNode(nil, &wire.Node{Makes: n.Makes, Trace: n.Trace, Transfer: t})
		c.rows[slot] = nil
	}
	c.used = c.used[:0]
	return nodes
}

// add adds move k of a row, whose first one has this index, to those of a worker. Peer is the one at its other end.
func (c *cutter) add(slot int, m *wire.Move, k, index uint32, peer uint64) {
	for len(c.rows) <= slot {
		c.rows = append(c.rows, nil)
	}
	rows := c.rows[slot]
	if n := len(rows); n == 0 {
		c.used = append(c.used, slot)
	} else if last := rows[n-1]; last.of == m && last.last+1 == k && last.move.Peer == peer {
		last.move.Count = max(1, last.move.Count) + 1
		last.last = k
		return
	}
	c.rows[slot] = append(rows, &row{of: m, last: k, move: &wire.Move{Source: m.Source, From: m.From + k, To: m.To + k,
		Start: m.Start, Size: m.Size, At: m.At, Shard: m.Shard, Index: index + k, Peer: peer}})
}

// maxSession bounds the bytes that AppendGraph appends for the session.
const maxSession = 8

// sendGraph sends a graph to its workers.
func (st *State) sendGraph(s *session, d *sketch, payload []byte, kept bool) {
	st.introducePairs(d.pairs)
	p := &d.parts
	if p.sizes == nil {
		if w := st.workers[d.g.all.slot]; w.gone == nil {
			st.sendWholeGraph(w, s, payload, kept)
		}
		return
	}
	to, own := st.receivers(&p.short, d.g.all.workers)
	st.deliverOwn(to, wire.KindGraph, nil, own)
	for _, slot := range p.long {
		if w := st.workers[slot]; w.gone == nil {
			st.deliverLate(w.to[:], wire.KindGraph,
				&Late{Size: p.sizes[slot], Encode: func() []byte { return p.bytes(slot) }})
		}
	}
}

// sendWholeGraph sends a worker a graph as the client sent it.
func (st *State) sendWholeGraph(w *worker, s *session, payload []byte, kept bool) {
	if kept {
		size := len(payload) + maxSession
		st.deliverLate(w.to[:], wire.KindGraph, &Late{Size: size, Encode: func() []byte {
			return wire.AppendGraph(make([]byte, 0, size), payload, s.id)
		}})
		return
	}
	from := len(st.buffer)
	st.buffer = wire.AppendGraph(st.buffer, payload, s.id)
	st.deliver(w.to[:], wire.KindGraph, st.buffer[from:])
}
