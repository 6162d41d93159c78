package embedded_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/openpathways/pathways/capi/drivers"
	"github.com/openpathways/pathways/capi/embedded"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/xla/compileoptions"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/devicetest"
	"github.com/openpathways/pathways/device/pjrt"
)

// table finds the plugin underneath and returns the frontend's table as a plugin.
func table(t *testing.T) *pjrt.Plugin {
	t.Helper()
	dirs := filepath.SplitList(os.Getenv("PATHWAYS_PLUGIN_DIRS"))
	if out, err := exec.Command("python3", "-c",
		"import sysconfig; print(sysconfig.get_path('purelib'))").Output(); err == nil {
		dirs = append(dirs, strings.TrimSpace(string(out)))
	}
	drivers.SetDirs(dirs)
	p, err := pjrt.Wrap("the embedded frontend", embedded.Table())
	if err != nil {
		t.Fatalf("%v (this test needs a PJRT plugin: pip install fastatomstruct-xla-cpu, and set PATHWAYS_PLUGIN_DIRS "+
			"to the directory of the package)", err)
	}
	return p
}

// clean fails if the test has left anything of the frontend alive.
func clean(t *testing.T) {
	t.Helper()
	before := embedded.ReadStats()
	t.Cleanup(func() {
		st := embedded.ReadStats()
		for kind, n := range st.Live {
			statustest.Equal(t, n, before.Live[kind], "%s are alive", kind)
		}
		statustest.Equal(t, st.Sessions, before.Sessions, "sessions are open")
	})
}

// The embedded frontend is a PJRT plugin like any other: it keeps the whole contract of package device, and leaves
// nothing alive.
func TestTableKeepsTheContractOfADriver(t *testing.T) {
	p := table(t)
	clean(t)
	devicetest.Run(t, devicetest.Harness{
		Open: func(t testing.TB, n int) device.Driver {
			c, err := p.Create(pjrt.ClientOptions{Devices: n})
			statustest.OKf(t, err, "Create with %d devices", n)
			return c
		},
		Programs: func(p devicetest.Program, s shape.Shape, devices []int) devicetest.Source {
			portable := slices.Equal(devices, []int{0})
			return devicetest.Source{Program: devicetest.StableHLO(p, s, len(devices)),
				Options: compileoptions.New(len(devices), 1, devices, portable)}
		},
		// Some plugins bring them back with zeros above the sign.
		Lacks: devicetest.Lacks{DTypes: []shape.DType{shape.S4, shape.S2}},
	})
}
