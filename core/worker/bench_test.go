package worker_test

import (
	"context"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/worker"
	"github.com/openpathways/pathways/device"
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
	benchmarkRun(b, false, wire.Loadable_NATIVE, &wire.Place{Worker: firstWorker})
}

// The same while somebody looks at what the device does.
func BenchmarkRunWatched(b *testing.B) {
	benchmarkRun(b, true, wire.Loadable_NATIVE, &wire.Place{Worker: firstWorker})
}

// The same where the gang has a device on another worker.
func BenchmarkRunWithOthers(b *testing.B) {
	benchmarkRun(b, false, wire.Loadable_PORTABLE, &wire.Place{Worker: firstWorker}, &wire.Place{Worker: firstWorker + 1})
}

func benchmarkRun(b *testing.B, watched bool, form wire.Loadable_Form, places ...*wire.Place) {
	near, remote := inproc.Pair("controller", "worker")
	x, err := inproc.NewHub(shm.NewPool(shm.Config{})).Join(firstWorker, "")
	if err != nil {
		b.Fatal(err)
	}
	defer x.Close()
	w, err := worker.New(worker.Config{Name: "w", Conn: remote, Driver: instant{}, Exchange: x, Engine: engine{}})
	if err != nil {
		b.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- w.Serve() }()
	send := func(kind wire.Kind, m proto.Message) {
		payload, err := proto.Marshal(m)
		if err != nil {
			b.Fatal(err)
		}
		if err := near.Send(kind, payload); err != nil {
			b.Fatal(err)
		}
	}
	send(wire.KindSession, &wire.Session{Session: 1, Devices: []*wire.Span{{Worker: firstWorker, Count: 1}}})
	array := &wire.Array{Dtype: uint32(shape.F32), Dims: []int64{4}}
	send(wire.KindLoad, &wire.Load{Session: 1, Program: 1, Name: "tiny", Places: places, Outputs: []*wire.Array{array},
		Loadable: &wire.Loadable{Form: form, Serialized: []byte("it")}})
	if watched {
		send(wire.KindWatch, &wire.Watch{Devices: []uint32{0}, Bars: 4096, Ms: 60e3})
	}
	var run, free, dispatch []byte
	gang := uint64(0)
	dispatched := func(kind wire.Kind, operation []byte) {
		gang++
		dispatch, _ = proto.MarshalOptions{}.MarshalAppend(dispatch[:0],
			&wire.Dispatch{Gang: gang, Session: 1, Kind: uint32(kind), Operation: operation, Client: clientProcess})
		if err := near.Send(wire.KindDispatch, dispatch); err != nil {
			b.Fatal(err)
		}
	}
	credit := make(chan struct{}, 64)
	done := make(chan struct{})
	go func() {
		defer close(done)
		var m wire.Completed
		for n := 0; n < b.N; n += len(m.Ok) {
			kind, payload, err := near.Recv()
			if err != nil || kind != wire.KindCompleted {
				b.Error(kind, err)
				return
			}
			m.Reset()
			if err := wire.Decode(kind, payload, &m); err != nil || len(m.Failed) > 0 {
				b.Error(err, m.Failed)
			}
			for range m.Ok {
				<-credit
			}
		}
	}()
	b.ReportAllocs()
	b.ResetTimer()
	for i := range uint64(b.N) {
		credit <- struct{}{}
		run, _ = proto.MarshalOptions{}.MarshalAppend(run[:0], &wire.Run{Op: i + 1, Program: 1, FirstOutput: i + 1})
		dispatched(wire.KindRun, run)
		if i > 0 {
			free, _ = proto.MarshalOptions{}.MarshalAppend(free[:0], &wire.Free{Objects: []uint64{i}})
			dispatched(wire.KindFree, free)
		}
	}
	<-done
	b.StopTimer()
	send(wire.KindGoodbye, &wire.Goodbye{})
	if err := <-served; err != nil {
		b.Error(err)
	}
}
