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
