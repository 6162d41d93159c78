package pjrt

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/xla/compileoptions"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/devicetest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if left := handlesBut(nil); len(left) > 0 {
			fmt.Fprintf(os.Stderr, "still there of what plugins made for the tests: %v\n", left)
			code = max(code, 1)
		}
		os.Exit(code)
	}))
}

// pluginDirs is where the tests look for packaged plugins: where the environment
// says, and where python3 has its packages.
var pluginDirs = sync.OnceValue(func() []string {
	dirs := filepath.SplitList(os.Getenv("PATHWAYS_PLUGIN_DIRS"))
	if out, err := exec.Command("python3", "-c",
		"import sysconfig; print(sysconfig.get_path('purelib'))").Output(); err == nil {
		dirs = append(dirs, strings.TrimSpace(string(out)))
	}
	return dirs
})

// plugins opens every CPU plugin that the tests can find, or the one that
// PATHWAYS_PLUGIN names. A test that needs one fails where there is none.
func plugins(t testing.TB) []*Plugin {
	t.Helper()
	var paths []string
	if path := os.Getenv("PATHWAYS_PLUGIN"); path != "" {
		paths = append(paths, path)
	} else {
		for _, c := range search(pluginDirs(), "cpu") {
			paths = append(paths, c.Path)
		}
	}
	if len(paths) == 0 {
		t.Fatalf("this test needs a PJRT plugin and found none in %v: pip install fastatomstruct-xla-cpu, and set "+
			"PATHWAYS_PLUGIN_DIRS to the directory of the package (site-packages)", pluginDirs())
	}
	var all []*Plugin
	for _, path := range paths {
		p, err := Open(path)
		statustest.OKf(t, err, "Open(%s)", path)
		all = append(all, p)
	}
	return all
}

// handlesBut returns the handles that are there, once they are no others than these: the
// last one that holds a client frees it, on a thread of the plugin's. The bound is
// there for a leak alone.
func handlesBut(these map[string]int64) (left map[string]int64) {
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if left = handles(); maps.Equal(left, these) {
			break
		}
	}
	return left
}

// each runs a test on every plugin, and fails it where it leaves handles behind.
func each(t *testing.T, f func(t *testing.T, p *Plugin)) {
	for _, p := range plugins(t) {
		t.Run(filepath.Base(filepath.Dir(p.path)), func(t *testing.T) {
			before := handles()
			t.Cleanup(func() {
				if left := handlesBut(before); !maps.Equal(left, before) {
					t.Errorf("still there of what the plugin made: %v, and before: %v", left, before)
				}
			})
			f(t, p)
		})
	}
}

func client(t testing.TB, p *Plugin, devices int) *Client {
	t.Helper()
	c, err := p.Create(ClientOptions{Devices: devices})
	statustest.OKf(t, err, "Create with %d devices", devices)
	t.Cleanup(func() {
		statustest.Checkf(t, c.Close(), "Close")
	})
	return c
}

// TestPluginKeepsTheContractOfADriver is the whole contract of package device.
func TestPluginKeepsTheContractOfADriver(t *testing.T) {
	each(t, func(t *testing.T, p *Plugin) {
		devicetest.Run(t, devicetest.Harness{
			Open: func(t testing.TB, n int) device.Driver {
				c, err := p.Create(ClientOptions{Devices: n})
				statustest.OKf(t, err, "Create with %d devices", n)
				return c
			},
			Devices: 4,
			Programs: func(p devicetest.Program, s shape.Shape, devices []int) devicetest.Source {
				return devicetest.Source{Program: devicetest.StableHLO(p, s, len(devices)), Options: onDevices(devices)}
			},
			TooBig: &devicetest.Source{Program: tooBig},
			// They come back with zeros above the sign: TestElementsNarrowerThanAByte.
			Lacks: devicetest.Lacks{DTypes: []shape.DType{shape.S4, shape.S2}},
		})
	})
}

// onDevices asks for a replica a device. What is for device 0 alone is portable.
func onDevices(devices []int) []byte {
	return compileoptions.New(len(devices), 1, devices, slices.Equal(devices, []int{0}))
}

// tooBig wants four terabytes, which no machine of these tests has. It is a
// broadcast of one number: some compilers divide by zero over other programs of
// that size.
var tooBig = mlir("too_big", `
  func.func public @main() -> tensor<1048576x1048576xf32> {
    %x = stablehlo.constant dense<1.0> : tensor<1048576x1048576xf32>
    return %x : tensor<1048576x1048576xf32>
  }`)

func mlir(name, body string) device.Program {
	return device.Program{Format: "mlir", Code: []byte("module @" + name + " {" + body + "\n}\n")}
}
