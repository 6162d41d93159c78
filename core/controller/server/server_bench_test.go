package server

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/controller"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/device/sim"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/inproc"
	"github.com/openpathways/pathways/transport/stream"
)

// seat is a Server with connections of which the benchmark holds the other ends.
type seat struct {
	t       testing.TB
	dialer  func(*wire.Hello) (transport.Conn, *wire.Welcome, error)
	server  *Server
	client  *far
	workers []*far
	gang    uint64 // number given last
}

// far is a connection: its link in the server, and its other end.
type far struct {
	transport.Conn
	link *link
}

// deviceMemory is what workers offer of each device. It holds all that runs, but it is a limit, so the ledger counts.
const deviceMemory = 16 << 30 // bytes

// newSeat makes a seat whose session has a collective program; or, shared, one without collectives beside another
// session.
func newSeat(t testing.TB, sockets, shared bool, workers, devices int) *seat {
	s := &seat{t: t}
	var err error
	if s.server, err = New(Config{Heartbeat: time.Hour}); err != nil {
		t.Fatal(err)
	}
	var l transport.Listener
	if sockets {
		address := "unix:" + filepath.Join(t.TempDir(), "controller")
		l, err = stream.Listen(address, stream.Options{}, nil)
		s.dialer = func(h *wire.Hello) (transport.Conn, *wire.Welcome, error) {
			return stream.Dial(context.Background(), address, h, stream.Options{})
		}
	} else {
		network := inproc.NewNetwork(transport.Credentials{})
		l, err = network.Listen("controller")
		s.dialer = func(h *wire.Hello) (transport.Conn, *wire.Welcome, error) {
			return network.Dial(context.Background(), "inproc:controller", h)
		}
	}
	statustest.OK(t, err)
	AcceptUntilEnd(t, s.server, l)
	for i := range workers {
		offer := &wire.WorkerOffer{Platform: &wire.Platform{Name: "sim"}}
		for d := range devices {
			offer.Devices = append(offer.Devices, &wire.LocalDevice{Local: uint32(d), MemoryLimit: deviceMemory})
		}
		s.workers = append(s.workers,
			s.dial(&wire.Hello{Role: wire.Role_ROLE_WORKER, Name: "w" + strconv.Itoa(i), Worker: offer}))
	}
	s.client = s.dial(&wire.Hello{Role: wire.Role_ROLE_CLIENT, Name: "client"})
	if shared {
		s.dial(&wire.Hello{Role: wire.Role_ROLE_CLIENT, Name: "another"})
	}
	s.program(workers*devices, !shared)
	return s
}

func (s *seat) dial(h *wire.Hello) *far {
	conn, _, err := s.dialer(h)
	statustest.OK(s.t, err)
	s.t.Cleanup(func() { conn.Close() })
	s.server.mu.Lock()
	defer s.server.mu.Unlock()
	return &far{conn, s.server.conns.Get(s.server.last)}
}

// hear returns the next message of a kind.
func (s *seat) hear(f *far, want wire.Kind, into proto.Message) {
	for {
		kind, payload, err := f.Recv()
		statustest.OK(s.t, err)
		if kind == want {
			if into != nil {
				statustest.OK(s.t, wire.Decode(kind, payload, into))
			}
			return
		}
	}
}

// say has the server take messages as if they had come over the connection at
// once.
func (s *seat) say(f *far, kind wire.Kind, payloads ...[]byte) {
	for i, payload := range payloads {
		statustest.OK(s.t, s.server.take(f.link, kind, payload, i == len(payloads)-1))
	}
}

// program loads a program on all devices for the session, and makes an array.
func (s *seat) program(devices int, collective bool) {
	all := make([]int, devices)
	on := make([]uint32, devices)
	for i := range all {
		all[i], on[i] = i, uint32(i)
	}
	scalar := &wire.Array{Dtype: uint32(shape.F32)}
	s.say(s.client, wire.KindCompile,
		encoded(s.t, &wire.Compile{
			Op: 1, Program: 1, Format: "sim", Code: []byte("p"), Options: sim.CompileOptions(all)}))
	m := new(wire.Compile)
	s.hear(s.workers[0], wire.KindCompile, m)
	s.say(s.workers[0], wire.KindCompiled,
		encoded(s.t, &wire.Compiled{Op: m.Op, Info: &wire.ProgramInfo{
			Name: "p", Outputs: []*wire.Array{scalar}, Collective: collective},
			Loadable: &wire.Loadable{Serialized: []byte("x")}}))
	s.say(s.client, wire.KindPut, encoded(s.t, &wire.Put{Op: 1, Object: 1, Array: scalar, Devices: on}))
	s.end(0)
	s.say(s.client, wire.KindRun, encoded(s.t, &wire.Run{Op: 2, Program: 1, FirstOutput: 2, Inputs: []uint64{1}}))
	s.gang = s.end(1000) // how long it takes is known from then on
	s.say(s.client, wire.KindFree, encoded(s.t, &wire.Free{Objects: []uint64{2}}))
	for _, w := range s.workers {
		s.hear(w, wire.KindDispatch, nil)
	}
	s.gang++
}

// end has the workers end the gang that they are told of, after some nanoseconds, and returns its number.
func (s *seat) end(busy uint64) uint64 {
	m := new(wire.Dispatch)
	for _, w := range s.workers {
		s.hear(w, wire.KindDispatch, m)
		s.say(w, wire.KindCompleted, encoded(s.t, &wire.Completed{Ok: []uint64{m.Gang}, Busy: []uint64{busy}}))
	}
	s.hear(s.client, wire.KindCompleted, nil)
	return m.Gang
}

func encoded(t testing.TB, m proto.Message) []byte { return statustest.Value(proto.Marshal(m)).OK(t) }

// processorTime is what this thread has used of a processor, whatever else runs on
// the machine.
func processorTime(b *testing.B) time.Duration {
	var t unix.Timespec
	statustest.OK(b, unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t))
	return time.Duration(t.Nano())
}

// clockTime is the least that reading processorTime adds to what is measured with it: up to 1 µs, since it is a system
// call.
func clockTime(b *testing.B) time.Duration {
	least := time.Hour
	for range 1000 {
		begun := processorTime(b)
		least = min(least, processorTime(b)-begun)
	}
	return least
}

// What a gang costs the controller, but for what the connections' own goroutines do:
// decoding, locks, State, and the frames in the connections' buffers. run-µs is from a run's frame
// to its frames being with all workers, end-µs from the workers' reports, each by
// itself, to the client's being told, in processor time, without reading the clock. The free between them is
// left out, and ns/op also has the other ends' part.
//
// Depth is how many gangs come at once. One by one, a socket is written to where a
// frame is sent, which is run-µs then; the frames of more leave together, by the
// connections' goroutines.
func BenchmarkServer(b *testing.B) {
	for _, connections := range []string{"queues", "sockets"} {
		for _, depth := range []int{1, 32} {
			for _, workers := range []int{1, 2, 16, 128, 512} {
				b.Run(fmt.Sprintf("%s/depth=%d/workers=%d", connections, depth, workers), func(b *testing.B) {
					benchmarkServer(b, newSeat(b, connections == "sockets", false, workers, 4), depth)
				})
			}
		}
	}
}

// The same of runs whose parts end each by itself, beside another session: it may matter to that one which devices are
// done with a part.
func BenchmarkServerOfTwoSessions(b *testing.B) {
	for _, workers := range []int{16, 512} {
		b.Run(fmt.Sprintf("queues/depth=1/workers=%d", workers), func(b *testing.B) {
			benchmarkServer(b, newSeat(b, false, true, workers, 4), 1)
		})
	}
}

// For how long the lock is held while a message, or parts of their own, are handed to many workers, in processor time
// but for State's; leave-µs is what follows without it, in the time of a clock.
func BenchmarkServerHandsOut(b *testing.B) {
	for _, bytes := range []int{0, 100, 4000} {
		for _, workers := range []int{512, 10000} {
			b.Run(fmt.Sprintf("bytes=%d/workers=%d", bytes, workers), func(b *testing.B) { handOut(b, workers, bytes) })
		}
	}
}

// handOut hands out parts of so many bytes; 0: the same message to all.
func handOut(b *testing.B, workers, bytes int) {
	s := newSeat(b, false, false, workers, 1)
	a := &controller.Action{Kind: controller.Send, Wire: wire.KindReport, Payload: make([]byte, 100)}
	for w := range s.workers {
		a.To = append(a.To, s.workers[w].link.number)
		if bytes > 0 {
			a.Own = append(a.Own, make([]byte, bytes))
		}
	}
	runtime.LockOSThread() // for processorTime
	defer runtime.UnlockOSThread()
	var held, longest, left time.Duration
	for b.Loop() {
		s.server.mu.Lock()
		begun := processorTime(b)
		s.server.handed = 0
		s.server.send(a)
		full := s.server.takeFull(nil)
		took := processorTime(b) - begun
		s.server.mu.Unlock()
		held, longest = held+took, max(longest, took)
		unlocked := time.Now()
		s.server.leave(full)
		left += time.Since(unlocked)
		for _, f := range s.workers {
			s.hear(f, wire.KindReport, nil)
		}
	}
	b.ReportMetric(held.Seconds()*1e6/float64(b.N), "hold-µs")
	b.ReportMetric(longest.Seconds()*1e6, "longest-µs")
	b.ReportMetric(left.Seconds()*1e6/float64(b.N), "leave-µs")
}

func benchmarkServer(b *testing.B, s *seat, depth int) {
	runtime.LockOSThread() // for processorTime
	defer runtime.UnlockOSThread()
	op, object, gang := uint64(2), uint64(2), s.gang
	var run, end time.Duration
	var frames [][]byte
	b.ReportAllocs()
	for b.Loop() {
		frames = frames[:0]
		for range depth {
			op++
			object++
			frames = append(frames, encoded(b, &wire.Run{Op: op, Program: 1, FirstOutput: object, Inputs: []uint64{1}}))
		}
		begun := processorTime(b)
		s.say(s.client, wire.KindRun, frames...)
		run += processorTime(b) - begun
		for range depth {
			for _, w := range s.workers {
				s.hear(w, wire.KindDispatch, nil)
			}
		}
		frames = frames[:0]
		for range depth {
			gang++
			frames = append(frames, encoded(b, &wire.Completed{Ok: []uint64{gang}}))
		}
		begun = processorTime(b)
		for _, f := range frames {
			for _, w := range s.workers {
				s.say(w, wire.KindCompleted, f)
			}
		}
		end += processorTime(b) - begun
		for range depth {
			s.hear(s.client, wire.KindCompleted, nil)
		}
		gang++
		free := &wire.Free{}
		for i := range depth {
			free.Objects = append(free.Objects, object-uint64(i))
		}
		s.say(s.client, wire.KindFree, encoded(b, free))
		for _, w := range s.workers {
			s.hear(w, wire.KindDispatch, nil)
		}
	}
	b.StopTimer()
	clock := time.Duration(b.N) * clockTime(b)
	run, end = run-clock, end-clock
	gangs := float64(b.N * depth)
	b.ReportMetric(run.Seconds()*1e6/gangs, "run-µs")
	b.ReportMetric(end.Seconds()*1e6/gangs, "end-µs")
}
