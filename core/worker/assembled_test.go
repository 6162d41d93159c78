package worker_test

import (
	"slices"
	"testing"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

// A run that reads an assembled array reads the shards that it is made of, also if the name is freed behind the run.
func TestRunReadsAssembledArray(t *testing.T) {
	w := newWorld(t, 2, 2, sum())
	w.must(w.put(1, 1, 1, []int{0, 1, 2}, ramp),
		w.put(1, 2, 2, []int{3, 0}, func(int) []float32 { return []float32{100, 0, 0, 0} }))
	// To each worker its own part: all of worker 0 is of array 1.
	w.gang++
	w.dispatchAs(w.gang, 1, wire.KindAssemble, &wire.Assemble{Object: 9, Devices: []uint32{0, 1},
		Pieces: []*wire.Piece{{Object: 1, Rows: 2}}}, 0)
	w.dispatchAs(w.gang, 1, wire.KindAssemble, &wire.Assemble{Object: 9, Devices: []uint32{2, 3},
		Pieces: []*wire.Piece{{Object: 1, Rows: 1}, {Object: 2, Rows: 1}}}, 1)
	for op := range uint64(2) {
		m := &wire.Run{Op: 3 + op, Program: 1, Inputs: []uint64{9}, FirstOutput: 3 + op}
		g := w.dispatch(1, wire.KindRun, m, w.all...)
		if op == 1 {
			w.free(9)
		}
		w.must(g)
		if got, err := w.fetch(1, 5+op, 3+op, 1, 4); err != nil || !slices.Equal(got, []float32{103, 6, 9, 12}) {
			t.Errorf("%v, %v", got, err)
		}
	}
	gone := w.dispatch(1, wire.KindRun, &wire.Run{Op: 8, Program: 1, Inputs: []uint64{9}, FirstOutput: 8}, w.all...)
	statustest.Fails(t, "a run of what was freed", w.wait(gone, w.all...), status.NotFound)
	w.free(1, 2, 3, 4, 8)
	w.empty()
}

// A controller that has started again assembles what its runs read: the worker forgets what the one before had it
// assemble, but for runs that it was sent.
func TestAssembledArraysEndWithTheStartOfTheController(t *testing.T) {
	w := newWorld(t, 1, 2, sum())
	w.must(w.put(1, 1, 1, w.devices, ramp))
	w.dispatch(1, wire.KindAssemble, &wire.Assemble{Object: 9, Devices: []uint32{0, 1},
		Pieces: []*wire.Piece{{Object: 1, Rows: 2}}}, w.all...)
	run := func(object uint64) uint64 {
		return w.dispatch(1, wire.KindRun, &wire.Run{Op: object, Program: 1, Inputs: []uint64{9}, FirstOutput: object},
			w.all...)
	}
	before := run(2)
	w.tell(wire.KindRestarted, new(wire.Heartbeat)) // has no fields
	w.must(before)
	statustest.Fails(t, "a run that comes later", w.wait(run(3), w.all...), status.NotFound)
	w.free(1, 2, 3)
	w.empty()
}

// A run that donates an assembled array takes over the shards that it is made of, on each device its own.
func TestRunDonatesAssembledArray(t *testing.T) {
	p := addOne()
	p.Params = slices.Clone(p.Params)
	p.Params[0].Donated = true
	w := newWorld(t, 2, 1, p)
	w.must(w.put(1, 1, 1, w.devices, ramp), w.put(1, 2, 2, w.devices, ramp))
	w.dispatch(1, wire.KindAssemble, &wire.Assemble{Object: 3, Devices: []uint32{0, 1},
		Pieces: []*wire.Piece{{Object: 1, Rows: 1}, {Object: 2, Rows: 1}}}, w.all...)
	w.must(w.dispatch(1, wire.KindRun, &wire.Run{Op: 3, Program: 1, Inputs: []uint64{3}, FirstOutput: 4}, w.all...))
	if _, err := w.fetch(1, 4, 1, 0, 4); err == nil {
		t.Error("a shard that was donated can be read")
	}
	w.free(1, 2, 3, 4)
	w.empty()
}
