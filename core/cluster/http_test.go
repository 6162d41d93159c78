package cluster_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/cluster"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/device/sim"
)

// logged hands on a part of the first line of a log that has it.
type logged struct {
	slog.Handler
	key   string
	found chan string
}

func (l logged) Handle(ctx context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == l.key {
			l.found <- a.Value.String()
		}
		return true
	})
	return nil
}

// A controller's web page shows a cluster as it is, and ends with its controller.
func TestWebPageShowsTheClusterAndEndsWithIt(t *testing.T) {
	dir := t.TempDir()
	address := "unix:" + filepath.Join(dir, "c")
	log := logged{slog.NewTextHandler(io.Discard, nil), "page", make(chan string, 1)}
	c := serve(t, func(ctx context.Context) error {
		return cluster.ServeController(ctx, cluster.ControllerConfig{Listen: []string{address}, HTTP: "127.0.0.1:0",
			Heartbeat: 100 * time.Millisecond, Log: slog.New(log)})
	})
	page := <-log.found
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	get := func(path string) string {
		r := statustest.Value((&http.Client{Transport: transport}).Get(page + path)).OK(t)
		defer r.Body.Close()
		body := statustest.Value(io.ReadAll(r.Body)).OK(t)
		return string(body)
	}
	if got := get("readyz"); !strings.Contains(got, "no worker") {
		t.Errorf("without workers readyz answers %q", got)
	}
	driver := simulatedOn(t, 1, sim.Options{Devices: 2, Island: sim.NewIsland(sim.Real, 1)})[0]
	w := serve(t, func(ctx context.Context) error {
		return cluster.ServeWorker(ctx, cluster.WorkerConfig{
			Address: address, Listen: []string{"unix:" + filepath.Join(dir, "w")}, Name: "w", Driver: driver,
			Wait: 20 * time.Second, Log: slog.New(slog.DiscardHandler)})
	})
	workers(t, address, 1)
	s := begin(t, func(n client.Notify) (client.Cluster, error) {
		return cluster.Connect(t.Context(), cluster.ClientConfig{
			Address: address, Name: "notebook", Heartbeat: 100 * time.Millisecond}, n)
	})
	x, began := s.vector([]int{0, 1}, ramp), time.Now()
	s.expect(x, 1, ramp(1)...)
	add := s.program(addOne, 0, 1)
	shows := func(path, part string) { // soon: what is shown is up to a second old
		for {
			got := get(path)
			switch {
			case strings.Contains(got, part):
				return
			case t.Context().Err() != nil || time.Since(began) > 20*time.Second:
				t.Fatalf("/%s lacks %s:\n%s", path, part, got)
			}
			s.adds(add, 0, 1)
		}
	}
	for path, parts := range map[string][]string{
		"":            {"<title>Open Pathways</title>"},
		"healthz":     {"ok"},
		"readyz":      {"ok"},
		"api/status":  {`"name":"notebook"`, `"name":"w"`},
		"api/events":  {`"kind":"joined"`, `"kind":"began"`},
		"api/history": {`"gangs_per_second":`},
		"metrics": {"pathways_gangs_total ", `pathways_devices{island="default",platform="sim",worker="w"} 2`,
			`pathways_session_objects{client="notebook",`},
	} {
		for _, part := range parts {
			shows(path, part)
		}
	}
	shows("api/timeline", `"bars":[[1,0,`) // once the worker has heard that somebody looks
	s.Close()
	for _, ends := range []*served{w, c} {
		statustest.Check(t, ends.end())
	}
	if r, err := (&http.Client{Transport: transport}).Get(page + "healthz"); err == nil {
		r.Body.Close()
		t.Error("the page outlives its controller")
	}
}

// A page that other machines can open needs TLS and a token.
func TestWebPageForOthersIsProtected(t *testing.T) {
	for http, part := range map[string]string{"0.0.0.0:0": "--tls-cert", ":0": "--tls-cert", "8080": "host:port"} {
		err := cluster.ServeController(t.Context(), cluster.ControllerConfig{
			Listen: []string{"unix:" + filepath.Join(t.TempDir(), "c")}, HTTP: http, Secret: cluster.Secret{Token: "own"},
			Log: slog.New(slog.DiscardHandler)})
		statustest.Fails(t, fmt.Sprintf("--http %s", http), err, status.InvalidArgument, part)
	}
}
