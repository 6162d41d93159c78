package bulk

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/shm"
	"github.com/openpathways/pathways/transport/stream"
	"github.com/openpathways/pathways/transport/transporttest"
)

// options are those of a cluster on one machine.
func options() stream.Options {
	return stream.Options{
		Credentials: transport.Credentials{Token: "secret", Software: "test"},
		Config:      stream.Config{Heartbeat: 500 * time.Millisecond, Silence: 20 * time.Second},
	}
}

// address is where process number i listens.
func address(kind, dir string, i int) string {
	if kind == "unix" {
		return "unix:" + filepath.Join(dir, fmt.Sprint(i))
	}
	return "tcp:127.0.0.1:0"
}

// world makes n processes' exchanges. Those for which deaf says so do not listen.
func world(t testing.TB, kind string, n int, deaf func(i int) bool) transporttest.World {
	t.Helper()
	return worldTold(t, kind, n, deaf, slog.NewTextHandler(t.Output(), nil))
}

func worldTold(t testing.TB, kind string, n int, deaf func(i int) bool, log slog.Handler) transporttest.World {
	t.Helper()
	dir := t.TempDir()
	o := options()
	if kind == "tls" {
		o.TLS = transporttest.Certificates(t)
	}
	var w transporttest.World
	if kind == "unix" {
		w.Longest = 20 << 20 // by several copies through shared memory; by sockets it would be more of the same
	}
	var pools []*shm.Pool
	addresses := make([][]string, n+1)
	for i := 1; i <= n; i++ {
		c := Config{Self: uint64(i), Host: "here", Hello: &wire.Hello{Cluster: "test"}, Options: o, Log: slog.New(log),
			Pool: shm.NewPool(shm.Config{Limit: 1 << 30}), Lends: i == 1}
		if !deaf(i) {
			l, err := stream.Listen(address(kind, dir, i), o, func(peer string, err error) {
				t.Logf("%s was not let in: %v", peer, err)
			})
			statustest.OK(t, err)
			c.Listeners = []transport.Listener{l}
			addresses[i] = []string{l.Address()}
		}
		x := statustest.Value(New(c)).OK(t)
		w.Exchanges = append(w.Exchanges, x)
		pools = append(pools, c.Pool)
	}
	for _, x := range w.Exchanges {
		x.Peers(transporttest.Processes(n, func(i int) []string { return addresses[i] }, func(int) string { return "here" }),
			nil, nil)
	}
	w.Used = func() (all int64) {
		for _, p := range pools {
			for _, used := range p.Stats().Used {
				all += used
			}
		}
		return all
	}
	t.Cleanup(func() {
		for _, p := range pools {
			p.Trim()
		}
	})
	return w
}

func none(int) bool { return false }

func TestExchange(t *testing.T) {
	for _, kind := range []string{"unix", "tcp", "tls"} {
		t.Run(kind, func(t *testing.T) {
			transporttest.Exchange(t, func(t *testing.T, n int) transporttest.World { return world(t, kind, n, none) })
		})
	}
}

// What comes through sockets lies in shared memory in a process that lends it, and in no other.
func TestBlocksOfSocketsAreToBeLent(t *testing.T) {
	w := world(t, "tcp", 2, none)
	const size = 3 << 20
	for i, lends := range []bool{true, false} {
		x, from := w.Exchanges[i].(*Exchange), w.Exchanges[1-i]
		came := make(chan transport.Block, 1)
		x.Expect(uint64(2-i), key(1, 0), size, nil, func(b transport.Block, err error) {
			statustest.Check(t, err)
			came <- b
		})
		from.PushBytes(uint64(i+1), key(1, 0), make([]byte, size), nil)
		b := <-came
		s, _ := x.pool.Find(b.Data)
		statustest.Equal(t, s != nil, lends, "whether a block of process %d lies in shared memory", i+1)
		b.Release()
	}
	for _, x := range w.Exchanges {
		x.Close()
	}
}

// A process that does not listen, such as a client, makes the links itself.
func TestExchangeWithDeaf(t *testing.T) {
	for kind, deaf := range map[string]int{"unix": 1, "tcp": 2} {
		t.Run(kind, func(t *testing.T) {
			transporttest.Exchange(t, func(t *testing.T, n int) transporttest.World {
				return world(t, kind, n, func(i int) bool { return i == deaf })
			})
		})
	}
}

// What keeps a connection alive does not come among the bytes of its streams.
func TestHeartbeatsStayOutOfStreams(t *testing.T) {
	o := options()
	o.Heartbeat = time.Millisecond
	for range 20 {
		var x [2]*Exchange
		for i := range x {
			l, err := stream.Listen("tcp:127.0.0.1:0", o, nil)
			statustest.OK(t, err)
			x[i], err = New(Config{Self: uint64(i + 1), Options: o, Hello: &wire.Hello{Cluster: "test"},
				Listeners: []transport.Listener{l}})
			statustest.OK(t, err)
			x[0].Peers([]*wire.Process{{Number: uint64(i + 1), Addresses: []string{l.Address()}}}, nil, nil)
		}
		sent := make(chan error, 1)
		for id := range uint64(5) {
			x[0].PushBytes(2, key(id, 0), make([]byte, 1<<20), func(err error) { sent <- err })
			x[1].Expect(1, key(id, 0), 1<<20, nil, func(b transport.Block, err error) {
				if err == nil {
					b.Release()
				}
			})
			statustest.OK(t, <-sent)
		}
		x[0].Close()
		x[1].Close()
	}
}

// warnings takes what is logged as one.
type warnings struct {
	slog.Handler
	warned func(slog.Record)
}

func (w warnings) Enabled(context.Context, slog.Level) bool { return true }
func (w warnings) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelWarn {
		w.warned(r)
	}
	return nil
}

// A process that closes its exchange has gone, and no warning is logged.
func TestClosedExchangeLeavesWithoutWarning(t *testing.T) {
	for _, kind := range []string{"unix", "tcp", "tls"} {
		t.Run(kind, func(t *testing.T) {
			for range 5 {
				const n = 3
				w := worldTold(t, kind, n, none, warnings{slog.DiscardHandler, func(r slog.Record) {
					r.Attrs(func(a slog.Attr) bool { t.Errorf("a warning: %s: %v", r.Message, a); return true })
				}})
				last := w.Exchanges[n-1]
				size := int64(100_000) // over streams, where there are any
				for i := range uint64(n - 1) {
					arrived := make(chan error, 1)
					last.Expect(i+1, key(i, 0), size, nil, func(b transport.Block, err error) {
						if err == nil {
							b.Release()
						}
						arrived <- err
					})
					w.Exchanges[i].PushBytes(n, key(i, 0), make([]byte, size), nil)
					statustest.OK(t, <-arrived)
				}
				ends := make(chan error, n)
				for _, x := range w.Exchanges[:n-1] {
					x.Expect(n, key(9, 0), size, nil, func(_ transport.Block, err error) { ends <- err })
				}
				last.(*Exchange).Leave(status.New(status.Internal, "my disk is full"))
				for _, x := range w.Exchanges[:n-1] {
					statustest.Fails(t, "what is expected of a process that has gone", <-ends, status.Unavailable,
						"has gone: my disk is full")
					if apart := x.(*Exchange).Apart(); len(apart) > 0 {
						t.Errorf("it is told as one that cannot be reached: %v", apart)
					}
					x.PushBytes(n, key(10, 0), nil, func(err error) { ends <- err })
					statustest.Fails(t, "what is pushed to a process that has gone", <-ends, status.Unavailable)
				}
				w.Exchanges[0].Close()
				w.Exchanges[1].Close()
			}
		})
	}
}

// What is kept of processes does not grow with how many came and went.
func TestPeersThatLeftTakeNoMemory(t *testing.T) {
	x, err := New(Config{Self: 1})
	statustest.OK(t, err)
	defer x.Close()
	const many = 20_000
	for n := uint64(2); n < many; n++ {
		x.Peers([]*wire.Process{{Number: n}}, nil, nil)
		x.Peers(nil, []uint64{n}, nil)
	}
	x.Peers([]*wire.Process{{Number: many}}, nil, nil)
	if kept := len(x.all()); kept > many/4 {
		t.Errorf("%d of %d processes are kept", kept, many)
	}
	done := make(chan error, 1)
	for _, n := range []uint64{2, many - 1} {
		x.PushBytes(n, key(1, 0), nil, func(err error) { done <- err })
		statustest.Fails(t, fmt.Sprintf("a push to process %d", n), <-done, status.Unavailable)
	}
	x.Expect(many-1, key(1, 0), 1, nil, func(_ transport.Block, err error) { done <- err })
	statustest.Fails(t, "what is expected of a process that has gone", <-done, status.Unavailable)
}

func BenchmarkExchange(b *testing.B) {
	for _, kind := range []string{"unix", "tcp"} {
		b.Run(kind, func(b *testing.B) {
			transporttest.ExchangeBench(b, func(b *testing.B, n int) transporttest.World { return world(b, kind, n, none) })
		})
	}
}

// Lent is what a process of this host writes, and no more of it than leaves room for
// what is on its way.
func TestOnlyBytesOfThisHostAreLent(t *testing.T) {
	for kind, want := range map[string]bool{"unix": true, "tcp": false} {
		t.Run(kind, func(t *testing.T) {
			w := world(t, kind, 2, none)
			for _, x := range w.Exchanges {
				defer x.Close()
			}
			x := w.Exchanges[1]
			check := func(when string) {
				t.Helper()
				statustest.Equal(t, x.Lends(1, 1<<20), want, "whether it lends, %s", when)
				if x.Lends(1, 512<<20) || x.Lends(3, 1) {
					t.Errorf("%s, half of the memory is lent, or that of a process that is not there", when)
				}
			}
			check("before there is a link")
			arrived := make(chan error, 1)
			x.Expect(1, key(0, 0), 1<<20, nil, func(b transport.Block, err error) {
				if err == nil {
					b.Release()
				}
				arrived <- err
			})
			w.Exchanges[0].PushBytes(2, key(0, 0), make([]byte, 1<<20), func(error) {})
			statustest.OK(t, <-arrived)
			check("with a link")
			x.Peers(nil, []uint64{1}, nil)
			if x.Lends(1, 1) {
				t.Error("a process that has gone lends")
			}
		})
	}
}

// Between processes of one host a block is filled where its receiver has it, and is
// copied only to where a receiver wants it.
func TestBlocksOnOneHostAreFilledInPlace(t *testing.T) {
	const size = 4 << 20
	w := world(t, "unix", 2, none)
	for _, x := range w.Exchanges {
		defer x.Close()
	}
	for i, into := range [][]byte{nil, make([]byte, size)} {
		before := Copied()
		arrived, sent := make(chan transport.Block, 1), make(chan error, 1)
		w.Exchanges[1].Expect(1, key(uint64(i), 0), size, into, func(b transport.Block, err error) {
			statustest.Check(t, err)
			arrived <- b
		})
		var there []byte
		w.Exchanges[0].Push(2, key(uint64(i), 0), size, func(dst []byte, written func(error)) {
			there = dst
			dst[size-1] = 1
			written(nil)
		}, func(err error) { sent <- err })
		statustest.OK(t, <-sent)
		b := <-arrived
		if b.Data[size-1] != 1 || len(there) != size {
			t.Errorf("the bytes have not come")
		}
		if b.Release != nil {
			b.Release()
		}
		if got, want := Copied()-before, int64(len(into)); got != want {
			t.Errorf("%d bytes were copied where %d are expected in memory of the receiver's", got, want)
		}
	}
}
