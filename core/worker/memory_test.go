package worker_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/worker"
	"github.com/openpathways/pathways/device/sim"
)

// limited is a world whose devices have room for so many vectors of 16 bytes. Its
// drivers have no more either, so that what is admitted too early fails.
func limited(t *testing.T, workers, each, vectors int, programs ...sim.Program) *world {
	t.Helper()
	memory := int64(16 * vectors)
	return worldOf(t, workers, each, sim.Options{Memory: memory},
		func(c *worker.Config) { c.MemoryLimit = memory }, programs...)
}

// worldOf starts workers with simulated devices, which have compiled programs 1, 2 … for all of these.
func worldOf(t testing.TB, workers, each int, o sim.Options, set func(*worker.Config), programs ...sim.Program) *world {
	t.Helper()
	w := &world{script: start(t, simDrivers(t, workers, each, o), set)}
	for d := range workers * each {
		w.devices = append(w.devices, d)
	}
	w.all = w.of(w.devices)
	for id, p := range programs {
		statustest.OK(t, w.compile(1, uint64(id+1), p.Source(), sim.CompileOptions(w.devices),
			w.devices...).Status.Err())
	}
	return w
}

func (w *world) free(objects ...uint64) {
	w.dispatch(1, wire.KindFree, &wire.Free{Objects: objects}, w.all...)
}

// full asserts that a gang was refused for lack of memory, with words that say why.
func (w *world) full(gang uint64, parts ...string) {
	w.t.Helper()
	err := w.wait(gang, w.all...)
	statustest.Fails(w.t, fmt.Sprintf("gang %d", gang), err, status.ResourceExhausted)
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			w.t.Errorf("%q does not say %q", err, p)
		}
	}
}

func TestHoldersOfMemoryAreNamedByUserAndHost(t *testing.T) {
	w := limited(t, 1, 1, 2, addOne(), sum())
	w.begin(&wire.Session{
		Session: 2, Client: &wire.Process{Number: clientProcess, Name: "notebook", User: "ada", Machine: "node1"}})
	w.must(w.put(2, 1, 1, w.devices, ramp), w.put(2, 2, 2, w.devices, ramp))
	w.full(w.put(1, 3, 3, w.devices, ramp), "2 of device_put, session 2, notebook of ada on node1;")
	w.dispatch(2, wire.KindFree, &wire.Free{Objects: []uint64{1, 2}}, w.all...)
	w.empty()
}

// What does not fit and never will is refused, with what is needed, what there is
// and who has it; what was there before stays good.
func TestArraysAboveTheLimitAreRefused(t *testing.T) {
	w := limited(t, 2, 2, 2, addOne(), sum())
	w.must(w.put(1, 1, 1, w.devices, ramp), w.run(1, 2, 1, 2, 1))
	for _, program := range []uint64{1, 2} { // by itself, and with its devices together
		w.full(w.run(1, 2+program, program, 3, 1), "makes 16 bytes", "may have 32 bytes", "32 bytes are in use",
			"1 of add_one, session 1", "1 of device_put, session 1", "train.py:7")
		w.free(3)
	}
	w.full(w.dispatch(1, wire.KindPut, &wire.Put{Op: 5, Object: 5, Array: vector4, Devices: []uint32{0, 1, 2, 3}},
		w.all...), "device_put")
	w.full(w.dispatch(1, wire.KindTransfer, &wire.Transfer{Op: 6, Object: 6, Array: vector4, Moves: []*wire.Move{
		{Source: 2, From: 0, To: 3}, {Source: 2, From: 1, To: 0}}}, w.all...), "a transfer")
	w.free(5, 6)
	if got, err := w.fetch(1, 7, 2, 1, 4); err != nil || !slices.Equal(got, []float32{2, 3, 4, 5}) {
		t.Errorf("what was there before is %v, %v", got, err)
	}
	w.free(1)
	w.must(w.run(1, 8, 1, 8, 2))
	w.free(2, 8)
	w.empty()
}

var vector4 = &wire.Array{Dtype: uint32(shape.F32), Dims: []int64{4}}

// A donated array's memory is its result's.
func TestDonationTakesNoRoom(t *testing.T) {
	step := addOne()
	step.Params = []sim.Param{{DType: "f32", Dims: []int64{4}, Donated: true}}
	w := limited(t, 1, 2, 1, step)
	gangs := []uint64{w.put(1, 1, 1, w.devices, ramp)}
	for i := uint64(2); i < 20; i++ {
		gangs = append(gangs, w.run(1, i, 1, i, i-1))
		w.free(i - 1)
	}
	w.must(gangs...)
	w.free(19)
	w.empty()
}

// A controller that has started again is told of the memory of arrays that were freed while something reads them.
func TestMemoryThatLeavesIsToldToTheNextController(t *testing.T) {
	w := limited(t, 2, 1, 4)
	w.must(w.put(1, 1, 1, w.devices, ramp))
	move := &wire.Transfer{Op: 2, Object: 2, Array: vector4, Moves: []*wire.Move{{Source: 1, From: 0, To: 1}}}
	gang := w.dispatch(1, wire.KindTransfer, move, 0) // it waits for the other worker's part
	w.dispatch(1, wire.KindFree, &wire.Free{Objects: []uint64{1}}, 0)
	statustest.OK(t, w.wait(w.put(1, 3, 3, []int{0}, ramp), 0)) // behind the Free
	w.tellOne(0, wire.KindRestarted, new(wire.Heartbeat))       // has no fields
	w.until("what the worker has", func() bool { return len(w.held) > 0 && w.held[0].Session == 1 })
	if h := w.held[0]; len(h.Arrays) != 1 || !slices.Equal(h.Leaving, []int64{16}) {
		t.Errorf("the worker has %v, want array 3, and 16 bytes that leave", h)
	}
	w.dispatchAs(gang, 1, wire.KindTransfer, move, 1)
	w.must(gang)
	w.free(1, 2, 3)
	w.empty()
}

// Gangs that end behind their session are not remembered: no client will say that it has heard their end.
func TestGangsOfEndedSessionsAreNotRemembered(t *testing.T) {
	w := limited(t, 1, 1, 4)
	gang := w.dispatch(2, wire.KindPut, &wire.Put{Op: 1, Object: 1, Array: vector4, Devices: []uint32{0}}, 0)
	w.tell(wire.KindDrop, &wire.Drop{Session: 2})
	statustest.Fails(t, "a put whose session has ended", w.wait(gang, 0), status.Cancelled)
	w.tell(wire.KindRestarted, new(wire.Heartbeat)) // has no fields
	w.until("what the worker has", func() bool { return len(w.held) > 0 })
	for _, h := range w.held {
		if h.Session == 2 {
			t.Errorf("the worker still has %v", h)
		}
	}
}
