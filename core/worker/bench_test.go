package worker_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/worker"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/collective"
	"github.com/openpathways/pathways/transport/inproc"
	"github.com/openpathways/pathways/transport/shm"
)

// instant is a driver whose computations are done at once, so that what is
// measured is the worker.
type instant struct{ device.Driver }

type executable struct{ device.Executable }

type buffer struct{ device.Buffer }

type fired struct{}

func (instant) Devices() []device.Device {
	return []device.Device{{Memories: []device.Memory{{Kind: "device"}}}}
}
func (instant) Load(context.Context, []byte) (device.Executable, error) { return executable{}, nil }
func (instant) MemoryStats(int) (device.MemoryStats, error)             { return device.MemoryStats{}, nil }
func (executable) Devices() []int                                       { return []int{0} }
func (executable) Close()                                               {}
func (buffer) Close()                                                   {}
func (fired) Ready() bool                                               { return true }
func (fired) Wait(context.Context) error                                { return nil }
func (fired) Then(f func(error))                                        { f(nil) }

var results = device.Results{Outputs: [][]device.Buffer{{buffer{}}}, Done: []device.Event{fired{}}}

func (executable) Execute(device.Run) (*device.Results, error) { return &results, nil }

// engine knows gangs whose collectives are never entered.
type engine struct{ worker.Engine }

func (engine) Begin(collective.Gang) {}
func (engine) End(uint64)            {}

// What a run of one device costs the worker: from the controller's message to
// the end of the gang, with the Free of what it made. Under way at once: 64.
func BenchmarkRun(b *testing.B) {
	benchmarkRun(b, wire.Loadable_NATIVE, &wire.Span{Worker: firstWorker, Count: 1})
}

// The same where the gang has a device on another worker.
func BenchmarkRunWithOthers(b *testing.B) {
	benchmarkRun(b, wire.Loadable_PORTABLE, &wire.Span{Worker: firstWorker, Count: 1},
		&wire.Span{Worker: firstWorker + 1, Count: 1})
}

func benchmarkRun(b *testing.B, form wire.Loadable_Form, places ...*wire.Span) {
	r := startRuns(b, form, places...)
	b.ReportAllocs()
	b.ResetTimer()
	r.run(b.N)
	b.StopTimer()
}

// "x-watched" is the time of a run while someone looks at what the device does, by that of one on a worker that no one
// looks at: the median of turns, which are short, so that other work of the machine meets both.
func BenchmarkRunWatched(b *testing.B) {
	compareRuns(b, "x-watched", wire.KindWatch, &wire.Watch{Devices: []uint32{0}, Bars: 4096, Ms: 60e3})
}

// "x-traced" is the same of a run that is recorded.
func BenchmarkRunTraced(b *testing.B) {
	compareRuns(b, "x-traced", wire.KindProfile, &wire.Profile{Id: 1, Session: 1})
}

// compareRuns reports the time of a run on a worker that was sent a message, by that of one on a worker that was not.
func compareRuns(b *testing.B, unit string, kind wire.Kind, m proto.Message) {
	const turn = 200
	var pair [2]*runs
	for i := range pair {
		pair[i] = startRuns(b, wire.Loadable_NATIVE, &wire.Span{Worker: firstWorker, Count: 1})
	}
	pair[1].send(kind, m)
	var ratios []float64
	for i := range max(1, b.N/turn) {
		var took [2]time.Duration
		for k := range pair {
			at := (i + k) % 2
			begun := time.Now()
			pair[at].run(turn)
			took[at] = time.Since(begun)
		}
		ratios = append(ratios, took[1].Seconds()/took[0].Seconds())
	}
	slices.Sort(ratios)
	b.ReportMetric(ratios[len(ratios)/2], unit)
	b.ReportMetric(0, "ns/op")
}

// runs is a worker, and the controller's end of its connection.
type runs struct {
	b                   *testing.B
	near                transport.Conn
	gang, op            uint64 // the last ones
	encoded, dispatched []byte // scratch
}

// startRuns starts a worker with a program that has run once.
func startRuns(b *testing.B, form wire.Loadable_Form, places ...*wire.Span) *runs {
	near, remote := inproc.Pair("controller", "worker")
	x := statustest.Value(inproc.NewHub(shm.NewPool(shm.Config{})).Join(firstWorker, "")).OK(b)
	b.Cleanup(func() { x.Close() })
	w, err := worker.New(worker.Config{Name: "w", Conn: remote, Driver: instant{}, Exchange: x, Engine: engine{}})
	statustest.OK(b, err)
	served := make(chan error, 1)
	go func() { served <- w.Serve() }()
	r := &runs{b: b, near: near}
	b.Cleanup(func() {
		r.send(wire.KindGoodbye, &wire.Goodbye{})
		statustest.Check(b, <-served)
	})
	r.send(wire.KindSession, &wire.Session{Session: 1, Devices: []*wire.OwnDevices{{Count: 1}}})
	array := &wire.Array{Dtype: uint32(shape.F32), Dims: []int64{4}}
	r.send(wire.KindLoad, &wire.Load{Session: 1, Program: 1, Name: "tiny", Places: places, Outputs: []*wire.Array{array},
		Loadable: &wire.Loadable{Form: form, Serialized: []byte("it")}})
	r.run(1)
	return r
}

func (r *runs) send(kind wire.Kind, m proto.Message) {
	payload := statustest.Value(proto.Marshal(m)).OK(r.b)
	statustest.OK(r.b, r.near.Send(kind, payload))
}

func (r *runs) dispatch(kind wire.Kind, operation proto.Message) {
	r.gang++
	r.encoded, _ = proto.MarshalOptions{}.MarshalAppend(r.encoded[:0], operation)
	r.dispatched, _ = proto.MarshalOptions{}.MarshalAppend(r.dispatched[:0],
		&wire.Dispatch{Gang: r.gang, Session: 1, Kind: uint32(kind), Operation: r.encoded, Client: clientProcess})
	statustest.OK(r.b, r.near.Send(wire.KindDispatch, r.dispatched))
}

// run has the program run so many times, each time freeing what the run before has made.
func (r *runs) run(times int) {
	credit := make(chan struct{}, 64)
	done := make(chan struct{})
	go func() {
		defer close(done)
		var m wire.Completed
		for n := 0; n < times; n += len(m.Ok) {
			kind, payload, err := r.near.Recv()
			for kind != wire.KindCompleted && err == nil { // heartbeats, and what was recorded
				kind, payload, err = r.near.Recv()
			}
			if err != nil {
				r.b.Error(err)
				return
			}
			m.Reset()
			if err := wire.Decode(kind, payload, &m); err != nil || len(m.Failed) > 0 {
				r.b.Error(err, m.Failed)
			}
			for range m.Ok {
				<-credit
			}
		}
	}()
	for range times {
		select {
		case credit <- struct{}{}:
		case <-done:
			return
		}
		r.op++
		r.dispatch(wire.KindRun, &wire.Run{Op: r.op, Program: 1, FirstOutput: r.op})
		if r.op > 1 {
			r.dispatch(wire.KindFree, &wire.Free{Objects: []uint64{r.op - 1}})
		}
	}
	<-done
}
