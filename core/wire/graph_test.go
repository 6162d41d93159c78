package wire_test

import (
	"reflect"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/graph"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

var square = shape.Shape{DType: shape.BF16, Dims: []int64{4, 4}}

func example(devices uint32) *graph.Graph {
	t := &graph.Transfer{Shape: square, Memory: "device", Trace: []byte("x.py:3")}
	for d := range devices {
		t.Moves = append(t.Moves, graph.Move{Source: 3, From: d, To: devices + d})
	}
	regions := &graph.Transfer{Shape: square}
	for d := range devices { // two regions a shard: rows of none are equal
		regions.Moves = append(regions.Moves,
			graph.Move{Source: 4, From: d, To: d, Start: []int64{0, 0}, Size: []int64{2, 4}, At: []int64{2, 0}, Shard: square},
			graph.Move{Source: 4, From: d, To: d, Start: []int64{2, 0}, Size: []int64{2, 4}, At: []int64{0, 0}, Shard: square})
	}
	return &graph.Graph{Inputs: 2, Outputs: []uint64{5, 3}, Given: []uint64{2},
		Programs: map[uint64]*graph.Program{7: {Name: "f", Outputs: []int64{32}, Devices: []uint32{0, 1}}},
		Nodes: []graph.Node{{Run: &graph.Run{
			Program: 7, Inputs: []uint64{1, 0, 2}, NotDonated: []uint32{1}, Trace: []byte("x.py:2"), Only: -1,
			Mixed: []graph.Mixed{{Argument: 1, Pieces: []graph.Piece{{Object: 1, Rows: 1}, {Object: 2, Rows: 1}}}}}},
			{Transfer: t}, {Transfer: regions}, {Run: &graph.Run{Program: 7, Inputs: []uint64{5}, Only: 3}}}}
}

// A graph that has been a message is the same.
func TestGraphSurvivesEncoding(t *testing.T) {
	for _, devices := range []uint32{1, 2, 100} {
		g := example(devices)
		m := wire.GraphOf(9, g)
		b := statustest.Value(proto.Marshal(m)).OK(t)
		back := new(wire.Graph)
		statustest.OK(t, proto.Unmarshal(b, back))
		got := statustest.Value(back.Program()).OK(t)
		want := *g
		want.Programs = nil
		if !reflect.DeepEqual(got, &want) {
			t.Errorf("%d devices: got\n%+v\nwant\n%+v", devices, got, &want)
		}
		statustest.Equal(t, len(back.Nodes[1].Transfer.Moves), 1, "%d devices: moves of a copy between slices", devices)
		for i, makes := range []uint32{1, 1, 1, 1} {
			if back.Graph != 9 || back.Nodes[i].Makes != makes {
				t.Errorf("node %d of graph %d makes %d", i, back.Graph, back.Nodes[i].Makes)
			}
		}
	}
}

// What comes from outside is read or refused, and does not take memory that was
// not sent.
func FuzzGraph(f *testing.F) {
	for _, devices := range []uint32{1, 3} {
		b := statustest.Value(proto.Marshal(wire.GraphOf(1, example(devices)))).OK(f)
		f.Add(b)
	}
	f.Add([]byte{0x1a, 0x09, 0x12, 0x07, 0x22, 0x05, 0x45, 0xff, 0xff, 0xff, 0xff}) // a move that stands for 2³² - 1
	f.Fuzz(func(t *testing.T, b []byte) {
		m := new(wire.Graph)
		if proto.Unmarshal(b, m) != nil {
			return
		}
		g, err := m.Program()
		if err != nil {
			return
		}
		moves := 0
		for i := range g.Nodes {
			if tr := g.Nodes[i].Transfer; tr != nil {
				moves += len(tr.Moves)
			}
		}
		if moves > graph.MaxMoves || len(g.Nodes) > graph.MaxNodes {
			t.Errorf("%d moves, %d nodes", moves, len(g.Nodes))
		}
		g.Programs = map[uint64]*graph.Program{}
		for i, n := range m.Nodes {
			if n.Run != nil {
				g.Programs[n.Run.Program] = &graph.Program{
					Outputs: make([]int64, min(m.Nodes[i].Makes, 4)), Devices: []uint32{0, 1}}
			}
		}
		if g.Check() != nil {
			return
		}
		_ = g.String()
		again := statustest.Value(wire.GraphOf(m.Graph, g).Program()).OK(t)
		statustest.Equal(t, len(again.Nodes), len(g.Nodes), "read again")
	})
}
