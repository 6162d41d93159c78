package transporttest

import (
	"os/exec"
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

// Process is a child of this process, which others reach through a forwarder. Something happens to it at a byte that
// passes there, counted from when it is asked for.
type Process struct {
	Command *exec.Cmd
	Line    *Forwarder
	Gate    Gate // of the line
}

// StopAt has the process stopped at a byte, and returns a channel that is closed when it stands still.
func (p *Process) StopAt(t testing.TB, at int64) (stopped <-chan struct{}) {
	return p.once(at, func() { p.Stop(t) })
}

// Continue has a process go on that was stopped.
func (p *Process) Continue(t testing.TB) {
	t.Helper()
	statustest.Check(t, p.Command.Process.Signal(unix.SIGCONT))
}

// SlowDown has the process, and its line, stand still each time that so many bytes have passed, as long as something
// else is done, until a byte is reached.
func (p *Process) SlowDown(t testing.TB, each, end int64, meanwhile func()) {
	var marks []int64
	for at := int64(0); at < end; at += each {
		marks = append(marks, at)
	}
	p.Gate.At(func() {
		p.Stop(t)
		meanwhile()
		p.Continue(t)
	}, marks...)
}

// KillAt has the process killed at a byte, with its connections, and returns a channel that is closed then.
func (p *Process) KillAt(t testing.TB, at int64) (killed <-chan struct{}) {
	return p.once(at, func() {
		statustest.Check(t, p.Command.Process.Kill())
		_ = p.Command.Wait() // it was killed
		p.Line.Break()
	})
}

// once has something done at a byte, and returns a channel that is closed then.
func (p *Process) once(at int64, do func()) <-chan struct{} {
	done := make(chan struct{})
	p.Gate.At(func() {
		do()
		close(done)
	}, at)
	return done
}

// Stop stops the process, and returns when it stands still.
func (p *Process) Stop(t testing.TB) {
	t.Helper()
	statustest.Check(t, p.Command.Process.Signal(unix.SIGSTOP))
	for {
		err := unix.Waitid(unix.P_PID, p.Command.Process.Pid, nil, unix.WSTOPPED, nil)
		if err != unix.EINTR {
			statustest.Check(t, err)
			return
		}
	}
}
