package worker_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/openpathways/pathways/core/bubble"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/worker"
	"github.com/openpathways/pathways/core/xla/spmd"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/transport/collective"
)

// The driver of these tests runs programs as XLA's CPU client does: one whose
// inputs are there runs within Execute, and waits there in its collectives. What
// the others make is there when the test says so.

// inline is such a driver, with one device.
type inline struct {
	device.Driver
	worker  int
	handle  func(*device.CollectiveCall)
	call    func(*device.HostCall)
	entered chan int32 // launches that wait in a collective
	slow    *slow      // computations that do not run within Execute
	view    bool       // of their results
	order   []int32    // of launches
	let     chan error // ends a run of "turns" that does not end by itself
	brought *fires     // when arrays from the host are there; nil: at once
	aborts  atomic.Int32
}

// slow is computations that end when the test says so.
type slow struct {
	mu    sync.Mutex
	begun map[int32]*ends
	some  *sync.Cond
}

// ends are when the driver is done with a computation, and when its result is there.
type ends struct{ done, result fires }

// fires is a device.Event of the test.
type fires struct {
	mu    sync.Mutex
	fired bool
	err   error
	then  []func(error)
}

func (e *fires) Ready() bool { e.mu.Lock(); defer e.mu.Unlock(); return e.fired }
func (e *fires) Wait(context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err
}
func (e *fires) Then(f func(error)) {
	e.mu.Lock()
	if !e.fired {
		e.then = append(e.then, f)
		e.mu.Unlock()
		return
	}
	e.mu.Unlock()
	f(e.err)
}
func (e *fires) fire(err error) {
	e.mu.Lock()
	if !e.fired {
		e.fired, e.err = true, err
	}
	then := e.then
	e.then = nil
	e.mu.Unlock()
	for _, f := range then {
		f(err)
	}
}

// promised is a buffer whose contents are there when its event has fired.
type promised struct {
	device.Buffer
	ready  *fires
	data   []byte // ramp(1) where it is nil
	closed atomic.Bool
}

func (b *promised) Shape() shape.Shape  { return shape.Shape{DType: shape.F32, Dims: []int64{4}} }
func (b *promised) Ready() device.Event { return b.ready }
func (b *promised) Close()              { b.closed.Store(true) }
func (b *promised) ToHost(dst []byte) (device.Event, error) {
	if b.closed.Load() {
		return nil, status.New(status.FailedPrecondition, "the buffer is closed")
	}
	e := new(fires)
	b.ready.Then(func(err error) {
		if err == nil {
			copy(dst, cmp.Or(string(b.data), string(floats(ramp(1)))))
		}
		e.fire(err)
	})
	return e, nil
}

// viewed is one that the host can read where it is, and no other way.
type viewed struct{ *promised }

func (viewed) View() []byte { return floats(ramp(1)) }
func (viewed) ToHost([]byte) (device.Event, error) {
	panic("it is to be read where it is")
}

func there() *promised { return &promised{ready: &fires{fired: true}} }

func (d *inline) Devices() []device.Device {
	return []device.Device{{Memories: []device.Memory{{Kind: "device"}}}}
}
func (d *inline) Platform() string                                      { return "cpu" }
func (d *inline) Close() error                                          { return nil }
func (d *inline) MemoryStats(int) (device.MemoryStats, error)           { return device.MemoryStats{}, nil }
func (d *inline) Abort(int32, error)                                    { d.aborts.Add(1) }
func (d *inline) ServeCollectives(f func(*device.CollectiveCall)) error { d.handle = f; return nil }
func (d *inline) ServeHostCalls(f func(*device.HostCall)) error         { d.call = f; return nil }
func (d *inline) Partition(context.Context, device.Program, []byte, int) (*device.Part, error) {
	return nil, status.New(status.Unimplemented, "nothing is compiled here")
}
func (d *inline) Load(_ context.Context, name []byte) (device.Executable, error) {
	return &inlineProgram{d: d, name: string(name)}, nil
}
func (d *inline) FromHost(h device.Host) (device.Buffer, error) {
	b := there()
	if d.brought != nil {
		b.ready = d.brought
	}
	b.data = slices.Clone(h.Data)
	h.Done()
	return b, nil
}

type inlineProgram struct {
	device.Executable
	d    *inline
	name string
}

func (*inlineProgram) Close()         {}
func (*inlineProgram) Devices() []int { return []int{0} }

var everyone = spmd.Spec{Op: spmd.AllReduce, Groups: [][]int{{0, 1}}, Reduction: spmd.Sum, DType: shape.F32,
	Operands: []shape.Shape{{DType: shape.F32, Dims: []int64{1}}}, Results: []shape.Shape{
		{DType: shape.F32, Dims: []int64{1}}}}

// Execute runs "sum", "calls", and "mixed" where the worker is not the first, within
// the call.
func (p *inlineProgram) Execute(r device.Run) (*device.Results, error) {
	for _, b := range r.Inputs[0] {
		if b.(*promised).closed.Load() {
			return nil, status.New(status.FailedPrecondition, "an input was closed")
		}
		if err := b.(*promised).ready.Wait(context.Background()); err != nil { // it has failed by now
			return nil, err
		}
	}
	d := p.d
	d.order = append(d.order, r.LaunchID) // launches come one after the other
	if p.name == "slow" || p.name == "mixed" && d.worker == 0 {
		e := new(ends)
		d.slow.mu.Lock()
		d.slow.begun[r.LaunchID] = e
		d.slow.some.Broadcast()
		d.slow.mu.Unlock()
		var out device.Buffer = &promised{ready: &e.result}
		if d.view {
			out = viewed{out.(*promised)}
		}
		return &device.Results{Outputs: [][]device.Buffer{{out}}, Done: []device.Event{&e.done}}, nil
	}
	if p.name == "turns" {
		e := &fires{fired: true}
		if len(d.order) > 1 {
			e.err = <-d.let
		}
		return &device.Results{Outputs: [][]device.Buffer{{&promised{ready: e}}}, Done: []device.Event{e}}, nil
	}
	done := make(chan error, 1)
	if p.name == "calls" {
		d.call(&device.HostCall{Launch: r.LaunchID, Done: func(err error) { done <- err }})
		e := &fires{fired: true, err: <-done}
		return &device.Results{Outputs: [][]device.Buffer{{&promised{ready: e}}}, Done: []device.Event{e}}, nil
	}
	d.handle(&device.CollectiveCall{Launch: r.LaunchID, Spec: everyone.String(), Operands: [][]byte{make([]byte, 4)},
		Results: [][]byte{make([]byte, 4)},
		Done:    func(err error) { done <- err }})
	select {
	case d.entered <- r.LaunchID:
	default: // the test does not look
	}
	err := <-done
	e := &fires{fired: true, err: err}
	return &device.Results{Outputs: [][]device.Buffer{{&promised{ready: e}}}, Done: []device.Event{e}}, nil
}

// end ends a computation that does not run within Execute.
func (s *slow) end(gang uint64, err error) {
	e := s.ends(gang)
	e.done.fire(err)
	e.result.fire(err)
}

func (s *slow) ends(gang uint64) *ends {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.begun[int32(gang)] == nil {
		s.some.Wait()
	}
	return s.begun[int32(gang)]
}

// Programs of newInline.
const (
	slowProgram  = 1 // one device, worker 0
	mixedProgram = 2
	sumProgram   = 3
	callsProgram = 4 // one device, worker 0: calls a function of its client
	turnsProgram = 5 // one device, worker 0: quick as the first launch of all, then ended by the test
)

// newInline makes two workers with such drivers.
func newInline(t testing.TB) (*script, []*inline) { return newInlineWith(t, func(*worker.Config) {}) }

// newInlineOn says that the devices of each share so many threads.
func newInlineOn(t testing.TB, threads int) (*script, []*inline) {
	return newInlineWith(t, func(c *worker.Config) { c.Threads = threads })
}

// newInlineWith changes the workers' configuration.
func newInlineWith(t testing.TB, change func(*worker.Config)) (*script, []*inline) {
	t.Helper()
	var drivers []device.Driver
	var all []*inline
	for i := range 2 {
		d := &inline{worker: i, entered: make(chan int32, 16), slow: &slow{begun: map[int32]*ends{}}, let: make(chan error)}
		d.slow.some = sync.NewCond(&d.slow.mu)
		drivers, all = append(drivers, d), append(all, d)
	}
	s := start(t, drivers, func(c *worker.Config) {
		c.Engine, c.Heartbeat = collective.New(c.Exchange, 0, nil), time.Second
		change(c)
	})
	s.abort = true
	places := []*wire.Span{{Worker: firstWorker, Count: 1}, {Worker: firstWorker + 1, Count: 1}}
	outputs := []*wire.Array{{Dtype: uint32(shape.F32), Dims: []int64{4}}}
	load := func(w int, id uint64, name string, places []*wire.Span) {
		m := &wire.Load{Session: 1, Program: id, Name: name, Places: places, Outputs: outputs,
			Loadable: &wire.Loadable{Form: wire.Loadable_PORTABLE, Serialized: []byte(name), Collective: name == "sum",
				CallsHost: name == "calls",
				Unbounded: name == "turns"}}
		if id == sumProgram && w == 1 { // which has been told of these devices
			m.Places, m.LikeSession, m.LikeProgram = nil, 1, mixedProgram
		}
		s.tellOne(w, wire.KindLoad, m)
	}
	load(0, slowProgram, "slow", places[:1])
	load(0, callsProgram, "calls", places[:1])
	load(0, turnsProgram, "turns", places[:1])
	for w := range 2 {
		load(w, mixedProgram, "mixed", places)
		load(w, sumProgram, "sum", places)
	}
	return s, all
}

// A launch beside the queue that the driver did not know yet when its gang failed is ended once it does.
func TestALaunchBesideTheQueueEndsWhereItsGangHasFailedMeanwhile(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, d := newInline(t)
		const program = 6
		s.tellOne(0, wire.KindLoad, &wire.Load{Session: 1, Program: program, Name: "joined",
			Places: []*wire.Span{{Worker: firstWorker, Count: 1}}, Outputs: []*wire.Array{{Dtype: uint32(shape.F32)}},
			Loadable: &wire.Loadable{Form: wire.Loadable_JOINED, Serialized: []byte("turns"), CallsHost: true}})
		run := func(op uint64) uint64 {
			return s.dispatch(1, wire.KindRun, &wire.Run{Op: op, Program: program, FirstOutput: op}, 0)
		}
		statustest.OK(t, s.wait(run(1), 0))
		two := run(2)
		synctest.Wait() // the driver is being given it
		s.tell(wire.KindAbort, &wire.Abort{Gang: two, Status: wire.Of(status.New(status.Unavailable, "a worker is lost"))})
		synctest.Wait()
		statustest.Equal(t, d[0].aborts.Load(), 1, "how often the driver was told before it knew the launch")
		d[0].let <- nil
		statustest.Fails(t, "the run", s.wait(two, 0), status.Unavailable)
		synctest.Wait()
		statustest.Equal(t, d[0].aborts.Load(), 2, "how often the driver was told")
	})
}

// enters waits until a device waits in a collective of a gang.
func (d *inline) enters(t *testing.T, gang uint64) {
	t.Helper()
	for {
		select {
		case launch := <-d.entered:
			if launch == int32(gang) {
				return
			}
		case <-time.After(far):
			t.Fatalf("worker %d did not come to the collective of gang %d", d.worker, gang)
		}
	}
}

// A device that waits in a collective within Execute tells meanwhile of what has
// ended, and of what has failed: the other worker waits for that before it comes.
func TestEndsWhileItWaits(t *testing.T) {
	s, d := newInline(t)
	one := s.dispatch(1, wire.KindRun, &wire.Run{Op: 1, Program: slowProgram, FirstOutput: 1}, 0)
	two := s.dispatch(1, wire.KindRun, &wire.Run{Op: 2, Program: mixedProgram, FirstOutput: 2}, 0, 1)
	three := s.dispatch(1, wire.KindRun, &wire.Run{Op: 3, Program: sumProgram, FirstOutput: 3}, 0, 1)
	d[0].enters(t, three)
	d[0].slow.end(one, nil)
	statustest.Checkf(t, s.wait(one, 0), "a run that ends beside it")
	d[0].slow.end(two, status.New(status.Internal, "no luck"))
	statustest.Fails(t, "a run that fails beside it", s.wait(two, 0, 1), status.Internal)
	statustest.Checkf(t, s.wait(three, 0, 1), "the run that waited")
}

// What a transfer moves comes out of a device that waits in a collective, and so
// does the news that it cannot.
func TestTransferWhileItWaits(t *testing.T) {
	for _, how := range []string{"whole", "regions", "regions, read in place"} {
		for _, why := range []error{nil, status.New(status.DataLoss, "no luck")} {
			t.Run(fmt.Sprintf("%s, error %v", how, why), func(t *testing.T) {
				s, d := newInline(t)
				d[0].view = how == "regions, read in place"
				one := s.dispatch(1, wire.KindRun, &wire.Run{Op: 1, Program: slowProgram, FirstOutput: 1}, 0)
				shard := &wire.Array{Dtype: uint32(shape.F32), Dims: []int64{4}}
				m := &wire.Move{Source: 1, From: 0, To: 1}
				if how != "whole" {
					m.Shard, m.Start, m.Size, m.At = shard, []int64{0}, []int64{4}, []int64{0}
				}
				two := s.dispatch(1, wire.KindTransfer, &wire.Transfer{Op: 2, Object: 2, Array: shard, Moves: []*wire.Move{m}}, 0,
					1)
				four := s.put(1, 4, 4, []int{0}, ramp)
				three := s.dispatch(1, wire.KindRun, &wire.Run{Op: 3, Program: sumProgram, FirstOutput: 3, Inputs: []uint64{0},
					Mixed: []*wire.Mixed{{Pieces: []*wire.Piece{{Object: 4, Rows: 1}, {Object: 2, Rows: 1}}}}}, 0, 1)
				d[0].enters(t, three)
				d[0].slow.end(one, why)
				for _, g := range []uint64{two, three} {
					statustest.Fails(t, fmt.Sprintf("gang %d", g), s.wait(g, 0, 1), status.CodeOf(why))
				}
				if got, err := s.fetch(1, 5, 2, 1, 4); why == nil && (err != nil || !slices.Equal(got, ramp(1))) {
					t.Errorf("%v came, %v", got, err)
				}
				statustest.Fails(t, "the error", s.wait(one, 0), status.CodeOf(why))
				statustest.Check(t, s.wait(four, 0))
			})
		}
	}
}

// A shard, or a region of it, leaves when it is there, not when all of its array is.
func TestTransferDoesNotWaitForOtherShards(t *testing.T) {
	for _, how := range []string{"whole", "regions"} {
		t.Run(how, func(t *testing.T) {
			s, d := newInline(t)
			one := s.dispatch(1, wire.KindRun, &wire.Run{Op: 1, Program: slowProgram, FirstOutput: 1}, 0)
			four := s.put(1, 4, 4, []int{1}, ramp)
			shard := &wire.Array{Dtype: uint32(shape.F32), Dims: []int64{4}}
			across := &wire.Transfer{Op: 2, Object: 2, Array: shard}
			for from, source := range []uint64{1, 4} {
				m := &wire.Move{Source: source, From: uint32(from), To: uint32(1 - from)}
				if how == "regions" {
					m.Shard, m.Start, m.Size, m.At = shard, []int64{0}, []int64{4}, []int64{0}
				}
				across.Moves = append(across.Moves, m)
			}
			two := s.dispatch(1, wire.KindTransfer, across, 0, 1)
			// Before the other one is there.
			statustest.EqualSlices(t, statustest.Value(s.fetch(1, 3, 2, 0, 4)).OK(t), ramp(1), "worker 1's shard came as")
			d[0].slow.end(one, nil)
			statustest.EqualSlices(t, statustest.Value(s.fetch(1, 4, 2, 1, 4)).OK(t), ramp(1), "worker 0's shard came as")
			statustest.Check(t, s.wait(one, 0))
			statustest.Check(t, s.wait(two, 0, 1))
			statustest.Check(t, s.wait(four, 1))
		})
	}
}

// Launches stay in order, and every gang ends once, while computations beside end
// at any time.
func TestOrderWhileItWaits(t *testing.T) {
	s, d := newInline(t)
	var want [2][]int32
	var ends sync.WaitGroup
	gangs := map[uint64][]int{} // and the workers of each
	for op := uint64(1); op <= 400; op++ {
		if op%3 == 0 {
			g := s.dispatch(1, wire.KindRun, &wire.Run{Op: op, Program: slowProgram, FirstOutput: op}, 0)
			ends.Go(func() { d[0].slow.end(g, nil) })
			gangs[g], want[0] = []int{0}, append(want[0], int32(g))
			continue
		}
		r := &wire.Run{Op: op, Program: sumProgram, FirstOutput: op}
		if op > 1 { // worker 1 has no results of the slow ones
			r.Inputs, r.Mixed = []uint64{0},
				[]*wire.Mixed{{Pieces: []*wire.Piece{{Object: op - 1, Rows: 1}, {Object: lastSum(op), Rows: 1}}}}
		}
		g := s.dispatch(1, wire.KindRun, r, 0, 1)
		gangs[g], want[0], want[1] = []int{0, 1}, append(want[0], int32(g)), append(want[1], int32(g))
		if op > 4 {
			s.dispatch(1, wire.KindFree, &wire.Free{Objects: []uint64{op - 3}}, 0, 1)
		}
	}
	for g, workers := range gangs {
		statustest.OKf(t, s.wait(g, workers...), "gang %d", g)
	}
	ends.Wait()
	for i, d := range d {
		statustest.EqualSlices(t, d.order, want[i], "worker %d launched", i)
	}
}

// lastSum is the object before that is a result of "sum".
func lastSum(object uint64) uint64 {
	if object--; object%3 == 0 {
		object--
	}
	return object
}

// If devices are threads of one pool, a collective does not begin while a computation or a copy to another worker that
// began before may need a thread.
func TestCollectiveIsLast(t *testing.T) {
	s, d := newInlineOn(t, 1)
	one := s.dispatch(1, wire.KindRun, &wire.Run{Op: 1, Program: slowProgram, FirstOutput: 1}, 0)
	shard := &wire.Array{Dtype: uint32(shape.F32), Dims: []int64{4}}
	two := s.dispatch(1, wire.KindTransfer,
		&wire.Transfer{Op: 2, Object: 2, Array: shard, Moves: []*wire.Move{{Source: 1, From: 0, To: 1}}}, 0, 1)
	four := s.put(1, 4, 4, []int{0}, ramp)
	three := s.dispatch(1, wire.KindRun, &wire.Run{Op: 3, Program: sumProgram, FirstOutput: 3, Inputs: []uint64{0},
		Mixed: []*wire.Mixed{{Pieces: []*wire.Piece{{Object: 4, Rows: 1}, {Object: 2, Rows: 1}}}}}, 0, 1)
	statustest.Check(t, s.wait(four, 0))
	select {
	case <-d[0].entered:
		t.Error("the device waits in a collective, and what another worker waits for has no thread")
	case <-time.After(100 * time.Millisecond): // where it does, that is soon
	}
	d[0].slow.end(one, nil)
	statustest.Check(t, s.wait(one, 0))
	for _, g := range []uint64{two, three} {
		statustest.Checkf(t, s.wait(g, 0, 1), "gang %d", g)
	}
}
