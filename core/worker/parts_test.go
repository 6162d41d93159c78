package worker_test

import (
	"testing"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

// Workers that are sent their own moves of a transfer alone agree on the names of what goes from one to the other,
// also where the transfer is a node of a graph.
func TestTransferOfOwnMoves(t *testing.T) {
	w := newWorld(t, 3, 1)
	array := &wire.Array{Dtype: uint32(shape.F32), Dims: []int64{4}}
	// Worker 0 is sent moves 0, 1 and 4, worker 1 moves 1 to 3, worker 2 moves 2 to 4.
	moves := func(source uint64) *wire.Transfer {
		all := &wire.Transfer{Array: array, Moves: []*wire.Move{{From: 0, To: 0}, {From: 1, To: 0}, {From: 2, To: 1},
			{From: 1, To: 2}, {From: 2, To: 0}}}
		for i, m := range all.Moves { // the first region of the destination, or what is behind those that come before it
			first := int64(i)
			m.Source, m.Shard = source, array
			switch m.To {
			case 0:
				m.Start, m.Size, m.At = []int64{first % 4}, []int64{1}, []int64{min(first, 2)}
			default:
				m.Start, m.Size, m.At = []int64{0}, []int64{4}, []int64{0}
			}
		}
		return all
	}
	check := func(object uint64, op uint64) {
		t.Helper()
		for d, want := range [][]float32{{ramp(0)[0], ramp(1)[1], ramp(2)[0]}, ramp(2), ramp(1)} {
			got := statustest.Value(w.fetch(1, op+uint64(d), object, d, 4)).OK(t)
			statustest.EqualSlices(t, got[:len(want)], want, "device %d", d)
		}
	}
	w.must(w.put(1, 1, 1, w.devices, ramp))
	all := moves(1)
	all.Op, all.Object = 2, 2
	w.must(w.dispatch(1, wire.KindTransfer, all, w.all...))
	check(2, 10)

	for i := range w.workers {
		w.tellOne(i, wire.KindGraph, &wire.Graph{Session: 1, Graph: 1, Inputs: 1, Outputs: []uint64{2},
			Nodes: []*wire.Node{{Transfer: w.ownMoves(moves(1), i), Makes: 1}}})
	}
	w.must(w.play(1, 20, 3, 0, 1)...)
	check(3, 30)
	w.free(1, 2, 3)
	w.empty()
}
