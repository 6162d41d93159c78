package graph_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/openpathways/pathways/core/graph"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
)

var vector = shape.Shape{DType: shape.F32, Dims: []int64{4}}

// programs are on devices 0 and 1, or on 0 alone.
func programs() map[uint64]*graph.Program {
	return map[uint64]*graph.Program{
		1: {Name: "add", Parameters: 2, Outputs: []int64{16}, Devices: []uint32{0, 1}},
		2: {Name: "eat", Parameters: 1, Outputs: []int64{16}, Donated: []uint32{0}, Devices: []uint32{0, 1}},
		3: {Name: "split", Parameters: 1, Outputs: []int64{8, 8}, Devices: []uint32{0}},
		4: {Name: "print", Parameters: 1, Devices: []uint32{0, 1}},
	}
}

func run(id uint64, inputs ...uint64) graph.Node {
	return graph.Node{Run: &graph.Run{Program: id, Inputs: inputs, Only: -1}}
}

func move(source uint64, from, to uint32) graph.Node {
	return graph.Node{Transfer: &graph.Transfer{Shape: vector, Moves: []graph.Move{{Source: source, From: from, To: to}}}}
}

func TestCheckFindsWhatIsWrongWithAGraph(t *testing.T) {
	region := func(start, at, size []int64) graph.Node {
		n := move(1, 0, 1)
		n.Transfer.Moves[0] = graph.Move{Source: 1, From: 0, To: 1, Start: start, At: at, Size: size, Shard: vector}
		return n
	}
	mixed := func(pieces ...graph.Piece) graph.Node {
		n := run(1, 1, 0)
		n.Run.Mixed = []graph.Mixed{{Argument: 1, Pieces: pieces}}
		return n
	}
	kept := run(2, 1)
	kept.Run.NotDonated = []uint32{0}
	only := func(id uint64) graph.Node {
		n := run(id, 1)
		n.Run.Only = 1
		return n
	}
	many := make([]graph.Node, graph.MaxNodes+1)
	for i := range many {
		many[i] = run(3, 1)
	}
	for _, c := range []struct {
		name    string
		nodes   []graph.Node
		outputs []uint64
		want    string // "" is a good graph; it has inputs 1 and 2
	}{
		{"a chain", []graph.Node{run(1, 1, 2), run(1, 3, 3)}, []uint64{4}, ""},
		{"several results", []graph.Node{run(3, 1), run(1, 3, 4)}, []uint64{3, 5}, ""},
		{"no result", []graph.Node{run(4, 1)}, nil, ""},
		{"a transfer", []graph.Node{move(1, 0, 1)}, []uint64{3}, ""},
		{"a region", []graph.Node{region([]int64{1}, []int64{0}, []int64{3})}, nil, ""},
		{"mixed", []graph.Node{mixed(graph.Piece{Object: 1, Rows: 1}, graph.Piece{Object: 2, Rows: 1})}, nil, ""},
		{"a portable program on another device", []graph.Node{only(3)}, nil, ""},
		{"not donated", []graph.Node{kept, run(1, 1, 1)}, nil, ""},
		{"donated twice over", []graph.Node{run(2, 1), run(2, 3), run(2, 4)}, []uint64{5}, ""},
		{"nothing", nil, nil, "0 nodes"},
		{"too much", many, nil, "4097 nodes"},
		{"neither", []graph.Node{{}}, nil, "node 0: expected either"},
		{"a program that is not known", []graph.Node{run(7, 1)}, nil, "program 7 is not known"},
		{"too few arguments", []graph.Node{run(1, 1)}, nil, "node 0, add: it takes 2 arguments, got 1"},
		{"what is made later", []graph.Node{run(1, 1, 4), run(1, 1, 1)}, nil,
			"node 0, add: it reads array 4; expected one of arrays 1 to 2, which exist before it"},
		{"itself", []graph.Node{move(3, 0, 1)}, nil, "node 0, a transfer: it reads array 3"},
		{"what was donated", []graph.Node{run(2, 1), run(1, 2, 1)}, nil,
			"node 1, add: it reads array 1, which node 0, eat, has consumed"},
		{"what was donated, moved", []graph.Node{run(2, 1), move(1, 0, 1)}, nil,
			"node 1, a transfer: it reads array 1, which node 0, eat"},
		{"keeps an input", []graph.Node{run(2, 1)}, []uint64{2}, "the graph keeps array 2; expected"},
		{"keeps nothing that is", []graph.Node{run(2, 1)}, []uint64{4}, "the graph keeps array 4; expected"},
		{"keeps it twice", []graph.Node{run(2, 1)}, []uint64{3, 3}, "at most once"},
		{"keeps what was donated", []graph.Node{run(2, 1), run(2, 3)}, []uint64{3, 4},
			"the graph keeps array 3, which node 1, eat, has consumed"},
		{"no array", []graph.Node{run(1, 1, 0)}, nil, "1 arguments name no array"},
		{"pieces too short", []graph.Node{mixed(graph.Piece{Object: 1, Rows: 1})}, nil, "do not add up to 2 rows"},
		{"pieces too long", []graph.Node{mixed(graph.Piece{Object: 1, Rows: 1 << 31}, graph.Piece{Object: 1, Rows: 1 << 31})},
			nil, "do not add up to 2 rows"},
		{"an empty piece", []graph.Node{mixed(graph.Piece{Object: 1, Rows: 2}, graph.Piece{Object: 1})}, nil,
			"do not add up to 2 rows"},
		{"a piece of nothing", []graph.Node{mixed(graph.Piece{Object: 1, Rows: 1}, graph.Piece{Object: 9, Rows: 1})}, nil,
			"reads array 9"},
		{"alone", []graph.Node{only(4)}, nil, "print: it is compiled for 2 devices and cannot run on device 1 alone"},
		{"no moves", []graph.Node{{Transfer: &graph.Transfer{Shape: vector}}}, nil, "no moves"},
		{"no type", []graph.Node{{Transfer: &graph.Transfer{Moves: []graph.Move{{Source: 1}}}}}, nil, "element type"},
		{"a region too large", []graph.Node{region([]int64{2}, []int64{0}, []int64{3})}, nil, "does not fit into"},
		{"a region outside", []graph.Node{region([]int64{0}, []int64{2}, []int64{3})}, nil, "does not fit into"},
		{"a region of other rank", []graph.Node{region([]int64{0, 0}, []int64{0}, []int64{3})}, nil, "does not fit into"},
		{"a region that overflows", []graph.Node{region([]int64{1 << 62}, []int64{0}, []int64{1 << 62})}, nil,
			"does not fit into"},
	} {
		g := &graph.Graph{Inputs: 2, Nodes: c.nodes, Outputs: c.outputs, Programs: programs()}
		switch err := g.Check(); {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		case err != nil && status.CodeOf(err) != status.InvalidArgument && status.CodeOf(err) != status.ResourceExhausted:
			t.Errorf("%s: code %v", c.name, status.CodeOf(err))
		}
	}
}

// Errors say of a transfer which run made what it moves, also by way of other transfers.
func TestNamesOfTransfers(t *testing.T) {
	g := graph.Graph{Inputs: 2, Programs: programs(), Nodes: []graph.Node{
		move(1, 0, 1), move(3, 1, 0), run(1, 1, 2), move(5, 0, 1), move(6, 1, 0)}}
	const of = "a transfer of a result of add"
	if got, want := g.Names(), []string{"a transfer", "a transfer", "add", of, of}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestGraphsAsText(t *testing.T) {
	first := run(1, 1, 2)
	first.Run.Trace = []byte("model.py:12")
	g := &graph.Graph{Inputs: 2, Nodes: []graph.Node{first, move(3, 1, 5), run(3, 4), run(4, 3)}, Outputs: []uint64{5},
		Programs: programs()}
	g.Nodes[1].Transfer.Moves = append(g.Nodes[1].Transfer.Moves, graph.Move{Source: 3, From: 0, To: 4})
	const want = `graph of 4 nodes, 2 inputs, keeps 5
   0  add on 0-1: (1, 2) -> (3), 32 bytes, called at model.py:12
   1  a transfer on 0-1 to 4-5: (3) -> (4), 32 bytes
   2  split on 0: (4) -> (5, 6), 16 bytes, frees 4, 6
   3  print on 0-1: (3) -> (), 0 bytes, frees 3
`
	statustest.OK(t, g.Check())
	if got := g.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// drawGraph draws a graph that makes sense.
func drawGraph(t *rapid.T) *graph.Graph {
	g := &graph.Graph{Inputs: rapid.IntRange(0, 3).Draw(t, "inputs"), Programs: programs()}
	g.Programs[5] = &graph.Program{Name: "make", Outputs: []int64{16}, Devices: []uint32{0}}
	var live []uint64
	for i := range g.Inputs {
		live = append(live, uint64(i+1))
	}
	last := uint64(g.Inputs)
	for range rapid.IntRange(1, 20).Draw(t, "nodes") {
		one := func() uint64 { return rapid.SampledFrom(live).Draw(t, "object") }
		var n graph.Node
		switch kind := rapid.IntRange(0, 5).Draw(t, "kind"); {
		case len(live) == 0 || kind == 5:
			n = run(5)
		case kind == 0:
			n = move(one(), uint32(rapid.IntRange(0, 3).Draw(t, "from")), uint32(rapid.IntRange(0, 3).Draw(t, "to")))
		case kind == 1 && rapid.Bool().Draw(t, "mixed"):
			n = run(1, one(), 0)
			n.Run.Mixed = []graph.Mixed{{Argument: 1, Pieces: []graph.Piece{{Object: one(), Rows: 1}, {Object: one(), Rows: 1}}}}
		case kind == 1:
			n = run(1, one(), one())
		default:
			n = run(uint64(kind), one())
		}
		g.Nodes = append(g.Nodes, n)
		g.Donates(len(g.Nodes)-1, func(object uint64) {
			live = slices.DeleteFunc(live, func(o uint64) bool { return o == object })
		})
		for range g.Makes(len(g.Nodes) - 1) {
			last++
			live = append(live, last)
		}
	}
	for _, object := range live {
		if object > uint64(g.Inputs) && rapid.Bool().Draw(t, "kept") {
			g.Outputs = append(g.Outputs, object)
		}
	}
	for object := range uint64(g.Inputs) {
		if rapid.Bool().Draw(t, "given") {
			g.Given = append(g.Given, object+1)
		}
	}
	return g
}

// A participant frees each object that its nodes make or read and that is not kept exactly
// once, after the last of its nodes that uses it.
func TestObjectsAreFreedAfterTheirLastUse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := drawGraph(t)
		if err := g.Check(); err != nil {
			t.Fatalf("%v\n%v", err, g)
		}
		mine := make([]bool, len(g.Nodes))
		for i := range mine {
			mine[i] = rapid.Bool().Draw(t, "mine")
		}
		var nodes []int
		freed := map[uint64]int{} // step
		for k, s := range g.Lower(func(i int) bool { return mine[i] }) {
			nodes = append(nodes, s.Node)
			for _, object := range s.Frees {
				if _, twice := freed[object]; twice {
					t.Errorf("%d is freed twice", object)
				}
				freed[object] = k
			}
		}
		var want []int
		last := map[uint64]int{} // by object: the last of his nodes that uses it
		next := uint64(g.Inputs) + 1
		for i := range g.Nodes {
			first := next
			next += uint64(g.Makes(i))
			if !mine[i] {
				continue
			}
			want = append(want, i)
			for object := first; object < next; object++ {
				last[object] = len(want) - 1
			}
			g.Nodes[i].Reads(func(object uint64) {
				if object > uint64(g.Inputs) || slices.Contains(g.Given, object) {
					last[object] = len(want) - 1
				}
			})
		}
		for _, object := range g.Outputs {
			delete(last, object)
		}
		if !slices.Equal(nodes, want) || fmt.Sprint(freed) != fmt.Sprint(last) {
			t.Errorf("steps %v, frees %v; want %v, %v\n%v", nodes, freed, want, last, g)
		}
		var all []uint64
		for object := uint64(g.Inputs) + 1; object < next; object++ {
			if !slices.Contains(g.Outputs, object) {
				all = append(all, object)
			}
		}
		statustest.EqualSlices(t, g.Intermediates(), all, "what is between")
	})
}

func TestNumberOfAnObjectInAPlay(t *testing.T) {
	inputs := []uint64{70, 7}
	for object, want := range map[uint64]uint64{1: 70, 2: 7, 3: 500, 5: 502} {
		statustest.Equal(t, graph.Number(object, inputs, 500), want, "object %d", object)
	}
}
