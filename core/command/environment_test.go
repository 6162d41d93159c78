package command

import (
	"bytes"
	"io"
	"os"
	"sync"
	"testing"

	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/sim"
)

// together is a writer for several goroutines.
type together struct {
	mu sync.Mutex
	w  io.Writer
}

func (t *together) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.w.Write(b)
}

func environment(out, err io.Writer, variables map[string]string) Env {
	self, _ := os.Executable()
	return Env{
		Self: []string{self}, Version: "1.2.3", Out: out, Err: &together{w: err},
		Elsewhere: map[string]string{"doctor": "look"},
		Lookup:    func(name string) (string, bool) { v, ok := variables[name]; return v, ok },
		Kinds: func(name string, count, _ int) (device.Kind, error) {
			o := sim.Options{Devices: count}
			if name == "real" { // computations take their time
				o.Island = sim.NewIsland(sim.Real, 1)
			}
			return meets{o, name}, nil
		},
	}
}

// call runs a command line in this process.
func call(t *testing.T, variables map[string]string, args ...string) (code int, out, err string) {
	t.Helper()
	var o, e bytes.Buffer
	code = Main(t.Context(), args, environment(&o, &e, variables))
	return code, o.String(), e.String()
}

// shortDir makes a directory for a test, in which sockets have short names, as they must.
func shortDir(t *testing.T) string {
	t.Helper()
	dir := statustest.Value(os.MkdirTemp("/tmp", "pw")).OK(t)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}
