package graph

import "slices"

// Section is a run of consecutive nodes of a graph, as a graph of its own.
type Section struct {
	Graph  *Graph
	First  int      // index of its first node in the whole graph
	Made   int      // number of objects that the whole graph makes before it
	Inputs []uint64 // objects of the whole graph, in the order of the section's inputs
}

// Split cuts a graph of any size into sections that are within the bounds and have at most
// most nodes each. Playing all sections in order does what playing the whole graph would
// do: each section receives the inputs and the objects of earlier sections that it reads, and
// keeps the outputs and the objects that later sections read. An object that crosses a cut
// is Given to the last section that reads it; the caller frees it after that section.
//
// Errors: those of Check. A graph may exceed the bounds, but no single node may.
func (g *Graph) Split(most int) ([]Section, error) {
	if err := g.checkNodes(); err != nil {
		return nil, err
	}
	kept := g.kept()
	last := make([]int, len(kept)) // by object: the last node that reads it
	for i := range g.Nodes {
		g.Nodes[i].Reads(func(object uint64) { last[object] = i })
	}
	var sections []Section
	for at, made := 0, 0; at < len(g.Nodes); {
		p := Section{First: at, Made: made}
		end := g.cut(&p, min(most, MaxNodes))
		p.Graph = g.section(&p, end)
		for i, object := range p.Inputs {
			if !kept[object] && last[object] < end {
				p.Graph.Given = append(p.Graph.Given, uint64(i)+1)
			}
		}
		n := p.Graph.Made()
		for i := range n {
			if object := g.Inputs + made + i + 1; kept[object] || last[object] >= end {
				p.Graph.Outputs = append(p.Graph.Outputs, uint64(len(p.Inputs)+i)+1)
			}
		}
		sections = append(sections, p)
		at, made = end, made+n
	}
	return sections, nil
}

// cut returns the node after p's last one, and sets p's inputs.
func (g *Graph) cut(p *Section, most int) (end int) {
	before := uint64(g.Inputs + p.Made)
	known := map[uint64]bool{}
	moves, made := 0, 0
	for end = p.First; end < len(g.Nodes) && end-p.First < most; end++ {
		had := len(p.Inputs)
		g.Nodes[end].Reads(func(object uint64) {
			if object <= before && !known[object] {
				known[object] = true
				p.Inputs = append(p.Inputs, object)
			}
		})
		moves += g.Nodes[end].moves()
		made += g.Makes(end)
		if end > p.First && (moves > MaxMoves || len(p.Inputs)+made > MaxObjects) {
			p.Inputs = p.Inputs[:had]
			break
		}
	}
	return end
}

// section returns the graph of p, whose nodes end before end, with its own numbers of objects.
func (g *Graph) section(p *Section, end int) *Graph {
	before, own := uint64(g.Inputs+p.Made), make(map[uint64]uint64, len(p.Inputs))
	for i, object := range p.Inputs {
		own[object] = uint64(i) + 1
	}
	number := func(object uint64) uint64 {
		if object > before {
			return object - before + uint64(len(p.Inputs))
		}
		return own[object] // 0 for 0, which marks an argument in Mixed
	}
	out := &Graph{Inputs: len(p.Inputs), Programs: g.Programs}
	for _, n := range g.Nodes[p.First:end] {
		if n.Run != nil {
			r := *n.Run
			r.Inputs, r.Mixed = slices.Clone(r.Inputs), slices.Clone(r.Mixed)
			for i, object := range r.Inputs {
				r.Inputs[i] = number(object)
			}
			for i := range r.Mixed {
				m := &r.Mixed[i]
				m.Pieces = slices.Clone(m.Pieces)
				for k := range m.Pieces {
					m.Pieces[k].Object = number(m.Pieces[k].Object)
				}
			}
			n.Run = &r
		} else {
			t := *n.Transfer
			t.Moves = slices.Clone(t.Moves)
			for i := range t.Moves {
				t.Moves[i].Source = number(t.Moves[i].Source)
			}
			n.Transfer = &t
		}
		out.Nodes = append(out.Nodes, n)
	}
	return out
}
