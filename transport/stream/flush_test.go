package stream

import (
	"net"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/openpathways/pathways/core/wire"
)

// socketPair gives connections over the two ends of a unix socket.
func socketPair(t *testing.T) (a, b *Conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "end")
		socket, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		ends[i] = New(socket, "peer", Config{}, true)
		t.Cleanup(func() { ends[i].Close() })
	}
	return ends[0], ends[1]
}

// What is sent for later leaves with a flush, with another message, or with the
// end, in order.
func TestLater(t *testing.T) {
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
			a.mu.Lock()
			for !a.idle { // a writer that has just begun would take what is there
				a.mu.Unlock()
				runtime.Gosched()
				a.mu.Lock()
			}
			a.mu.Unlock()
			for i := range 3 {
				if err := a.Later(wire.KindRun, []byte{byte(i)}); err != nil {
					t.Fatal(err)
				}
			}
			a.mu.Lock()
			waiting, idle := len(a.pending), a.idle
			a.mu.Unlock()
			if waiting == 0 || !idle {
				t.Fatalf("%d bytes wait, the writer rests: %v; want all of them, and that nobody writes", waiting, idle)
			}
			left := make(chan error, 1)
			go func() { left <- c.leave(a) }()
			for i := range 3 + c.more {
				if _, payload, err := b.Recv(); err != nil || int(payload[0]) != i {
					t.Fatalf("got %v, %v, want message %d", payload, err, i)
				}
			}
			if err := <-left; err != nil {
				t.Fatal(err)
			}
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
func TestBatch(t *testing.T) {
	const messages = 100
	for _, c := range []struct{ pending, writes int }{{0, 2}, {1, messages}} {
		near, far := net.Pipe()
		g := &gate{Conn: near, open: make(chan struct{})}
		a, b := New(g, "peer", Config{MaxPending: c.pending}, true), New(far, "peer", Config{}, true)
		if err := a.Send(wire.KindRun, []byte{0}); err != nil {
			t.Fatal(err)
		}
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
			if err := <-sent; err != nil {
				t.Fatal(err)
			}
		}
		close(g.open)
		for i := range messages {
			if _, payload, err := b.Recv(); err != nil || len(payload) != 1 || int(payload[0]) != i {
				t.Fatalf("got %v, %v, want message %d", payload, err, i)
			}
		}
		if c.pending != 0 {
			if err := <-sent; err != nil {
				t.Fatal(err)
			}
		}
		a.Close()
		b.Close()
		if g.writes != c.writes {
			t.Errorf("where %d bytes may wait, %d messages took %d writes; want %d", c.pending, messages, g.writes, c.writes)
		}
	}
}
