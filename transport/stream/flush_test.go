package stream

import (
	"net"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

// socketPair returns connections over the two ends of a unix socket.
func socketPair(t *testing.T) (a, b *Conn) {
	t.Helper()
	fds := statustest.Value(unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)).OK(t)
	var ends [2]*Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "end")
		socket, err := net.FileConn(f)
		f.Close()
		statustest.OK(t, err)
		ends[i] = New(socket, "peer", Config{}, true)
		t.Cleanup(func() { ends[i].Close() })
	}
	return ends[0], ends[1]
}

// What is sent for later leaves with a flush, with another message, or with the
// end, in order.
func TestDeferredMessagesLeaveInOrder(t *testing.T) {
	for _, c := range []struct {
		name  string
		leave func(*Conn) error
		more  int
	}{
		{"flush here", func(c *Conn) error { c.Flush(true); return nil }, 0},
		{"flush by the writer", func(c *Conn) error { c.Flush(false); return nil }, 0},
		{"send", func(c *Conn) error { return c.Send(wire.KindRun, []byte{3}) }, 1},
		{"close", (*Conn).Close, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := socketPair(t)
			a.rests()
			for i := range 3 {
				statustest.OK(t, a.Later(wire.KindRun, []byte{byte(i)}))
			}
			a.mu.Lock()
			waiting, idle := len(a.pending), a.idle
			a.mu.Unlock()
			if waiting == 0 || !idle {
				t.Fatalf("%d bytes wait, the writer rests: %v; want all of them, and that none is being written", waiting, idle)
			}
			left := make(chan error, 1)
			go func() { left <- c.leave(a) }()
			for i := range 3 + c.more {
				if _, payload, err := b.Recv(); err != nil || int(payload[0]) != i {
					t.Fatalf("got %v, %v, want message %d", payload, err, i)
				}
			}
			statustest.OK(t, <-left)
		})
	}
}

// rests waits until the writer has nothing to do; one that has just begun would take
// what is there.
func (c *Conn) rests() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for !c.idle {
		c.mu.Unlock()
		runtime.Gosched()
		c.mu.Lock()
	}
}

// Messages that are joined are one as long as nothing else comes between them, and
// it has room.
func TestJoinedMessagesAreOne(t *testing.T) {
	long := make([]byte, wire.MaxBurstBytes)
	for _, c := range []struct {
		name string
		send func(a *Conn, i int) error
		n    int
		want []int // messages by frame, 0 is one by itself
	}{
		{"two", func(a *Conn, i int) error { return a.Join(wire.KindRun, []byte{byte(i)}, true) }, 2, []int{2}},
		{"one", func(a *Conn, i int) error { return a.Join(wire.KindRun, []byte{byte(i)}, true) }, 1, []int{0}},
		{"many", func(a *Conn, i int) error { return a.Join(wire.KindRun, []byte{byte(i)}, true) }, 2*wire.MaxBurst + 1,
			[]int{wire.MaxBurst, wire.MaxBurst, 0}},
		{"others between them", func(a *Conn, i int) error {
			if i%3 == 2 {
				return a.Later(wire.KindCompile, []byte{byte(i)})
			}
			return a.Join(wire.KindRun, []byte{byte(i)}, true)
		}, 6, []int{2, 0, 2, 0}},
		{"long ones", func(a *Conn, i int) error {
			long[0] = byte(i)
			return a.Join(wire.KindRun, long[:len(long)*(i%2)+1-i%2], true)
		}, 4, []int{0, 0, 0, 0}},
		{"half as long", func(a *Conn, i int) error {
			long[0] = byte(i)
			return a.Join(wire.KindRun, long[:len(long)/2-64], true)
		}, 4, []int{2, 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := socketPair(t)
			a.rests()
			left := make(chan error, 1)
			for i := range c.n {
				statustest.OK(t, c.send(a, i))
			}
			go func() {
				a.Flush(true)
				a.rests()
				left <- a.Join(wire.KindRun, []byte{99}, false)
			}()
			at := 0
			for _, n := range c.want {
				kind, payload, err := b.Recv()
				if err != nil || (kind == wire.KindBurst) != (n > 0) {
					t.Fatalf("got a message of kind %d, %v; want one that holds %d", kind, err, n)
				}
				for ; n > 0; n-- {
					_, part, rest, err := wire.NextFrame(payload)
					if err != nil || int(part[0]) != at {
						t.Fatalf("got %v, %v, want message %d", part, err, at)
					}
					at, payload = at+1, rest
				}
				if kind != wire.KindBurst {
					if int(payload[0]) != at {
						t.Fatalf("got message %d, want %d", payload[0], at)
					}
					at++
				} else if len(payload) > 0 {
					t.Fatalf("%d bytes are left of a burst", len(payload))
				}
			}
			if kind, payload, err := b.Recv(); err != nil || kind != wire.KindRun || payload[0] != 99 || at != c.n {
				t.Errorf("got %d messages and then %v of kind %d, %v; want %d, and the one sent behind them by itself", at, payload,
					kind, err, c.n)
			}
			statustest.Check(t, <-left)
		})
	}
}

// gate is a socket whose first write waits; it counts them.
type gate struct {
	net.Conn
	open   chan struct{}
	writes int // of the writer's goroutine, until the connection has ended
}

func (g *gate) Write(b []byte) (int, error) {
	if g.writes++; g.writes == 1 {
		<-g.open
	}
	return g.Conn.Write(b)
}

// Messages that queue up leave in one write, unless only one may wait.
func TestQueuedMessagesLeaveInOneWrite(t *testing.T) {
	const messages = 100
	for _, c := range []struct{ pending, writes int }{{0, 2}, {1, messages}} {
		near, far := net.Pipe()
		g := &gate{Conn: near, open: make(chan struct{})}
		a, b := New(g, "peer", Config{MaxPending: c.pending}, true), New(far, "peer", Config{}, true)
		statustest.OK(t, a.Send(wire.KindRun, []byte{0}))
		for a.Pending() > 0 { // the writer has it
			runtime.Gosched()
		}
		sent := make(chan error, 1)
		go func() {
			for i := 1; i < messages; i++ {
				if err := a.Send(wire.KindRun, []byte{byte(i)}); err != nil {
					sent <- err
					return
				}
			}
			sent <- nil
		}()
		if c.pending == 0 {
			statustest.OK(t, <-sent)
		}
		close(g.open)
		for i := range messages {
			if _, payload, err := b.Recv(); err != nil || len(payload) != 1 || int(payload[0]) != i {
				t.Fatalf("got %v, %v, want message %d", payload, err, i)
			}
		}
		if c.pending != 0 {
			statustest.OK(t, <-sent)
		}
		a.Close()
		b.Close()
		statustest.Equal(t, g.writes, c.writes, "where %d bytes may wait: writes of %d messages", c.pending, messages)
	}
}
