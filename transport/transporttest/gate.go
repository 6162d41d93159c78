package transporttest

import (
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/openpathways/pathways/core/status/statustest"
)

// Gate counts the bytes of blocks that forwarders pass, and does something once so many have passed; nothing passes
// meanwhile. It does not count messages, which are short.
type Gate struct {
	mu     sync.Mutex
	passed int64
	marks  []int64 // of passed, in order, at which it does
	do     func()
}

// messages are shorter than this; bytes of blocks come in longer runs, but for the rest of a piece.
const messages = 1 << 10

// Watch has the gate watch what goes through a forwarder.
func (g *Gate) Watch(f *Forwarder) { f.Watch(g.pass) }

func (g *Gate) pass(bytes int) {
	if bytes < messages {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for len(g.marks) > 0 && g.passed+int64(bytes) > g.marks[0] {
		g.marks = g.marks[1:]
		g.do()
	}
	g.passed += int64(bytes)
}

// Passed returns how many bytes have passed.
func (g *Gate) Passed() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.passed
}

// At has the gate do something just before each of these bytes, counted from now on, passes.
func (g *Gate) At(do func(), bytes ...int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.marks, g.do = nil, do
	for _, b := range bytes {
		g.marks = append(g.marks, g.passed+b)
	}
}

// Left returns how many times it has yet to do that.
func (g *Gate) Left() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.marks)
}

// Stop stops a child of this process, and returns when it stands still.
func Stop(t testing.TB, p *os.Process) {
	t.Helper()
	statustest.Check(t, p.Signal(unix.SIGSTOP))
	for {
		err := unix.Waitid(unix.P_PID, p.Pid, nil, unix.WSTOPPED, nil)
		if err != unix.EINTR {
			statustest.Check(t, err)
			return
		}
	}
}

// Continue undoes Stop.
func Continue(t testing.TB, p *os.Process) {
	t.Helper()
	statustest.Check(t, p.Signal(unix.SIGCONT))
}
