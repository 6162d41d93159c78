package graph

// Step is a node that somebody takes part in, and what he lets go of then.
type Step struct {
	Node  int
	Frees []uint64 // objects, ascending; their last use here is this node
}

// Lower gives the part of a graph that someone has: the nodes that takes says, in
// order. What a graph makes and does not keep, and what it is given, he lets go of
// behind the last of his nodes that makes it or reads it: nobody else needs his shards
// of it. With everything taken, the steps are the graph's own last uses.
func (g *Graph) Lower(takes func(node int) bool) []Step {
	kept := g.kept()
	last := make([]int, g.Inputs+g.Made()+1) // 1 + index of the step, by object
	var steps []Step
	next := uint64(g.Inputs) + 1
	for i := range g.Nodes {
		first := next
		next += uint64(g.Makes(i))
		if !takes(i) {
			continue
		}
		steps = append(steps, Step{Node: i})
		for object := first; object < next; object++ {
			last[object] = len(steps)
		}
		g.Nodes[i].Reads(func(object uint64) {
			if object < uint64(len(last)) {
				last[object] = len(steps)
			}
		})
	}
	for object := 1; object < len(last); object++ {
		if at := last[object]; at > 0 && !kept[object] {
			steps[at-1].Frees = append(steps[at-1].Frees, uint64(object))
		}
	}
	return steps
}

// kept says which objects are there after a play: inputs that it was not given for
// good, and outputs.
func (g *Graph) kept() []bool {
	kept := make([]bool, g.Inputs+g.Made()+1)
	for object := range g.Inputs {
		kept[object+1] = true
	}
	set := func(objects []uint64, to bool) {
		for _, object := range objects {
			if object < uint64(len(kept)) {
				kept[object] = to
			}
		}
	}
	set(g.Given, false)
	set(g.Outputs, true)
	return kept
}

// Intermediates gives the objects that are made and not kept, ascending.
func (g *Graph) Intermediates() []uint64 {
	var all []uint64
	for object, kept := range g.kept() {
		if object > g.Inputs && !kept {
			all = append(all, uint64(object))
		}
	}
	return all
}
