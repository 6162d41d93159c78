package cluster_test

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/cluster"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/worker"
	"github.com/openpathways/pathways/device/sim"
	streams "github.com/openpathways/pathways/transport/stream"
)

// A worker that is told to stop says so: the controller logs that it left, and warns of
// nothing, and what has arrays there learns that it was stopped. One that ends without a
// word is a loss, which is told by the worker's name and not by the controller's address.
func TestHowAWorkerEnds(t *testing.T) {
	dir := t.TempDir()
	address := "unix:" + filepath.Join(dir, "c")
	var log text
	said := func() string {
		log.mu.Lock()
		defer log.mu.Unlock()
		return log.String()
	}
	c := serve(t, func(ctx context.Context) error {
		return cluster.ServeController(ctx, cluster.ControllerConfig{
			Listen: []string{address}, Heartbeat: 100 * time.Millisecond, Log: slog.New(slog.NewTextHandler(&log, nil)),
		})
	})
	defer func() {
		statustest.Check(t, c.end())
	}()
	drivers := simulatedOn(t, 2, sim.Options{Devices: 1, Island: sim.NewIsland(sim.Real, 1)})
	var running []*served
	for i, d := range drivers {
		name := []string{"stays", "stops"}[i]
		running = append(running, serve(t, func(ctx context.Context) error {
			return cluster.ServeWorker(ctx, cluster.WorkerConfig{
				Address: address, Listen: []string{"unix:" + filepath.Join(dir, name)}, Name: name,
				Driver: d, Wait: 20 * time.Second, Log: slog.New(slog.DiscardHandler)})
		}))
		workers(t, address, i+1)
	}
	s := begin(t, func(n client.Notify) (client.Cluster, error) {
		return cluster.Connect(t.Context(), cluster.ClientConfig{
			Address: address, Name: "client", Heartbeat: 100 * time.Millisecond}, n)
	})
	x := s.vector([]int{0, 1}, ramp)
	statustest.OK(t, statustest.Of(s.read(x, 1)))

	statustest.Check(t, running[1].end())
	workers(t, address, 1)
	_, err := s.read(x, 1)
	for _, part := range []string{"worker stops, which was stopped", "pathways.events()"} {
		statustest.Fails(t, "what reads its array", err, status.DataLoss, part)
	}
	if text := said(); strings.Contains(text, "WARN") || !strings.Contains(text, "worker stops left") {
		t.Errorf("the controller logs\n%s", text)
	}

	dead, _, err := streams.Dial(t.Context(), address,
		&wire.Hello{Role: wire.Role_ROLE_WORKER, Name: "dies", Host: cluster.Host(), Worker: worker.Offer(drivers[0])},
		streams.Options{})
	statustest.OK(t, err)
	dead.Close()
	_, warning, _ := strings.Cut(log.until("WARN"), "WARN")
	if !strings.Contains(warning, `"lost worker dies" event=lost worker=4 reason="it closed the connection without a goodbye`) ||
		strings.Contains(warning, dir) {
		t.Errorf("its loss is told as %s", warning)
	}
}
