package command

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/openpathways/pathways/core/status"
)

// This file bounds the end of a process, and starts one anew, whatever its driver is at:
// a computation that never ends keeps the orderly way from its end.

// endGrace is how long a worker takes for its orderly end after it was told to stop, or
// after its controller has gone. Nobody waits for what it still computes.
const endGrace = 3 * time.Second

// arguments are the words of a command line that start a process with the same settings
// as this one, wherever they came from; more come last and win.
func arguments(command string, flags *pflag.FlagSet, more ...string) []string {
	args := []string{command}
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Name != "help" {
			args = append(args, "--"+f.Name+"="+f.Value.String())
		}
	})
	return append(args, more...)
}

// anew replaces this process by one that begins from the start with these arguments. It
// keeps its number, its parent and its place in the list of a cluster's processes, so
// that a worker started by hand comes back as well as one that has a supervisor, and it
// needs no process beside it. The kernel ends all other threads, also those in a
// computation, and frees what the driver held.
//
// It returns only where that fails.
func (p *program) anew(args []string) error {
	path, err := exec.LookPath(p.Self[0])
	if err != nil {
		return status.New(status.Unavailable, "cannot start %s anew: %w", p.Self[0], err)
	}
	// Files of Go, Python and this system are not inherited in any case. This is for those
	// of plugins; kernels before 5.11 do without.
	_ = unix.CloseRange(3, ^uint(0)>>1, unix.CLOSE_RANGE_CLOEXEC)
	argv := slices.Concat(p.Self, args)
	return status.New(status.Unavailable, "cannot start %s anew: %w", path, syscall.Exec(path, argv, os.Environ()))
}

// ending bounds the end of a command, by the end of its process.
type ending struct {
	p   *program
	ctx context.Context

	mu    sync.Mutex // guards the rest
	over  bool
	timer *time.Timer
}

// bounded bounds the end of a command from the end of ctx on, until over is called.
func (p *program) bounded(ctx context.Context) (e *ending, over func()) {
	e = &ending{p: p, ctx: ctx}
	stop := context.AfterFunc(ctx, func() { e.begins(nil) })
	return e, func() {
		stop()
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.over = true; e.timer != nil {
			e.timer.Stop()
		}
	}
}

// begins is called when the command begins to end, and why. If it has not ended after
// endGrace the process does, with the exit code that the command would have had.
func (e *ending) begins(why error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.over || e.timer != nil {
		return
	}
	e.timer = time.AfterFunc(endGrace, func() {
		fmt.Fprintf(e.p.err, "pathways: what runs on the devices does not end within %v; the process ends without it\n", endGrace)
		os.Exit(e.p.exit(e.ctx, stopped(e.ctx, why)))
	})
}
