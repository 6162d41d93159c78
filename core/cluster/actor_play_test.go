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
	y := a.arrays[a.r.IntN(len(a.arrays))]
	inputs := []*array{y}
	for _, o := range a.arrays {
		if o != y && len(inputs) < 3 && a.r.IntN(2) == 0 {
			inputs = append(inputs, o)
		}
	}
	g := &graph.Graph{Inputs: len(inputs), Programs: map[uint64]*graph.Program{}}
	var there []*array // by what the graph has made so far, with its numbers
	for i, o := range inputs {
		there = append(there, &array{object: uint64(i + 1), devices: o.devices, values: o.values, risk: o.risk})
	}
	last := uint64(len(inputs))
	consumed := map[uint64]bool{}
	var nodes []*array // what each makes
	for range 1 + a.r.IntN(8) {
		if len(there) == 0 {
			break
		}
		y := there[a.r.IntN(len(there))]
		if a.r.IntN(3) == 0 {
			z, m := a.moves(y, last+1)
			t := &graph.Transfer{Shape: a.x.shape()}
			for _, v := range m.Moves {
				t.Moves = append(t.Moves,
					graph.Move{Source: v.Source, From: v.From, To: v.To, Start: v.Start, Size: v.Size, At: v.At, Shard: t.Shape})
			}
			g.Nodes = append(g.Nodes, graph.Node{Transfer: t})
			nodes, there, last = append(nodes, z), append(there, z), last+1
			continue
		}
		n := a.r.IntN(len(computations))
		p := a.compiled(n, y.devices)
		if p == nil {
			return a.s.Lost() == nil
		}
		in := []*array{y}
		for len(in) < computations[n].args {
			o := there[a.r.IntN(len(there))]
			if !slices.Equal(o.devices, y.devices) {
				o = y
			}
			in = append(in, o)
		}
		z := &array{object: last + 1, devices: y.devices, values: map[int]shard{}, risk: a.risk(y.devices...)}
		run := &graph.Run{Program: p.ID, Only: -1}
		for _, o := range in {
			run.Inputs = append(run.Inputs, o.object)
			z.risk = z.risk || o.risk
		}
		z.compute(n, in)
		g.Programs[p.ID] = p.Program()
		g.Nodes = append(g.Nodes, graph.Node{Run: run})
		if n == replace {
			consumed[y.object] = true
			there = slices.DeleteFunc(there, func(o *array) bool { return o == y })
		}
		nodes, there, last = append(nodes, z), append(there, z), last+1
	}
	var kept []*array
	for _, o := range there {
		if o.object > uint64(len(inputs)) && a.r.IntN(2) == 0 {
			kept = append(kept, o)
			g.Outputs = append(g.Outputs, o.object)
		}
	}
	id, err := a.s.Define(g)
	if err != nil {
		if a.s.Lost() == nil {
			a.t.Errorf("%s: %v\n%v", a.name, err, g)
		}
		return false
	}
	times := 1
	if len(consumed) == 0 {
		times += a.r.IntN(3)
	}
	for range times {
		p := &client.PlaySpec{Graph: id, First: a.s.Objects(g.Made())}
		number := func(local uint64) uint64 { return p.First + local - uint64(len(inputs)) - 1 }
		for _, o := range inputs {
			p.Inputs = append(p.Inputs, o.object)
		}
		for i, z := range nodes {
			token := a.begin(fmt.Sprintf("node %d of a play of %v on %v into %d, %d nodes", i, p.Inputs, z.devices,
				number(z.object), len(nodes)), z.risk)
			if i == 0 {
				p.Token = token
			}
		}
		if err := a.s.Play(p); err != nil {
			for i := range nodes {
				a.gone(p.Token+uint64(i), err)
			}
			return false
		}
		for _, o := range kept {
			a.arrays = append(a.arrays, &array{object: number(o.object), devices: o.devices, values: o.values, risk: o.risk})
		}
	}
	for i, o := range inputs {
		if consumed[uint64(i+1)] {
			a.free(slices.Index(a.arrays, o))
		}
	}
	if a.r.IntN(2) == 0 {
		a.s.ForgetGraph(id)
	}
	return true
}
