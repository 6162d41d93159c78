package command

import (
	"syscall"
	"testing"

	"github.com/openpathways/pathways/core/cluster"
)

// A worker whose controller is told to stop ends well; one whose controller dies does not, and says so.
func TestWorkerEndsAsItsController(t *testing.T) {
	for _, c := range []struct {
		signal syscall.Signal
		code   int
		says   string
	}{
		{syscall.SIGTERM, ExitSuccess, ""},
		{syscall.SIGKILL, ExitFailed, "UNAVAILABLE"},
	} {
		t.Run(c.signal.String(), func(t *testing.T) {
			dir := shortDir(t)
			controller := command(t, dir, "controller")
			worker := command(t, dir, "worker", "--name", "w")
			waitFor(t, "the worker", func() bool {
				r, err := cluster.Ask(t.Context(), at(dir).address(), cluster.Secret{}, nil)
				return err == nil && len(r.Islands) == 1
			})
			_ = controller.Process.Signal(c.signal)
			controller.wait(t)
			worker.wait(t).ends(t, c.code, c.says)
		})
	}
}

// A second SIGTERM does not change the exit code of a controller that ends because of the first.
func TestSecondSignalKeepsTheExitCode(t *testing.T) {
	t.Setenv(signalsItself, "1")
	dir := shortDir(t)
	controller := command(t, dir, "controller")
	waitFor(t, "the controller", func() bool {
		_, err := cluster.Ask(t.Context(), at(dir).address(), cluster.Secret{}, nil)
		return err == nil
	})
	_ = controller.Process.Signal(syscall.SIGTERM)
	controller.wait(t).ends(t, ExitSuccess)
}
