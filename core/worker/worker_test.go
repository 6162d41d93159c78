package worker_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/openpathways/pathways/core/bubble"
	"github.com/openpathways/pathways/core/shape"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/device/sim"
)

// store is a rendezvous store.
type store struct {
	mu      sync.Mutex
	changed *sync.Cond
	values  map[string][]byte
}

func newStore() *store {
	s := &store{values: map[string][]byte{}}
	s.changed = sync.NewCond(&s.mu)
	return s
}

func (s *store) Put(_ context.Context, key string, value []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.values[key] = value
	s.changed.Broadcast()
	return nil
}

func (s *store) Get(ctx context.Context, key string) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.values[key] == nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		s.changed.Wait()
	}
	return s.values[key], nil
}

var vector = []sim.Param{{DType: "f32", Dims: []int64{4}}}

func addOne() sim.Program {
	return sim.Program{Name: "add_one", Params: vector, Results: []sim.Result{{Op: "add", Args: []int{0}, Value: 1}}}
}

func sum() sim.Program {
	return sim.Program{Name: "sum", Params: vector, Results: []sim.Result{{Op: "all-reduce", Args: []int{0}}}}
}

func ramp(d int) []float32 { f := float32(d); return []float32{f, f + 1, f + 2, f + 3} }

func TestRunOnEveryNumberOfWorkersAndDevices(t *testing.T) {
	for _, c := range []struct{ workers, each int }{{1, 1}, {1, 2}, {2, 2}, {4, 2}} {
		s := start(t, simDrivers(t, c.workers, c.each, sim.Options{}), nil)
		var devices, all []int
		for d := range c.workers * c.each {
			devices = append(devices, d)
		}
		all = s.of(devices)
		options := sim.CompileOptions(devices)
		for id, p := range []sim.Program{addOne(), sum()} {
			m := s.compile(1, uint64(id+1), p.Source(), options, devices...)
			statustest.OK(t, m.Status.Err())
		}
		put := s.put(1, 1, 1, devices, ramp)
		one := s.dispatch(1, wire.KindRun, &wire.Run{Op: 2, Program: 1, Inputs: []uint64{1}, FirstOutput: 2}, all...)
		two := s.dispatch(1, wire.KindRun, &wire.Run{Op: 3, Program: 2, Inputs: []uint64{2}, FirstOutput: 3}, all...)
		s.dispatch(1, wire.KindFree, &wire.Free{Objects: []uint64{1, 2}}, all...)
		for _, g := range []uint64{put, one, two} {
			statustest.OKf(t, s.wait(g, all...), "gang %d", g)
		}
		want := make([]float32, 4)
		for _, d := range devices {
			for k, v := range ramp(d) {
				want[k] += v + 1
			}
		}
		for _, d := range devices {
			got := statustest.Value(s.fetch(1, uint64(10+d), 3, d, 4)).OK(t)
			statustest.EqualSlices(t, got, want, "%d workers, device %d", c.workers, d)
		}
		statustest.Fails(t, "a freed array", statustest.Of(s.fetch(1, 100, 2, 0, 4)), status.NotFound)
		s.dispatch(1, wire.KindFree, &wire.Free{Objects: []uint64{3}}, all...)
		s.empty()
	}
}

// world is workers with programs on all devices.
type world struct {
	*script
	devices, all []int
}

func newWorld(t testing.TB, workers, each int, programs ...sim.Program) *world {
	t.Helper()
	w := &world{script: start(t, simDrivers(t, workers, each, sim.Options{}), nil)}
	for d := range workers * each {
		w.devices = append(w.devices, d)
	}
	w.all = w.of(w.devices)
	for session := uint32(1); session <= 2; session++ {
		for id, p := range programs {
			statustest.OK(t, w.compile(session, uint64(id+1), p.Source(), sim.CompileOptions(w.devices),
				w.devices...).Status.Err())
		}
	}
	return w
}

// run dispatches program id of session 1.
func (w *world) run(session uint32, op, id, output uint64, inputs ...uint64) uint64 {
	return w.dispatch(session, wire.KindRun,
		&wire.Run{Op: op, Program: id, Inputs: inputs, FirstOutput: output, Trace: []byte("train.py:7")}, w.all...)
}

// must waits for gangs that are to succeed.
func (w *world) must(gangs ...uint64) {
	w.t.Helper()
	for _, g := range gangs {
		statustest.OKf(w.t, w.wait(g, w.all...), "gang %d", g)
	}
}

// A run that fails fails what reads its results, with the same error, and
// nothing else.
func TestFailedRunFailsItsReaders(t *testing.T) {
	bad := addOne()
	bad.Name, bad.Fail = "bad", &sim.Failure{Code: "INTERNAL", Text: "the sum was off"}
	w := newWorld(t, 2, 2, addOne(), bad)
	put := w.put(1, 1, 1, w.devices, ramp)
	failing := w.run(1, 2, 2, 2, 1)
	err := w.wait(failing, w.all...)
	for _, part := range []string{"bad", "device", "worker w", "train.py:7", "the sum was off"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not name %q", err, part)
		}
	}
	dependent := w.run(1, 3, 1, 3, 2)
	statustest.Fails(t, "what reads a failed array", w.wait(dependent, w.all...), status.Internal, "the sum was off")
	other := w.run(1, 4, 1, 4, 1)
	w.must(put, other)
	statustest.EqualSlices(t, statustest.Value(w.fetch(1, 5, 4, 3, 4)).OK(t), []float32{4, 5, 6, 7}, "a run beside")
	statustest.Fails(t, "reading a failed array", statustest.Of(w.fetch(1, 6, 3, 0, 4)), status.Internal)
	w.dispatch(1, wire.KindFree, &wire.Free{Objects: []uint64{1, 2, 3, 4}}, w.all...)
	w.empty()
}

// Two sessions whose collectives come to the workers in one order finish, however
// the devices get to them.
func TestCollectivesOfTwoSessionsFinish(t *testing.T) {
	w := newWorld(t, 2, 2, sum(), addOne())
	for session := uint32(1); session <= 2; session++ {
		w.must(w.put(session, 1, 1, w.devices, ramp))
	}
	const rounds = 50
	var gangs []uint64
	for i := uint64(0); i < rounds; i++ {
		for k := range 2 {
			session := uint32(1 + (int(i)+k)%2)
			gangs = append(gangs, w.run(session, 2+2*i, 1, 2+2*i, 1))
			gangs = append(gangs, w.run(session, 3+2*i, 2, 3+2*i, 2+2*i))
		}
	}
	w.must(gangs...)
	got, err := w.fetch(2, 1000, 2+2*rounds-1, 3, 4)
	if want := []float32{7, 11, 15, 19}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	w.tell(wire.KindDrop, &wire.Drop{Session: 1})
	w.tell(wire.KindDrop, &wire.Drop{Session: 2})
	w.empty()
}

// A donated argument is gone, and its memory is the result's.
func TestDonatedMemoryIsReused(t *testing.T) {
	step := addOne()
	step.Params = []sim.Param{{DType: "f32", Dims: []int64{4}, Donated: true}}
	w := newWorld(t, 1, 2, step)
	w.must(w.put(1, 1, 1, w.devices, ramp))
	before := w.inUse()
	var gangs []uint64
	for i := uint64(1); i <= 100; i++ {
		gangs = append(gangs, w.run(1, 1+i, 1, 1+i, i))
	}
	w.must(gangs...)
	statustest.Equal(t, w.inUse(), before, "bytes in use after 100 donating steps")
	statustest.Fails(t, "reading what was donated", statustest.Of(w.fetch(1, 200, 1, 0, 4)), status.FailedPrecondition)
	kept := w.dispatch(1, wire.KindRun,
		&wire.Run{Op: 300, Program: 1, Inputs: []uint64{101}, FirstOutput: 400, NotDonated: []uint32{0}}, w.all...)
	w.must(kept)
	statustest.Equal(t, statustest.Value(w.fetch(1, 301, 101, 1, 4)).OK(t)[0], 101, "reading what was not donated")
}

// inUse adds up the devices' memory.
func (s *script) inUse() (n int64) {
	for _, d := range s.drivers {
		for k := range d.Devices() {
			m := statustest.Value(d.MemoryStats(k)).OK(s.t)
			n += m.InUse
		}
	}
	return n
}

// Bytes that never come hold back what needs them on that device alone, and Abort
// ends the wait.
func TestAbortEndsTheWaitForBytes(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, 1, addOne(), sum())
		one := w.compile(1, 3, addOne().Source(), sim.CompileOptions([]int{1}), 1)
		statustest.OK(t, one.Status.Err())
		array := &wire.Array{Dtype: uint32(shape.F32), Dims: []int64{4}}
		lost := w.dispatch(1, wire.KindPut, &wire.Put{Op: 1, Object: 1, Array: array, Devices: []uint32{0, 1}}, w.all...)
		waits := w.run(1, 2, 1, 2, 1)
		after := w.run(1, 3, 2, 3, 2)
		synctest.Wait() // both stand at the run
		for d := range 2 {
			if s := w.workers[d].Waits()[0]; s.Gang != waits || !strings.Contains(s.For, "array 1") {
				t.Errorf("worker %d stands at %+v, want gang %d", d, s, waits)
			}
		}
		why := status.New(status.Unavailable, "the client was lost")
		w.tell(wire.KindAbort, &wire.Abort{Gang: lost, Status: wire.Of(why)})
		for _, g := range []uint64{lost, waits, after} {
			statustest.Fails(t, fmt.Sprintf("gang %d", g), w.wait(g, w.all...), status.Unavailable, "client was lost")
		}
		w.must(w.put(1, 10, 10, w.devices, ramp), w.run(1, 11, 2, 11, 10))
		w.dispatch(1, wire.KindFree, &wire.Free{Objects: []uint64{1, 2, 3, 10, 11}}, w.all...)
		w.empty()
	})
}

// Drop takes all of a session, and leaves the others.
func TestDropFreesOneSession(t *testing.T) {
	w := newWorld(t, 2, 2, addOne())
	w.must(w.put(1, 1, 1, w.devices, ramp), w.put(2, 1, 1, w.devices, ramp))
	array := &wire.Array{Dtype: uint32(shape.F32), Dims: []int64{4}}
	never := w.dispatch(1, wire.KindPut, &wire.Put{Op: 2, Object: 2, Array: array, Devices: []uint32{0, 1, 2, 3}},
		w.all...)
	stands := w.run(1, 3, 1, 3, 2)
	behind := w.run(2, 2, 1, 2, 1)
	w.tell(wire.KindDrop, &wire.Drop{Session: 1, Status: wire.Of(status.New(status.Cancelled, "the client has left"))})
	for _, g := range []uint64{never, stands} {
		statustest.Fails(t, fmt.Sprintf("gang %d of a session that was dropped", g), w.wait(g, w.all...),
			status.Cancelled)
	}
	w.must(behind)
	statustest.Equal(t, statustest.Value(w.fetch(2, 3, 2, 2, 4)).OK(t)[0], 3, "the other session")
	statustest.Fails(t, "a run of a session that was dropped", w.wait(w.run(1, 4, 1, 4, 1), w.all...), status.NotFound)
	w.tell(wire.KindDrop, &wire.Drop{Session: 2})
	w.empty()
}

// A program that does not load fails its runs and no others.
func TestProgramThatDoesNotLoadFailsOnlyItsRuns(t *testing.T) {
	w := newWorld(t, 1, 1, addOne())
	w.tell(wire.KindLoad, &wire.Load{Session: 1, Program: 9, Name: "broken", Devices: []*wire.Devices{{Count: 1}},
		Outputs: []*wire.Array{{}}, Loadable: &wire.Loadable{Form: wire.Loadable_NATIVE, Serialized: []byte("rubbish")}})
	w.must(w.put(1, 1, 1, w.devices, ramp))
	broken := w.run(1, 2, 9, 2, 1)
	dependent := w.run(1, 3, 1, 3, 2)
	for _, g := range []uint64{broken, dependent} {
		statustest.Fails(t, fmt.Sprintf("gang %d", g), w.wait(g, 0), status.InvalidArgument,
			"broken could not be loaded")
	}
	w.must(w.run(1, 4, 1, 4, 1))
}

// An argument may come from several objects, row by row.
func TestArgumentOfSeveralObjects(t *testing.T) {
	w := newWorld(t, 2, 2, sum())
	w.must(w.put(1, 1, 1, []int{0, 1, 2}, ramp))
	w.put(1, 2, 2, []int{3}, func(int) []float32 { return []float32{100, 0, 0, 0} })
	g := w.dispatch(1, wire.KindRun, &wire.Run{Op: 3, Program: 1, Inputs: []uint64{0}, FirstOutput: 3,
		Mixed: []*wire.Mixed{{Argument: 0, Pieces: []*wire.Piece{{Object: 1, Rows: 3}, {Object: 2, Rows: 1}}}}}, w.all...)
	w.must(g)
	if got, err := w.fetch(1, 4, 3, 1, 4); err != nil || !slices.Equal(got, []float32{103, 6, 9, 12}) {
		t.Errorf("%v, %v", got, err)
	}
}

// Transfer takes shards and regions of them anywhere.
func TestTransferMovesShardsAndRegions(t *testing.T) {
	w := newWorld(t, 2, 2)
	w.must(w.put(1, 1, 1, w.devices, ramp))
	array := &wire.Array{Dtype: uint32(shape.F32), Dims: []int64{4}}
	// Whole shards one device on, in a circle over both workers.
	around := &wire.Transfer{Op: 2, Object: 2, Array: array}
	for d := range uint32(4) {
		around.Moves = append(around.Moves, &wire.Move{Source: 1, From: d, To: (d + 1) % 4})
	}
	// Of each shard one element to each device.
	spread := &wire.Transfer{Op: 3, Object: 3, Array: array}
	for from := range uint32(4) {
		for to := range uint32(4) {
			spread.Moves = append(spread.Moves, &wire.Move{
				Source: 2, From: from, To: to, Start: []int64{int64(to)}, Size: []int64{1}, At: []int64{int64(from)}, Shard: array})
		}
	}
	w.must(w.dispatch(1, wire.KindTransfer, around, w.all...), w.dispatch(1, wire.KindTransfer, spread, w.all...))
	for d := range 4 {
		got, err := w.fetch(1, uint64(10+d), 2, d, 4)
		if want := ramp((d + 3) % 4); err != nil || !slices.Equal(got, want) {
			t.Errorf("device %d has %v, %v, want %v", d, got, err, want)
		}
		got, err = w.fetch(1, uint64(20+d), 3, d, 4)
		if f := float32(d); err != nil || !slices.Equal(got, []float32{3 + f, f, 1 + f, 2 + f}) {
			t.Errorf("device %d has %v, %v", d, got, err)
		}
	}
	statustest.Fails(t, "a move from an array that is not there", w.wait(w.dispatch(1, wire.KindTransfer, &wire.Transfer{
		Op: 4, Object: 4, Array: array, Moves: []*wire.Move{{Source: 99, From: 0, To: 1}}}, 0), 0), status.NotFound)
	w.dispatch(1, wire.KindFree, &wire.Free{Objects: []uint64{1, 2, 3, 4}}, w.all...)
	w.empty()
}
