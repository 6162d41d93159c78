package client

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/graph"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/wire/wiretest"
)

// chain is a graph of so many runs.
func chain(nodes int) *graph.Graph {
	g := &graph.Graph{Inputs: 1, Programs: map[uint64]*graph.Program{
		7: {Name: "f", Outputs: []int64{4}, Devices: []uint32{0}}}}
	for i := range nodes {
		g.Nodes = append(g.Nodes, graph.Node{Run: &graph.Run{Program: 7, Inputs: []uint64{uint64(i) + 1}, Only: -1}})
	}
	g.Outputs = []uint64{uint64(nodes) + 1}
	return g
}

// A graph is one message, and so is each play, which takes a number for each node;
// nodes end one by one.
func TestGraphAndPlayAreOneMessageEach(t *testing.T) {
	n := connect(t)
	id := statustest.Value(n.cluster.Define(chain(3))).OK(t)
	first := n.cluster.Objects(3)
	for range 2 {
		statustest.OK(t, n.cluster.Play(&PlaySpec{Graph: id, Inputs: []uint64{9}, First: first, Token: 20}))
	}
	graph, play := new(wire.Graph), new(wire.Play)
	graphs, plays := n.came(wire.KindGraph), n.came(wire.KindPlay)
	if len(graphs) != 1 || proto.Unmarshal(graphs[0], graph) != nil || graph.Graph != id || len(graph.Nodes) != 3 {
		t.Errorf("the controller got the graphs %v", graphs)
	}
	if len(plays) != 2 || proto.Unmarshal(plays[1], play) != nil || play.Op != 4 || play.Nodes != 3 || play.Graph != id ||
		play.First != first || !slices.Equal(play.Inputs, []uint64{9}) {
		t.Errorf("the controller got %d plays, the second %v", len(plays), play)
	}
	n.says(wire.KindCompleted,
		&wire.Completed{Ok: []uint64{1, 3}, Failed: []*wire.Failure{{Number: 2, Status: wire.Of(errLost)}}})
	for i, want := range []uint64{20, 22, 21} {
		if e := n.end(); e.Token != want || (e.Err != nil) != (i == 2) || e.Err != nil && e.Err.Error() != errLost.Error() {
			t.Errorf("end %d: %v, want token %d", i, e, want)
		}
	}
	n.cluster.ForgetGraph(id)
	forget := new(wire.Forget)
	if got := n.came(wire.KindForget); len(got) != 1 || proto.Unmarshal(got[0], forget) != nil ||
		!slices.Equal(forget.Graphs, []uint64{id}) {
		t.Errorf("the controller is to forget %v", got)
	}
	n.cluster.Close()
	var tokens []uint64
	for range 3 {
		e := n.end()
		if e.Err == nil {
			t.Errorf("%v, whose session was closed, succeeds", e)
		}
		tokens = append(tokens, e.Token)
	}
	if slices.Sort(tokens); !slices.Equal(tokens, []uint64{20, 21, 22}) {
		t.Errorf("tokens %v end with the session", tokens)
	}
	statustest.Fails(t, "a graph of a session that was closed", statustest.Of(n.cluster.Define(chain(1))),
		status.Unavailable)
}

// A graph of any size is a message for so many nodes, and so is a play: each section is
// given what it reads, and what crosses goes behind the last that does.
func TestLongGraphIsSentInSections(t *testing.T) {
	const nodes = 2*graph.MaxNodes + 100
	n := connect(t)
	id := statustest.Value(n.cluster.Define(chain(nodes))).OK(t)
	n.says(wire.KindCompleted, &wire.Completed{Credit: 3 * graph.MaxNodes})
	n.quiet()
	statustest.OK(t, n.cluster.Play(&PlaySpec{Graph: id, Inputs: []uint64{9}, First: 101, Token: 20}))
	n.frees(2)
	var got []string
	for _, payload := range n.came(wire.KindPlay) {
		m := wiretest.Decode[wire.Play](t, payload)
		got = append(got, fmt.Sprint(m.Op, m.Graph, m.Nodes, m.First, m.Inputs))
	}
	want := []string{"1 1 4096 101 [9]", "4097 2 4096 4197 [4196]", "8193 3 100 8293 [8292]"}
	if !slices.Equal(got, want) || len(n.came(wire.KindGraph)) != 3 {
		t.Errorf("%d graphs, and the plays %q; want 3, %q", len(n.came(wire.KindGraph)), got, want)
	}
	statustest.EqualSlices(t, n.freed(), []uint64{4196, 8292}, "freed")
	n.says(wire.KindCompleted, &wire.Completed{Ok: []uint64{4097}})
	if e := n.end(); e.Token != 20+4096 || e.Err != nil {
		t.Errorf("operation 4097 ends as %v", e)
	}
	n.cluster.ForgetGraph(id)
	forget := new(wire.Forget)
	if got := n.came(wire.KindForget); len(got) != 1 || proto.Unmarshal(got[0], forget) != nil ||
		!slices.Equal(forget.Graphs, []uint64{1, 2, 3}) {
		t.Errorf("the controller is to forget %v", forget)
	}
	closed := make(chan error)
	go func() { closed <- n.cluster.Close() }()
	for range nodes - 1 {
		if e := n.end(); e.Err == nil {
			t.Errorf("%v, whose session was closed, succeeds", e)
		}
	}
	<-closed
}

// What cannot be is refused at once, and takes no number.
func TestBadPlaysAreRefusedAtOnce(t *testing.T) {
	n := connect(t)
	bad := chain(2)
	bad.Nodes[1].Run.Inputs[0] = 8
	statustest.Fails(t, "a graph that makes no sense", statustest.Of(n.cluster.Define(bad)), status.InvalidArgument,
		"node 1, f")
	id := statustest.Value(n.cluster.Define(chain(2))).OK(t)
	for what, p := range map[string]PlaySpec{
		"was it forgotten":   {Graph: id + 1, Inputs: []uint64{1}, First: 2},
		"takes 1 array":      {Graph: id, First: 2},
		"got 0 as the first": {Graph: id, Inputs: []uint64{1}},
		"got 18446744073709": {Graph: id, Inputs: []uint64{1}, First: 1<<64 - 1},
		"takes 1 array, got": {Graph: id, Inputs: []uint64{1, 2}, First: 2},
	} {
		statustest.Fails(t, "the error", n.cluster.Play(&p), status.InvalidArgument, what)
	}
	statustest.OK(t, n.cluster.Play(&PlaySpec{Graph: id, Inputs: []uint64{1}, First: 2, Token: 5}))
	play := new(wire.Play)
	if got := n.came(wire.KindPlay); len(got) != 1 || proto.Unmarshal(got[0], play) != nil || play.Op != 1 {
		t.Errorf("the controller got %v", got)
	}
	n.says(wire.KindCompleted, &wire.Completed{Ok: []uint64{1, 2}})
	statustest.Check(t, errors.Join(n.end().Err, n.end().Err))
}
