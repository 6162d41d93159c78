package worker

import (
	"slices"

	graphs "github.com/openpathways/pathways/core/graph"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/xla/protowalk"
)

// A graph is kept taken apart, and a play makes gangs of its nodes: the same as if
// they had come one by one. Each device lets go of its shards of what is not kept
// behind its own last part that uses them.

// graph is a session's graph. Objects have their numbers in it.
type graph struct {
	err    error // why it cannot be played here
	inputs uint64
	nodes  []node
}

// node is a node of a graph.
type node struct {
	first  uint64 // object that it makes
	run    *graphs.Run
	kept   []int // of run, arguments that are not donated
	mixed  []*wire.Mixed
	shape  shape.Shape // of a transfer
	memory string
	moves  []*move
	here   bool // devices of this worker take part
	frees  []frees
}

// frees is what some queues let go of behind a node.
type frees struct {
	objects []uint64
	queues  []*queue
}

// graph keeps a graph.
func (w *Worker) graph(m *wire.Graph) {
	g := new(graph)
	w.graphs[programKey{m.Session, m.Graph}] = g
	if g.err = w.resolve(g, m); g.err != nil {
		g.err = status.Wrap(g.err, "graph %d on worker %s", m.Graph, w.config.Name)
	}
}

func (w *Worker) resolve(g *graph, m *wire.Graph) error {
	pg, err := m.Program()
	if err != nil {
		return err
	}
	// Programs of other workers alone are not known here.
	pg.Programs = map[uint64]*graphs.Program{}
	for i := range pg.Nodes {
		if r := pg.Nodes[i].Run; r != nil {
			pg.Programs[r.Program] = &graphs.Program{Outputs: make([]int64, min(m.Nodes[i].Makes, graphs.MaxObjects))}
		}
	}
	g.inputs, g.nodes = uint64(pg.Inputs), make([]node, len(pg.Nodes))
	takes := make([][]bool, len(w.queues)) // by queue and node
	next := g.inputs + 1
	for i := range pg.Nodes {
		n := &g.nodes[i]
		n.first = next
		next += uint64(pg.Makes(i))
		queues, err := w.resolveNode(m.Session, n, &pg.Nodes[i], m.Nodes[i])
		if err != nil {
			return status.Wrap(err, "node %d", i)
		}
		n.here = len(queues) > 0
		for _, q := range queues {
			if takes[q.local] == nil {
				takes[q.local] = make([]bool, len(pg.Nodes))
			}
			takes[q.local][i] = true
		}
	}
	for local, mine := range takes {
		if mine == nil {
			continue
		}
		for _, step := range pg.Lower(func(i int) bool { return mine[i] }) {
			if len(step.Frees) > 0 {
				g.nodes[step.Node].freedBy(step.Frees, w.queues[local])
			}
		}
	}
	return nil
}

// freedBy has a queue let go of objects behind the node.
func (n *node) freedBy(objects []uint64, q *queue) {
	for i := range n.frees {
		if f := &n.frees[i]; slices.Equal(f.objects, objects) {
			f.queues = append(f.queues, q)
			return
		}
	}
	n.frees = append(n.frees, frees{objects, []*queue{q}})
}

// resolveNode keeps of a node what concerns this worker. It gives the queues of
// devices that take part.
func (w *Worker) resolveNode(session uint32, n *node, pn *graphs.Node, m *wire.Node) ([]*queue, error) {
	if pn.Run != nil {
		n.run, n.mixed = pn.Run, m.Run.Mixed
		for _, argument := range pn.Run.NotDonated {
			n.kept = append(n.kept, int(argument))
		}
		if w.programs[programKey{session, pn.Run.Program}] == nil {
			return nil, nil
		}
		g := &gang{w: w, session: session}
		err := w.arrange(g, n.play(&played{first: 1})) // its objects keep their numbers
		return g.queues, err
	}
	t := &transfer{shape: pn.Transfer.Shape}
	n.shape, n.memory = pn.Transfer.Shape, pn.Transfer.Memory
	g := new(gang)
	legs := map[*queue]*leg{}
	for i := range pn.Transfer.Moves {
		pm := &pn.Transfer.Moves[i]
		one := &wire.Move{Source: pm.Source, From: pm.From, To: pm.To, Start: pm.Start, Size: pm.Size, At: pm.At,
			Shard: &wire.Array{Dtype: uint32(pm.Shard.DType), Dims: pm.Shard.Dims}}
		v, err := t.move(i, one)
		if err == nil {
			err = w.route(session, v, one)
		}
		if err != nil {
			return nil, status.Wrap(err, "move %d of %d", i, len(pn.Transfer.Moves))
		}
		if v.out != nil || v.queue != nil {
			n.moves = append(n.moves, v)
			t.add(g, legs, v)
		}
	}
	return g.queues, t.lay(g)
}

// play makes a run of a node.
func (n *node) play(d *played) *run {
	r := &run{name: n.run.Program, first: d.object(n.first), inputs: make([]uint64, len(n.run.Inputs)), kept: n.kept,
		only: uint32(n.run.Only + 1), trace: n.run.Trace}
	for i, id := range n.run.Inputs {
		if id != 0 {
			r.inputs[i] = d.object(id)
		}
	}
	for _, m := range n.mixed {
		one := &wire.Mixed{Argument: m.Argument}
		for _, p := range m.Pieces {
			one.Pieces = append(one.Pieces, &wire.Piece{Object: d.object(p.Object), Rows: p.Rows})
		}
		r.mixed = append(r.mixed, one)
	}
	return r
}

// playTransfer makes a transfer of a node the gang's work.
func (n *node) playTransfer(g *gang, d *played) error {
	t := &transfer{object: d.object(n.first), shape: n.shape, memory: n.memory}
	legs := make(map[*queue]*leg, len(n.moves))
	moves := make([]move, len(n.moves))
	for i, v := range n.moves {
		moves[i] = *v
		moves[i].source, moves[i].local = d.object(v.source), nil
		t.add(g, legs, &moves[i])
	}
	return t.lay(g)
}

// played is a wire.Played.
type played struct {
	gang, graph, op, first uint64
	client                 uint64
	session, from, count   uint32
	inputs                 []uint64
}

func (d *played) decode(b []byte) (err error) {
	*d = played{inputs: d.inputs[:0]}
	for f, err := range protowalk.Fields(b) {
		if err != nil {
			return err
		}
		switch {
		case f.Bytes == nil && !varint(f):
		case f.Number == 8:
			if d.inputs, err = numbers(d.inputs, f); err != nil {
				return err
			}
		case f.Bytes != nil:
		case f.Number == 1:
			d.gang = f.Value
		case f.Number == 2:
			d.session = uint32(f.Value)
		case f.Number == 3:
			d.graph = f.Value
		case f.Number == 4:
			d.op = f.Value
		case f.Number == 5:
			d.from = uint32(f.Value)
		case f.Number == 6:
			d.count = uint32(f.Value)
		case f.Number == 7:
			d.first = f.Value
		case f.Number == 9:
			d.client = f.Value
		}
	}
	return nil
}

// object gives the session's number of an object of the graph.
func (d *played) object(local uint64) uint64 {
	if n := uint64(len(d.inputs)); local > n {
		return d.first + local - n - 1
	}
	return d.inputs[local-1]
}

// postAfter is how many nodes are taken apart before their devices may begin.
const postAfter = 16

// play makes gangs of nodes.
func (w *Worker) play(d *played) {
	gr := w.graphs[programKey{d.session, d.graph}]
	var err error
	switch {
	case gr == nil:
		err = status.New(status.Internal, "graph %d of session %d was not sent to worker %s", d.graph, d.session, w.config.Name)
	case gr.err != nil:
		err = gr.err
	case uint64(len(d.inputs)) != gr.inputs || uint64(d.from)+uint64(d.count) > uint64(len(gr.nodes)):
		err = status.New(status.Internal, "a play of graph %d on worker %s has other inputs or nodes than the graph", d.graph, w.config.Name)
	}
	if err != nil {
		for i := range uint64(min(d.count, graphs.MaxNodes)) { // those of others are of no interest to the controller
			w.report.add(d.gang+i, err)
		}
		w.report.flush()
		return
	}
	for i := range d.count {
		n := &gr.nodes[d.from+i]
		if !n.here {
			continue
		}
		w.playNode(d, n, &gang{w: w, id: d.gang + uint64(i), op: d.op + uint64(d.from+i), session: d.session, client: d.client})
		if i%postAfter == postAfter-1 {
			w.posts.leave(false)
		}
	}
	w.posts.leave(d.count <= postAfter && !w.conn.Buffered())
}

func (w *Worker) playNode(d *played, n *node, g *gang) {
	var err error
	if n.run != nil {
		err = w.arrange(g, n.play(d))
	} else {
		err = n.playTransfer(g, d)
	}
	w.post(g, err)
	for _, f := range n.frees {
		gone := &free{make([]uint64, len(f.objects))}
		for i, object := range f.objects {
			gone.objects[i] = d.object(object)
		}
		g := &gang{w: w, session: d.session, work: gone}
		for _, q := range f.queues {
			w.posts.add(q, part{g: g}, true)
		}
	}
}
