package cluster

import (
	"encoding/binary"
	"fmt"
	"math"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/cluster"
	"github.com/openpathways/pathways/core/cluster/clustertest"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/xla/compileoptions"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/pjrt"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// plugin is the CPU plugin that the environment names, or that python3 has.
var plugin = sync.OnceValues(func() (*pjrt.Plugin, error) {
	o := pjrt.FindOptions{Platform: "cpu"}
	if out, err := exec.Command("python3", "-c",
		"import sysconfig; print(sysconfig.get_path('purelib'))").Output(); err == nil {
		o.Dirs = append(o.Dirs, filepath.Clean(strings.TrimSpace(string(out))))
	}
	found, err := pjrt.Find(o)
	if err != nil {
		return nil, err
	}
	return pjrt.Open(found.Path)
})

// driver makes a client of the CPU plugin.
func driver(t testing.TB, devices int) *pjrt.Client {
	t.Helper()
	p, err := plugin()
	statustest.OKf(t, err, "this test needs a CPU plugin")
	c := statustest.Value(p.Create(pjrt.ClientOptions{Devices: devices})).OK(t)
	t.Cleanup(func() {
		statustest.Check(t, c.Close())
	})
	return c
}

// rig is a cluster with its drivers.
type rig struct {
	*cluster.Local
	t       testing.TB
	drivers []device.Driver
}

func open(t testing.TB, workers, each int) *rig {
	t.Helper()
	r := &rig{t: t}
	for range workers {
		r.drivers = append(r.drivers, driver(t, each))
	}
	l := statustest.Value(cluster.InProcess{Drivers: r.drivers}.Start(t.Context())).OK(t)
	t.Cleanup(l.Close)
	r.Local = l
	return r
}

// free waits until the devices hold nothing.
func (r *rig) free() { r.t.Helper(); clustertest.Free(r.t, r.drivers) }

// session is a client of a cluster.
type session struct{ *clustertest.Session }

func (r *rig) connect(t testing.TB, name string) *session {
	t.Helper()
	return &session{clustertest.Begin(t, func(n client.Notify) (client.Cluster, error) {
		return r.Connect(t.Context(), name, n)
	})}
}

// program is StableHLO with its place on all devices.
type program struct {
	name, text string
	replicas   int
}

func (p program) options() []byte {
	return compileoptions.New(p.replicas, 1, clustertest.UpTo(p.replicas), false)
}

func (s *session) compile(p program) *client.Remote {
	s.T.Helper()
	r, err := s.Compile(s.T.Context(), client.CompileSpec{Format: "mlir", Code: []byte(p.text), Options: p.options()})
	statustest.OKf(s.T, err, "%s", p.name)
	return r
}

// values are floats of many magnitudes, whose sums depend on the order.
func values(d int) (b []byte) {
	for i := range length {
		x := math.Sin(float64(1+i)*1.7+float64(d)*0.3) * math.Pow(10, float64((i*7+d*5)%9-4))
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(x)))
	}
	return b
}

const length = 96

var input = shape.Shape{DType: shape.F32, Dims: []int64{length}}

// everyone is one group of n ranks as text.
func everyone(n int) string {
	return fmt.Sprintf("dense<[%s]> : tensor<1x%dxi64>", strings.ReplaceAll(fmt.Sprint(clustertest.UpTo(n)), " ", ", "), n)
}

// sumOf is a line of text: %z is the sum of what n devices have.
func sumOf(value string, n int) string {
	return `    %z = "stablehlo.all_reduce"(` + value + `) ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) {replica_groups = ` + everyone(n) + `} : (tensor<96xf32>) -> tensor<96xf32>
`
}

// summing has each of n devices get the sum of what all have.
func summing(n int) program {
	return program{name: "summing", replicas: n, text: `module @summing {
  func.func public @main(%x: tensor<96xf32>) -> tensor<96xf32> {
` + sumOf("%x", n) + `    return %z : tensor<96xf32>
  }
}`}
}
