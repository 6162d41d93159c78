package command

import (
	"bytes"
	"io"
	"os"
	"slices"
	"strings"
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

// outcome is what a command line came to.
type outcome struct {
	args      []string
	code      int
	out, errs string
}

// ends fails the test unless the exit code is this one and each of the texts was written.
func (o outcome) ends(t *testing.T, code int, texts ...string) outcome {
	t.Helper()
	said := o.out + o.errs
	lacks := slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(said, text) })
	if o.code != code || lacks {
		t.Errorf("%q: exit code %d, want %d and %q in\n%s", o.args, o.code, code, texts, said)
	}
	return o
}

// call runs a command line in this process.
func call(t *testing.T, variables map[string]string, args ...string) outcome {
	t.Helper()
	var out, errs bytes.Buffer
	code := Main(t.Context(), args, environment(&out, &errs, variables))
	return outcome{args, code, out.String(), errs.String()}
}

// shortDir makes a directory for a test, in which sockets have short names, as they must.
func shortDir(t *testing.T) string {
	t.Helper()
	dir := statustest.Value(os.MkdirTemp("/tmp", "pw")).OK(t)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}
