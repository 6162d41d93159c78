package graph_test

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/openpathways/pathways/core/graph"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
)

// performed is what the nodes of a graph do, in the whole's words: what each is and
// reads, and what goes behind it.
func performed(g *graph.Graph, name func(object uint64) uint64) []string {
	var out []string
	for i, step := range g.Lower(func(int) bool { return true }) {
		n := &g.Nodes[i]
		var reads, frees, donates []uint64
		n.Reads(func(object uint64) { reads = append(reads, name(object)) })
		g.Donates(i, func(object uint64) { donates = append(donates, name(object)) })
		for _, object := range step.Frees {
			frees = append(frees, name(object))
		}
		slices.Sort(frees)
		out = append(out, fmt.Sprint(g.Name(i), g.Makes(i), reads, donates, frees))
	}
	return out
}

// The sections of a graph do what it does, node by node, free everything behind the
// same node, and keep the same.
func TestSectionsDoWhatTheGraphDoes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := drawGraph(t)
		most := rapid.IntRange(1, 8).Draw(t, "most")
		before := fmt.Sprintf("%+v", g)
		sections := statustest.Value(g.Split(most)).OK(t)
		if after := fmt.Sprintf("%+v", g); after != before {
			t.Errorf("it was %s, and is %s", before, after)
		}
		var got []string
		there, nodes, made := map[uint64]bool{}, 0, 0
		for object := range uint64(g.Inputs) {
			there[object+1] = true
		}
		for _, p := range sections {
			if err := p.Graph.Check(); err != nil || len(p.Graph.Nodes) > most {
				t.Fatalf("a section of %d nodes, at most %d: %v", len(p.Graph.Nodes), most, err)
			}
			if p.First != nodes || p.Made != made || len(p.Inputs) != p.Graph.Inputs {
				t.Fatalf("a section begins with node %d behind %d objects, want %d, %d; inputs %v of %d", p.First, p.Made, nodes,
					made, p.Inputs, p.Graph.Inputs)
			}
			name := func(object uint64) uint64 {
				if object <= uint64(len(p.Inputs)) {
					return p.Inputs[object-1]
				}
				return uint64(g.Inputs+p.Made-len(p.Inputs)) + object
			}
			for _, object := range p.Inputs {
				if !there[object] {
					t.Errorf("a section is given %d, which is not there", object)
				}
			}
			got = append(got, performed(p.Graph, name)...)
			for _, object := range p.Graph.Outputs {
				there[name(object)] = true
			}
			for _, object := range p.Graph.Given {
				delete(there, name(object))
			}
			nodes, made = nodes+len(p.Graph.Nodes), made+p.Graph.Made()
		}
		if want := performed(g, func(object uint64) uint64 { return object }); !slices.Equal(got, want) {
			t.Errorf("in sections of %d: %q\nwant %q", most, got, want)
		}
		left := 0
		for object := range there {
			if object > uint64(g.Inputs) {
				left++
			}
		}
		for _, object := range g.Outputs {
			if !there[object] {
				t.Errorf("output %d has gone", object)
			}
		}
		statustest.Equal(t, left, len(g.Outputs), "objects stay")
	})
}

// Each bound cuts by itself. What is wrong with a graph has no sections, and a node that
// is beyond them by itself is a section that Check refuses.
func TestEachBoundSplitsAGraph(t *testing.T) {
	g := &graph.Graph{Inputs: 1, Programs: programs()}
	for range graph.MaxNodes + 1 {
		g.Nodes = append(g.Nodes, run(4, 1))
	}
	lengths := func(want ...int) {
		t.Helper()
		sections, err := g.Split(graph.MaxNodes)
		var got []int
		for _, p := range sections {
			got = append(got, len(p.Graph.Nodes))
			statustest.Check(t, p.Graph.Check())
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("sections of %v nodes, %v; want %v", got, err, want)
		}
	}
	lengths(graph.MaxNodes, 1)

	many := move(1, 0, 1)
	for len(many.Transfer.Moves) < graph.MaxMoves/2 {
		many.Transfer.Moves = append(many.Transfer.Moves, many.Transfer.Moves...)
	}
	g.Nodes = []graph.Node{many, many, many, run(4, 1)}
	lengths(2, 2)

	g.Programs[6] = &graph.Program{Name: "many", Outputs: make([]int64, graph.MaxObjects-1), Devices: []uint32{0}}
	g.Nodes = []graph.Node{run(6, 1), run(6, 1)}
	lengths(1, 1)

	g.Programs[6].Outputs = make([]int64, graph.MaxObjects)
	sections := statustest.Value(g.Split(graph.MaxNodes)).OK(t)
	statustest.Fails(t, "nodes that make more than there may be", sections[0].Graph.Check(), status.ResourceExhausted)
	g.Nodes = []graph.Node{run(2, 1), run(4, 1)}
	statustest.Fails(t, "a section that reads what one before has consumed", statustest.Of(g.Split(1)),
		status.InvalidArgument)
}
