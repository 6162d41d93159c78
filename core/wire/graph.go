package wire

import (
	"math"
	"slices"

	"github.com/openpathways/pathways/core/graph"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
)

// GraphOf makes a message of a graph. Moves of equal regions between devices in a row
// become one, so that the message of a graph between slices of any size is as long.
func GraphOf(name uint64, g *graph.Graph) *Graph {
	m := &Graph{Graph: name, Inputs: uint32(g.Inputs), Outputs: g.Outputs, Given: g.Given,
		Nodes: make([]*Node, len(g.Nodes))}
	for i := range g.Nodes {
		n := &g.Nodes[i]
		if n.Run != nil {
			m.Nodes[i] = &Node{Run: runOf(n.Run), Makes: uint32(g.Makes(i))}
		} else {
			m.Nodes[i] = &Node{Transfer: transferOf(n.Transfer), Trace: n.Transfer.Trace, Makes: 1}
		}
	}
	return m
}

func runOf(r *graph.Run) *Run {
	m := &Run{Program: r.Program, Inputs: r.Inputs, NotDonated: r.NotDonated, Trace: r.Trace}
	if r.Only >= 0 {
		m.Only = uint32(r.Only) + 1
	}
	for _, mixed := range r.Mixed {
		one := &Mixed{Argument: mixed.Argument}
		for _, p := range mixed.Pieces {
			one.Pieces = append(one.Pieces, &Piece{Object: p.Object, Rows: p.Rows})
		}
		m.Mixed = append(m.Mixed, one)
	}
	return m
}

func arrayOf(s shape.Shape, memory string) *Array {
	return &Array{Dtype: uint32(s.DType), Dims: s.Dims, Memory: memory}
}

func transferOf(t *graph.Transfer) *Transfer {
	m := &Transfer{Array: arrayOf(t.Shape, t.Memory)}
	for i := 0; i < len(t.Moves); {
		v := &t.Moves[i]
		one := &Move{Source: v.Source, From: v.From, To: v.To, Start: v.Start, Size: v.Size, At: v.At}
		if len(v.Size) > 0 {
			one.Shard = arrayOf(v.Shard, "")
		}
		n := 1
		for i+n < len(t.Moves) && follows(v, &t.Moves[i+n], n) {
			n++
		}
		if n > 1 {
			one.Count = uint32(n)
		}
		m.Moves = append(m.Moves, one)
		i += n
	}
	return m
}

// follows reports whether a move is like the first of a row, k devices on.
func follows(first, m *graph.Move, k int) bool {
	return m.Source == first.Source && m.From == first.From+uint32(k) && m.To == first.To+uint32(k) &&
		slices.Equal(m.Start, first.Start) && slices.Equal(m.Size, first.Size) && slices.Equal(m.At, first.At) &&
		(len(m.Size) == 0 || m.Shard.DType == first.Shard.DType && slices.Equal(m.Shard.Dims, first.Shard.Dims))
}

// Program makes a graph of a message. It knows no programs yet, and is not checked.
//
// Errors: INVALID_ARGUMENT, RESOURCE_EXHAUSTED where it is too large to be looked
// at.
func (m *Graph) Program() (*graph.Graph, error) {
	if m.Inputs > graph.MaxObjects || len(m.Nodes) > graph.MaxNodes {
		return nil, status.New(status.ResourceExhausted, "the graph has %d inputs and %d nodes; at most %d and %d", m.Inputs,
			len(m.Nodes), graph.MaxObjects, graph.MaxNodes)
	}
	g := &graph.Graph{Inputs: int(m.Inputs), Outputs: m.Outputs, Given: m.Given, Nodes: make([]graph.Node, len(m.Nodes))}
	moves := uint64(0)
	for i, n := range m.Nodes {
		if (n.GetRun() == nil) == (n.GetTransfer() == nil) {
			return nil, status.New(status.InvalidArgument, "node %d: expected either a run or a transfer", i)
		}
		if n.Run != nil {
			g.Nodes[i].Run = n.Run.program()
			continue
		}
		for _, v := range n.Transfer.Moves {
			moves += max(1, uint64(v.GetCount()))
		}
		if moves > graph.MaxMoves {
			return nil, status.New(status.ResourceExhausted, "the graph's transfers have more than %d moves of shards",
				graph.MaxMoves)
		}
		t, err := n.Transfer.program()
		if err != nil {
			return nil, status.Wrap(err, "node %d", i)
		}
		t.Trace = n.Trace
		g.Nodes[i].Transfer = t
	}
	return g, nil
}

func (m *Run) program() *graph.Run {
	r := &graph.Run{Program: m.Program, Inputs: m.Inputs, NotDonated: m.NotDonated, Trace: m.Trace, Only: int(m.Only) - 1}
	for _, mixed := range m.Mixed {
		one := graph.Mixed{Argument: mixed.GetArgument()}
		for _, p := range mixed.GetPieces() {
			one.Pieces = append(one.Pieces, graph.Piece{Object: p.GetObject(), Rows: p.GetRows()})
		}
		r.Mixed = append(r.Mixed, one)
	}
	return r
}

func (a *Array) shape() shape.Shape {
	return shape.Shape{DType: shape.DType(a.GetDtype()), Dims: a.GetDims()}
}

// Told is what a controller adds for a worker to a client's move, see Move.
type Told struct {
	Index uint32
	Peer  uint64
}

// Told returns the controller's additions to each of the moves that Program makes of a graph's Transfer.
func (m *Transfer) Told() (all []Told) {
	for _, v := range m.Moves {
		for k := range max(1, v.GetCount()) {
			told := Told{v.GetIndex(), v.GetPeer()}
			if told.Index > 0 {
				told.Index += k
			}
			all = append(all, told)
		}
	}
	return all
}

func (m *Transfer) program() (*graph.Transfer, error) {
	t := &graph.Transfer{Shape: m.Array.shape(), Memory: m.Array.GetMemory()}
	for i, v := range m.Moves {
		n := max(1, v.GetCount())
		if v == nil || v.From > math.MaxUint32-n || v.To > math.MaxUint32-n {
			return nil, status.New(status.InvalidArgument, "move %d of a transfer names devices that do not exist", i)
		}
		for k := range n {
			t.Moves = append(t.Moves, graph.Move{Source: v.Source, From: v.From + k, To: v.To + k, Start: v.Start, Size: v.Size,
				At: v.At, Shard: v.Shard.shape()})
		}
	}
	return t, nil
}
