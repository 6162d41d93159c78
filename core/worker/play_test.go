package worker_test

import (
	"slices"
	"testing"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

// define sends a graph: a chain of so many runs of program 1, the last of which is
// kept.
func (w *world) define(graph uint64, nodes int) {
	m := &wire.Graph{Session: 1, Graph: graph, Inputs: 1, Outputs: []uint64{uint64(nodes) + 1}}
	for i := range nodes {
		m.Nodes = append(m.Nodes,
			&wire.Node{Run: &wire.Run{Program: 1, Inputs: []uint64{uint64(i) + 1}, Trace: []byte("train.py:7")}, Makes: 1})
	}
	w.tell(wire.KindGraph, m)
}

// play sends nodes of a play of array 1 and returns their gangs.
func (w *world) play(graph, op, first uint64, from, count int) (gangs []uint64) {
	w.tell(wire.KindPlayed, &wire.Played{Gang: w.gang + 1, Session: 1, Graph: graph, Op: op, From: uint32(from),
		Count: uint32(count), First: first, Inputs: []uint64{1}, Client: clientProcess})
	for range count {
		w.gang++
		gangs = append(gangs, w.gang)
	}
	return gangs
}

// A play needs no more memory than its nodes one by one, where they come as those before
// them end, as a controller without more memory sends them, with other operations between.
func TestPlayWithinMemory(t *testing.T) {
	const nodes, vectors = 40, 4
	w := limited(t, 2, 2, vectors, addOne())
	w.define(1, nodes)
	w.must(w.put(1, 1, 1, w.devices, ramp))
	for i := range uint64(3) {
		op, first := 10+100*i, 100+100*i
		for node := range nodes {
			w.must(w.play(1, op, first, node, 1)...)
			if node == 7 {
				w.must(w.run(1, op+90, 1, first+90, 1))
				w.free(first + 90)
			}
		}
		if got, err := w.fetch(1, op+91, first+nodes-1, 1, 4); err != nil || !slices.Equal(got, []float32{41, 42, 43, 44}) {
			t.Errorf("the play ended with %v, %v", got, err)
		}
		w.free(first + nodes - 1)
	}
	w.free(1)
	w.empty()
}

// What a play is given for good goes behind the last node that reads it, and not with
// the free that comes behind the play.
func TestPlayGivenWithinMemory(t *testing.T) {
	const vectors = 40
	w := limited(t, 2, 2, vectors+2, addOne())
	m := &wire.Graph{Session: 1, Graph: 1, Inputs: vectors}
	var given, made []uint64
	for i := range uint64(vectors) {
		w.must(w.put(1, 1+i, 1+i, w.devices, ramp))
		m.Nodes = append(m.Nodes, &wire.Node{Run: &wire.Run{Program: 1, Inputs: []uint64{1 + i}}, Makes: 1})
		given, made = append(given, 1+i), append(made, 1+vectors+i)
	}
	m.Given, m.Outputs = given, made
	w.tell(wire.KindGraph, m)
	for node := range uint32(vectors) {
		w.gang++
		w.tell(wire.KindPlayed, &wire.Played{Gang: w.gang, Session: 1, Graph: 1, Op: 100, From: node, Count: 1,
			First: made[0], Inputs: given, Client: clientProcess})
		w.must(w.gang)
	}
	w.free(given...)
	if got, err := w.fetch(1, 200, made[vectors-1], 1, 4); err != nil || !slices.Equal(got, []float32{2, 3, 4, 5}) {
		t.Errorf("the play ended with %v, %v", got, err)
	}
	w.free(made...)
	w.empty()
}

// Nodes of a graph that a worker does not know, or no more, end with an error.
func TestNodesOfUnknownGraphsFail(t *testing.T) {
	w := newWorld(t, 2, 1, addOne())
	w.must(w.put(1, 1, 1, w.devices, ramp))
	fails := func(what string, gangs []uint64) {
		t.Helper()
		for _, g := range gangs {
			statustest.Fails(t, what, w.wait(g, w.all...), status.Internal, "graph")
		}
	}
	fails("a graph that was not sent", w.play(7, 10, 10, 0, 3))
	w.define(1, 3)
	fails("more nodes than there are", w.play(1, 20, 20, 2, 2))
	w.must(w.play(1, 30, 30, 0, 3)...)
	w.tell(wire.KindForget, &wire.Forget{Session: 1, Graphs: []uint64{1}})
	fails("a graph that was forgotten", w.play(1, 40, 40, 0, 3))
	w.free(1, 32)
	w.empty()
}

// An error of a transfer in a graph says which program made what it moves, also where the worker lacks that program.
func TestErrorsOfAMoveNameWhatMadeTheArray(t *testing.T) {
	w := limited(t, 1, 2, 2, addOne())
	w.must(w.put(1, 1, 1, w.devices, ramp))
	other := []*wire.ProgramName{{Program: 9, Name: "step"}} // of another worker
	for i, c := range []struct {
		program uint64
		source  uint64
		names   []*wire.ProgramName
		want    string
	}{
		{9, 2, other, "[moving a result of step, called at train.py:3, on device "},
		{1, 2, nil, "[moving a result of add_one, called at train.py:3, on device "},
		{9, 1, other, "[moving an array, called at train.py:3, on device "},
	} {
		graph := uint64(i + 1)
		result := 10 * graph
		w.tell(wire.KindGraph, &wire.Graph{Session: 1, Graph: graph, Inputs: 1, Outputs: []uint64{3}, Names: c.names,
			Nodes: []*wire.Node{
				{Run: &wire.Run{Program: c.program, Inputs: []uint64{1}}, Makes: 1},
				{Transfer: &wire.Transfer{Array: vector4, Moves: []*wire.Move{{Source: c.source, From: 0, To: 1}}},
					Trace: []byte("train.py:3"), Makes: 1}}})
		w.must(w.put(1, 100*graph, result, w.devices, ramp)) // instead of the run
		moved := w.play(graph, 100*graph+1, result, 1, 1)[0] // there is no room
		statustest.Fails(t, "the transfer", w.wait(moved, w.all...), status.ResourceExhausted, c.want)
		w.free(result, result+1)
	}
}
