package controller

import (
	"maps"
	"slices"

	graphs "github.com/openpathways/pathways/core/graph"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// graph is a session's graph with what its plays need at hand. Objects have their
// numbers in the graph.
type graph struct {
	id           uint64
	err          error // why it cannot be played
	inputs, made int
	nodes        []node
	all          *place     // of all nodes
	programs     []*program // that it keeps
	intermediate []uint64
}

// node is a node of a graph.
type node struct {
	name    string
	program *program // nil of a transfer
	at      *place   // of what it makes
	over    *place   // of all that take part
	first   uint64
	sizes   []int64 // of shards of what it makes
	counted []int64 // of these, the bytes that take device memory
	reads   []read
	donates []uint64
	frees   []uint64 // behind it nobody reads them
	inner   bool     // it makes intermediate objects, and nothing else
}

// read is a node's use of an object.
type read struct {
	object   uint64
	argument int
	on       set    // virtual devices
	at       *place // where on is all of a place
}

// define keeps a graph. What is wrong with it fails its plays.
func (st *State) define(s *session, m *wire.Graph, payload []byte) {
	if m.Graph == 0 || s.graphs[m.Graph] != nil || len(s.graphs) >= st.limits.Graphs {
		return // see unknown
	}
	g := &graph{id: m.Graph}
	s.graphs[g.id] = g
	if len(payload) > maxOperation {
		g.err = status.New(status.InvalidArgument,
			"the graph is a message of %d bytes, of at most %d; capture fewer operations at a time", len(payload), maxOperation)
	} else if s.nodes+len(m.Nodes) > st.limits.Nodes {
		g.err = status.New(status.ResourceExhausted,
			"the session's graphs have %d nodes, and with this one's %d more than %d; forget some", s.nodes, len(m.Nodes),
			st.limits.Nodes)
	} else {
		g.err = st.resolve(s, g, m)
	}
	if g.err != nil {
		g.nodes = nil
		return
	}
	s.nodes += len(g.nodes)
	for i := range g.nodes {
		if n := &g.nodes[i]; n.program != nil {
			if !slices.Contains(g.programs, n.program) {
				n.program.graphs++
				g.programs = append(g.programs, n.program)
			}
			st.load(s, n.program, n.at)
		}
	}
	st.tell(s, g.all.workers)
	st.sendGraph(s, g, m, payload)
}

// unknown is the error of plays of a graph that define did not keep.
func (st *State) unknown(s *session, id uint64) error {
	if len(s.graphs) >= st.limits.Graphs {
		return status.New(status.ResourceExhausted,
			"graph %d is not known: the session has %d graphs, which is its limit; forget some", id, len(s.graphs))
	}
	return invalid("graph %d is not known to this session; was it forgotten?", id)
}

// resolve finds the programs and places of a graph's nodes.
func (st *State) resolve(s *session, g *graph, m *wire.Graph) error {
	for i, n := range m.Nodes {
		if slices.ContainsFunc(n.GetTransfer().GetMoves(), func(v *wire.Move) bool { return v.GetIndex() != 0 }) {
			return invalid("node %d: a move has an index, which is not a client's to say", i)
		}
	}
	pg, err := m.Program()
	if err != nil {
		return err
	}
	pg.Programs = map[uint64]*graphs.Program{}
	for i := range pg.Nodes {
		if r := pg.Nodes[i].Run; r != nil && pg.Programs[r.Program] == nil {
			p := s.programs[r.Program]
			if p == nil {
				return invalid("node %d: program %d is not known to this session; was its executable deleted?", i, r.Program)
			}
			pg.Programs[r.Program] = &graphs.Program{
				Name: p.of.info.Name, Parameters: len(p.of.info.Parameters), Outputs: p.of.outputs,
				Donated: p.of.info.Donated, Devices: p.place.rows}
		}
	}
	if err := pg.Check(); err != nil {
		return err
	}
	g.inputs, g.made, g.intermediate, g.nodes = pg.Inputs, pg.Made(), pg.Intermediates(), make([]node, len(pg.Nodes))
	steps := pg.Lower(func(int) bool { return true })
	next := uint64(pg.Inputs) + 1
	var everywhere set
	for i := range pg.Nodes {
		if makes := m.Nodes[i].Makes; int(makes) != pg.Makes(i) {
			return invalid("node %d, %s: it makes %d arrays, the graph says %d", i, pg.Name(i), pg.Makes(i), makes)
		}
		n := &g.nodes[i]
		n.name, n.first, n.frees = pg.Name(i), next, steps[i].Frees
		n.inner = pg.Makes(i) > 0
		for range pg.Makes(i) {
			_, let := slices.BinarySearch(g.intermediate, next)
			n.inner = n.inner && let
			next++
		}
		pg.Donates(i, func(object uint64) { n.donates = append(n.donates, object) })
		if r := pg.Nodes[i].Run; r != nil {
			err = st.resolveRun(s, n, r)
		} else {
			err = st.resolveTransfer(s, n, pg.Nodes[i].Transfer)
		}
		if err != nil {
			return status.Wrap(err, "node %d, %s", i, n.name)
		}
		everywhere.union(n.over.has)
	}
	g.all, err = st.placeOf(s, everywhere)
	return err
}

// placeOf gives the place of a set of virtual devices.
func (st *State) placeOf(s *session, devices set) (*place, error) {
	var rows []uint32
	devices.each(func(d int) { rows = append(rows, uint32(d)) })
	return st.place(s, rows)
}

func (st *State) resolveRun(s *session, n *node, r *graphs.Run) (err error) {
	p := s.programs[r.Program]
	if n.at, err = st.placeOfRun(s, p, uint32(r.Only+1)); err != nil {
		return err
	}
	n.program, n.over, n.sizes, n.counted = p, n.at, p.of.outputs, p.counted
	for i, object := range r.Inputs {
		if object != 0 {
			n.reads = append(n.reads, read{object: object, argument: i, on: n.at.has, at: n.at})
		}
	}
	for _, mixed := range r.Mixed {
		row := 0
		for _, piece := range mixed.Pieces {
			var here set
			for _, d := range n.at.rows[row : row+int(piece.Rows)] {
				here.add(int(d))
			}
			n.reads = append(n.reads, read{object: piece.Object, argument: int(mixed.Argument), on: here})
			row += int(piece.Rows)
		}
	}
	return nil
}

func (st *State) resolveTransfer(s *session, n *node, t *graphs.Transfer) (err error) {
	var to []uint32
	var made, over set
	from := map[uint64]set{}
	for i := range t.Moves {
		move := &t.Moves[i]
		if int(move.To) >= len(s.slots) || int(move.From) >= len(s.slots) {
			return invalid("move %d names a device that is not in this session, which has devices 0 to %d", i, len(s.slots)-1)
		}
		if !made.has(int(move.To)) {
			made.add(int(move.To))
			to = append(to, move.To)
		}
		on := from[move.Source]
		on.add(int(move.From))
		from[move.Source] = on
		over.add(int(move.From))
		over.add(int(move.To))
	}
	if n.at, err = st.place(s, to); err != nil {
		return err
	}
	if n.over, err = st.placeOf(s, over); err != nil {
		return err
	}
	n.sizes, n.counted = []int64{t.Shape.Bytes()}, []int64{0}
	if st.isCounted(n.at, t.Memory) {
		n.counted = n.sizes
	}
	for i, source := range slices.Sorted(maps.Keys(from)) {
		n.reads = append(n.reads, read{object: source, argument: i, on: from[source]})
	}
	return nil
}

// forgetGraphs lets go of a session's graphs, and of programs that they kept.
func (st *State) forgetGraphs(s *session, ids []uint64) {
	for _, id := range ids {
		g := s.graphs[id]
		if g == nil {
			continue
		}
		delete(s.graphs, id)
		s.nodes -= len(g.nodes)
		var programs []uint64
		var workers set
		for _, p := range g.programs {
			if p.graphs--; p.forgotten && p.graphs == 0 {
				programs = append(programs, p.id)
				workers.union(p.loaded)
				st.let(p.of)
			}
		}
		if g.err == nil {
			workers.union(g.all.workers)
			st.send(st.connsOf(workers), wire.KindForget, &wire.Forget{Session: s.id, Programs: programs, Graphs: []uint64{id}})
		}
	}
}
