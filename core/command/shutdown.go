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

// This file bounds the time that a process takes to end, and restarts one, even if its
// driver hangs: a computation that never ends would keep an orderly shutdown from ending.

// endGrace is how long a worker may take to shut down after it was stopped or its controller ended. The results of its
// running computations are lost in any case.
const endGrace = 3 * time.Second

// arguments returns a command line that starts a worker with the same settings as this
// one, from flags, variables and the file. more comes last and takes precedence.
func arguments(flags *pflag.FlagSet, more ...string) []string {
	args := []string{"worker"}
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Name != "help" {
			args = append(args, "--"+f.Name+"="+f.Value.String())
		}
	})
	return append(args, more...)
}

// restart replaces this process by a fresh one with these arguments, by exec. It keeps its
// ID, its parent and its place in the list of a cluster's processes, so that a worker that
// was started by hand comes back like one that has a supervisor, and no other process is
// needed. The kernel ends all other threads, even those in a computation, and frees what
// the driver had.
//
// It returns only if that fails.
func (p *program) restart(args []string) error {
	path, err := exec.LookPath(p.Self[0])
	if err != nil {
		return status.New(status.Unavailable, "cannot restart %s: %w", p.Self[0], err)
	}
	// Files that Go, Python and this system open are not inherited in any case. This is for
	// those of plugins; it has no effect on kernels before 5.11.
	_ = unix.CloseRange(3, ^uint(0)>>1, unix.CLOSE_RANGE_CLOEXEC)
	argv := slices.Concat(p.Self, args)
	return status.New(status.Unavailable, "cannot restart %s: %w", path, syscall.Exec(path, argv, os.Environ()))
}

// ending bounds the shutdown of a command, by ending its process.
type ending struct {
	p   *program
	ctx context.Context

	mu    sync.Mutex // guards the rest
	over  bool
	timer *time.Timer
}

// bounded bounds the shutdown of a command, from the end of ctx until over is called.
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

// begins is called when the command begins to shut down, with the reason. If it has not
// ended after endGrace, the process exits with the code that the command would have had.
func (e *ending) begins(why error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.over || e.timer != nil {
		return
	}
	e.timer = time.AfterFunc(endGrace, func() {
		fmt.Fprintf(e.p.err, "pathways: the computations on the devices did not end within %v; exiting without them\n",
			endGrace)
		os.Exit(e.p.exit(e.ctx, stopped(e.ctx, why)))
	})
}
