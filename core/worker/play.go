package worker

import (
	"slices"

	graphs "github.com/openpathways/pathways/core/graph"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// A worker resolves a graph once, when it arrives: it keeps the part of each node that concerns its own devices. A play
// then makes a gang of each of these nodes and posts its parts, as if its operation had come by itself. So a played
// node has the order, the pins and the errors of any other operation, and nothing here waits for its end.
//
// # Why no part needs what is freed
//
// An array that the graph does not keep is freed by each device for itself. resolve finds the last node that uses it
// there, and playNode posts the free after that node's part, into the same queue. A queue takes its parts in order: all
// parts of this device that use the shard come before, and pin it until they have ended. Other devices have shards of
// their own. If a node fails, the frees after it are posted all the same.

// graph is a session's graph, as this worker has resolved it. Its objects have the graph's own numbers; each play turns
// them into the session's (graphs.Number).
type graph struct {
	err    error  // why it cannot be played here
	inputs uint64 // how many
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
	trace  []byte // of a transfer
	what   string // of a transfer, for errors
	here   bool   // devices of this worker take part
	frees  []frees
}

// frees lists the objects that some queues free after a node.
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

// resolve keeps the part of each node that concerns this worker, and the objects that its devices free after each node.
func (w *Worker) resolve(g *graph, m *wire.Graph) error {
	pg, err := m.Program()
	if err != nil {
		return err
	}
	// Programs of other workers alone are not known here, but for their names.
	names := map[uint64]string{}
	for _, n := range m.Names {
		names[n.Program] = n.Name
	}
	pg.Programs = map[uint64]*graphs.Program{}
	for i := range pg.Nodes {
		if r := pg.Nodes[i].Run; r != nil {
			name := names[r.Program]
			if p := w.programs[programKey{m.Session, r.Program}]; p != nil {
				name = p.Name
			}
			pg.Programs[r.Program] = &graphs.Program{Name: name,
				Outputs: make([]int64, min(m.Nodes[i].Makes, graphs.MaxObjects))}
		}
	}
	g.inputs, g.nodes = uint64(pg.Inputs), make([]node, len(pg.Nodes))
	takes := make([][]bool, len(w.queues)) // by queue and node
	next := g.inputs + 1
	for i, maker := range pg.Makers() {
		n := &g.nodes[i]
		if n.what = movingArray; maker >= 0 && maker != i {
			n.what = "moving a result of " + pg.Name(maker)
		}
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

// freedBy has a queue free objects after the node.
func (n *node) freedBy(objects []uint64, q *queue) {
	for i := range n.frees {
		if f := &n.frees[i]; slices.Equal(f.objects, objects) {
			f.queues = append(f.queues, q)
			return
		}
	}
	n.frees = append(n.frees, frees{objects, []*queue{q}})
}

// resolveNode keeps the part of a node that concerns this worker. It returns the queues of the devices that take part.
func (w *Worker) resolveNode(session uint32, n *node, pn *graphs.Node, m *wire.Node) ([]*queue, error) {
	if pn.Run != nil {
		n.run, n.mixed, n.kept = pn.Run, m.Run.Mixed, arguments(pn.Run.NotDonated)
		if w.programs[programKey{session, pn.Run.Program}] == nil {
			return nil, nil
		}
		g, r := newRun(w, 0, 0, session, 0)
		n.play(g, r, &wire.Played{First: 1})
		err := w.arrange(g, r) // its objects keep their numbers
		return g.queues, err
	}
	t := &transfer{shape: pn.Transfer.Shape}
	n.shape, n.memory, n.trace = pn.Transfer.Shape, pn.Transfer.Memory, pn.Transfer.Trace
	g := new(gang)
	legs := map[*queue]*leg{}
	told := m.Transfer.Told()
	for i := range pn.Transfer.Moves {
		pm := &pn.Transfer.Moves[i]
		one := &wire.Move{Source: pm.Source, From: pm.From, To: pm.To, Start: pm.Start, Size: pm.Size, At: pm.At,
			Shard: &wire.Array{Dtype: uint32(pm.Shard.DType), Dims: pm.Shard.Dims}, Index: told[i].Index, Peer: told[i].Peer}
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
	return g.queues, t.lay(w, g)
}

// play fills in a run of the node for one play, and the objects of its gang.
func (n *node) play(g *gang, r *run, d *wire.Played) {
	g.First, g.Objects = graphs.Number(n.first, d.Inputs, d.First), make([]uint64, len(n.run.Inputs))
	r.name, r.kept, r.only, r.trace = n.run.Program, n.kept, uint32(n.run.Only+1), n.run.Trace
	for i, id := range n.run.Inputs {
		if id != 0 {
			g.Objects[i] = graphs.Number(id, d.Inputs, d.First)
		}
	}
	for _, m := range n.mixed {
		one := &wire.Mixed{Argument: m.Argument}
		for _, p := range m.Pieces {
			one.Pieces = append(one.Pieces, &wire.Piece{Object: graphs.Number(p.Object, d.Inputs, d.First), Rows: p.Rows})
		}
		r.mixed = append(r.mixed, one)
	}
}

// playTransfer makes the node's transfer the gang's work for one play. The moves are copied, since each play has other
// objects.
func (n *node) playTransfer(g *gang, d *wire.Played) error {
	t := &transfer{object: graphs.Number(n.first, d.Inputs, d.First), shape: n.shape, memory: n.memory,
		trace: n.trace, what: n.what}
	legs := make(map[*queue]*leg, len(n.moves))
	moves := make([]move, len(n.moves))
	for i, v := range n.moves {
		moves[i] = *v
		moves[i].source, moves[i].local = graphs.Number(v.source, d.Inputs, d.First), nil
		t.add(g, legs, &moves[i])
	}
	return t.lay(g.w, g)
}

// postAfter is how many nodes of a play become gangs before the devices get their parts. With more, devices would begin
// later; with fewer, their queues would be woken more often.
const postAfter = 16

// play makes gangs of those nodes of a play in which this worker takes part, and posts their parts.
func (w *Worker) play(d *wire.Played) {
	w.newest = max(w.newest, d.Gang+uint64(d.Count)-1)
	gr := w.graphs[programKey{d.Session, d.Graph}]
	var err error
	switch {
	case gr == nil:
		err = status.New(status.Internal, "graph %d of session %d was not sent to worker %s", d.Graph, d.Session,
			w.config.Name)
	case gr.err != nil:
		err = gr.err
	case uint64(len(d.Inputs)) != gr.inputs || uint64(d.From)+uint64(d.Count) > uint64(len(gr.nodes)):
		err = status.New(status.Internal, "a play of graph %d on worker %s has other inputs or nodes than the graph", d.Graph,
			w.config.Name)
	}
	if err != nil {
		for i := range uint64(min(d.Count, graphs.MaxNodes)) { // the controller ignores those of other workers
			w.report.add(newGang(w, d.Gang+i, d.Op+uint64(d.From)+i, d.Session, d.Client), err, false)
		}
		w.report.flush()
		return
	}
	came := w.sees(d.Session, 0)
	for i := range d.Count {
		n := &gr.nodes[d.From+i]
		if !n.here {
			continue
		}
		w.playNode(d, n, i, came)
		if i%postAfter == postAfter-1 {
			w.posts.leave(false)
		}
	}
	w.posts.leave(d.Count <= postAfter && !w.conn.Buffered())
}

// playNode makes a gang of a node of a play; came is its record, if there is one.
func (w *Worker) playNode(d *wire.Played, n *node, i uint32, came *seen) {
	id, op := d.Gang+uint64(i), d.Op+uint64(d.From+i)
	if n.run != nil {
		g, r := newRun(w, id, op, d.Session, d.Client)
		g.seen = came // runs add nothing to it
		n.play(g, r, d)
		w.post(g, w.arrange(g, r))
	} else {
		g := newGang(w, id, op, d.Session, d.Client)
		g.seen = came.own()
		w.post(g, n.playTransfer(g, d))
	}
	for _, f := range n.frees {
		objects := make([]uint64, len(f.objects))
		for i, object := range f.objects {
			objects[i] = graphs.Number(object, d.Inputs, d.First)
		}
		p := freePart(d.Session, objects)
		for _, q := range f.queues {
			w.posts.add(q, p, true)
		}
	}
}
