package cluster_test

import (
	"bytes"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/cluster"
	"github.com/openpathways/pathways/core/controller/durable"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
)

// A controller that cannot start leaves its state as it is, so that the next start has its cluster back.
func TestStartThatFailsLeavesTheState(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, durable.File)
	store := statustest.Value(durable.Open(dir)).OK(t)
	statustest.OK(t, statustest.Of(store.Start()))
	statustest.OK(t, store.Close())
	taken := statustest.Value(net.Listen("tcp", "127.0.0.1:0")).OK(t)
	defer taken.Close()
	address := taken.Addr().String()
	serves := func(name, address, http string, code status.Code, part string) {
		t.Helper()
		before := statustest.Value(os.ReadFile(path)).OK(t)
		err := cluster.ServeController(t.Context(), cluster.ControllerConfig{Listen: []string{address}, HTTP: http,
			State: dir, Lease: time.Minute, Log: slog.New(slog.DiscardHandler)})
		statustest.Fails(t, name, err, code, part)
		if after, err := os.ReadFile(path); err != nil || !bytes.Equal(after, before) {
			t.Errorf("%s: the state was changed or removed: %v", name, err)
		}
	}
	free := "unix:" + filepath.Join(dir, "c")
	serves("an address that is taken", "tcp:"+address, "", status.AlreadyExists, address)
	serves("a page's address that is taken", free, address, status.Internal, address)
	file := statustest.Value(os.ReadFile(path)).OK(t)
	clear(file[2*os.Getpagesize():])
	statustest.OK(t, os.WriteFile(path, file, 0o600))
	serves("a damaged file", free, "", status.DataLoss, "move it away to begin a new cluster")
}
