package cluster_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/openpathways/pathways/capi/cluster"
	"github.com/openpathways/pathways/core/client"
	core "github.com/openpathways/pathways/core/cluster"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/sim"
)

// Go's monitor is slow to take a processor from a callback that waits for Python's GIL (capi/lib/monitor.c), so a
// client of a cluster elsewhere that has one processor gets another one.
func TestClientOfAClusterElsewhereHasASecondProcessorUntilItCloses(t *testing.T) {
	t.Setenv("GOMAXPROCS", "")
	dir := t.TempDir()
	config := filepath.Join(dir, "config")
	statustest.OK(t, os.WriteFile(config, nil, 0o600))
	t.Setenv("PATHWAYS_CONFIG", config)
	address, log := "unix:"+filepath.Join(dir, "c"), slog.New(slog.DiscardHandler)
	ctx, cancel := context.WithCancel(t.Context())
	var served sync.WaitGroup
	defer served.Wait()
	defer cancel()
	served.Go(func() {
		statustest.Check(t, core.ServeController(ctx, core.ControllerConfig{Listen: []string{address}, Log: log}))
	})
	devices, err := sim.Kind{Options: sim.Options{Devices: 1, Island: sim.NewIsland(sim.Real, 1)}}.Join(ctx,
		device.Membership{})
	statustest.OK(t, err)
	defer devices.Close()
	served.Go(func() {
		err := core.ServeWorker(ctx, core.WorkerConfig{Address: address, Listen: []string{"unix:" + filepath.Join(dir, "w")},
			Name:   "w",
			Driver: devices, Wait: time.Minute, Log: log})
		statustest.Check(t, err)
	})
	defer cancel()

	runtime.SetDefaultGOMAXPROCS()
	usual := runtime.GOMAXPROCS(0)
	defer runtime.SetDefaultGOMAXPROCS()
	var c client.Cluster
	for c == nil { // until the controller is there, and then its worker
		runtime.GOMAXPROCS(1) // what was given for a session that did not begin is given back as the machine's share
		c, err = cluster.Connect(ctx, address, cluster.Want{Devices: 1}, nil, func([]client.Ended) {})
		code := status.CodeOf(err)
		if err != nil && (ctx.Err() != nil || code != status.Unavailable && code != status.ResourceExhausted) {
			t.Fatal(err)
		}
	}
	statustest.Equal(t, runtime.GOMAXPROCS(0), usual+1, "processors with a client")
	statustest.Check(t, c.Close())
	statustest.Equal(t, runtime.GOMAXPROCS(0), usual, "processors behind the client's end")
}
