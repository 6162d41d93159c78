package sharded

import (
	"sync"

	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/graph"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
)

// Builder builds a graph: runs and transfers of arrays that do not exist yet. Only one
// goroutine may use it. Its methods do not return errors; End returns the first one.
//
//	b := session.Build()
//	v := b.Input(shape.F32, []int64{8}, sharded.Rows(0, 1))
//	x := b.Run(double, v)[0]
//	y := b.Run(add, b.Copy(x, 2, 3))[0]
//	graph, err := b.End(y)
//	results, err := graph.Play(array)
type Builder struct {
	session *Session
	graph   graph.Graph
	inputs  []form
	made    []*Value // values that nodes make, in order
	err     error
}

// Value is an array of a graph that is being built.
type Value struct {
	form
	builder *Builder
	number  int // among the inputs, or among the values that nodes make
	input   bool
}

// Build begins a graph.
func (s *Session) Build() *Builder {
	return &Builder{session: s, graph: graph.Graph{Programs: map[uint64]*graph.Program{}}}
}

// fail records err unless there was an error before.
func (b *Builder) fail(err error) {
	if b.err == nil {
		b.err = err
	}
}

// Input adds an array that the caller passes to Play.
func (b *Builder) Input(dtype shape.DType, dims []int64, layout Layout) *Value {
	whole := shape.Shape{DType: dtype, Dims: dims}
	l, err := layout.check(dims, b.session.Devices())
	if err == nil && (dtype.Bits() == 0 || whole.HostBytes() < 0) {
		err = status.New(status.InvalidArgument,
			"an array of %v: expected a known element type, and dimensions that are not negative and fit in memory", whole)
	}
	if err != nil {
		b.fail(status.Wrap(err, "input %d", len(b.inputs)))
		l = Layout{}
	}
	v := &Value{form: form{dtype: dtype, layout: l, tiled: err == nil}, builder: b, number: len(b.inputs), input: true}
	if err == nil {
		v.shard = l.shard(dims)
	}
	b.inputs = append(b.inputs, v.form)
	return v
}

// Run adds a run that keeps its arguments, and returns its results; see Program.Run.
func (b *Builder) Run(p *Program, arguments ...*Value) []*Value {
	return b.run(p, p.remote.Info.Donated, arguments)
}

// RunDonating adds a run that reuses the memory of the arguments that its program
// consumes, except those whose numbers are in keep and those that are inputs of the
// graph; see Program.RunDonating.
func (b *Builder) RunDonating(p *Program, keep []int, arguments ...*Value) []*Value {
	kept, err := p.kept(keep)
	if err != nil {
		b.fail(err)
	}
	for i, v := range arguments {
		if v.input {
			kept = append(kept, uint32(i))
		}
	}
	return b.run(p, kept, arguments)
}

func (b *Builder) run(p *Program, kept []uint32, arguments []*Value) []*Value {
	name := p.remote.Info.Name
	err := p.check(len(arguments))
	if p.session != b.session {
		err = status.New(status.InvalidArgument, "the program %s belongs to another session", name)
	}
	for i, v := range arguments {
		if err == nil {
			if err = b.of(v); err == nil {
				err = v.like(p.takes(i))
			}
			err = status.Wrap(err, "argument %d of %s", i, name)
		}
	}
	if err != nil {
		b.fail(status.Wrap(err, "node %d", len(b.graph.Nodes)))
	}
	b.graph.Programs[p.remote.ID] = p.remote.Program()
	r := &graph.Run{Program: p.remote.ID, NotDonated: kept, Only: -1}
	for _, v := range arguments {
		r.Inputs = append(r.Inputs, v.object())
	}
	results := make([]form, len(p.remote.Info.Outputs))
	for i := range results {
		results[i] = p.makes(i)
	}
	return b.add(graph.Node{Run: r}, results)
}

// Reshard adds a transfer into another layout; see Array.Reshard.
func (b *Builder) Reshard(v *Value, layout Layout) *Value {
	return b.transfer(v, func() (form, []graph.Move, error) { return b.session.way(&v.form, v.object(), layout) })
}

// Copy adds a transfer to other devices, shard by shard; see Array.Copy.
func (b *Builder) Copy(v *Value, devices ...int) *Value {
	return b.transfer(v, func() (form, []graph.Move, error) { return b.session.copies(&v.form, v.object(), devices) })
}

func (b *Builder) transfer(v *Value, way func() (form, []graph.Move, error)) *Value {
	err := b.of(v)
	var to form
	var moves []graph.Move
	if err == nil && b.err == nil {
		to, moves, err = way()
	}
	if err != nil {
		b.fail(status.Wrap(err, "node %d, a transfer", len(b.graph.Nodes)))
	}
	return b.add(graph.Node{Transfer: &graph.Transfer{Shape: to.one(), Moves: moves}}, []form{to})[0]
}

// add adds a node and the values that it makes.
func (b *Builder) add(n graph.Node, makes []form) []*Value {
	b.graph.Nodes = append(b.graph.Nodes, n)
	out := make([]*Value, len(makes))
	for i, f := range makes {
		out[i] = &Value{form: f, builder: b, number: len(b.made)}
		b.made = append(b.made, out[i])
	}
	return out
}

// of returns an error for a value of another graph.
func (b *Builder) of(v *Value) error {
	if v == nil || v.builder != b {
		return status.New(status.InvalidArgument, "the value belongs to another graph")
	}
	return nil
}

// later is added to the numbers of objects that nodes make, until End knows how many
// inputs come before them.
const later = 1 << 32

// object returns the value's number in a graph that is being built.
func (v *Value) object() uint64 {
	if v.input {
		return uint64(v.number) + 1
	}
	return later + uint64(v.number)
}

// End finishes the graph and defines it on the cluster. A play returns the outputs; all
// other arrays that nodes make are freed after their last use. The builder must not be
// used after that.
//
// Errors: the first error of a call of the builder, INVALID_ARGUMENT or
// FAILED_PRECONDITION, with the node; RESOURCE_EXHAUSTED for a graph that is too large;
// the session's error if it is lost.
func (b *Builder) End(outputs ...*Value) (*Graph, error) {
	for i, v := range outputs {
		err := b.of(v)
		if err == nil && v.input {
			err = status.New(status.InvalidArgument, "it is an input, which the caller has already")
		}
		if err != nil {
			b.fail(status.Wrap(err, "output %d", i))
		}
	}
	if b.err != nil {
		return nil, b.err
	}
	number := func(object uint64) uint64 {
		if object >= later {
			return object - later + uint64(len(b.inputs)) + 1
		}
		return object
	}
	for _, n := range b.graph.Nodes {
		if r := n.Run; r != nil {
			for i := range r.Inputs {
				r.Inputs[i] = number(r.Inputs[i])
			}
			continue
		}
		for i := range n.Transfer.Moves {
			n.Transfer.Moves[i].Source = number(n.Transfer.Moves[i].Source)
		}
	}
	b.graph.Inputs = len(b.inputs)
	g := &Graph{session: b.session, inputs: b.inputs, made: len(b.made)}
	for _, v := range outputs {
		b.graph.Outputs = append(b.graph.Outputs, number(v.object()))
		g.outputs = append(g.outputs, result{form: v.form, offset: v.number, node: b.maker(v.number)})
	}
	g.nodes, g.text = len(b.graph.Nodes), b.graph.String
	id, err := b.session.cluster.Define(&b.graph)
	if err != nil {
		return nil, err
	}
	g.id = id
	return g, nil
}

// maker returns the node that makes an object.
func (b *Builder) maker(number int) int {
	for i := range b.graph.Nodes {
		if number -= b.graph.Makes(i); number < 0 {
			return i
		}
	}
	panic("sharded: a value that no node makes")
}

// Graph is a graph of runs and transfers. One call plays all of it, with one message per
// graph.MaxNodes nodes.
type Graph struct {
	session     *Session
	id          uint64
	inputs      []form
	outputs     []result
	made, nodes int
	text        func() string
	forget      sync.Once
}

// result is an output: the object, among those that a play makes, and its node.
type result struct {
	form
	offset, node int
}

// String describes the graph, one line per node.
func (g *Graph) String() string { return g.text() }

// Play submits the whole graph with inputs as its inputs, which it does not consume, and
// returns its outputs, which are pending. It does not block. If a node fails, all nodes
// that depend on it fail too.
//
// Errors: INVALID_ARGUMENT if the arrays do not match the graph's inputs, or if the graph
// was forgotten; FAILED_PRECONDITION for an array that was freed or donated; the
// session's error if it is lost.
func (g *Graph) Play(inputs ...*Array) ([]*Array, error) {
	s := g.session
	if len(inputs) != len(g.inputs) {
		return nil, status.New(status.InvalidArgument, "the graph takes %s, got %d", status.Count(len(g.inputs), "array"),
			len(inputs))
	}
	spec := &client.PlaySpec{Graph: g.id}
	for i, a := range inputs {
		err := a.usable(s)
		if err == nil {
			err = a.like(&g.inputs[i])
		}
		if err != nil {
			return nil, status.Wrap(err, "input %d", i)
		}
		spec.Inputs = append(spec.Inputs, a.object)
	}
	if g.made > 0 {
		spec.First = s.cluster.Objects(g.made)
	}
	var ends []*future
	spec.Token, ends = s.beginAll(g.nodes)
	if err := s.cluster.Play(spec); err != nil {
		for i := range g.nodes {
			s.undo(spec.Token + uint64(i))
		}
		return nil, err
	}
	out := make([]*Array, len(g.outputs))
	for i := range out {
		o := &g.outputs[i]
		out[i] = &Array{form: o.form, session: s, object: spec.First + uint64(o.offset), made: ends[o.node]}
	}
	return out, nil
}

// Forget removes the graph from the cluster; plays submitted before continue. Forget a
// graph before the programs that it runs.
func (g *Graph) Forget() { g.forget.Do(func() { g.session.cluster.ForgetGraph(g.id) }) }
