package controller

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/device/sim"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/inproc"
)

// seat is a Server with connections of which the benchmark holds the other ends.
type seat struct {
	t       testing.TB
	network *inproc.Network
	server  *Server
	client  *far
	workers []*far
}

// far is a connection: its link in the server, and its other end.
type far struct {
	transport.Conn
	link *link
}

func newSeat(t testing.TB, workers, devices int) *seat {
	s := &seat{t: t, network: inproc.NewNetwork(transport.Credentials{})}
	var err error
	if s.server, err = NewServer(ServerConfig{Heartbeat: time.Hour}); err != nil {
		t.Fatal(err)
	}
	l, err := s.network.Listen("controller")
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan struct{})
	go func() {
		defer close(accepted)
		_ = s.server.Accept(l) // ends with the listener
	}()
	t.Cleanup(func() {
		l.Close()
		<-accepted
		s.server.Close()
	})
	for i := range workers {
		offer := &wire.WorkerOffer{Platform: &wire.Platform{Name: "sim"}}
		for d := range devices {
			offer.Devices = append(offer.Devices, &wire.LocalDevice{Local: uint32(d)})
		}
		s.workers = append(s.workers, s.dial(&wire.Hello{Role: wire.Role_ROLE_WORKER, Name: "w" + strconv.Itoa(i), Worker: offer}))
	}
	s.client = s.dial(&wire.Hello{Role: wire.Role_ROLE_CLIENT, Name: "client"})
	s.program(workers * devices)
	return s
}

func (s *seat) dial(h *wire.Hello) *far {
	conn, _, err := s.network.Dial(context.Background(), "inproc:controller", h)
	if err != nil {
		s.t.Fatal(err)
	}
	s.server.mu.Lock()
	defer s.server.mu.Unlock()
	return &far{conn, s.server.conns[s.server.last]}
}

// hear gives the next message of a kind.
func (s *seat) hear(f *far, want wire.Kind, into proto.Message) {
	for {
		kind, payload, err := f.Recv()
		if err != nil {
			s.t.Fatal(err)
		}
		if kind == want {
			if into != nil {
				if err := wire.Decode(kind, payload, into); err != nil {
					s.t.Fatal(err)
				}
			}
			return
		}
	}
}

// say has the server take a message as if it had come over the connection.
func (s *seat) say(f *far, kind wire.Kind, payload []byte) {
	if err := s.server.take(f.link, kind, payload, true); err != nil {
		s.t.Fatal(err)
	}
}

// program gives the session a program on all devices, and an array.
func (s *seat) program(devices int) {
	all := make([]int, devices)
	on := make([]uint32, devices)
	for i := range all {
		all[i], on[i] = i, uint32(i)
	}
	scalar := &wire.Array{Dtype: uint32(shape.F32)}
	s.say(s.client, wire.KindCompile, mustMarshal(s.t, &wire.Compile{Op: 1, Program: 1, Format: "sim", Code: []byte("p"), Options: sim.CompileOptions(all)}))
	m := new(wire.Compile)
	s.hear(s.workers[0], wire.KindCompile, m)
	s.say(s.workers[0], wire.KindCompiled, mustMarshal(s.t, &wire.Compiled{Op: m.Op, Info: &wire.ProgramInfo{Name: "p", Outputs: []*wire.Array{scalar}, Collective: true}, Loadable: &wire.Loadable{Serialized: []byte("x")}}))
	s.say(s.client, wire.KindPut, mustMarshal(s.t, &wire.Put{Op: 1, Object: 1, Array: scalar, Devices: on}))
	ok := mustMarshal(s.t, &wire.Completed{Ok: []uint64{1}})
	for _, w := range s.workers {
		s.hear(w, wire.KindDispatch, nil)
		s.say(w, wire.KindCompleted, ok)
	}
	s.hear(s.client, wire.KindCompleted, nil)
}

// What a gang costs the controller, with everything but a socket: decoding, locks,
// State, and the frames in the connections' buffers. run-µs is from a run's frame
// to its frames being with all workers, end-µs from the workers' reports, each by
// itself, to the client's being told; the free between them is left out.
func BenchmarkServer(b *testing.B) {
	for _, workers := range []int{1, 2, 16, 128, 512} {
		b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) {
			s := newSeat(b, workers, 4)
			op, object, gang := uint64(1), uint64(1), s.server.state.gang
			var run, end time.Duration
			b.ReportAllocs()
			for b.Loop() {
				op++
				object++
				gang++
				frame := mustMarshal(b, &wire.Run{Op: op, Program: 1, FirstOutput: object, Inputs: []uint64{object - 1}})
				begun := time.Now()
				s.say(s.client, wire.KindRun, frame)
				run += time.Since(begun)
				for _, w := range s.workers {
					s.hear(w, wire.KindDispatch, nil)
				}
				frame = mustMarshal(b, &wire.Completed{Ok: []uint64{gang}})
				begun = time.Now()
				for _, w := range s.workers {
					s.say(w, wire.KindCompleted, frame)
				}
				end += time.Since(begun)
				s.hear(s.client, wire.KindCompleted, nil)
				gang++
				s.say(s.client, wire.KindFree, mustMarshal(b, &wire.Free{Objects: []uint64{object - 1}}))
				for _, w := range s.workers {
					s.hear(w, wire.KindDispatch, nil)
				}
			}
			b.ReportMetric(run.Seconds()*1e6/float64(b.N), "run-µs")
			b.ReportMetric(end.Seconds()*1e6/float64(b.N), "end-µs")
		})
	}
}
