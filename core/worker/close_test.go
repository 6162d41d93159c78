package worker_test

import (
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/openpathways/pathways/core/worker"
	"github.com/openpathways/pathways/device/sim"
	"github.com/openpathways/pathways/transport/inproc"
	"github.com/openpathways/pathways/transport/shm"
)

// A worker that is closed while Serve begins leaves no goroutine behind, whichever comes first.
func TestCloseWhileServeBegins(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	d, err := sim.Open(sim.Options{Devices: 2, Island: sim.NewIsland(sim.Instant, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	pool := shm.NewPool(shm.Config{})
	x, err := inproc.NewHub(pool).Join(firstWorker, "")
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	for range 500 {
		near, remote := inproc.Pair("controller", "worker")
		w, err := worker.New(worker.Config{
			Name: "w", Conn: remote, Driver: d, Exchange: x, Heartbeat: 1,
			DeviceID: func(uint64, int) (int, bool) { return 0, true },
		})
		if err != nil {
			t.Fatal(err)
		}
		var both sync.WaitGroup
		both.Go(w.Close)
		both.Go(func() {
			if err := w.Serve(); err != nil {
				t.Error(err)
			}
		})
		both.Wait()
		near.Close()
	}
}
