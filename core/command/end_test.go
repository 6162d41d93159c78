package command

import (
	"strings"
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
			if code, said := worker.wait(t); code != c.code || !strings.Contains(said, c.says) {
				t.Errorf("exit code %d, want %d, and %q in:\n%s", code, c.code, c.says, said)
			}
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
	if code, said := controller.wait(t); code != ExitSuccess {
		t.Errorf("exit code %d, want %d:\n%s", code, ExitSuccess, said)
	}
}
