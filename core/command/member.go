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

// A worker whose driver is a member of an epoch runs in a child of the process that
// was started: when the epoch is over its driver may wait for ever for members
// that have gone, and only the end of its process ends that. The parent starts
// another child for the next epoch.
const (
	// exitOver is how a child ends whose epoch is over.
	exitOver = 75
	// lifeline is the child's flag with the number of a file that reads its end when
	// the parent has gone.
	lifeline = "lifeline"
	// How long a child has to end by itself.
	childGrace = 3 * time.Second
	// How long after a child has died the next one is started: twice as long each time.
	firstPause, lastPause = 100 * time.Millisecond, 10 * time.Second
)

// supervise runs a worker's children until ctx ends or one ends for good, which is
// then the end of this process, too.
func (p *program) supervise(ctx context.Context, flags *pflag.FlagSet, name string, log *slog.Logger) error {
	args := append(p.Self[1:len(p.Self):len(p.Self)], arguments("worker", flags, "--name="+name, "--"+lifeline+"=3")...)
	for pause := firstPause; ; {
		err := p.child(ctx, args)
		var exit *exec.ExitError
		switch {
		case ctx.Err() != nil:
			return nil
		case !errors.As(err, &exit):
			return err // it ended well, or did not begin
		case exit.ExitCode() == exitOver:
			pause = firstPause
			continue
		case exit.ExitCode() >= 0:
			return childExit(exit.ExitCode())
		}
		log.Error("a worker's process died; another is started", "name", name, "reason", err, "in", pause)
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
		pause = min(2*pause, lastPause)
	}
}

// child runs one child to its end. The end of ctx is a SIGTERM for it, and later
// a SIGKILL.
func (p *program) child(ctx context.Context, args []string) error {
	reads, writes, err := os.Pipe()
	if err != nil {
		return status.New(status.ResourceExhausted, "no pipe for a worker's process: %w", err)
	}
	defer writes.Close() // nobody writes; it is open as long as this process lives
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

// held gives a context that ends when the parent has gone. The process ends soon
// after that in any case.
func held(ctx context.Context, fd int) (context.Context, context.CancelFunc) {
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

// epochOver ends a child, whatever its driver waits for. One that is not to be in
// the next epoch may still end by itself.
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
