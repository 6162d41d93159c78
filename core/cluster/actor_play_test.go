package cluster_test

import (
	"fmt"
	"slices"

	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/graph"
)

// play defines a graph of computations and moves that begins with some arrays, and
// plays it.
func (a *actor) play() bool {
	p := &playing{actor: a, g: &graph.Graph{Programs: map[uint64]*graph.Program{}}, consumed: map[uint64]bool{}}
	p.drawInputs()
	for range 1 + a.r.IntN(8) {
		if len(p.there) > 0 && !p.drawNode() {
			return a.s.Lost() == nil
		}
	}
	for _, o := range p.there {
		if o.object > uint64(len(p.inputs)) && a.r.IntN(2) == 0 {
			p.kept = append(p.kept, o)
			p.g.Outputs = append(p.g.Outputs, o.object)
		}
	}
	id, err := a.s.Define(p.g)
	if err != nil {
		if a.s.Lost() == nil {
			a.t.Errorf("%s: %v\n%v", a.name, err, p.g)
		}
		return false
	}
	times := 1
	if len(p.consumed) == 0 {
		times += a.r.IntN(3)
	}
	for range times {
		if !p.once(id) {
			return false
		}
	}
	for i, o := range p.inputs {
		if p.consumed[uint64(i+1)] {
			a.free(slices.Index(a.arrays, o))
		}
	}
	if a.r.IntN(2) == 0 {
		a.s.ForgetGraph(id)
	}
	return true
}

// playing is a graph that an actor defines and plays. Arrays of it have the graph's own numbers.
type playing struct {
	*actor
	g        *graph.Graph
	inputs   []*array // with the session's numbers
	consumed map[uint64]bool
	there    []*array // what its nodes may read
	nodes    []*array // what each makes
	kept     []*array
}

func (p *playing) drawInputs() {
	y := p.arrays[p.r.IntN(len(p.arrays))]
	p.inputs = []*array{y}
	for _, o := range p.arrays {
		if o != y && len(p.inputs) < 3 && p.r.IntN(2) == 0 {
			p.inputs = append(p.inputs, o)
		}
	}
	p.g.Inputs = len(p.inputs)
	for i, o := range p.inputs {
		p.there = append(p.there, &array{object: uint64(i + 1), devices: o.devices, values: o.values, risk: o.risk})
	}
}

// drawNode adds a node to the graph. It returns false if the session's programs cannot be compiled.
func (p *playing) drawNode() bool {
	y := p.there[p.r.IntN(len(p.there))]
	if p.r.IntN(3) == 0 {
		p.adds(p.drawTransfer(y))
		return true
	}
	n := p.r.IntN(len(computations))
	program := p.compiled(n, y.devices)
	if program == nil {
		return false
	}
	in := []*array{y}
	for len(in) < computations[n].args {
		o := p.there[p.r.IntN(len(p.there))]
		if !slices.Equal(o.devices, y.devices) {
			o = y
		}
		in = append(in, o)
	}
	z := &array{object: p.next(), devices: y.devices, values: map[int]shard{}, risk: p.risk(y.devices...)}
	run := &graph.Run{Program: program.ID, Only: -1}
	for _, o := range in {
		run.Inputs = append(run.Inputs, o.object)
		z.risk = z.risk || o.risk
	}
	z.compute(n, in)
	p.g.Programs[program.ID] = program.Program()
	if n == replace {
		p.consumed[y.object] = true
		p.there = slices.DeleteFunc(p.there, func(o *array) bool { return o == y })
	}
	p.adds(z, graph.Node{Run: run})
	return true
}

func (p *playing) drawTransfer(y *array) (*array, graph.Node) {
	z, m := p.moves(y, p.next())
	t := &graph.Transfer{Shape: p.x.shape()}
	for _, v := range m.Moves {
		t.Moves = append(t.Moves,
			graph.Move{Source: v.Source, From: v.From, To: v.To, Start: v.Start, Size: v.Size, At: v.At, Shard: t.Shape})
	}
	return z, graph.Node{Transfer: t}
}

// next returns the number of what the next node makes.
func (p *playing) next() uint64 { return uint64(len(p.inputs) + len(p.nodes) + 1) }

// adds adds a node, and what it makes.
func (p *playing) adds(z *array, n graph.Node) {
	p.g.Nodes = append(p.g.Nodes, n)
	p.nodes, p.there = append(p.nodes, z), append(p.there, z)
}

// once plays the graph, and keeps the arrays that it makes.
func (p *playing) once(id uint64) bool {
	spec := &client.PlaySpec{Graph: id, First: p.s.Objects(p.g.Made())}
	number := func(local uint64) uint64 { return spec.First + local - uint64(len(p.inputs)) - 1 }
	for _, o := range p.inputs {
		spec.Inputs = append(spec.Inputs, o.object)
	}
	for i, z := range p.nodes {
		token := p.begin(fmt.Sprintf("node %d of a play of %v on %v into %d, %d nodes", i, spec.Inputs, z.devices,
			number(z.object), len(p.nodes)), z.risk)
		if i == 0 {
			spec.Token = token
		}
	}
	if err := p.s.Play(spec); err != nil {
		for i := range p.nodes {
			p.gone(spec.Token+uint64(i), err)
		}
		return false
	}
	for _, o := range p.kept {
		p.arrays = append(p.arrays, &array{object: number(o.object), devices: o.devices, values: o.values, risk: o.risk})
	}
	return true
}
