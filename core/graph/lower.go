package graph

// Step is a node in which a participant takes part, and what it frees after that.
type Step struct {
	Node  int
	Frees []uint64 // objects, ascending, whose last use by the participant is this node
}

// Lower returns the part of a graph that one participant, such as a worker, executes:
// the nodes for which takes returns true, in order. The participant frees an object
// that the graph makes and does not keep, or that is Given, after the last of its nodes
// that makes or reads it: no other participant needs its shards of that object. If takes
// accepts every node, the steps show the last uses in the whole graph.
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

// kept reports, by object, which ones exist after a play: inputs that are not Given, and
// outputs.
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

// Intermediates returns the objects that nodes make and that are not kept, ascending.
func (g *Graph) Intermediates() []uint64 {
	var all []uint64
	for object, kept := range g.kept() {
		if object > g.Inputs && !kept {
			all = append(all, uint64(object))
		}
	}
	return all
}
