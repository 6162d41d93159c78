package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/openpathways/pathways/core/status"
)

// A worker whose driver is a member of an epoch runs in a child of the process that the
// user started. When the epoch is over, its driver may wait indefinitely for members that
// are gone, and only the end of its process ends that. The parent then starts another
// child for the next epoch.
const (
	// exitOver is the exit code of a child whose epoch is over: EX_TEMPFAIL of sysexits.h.
	exitOver = 75
	// lifeline is the child's flag for the descriptor of a pipe, on which a read returns
	// the end of file when the parent has ended.
	lifeline = "lifeline"
	// childGrace is how long a child may take to end by itself.
	childGrace = 3 * time.Second
	// The pause between the death of a child and the start of the next one, which doubles
	// each time.
	firstPause, lastPause = 100 * time.Millisecond, 10 * time.Second
)

// supervise runs a worker's children until ctx ends, or until one ends and must not be
// replaced. This process ends with it.
func (p *program) supervise(ctx context.Context, flags *pflag.FlagSet, name string, log *slog.Logger) error {
	args := append(p.Self[1:len(p.Self):len(p.Self)], arguments(flags, "--name="+name, "--"+lifeline+"=3")...)
	for pause := firstPause; ; {
		err := p.child(ctx, args)
		var exit *exec.ExitError
		switch {
		case ctx.Err() != nil:
			return nil
		case !errors.As(err, &exit):
			return err // it succeeded, or did not start
		case exit.ExitCode() == exitOver:
			pause = firstPause
			continue
		case exit.ExitCode() >= 0:
			return childExit(exit.ExitCode())
		}
		log.Error("a worker's process died; starting another", "name", name, "reason", err, "in", pause)
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
		pause = min(2*pause, lastPause)
	}
}

// child runs one child to its end. If ctx ends, it sends SIGTERM, and later SIGKILL.
func (p *program) child(ctx context.Context, args []string) error {
	reads, writes, err := os.Pipe()
	if err != nil {
		return status.New(status.ResourceExhausted, "cannot make a pipe for a worker's process: %w", err)
	}
	defer writes.Close() // never written; it stays open while this process lives
	cmd := exec.CommandContext(ctx, p.Self[0], args...)
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = p.out, p.err, []*os.File{reads}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = childGrace
	err = cmd.Start()
	reads.Close()
	if err != nil {
		return status.New(status.Unavailable, "cannot start %s: %w", p.Self[0], err)
	}
	return cmd.Wait()
}

// withParent returns a context that ends when the parent has ended. The process ends soon
// after that in any case.
func withParent(ctx context.Context, fd int) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	syscall.CloseOnExec(fd)
	f := os.NewFile(uintptr(fd), lifeline)
	go func() {
		_, _ = io.Copy(io.Discard, f) // until its end
		cancel()
		time.Sleep(childGrace)
		os.Exit(ExitFailed)
	}()
	return ctx, cancel
}

// epochOver ends a child even if its driver hangs. A child that will not be in the next
// epoch first has time to end by itself.
func (p *program) epochOver(next bool, why error) {
	if !next {
		time.AfterFunc(childGrace, func() {
			ctx := context.Background()
			os.Exit(p.exit(ctx, stopped(ctx, why)))
		})
		return
	}
	fmt.Fprintf(p.err, "pathways: %s: %v; joining the next epoch\n", status.CodeOf(why), why)
	os.Exit(exitOver)
}
