package worker_test

import (
	"sync"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/worker"
	"github.com/openpathways/pathways/device/sim"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/inproc"
	"github.com/openpathways/pathways/transport/shm"
)

// A worker that is closed while Serve begins leaves no goroutine behind, whichever comes first.
func TestCloseWhileServeBegins(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	d := statustest.Value(sim.Open(sim.Options{Devices: 2, Island: sim.NewIsland(sim.Instant, 1)})).OK(t)
	defer d.Close()
	pool := shm.NewPool(shm.Config{})
	x := statustest.Value(inproc.NewHub(pool).Join(firstWorker, "")).OK(t)
	defer x.Close()
	for range 500 {
		near, remote := inproc.Pair("controller", "worker")
		w := statustest.Value(worker.New(worker.Config{
			Name: "w", Conn: remote, Driver: d, Exchange: x, Heartbeat: 1,
			DeviceID: func(uint64, int) (int, bool) { return 0, true },
		})).OK(t)
		var both sync.WaitGroup
		both.Go(w.Close)
		both.Go(func() {
			statustest.Check(t, w.Serve())
		})
		both.Wait()
		near.Close()
	}
}

// Messages that the worker is acting on when it is closed touch none of what the end takes apart: the race detector
// watches.
func TestCloseWhileMessagesCome(t *testing.T) {
	d := statustest.Value(sim.Open(sim.Options{Devices: 1, Island: sim.NewIsland(sim.Instant, 1)})).OK(t)
	defer d.Close()
	x := statustest.Value(inproc.NewHub(shm.NewPool(shm.Config{})).Join(firstWorker, "")).OK(t)
	defer x.Close()
	for range 20 {
		near, remote := inproc.Pair("controller", "worker")
		w := statustest.Value(worker.New(worker.Config{Name: "w", Conn: remote, Driver: d, Exchange: x})).OK(t)
		var all sync.WaitGroup
		begun := make(chan struct{})
		all.Go(func() { // until the worker has closed the connection
			for session := uint32(1); ; session++ {
				load := &wire.Load{Session: session, Program: 1, Devices: []*wire.Devices{{Count: 1}}}
				if tell(near, wire.KindLoad, load) != nil || tell(near, wire.KindDrop, &wire.Drop{Session: session}) != nil {
					return
				}
				if session == 10 {
					close(begun)
				}
			}
		})
		all.Go(func() {
			statustest.Check(t, w.Serve())
		})
		<-begun
		w.Close()
		all.Wait()
		near.Close()
	}
}

func tell(c transport.Conn, kind wire.Kind, m proto.Message) error {
	payload, err := proto.Marshal(m)
	if err != nil {
		return err
	}
	return c.Send(kind, payload)
}
