package command

import (
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/cluster"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/device/sim"
)

// Workers whose device computes without end for a client that is gone restart: one
// by hand as the same process, members of an island in the next epoch. One that is told
// to stop meanwhile ends well.
func TestStuckWorkersRestart(t *testing.T) {
	for _, c := range []struct {
		name string
		more []string
	}{{name: "alone"}, {"a member", []string{"--nodes", "1"}}} {
		t.Run(c.name, func(t *testing.T) {
			dir := shortDir(t)
			command(t, dir, "controller")
			worker := command(t, dir, append([]string{"worker", "--name", "w", "--driver", "real", "--evict-after", "300ms"},
				c.more...)...)
			secret := cluster.Secret{Directory: at(dir).dir}
			there := func() (process uint64, running []*wire.Running) {
				r, err := cluster.Ask(t.Context(), at(dir).address(), secret, nil)
				if err != nil || len(r.Islands) == 0 || len(r.Islands[0].Workers) == 0 {
					return 0, nil
				}
				w := r.Islands[0].Workers[0]
				return w.Process.GetNumber(), w.Last.GetRunning()
			}
			// spin has a client start a computation that takes a century, and go once it runs.
			spin := func() (worker uint64) {
				t.Helper()
				waitFor(t, "the worker", func() bool { worker, _ = there(); return worker > 0 })
				s, err := cluster.Connect(t.Context(), cluster.ClientConfig{
					Address: at(dir).address(), Secret: secret, Name: "notebook",
					Heartbeat: time.Second, Silence: 10 * time.Second}, func([]client.Ended) {})
				statustest.OK(t, err)
				defer s.Close()
				century := 100 * 365 * 24 * time.Hour
				endless := sim.Program{Name: "endless", Results: []sim.Result{{Op: "fill", DType: "f32", Value: 1}}, Cost: &century}
				r, err := s.Compile(t.Context(), client.CompileSpec{
					Format: sim.Format, Code: endless.Source().Code, Options: sim.CompileOptions([]int{0})})
				if err == nil {
					err = s.Run(&client.RunSpec{Program: r.ID, FirstOutput: s.Objects(1), Only: -1, Token: 1})
				}
				statustest.OK(t, err)
				waitFor(t, "the computation", func() bool {
					_, running := there()
					return len(running) == 1 &&
						running[0].Program == "endless"
				})
				return worker
			}
			before := spin()
			waitFor(t, "the worker to restart", func() bool { now, _ := there(); return now > before })
			select {
			case <-worker.ended:
				t.Fatal("the process that was started has ended")
			default:
			}
			spin() // the new one computes
			_ = worker.Process.Signal(os.Interrupt)
			worker.wait(t).ends(t, ExitSuccess, "endless (operation", "of session 1, notebook of ")
		})
	}
}

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
			waitFor(t, "the worker's first heartbeat", func() bool { // it is listed before it has its welcome
				r, err := cluster.Ask(t.Context(), at(dir).address(), cluster.Secret{}, nil)
				return err == nil && len(r.Islands) == 1 && r.Islands[0].Workers[0].Last != nil
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
