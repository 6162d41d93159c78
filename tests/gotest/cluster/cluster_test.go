package cluster

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/cluster"
	"github.com/openpathways/pathways/core/cluster/clustertest"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
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

const adder = `({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %c = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %c : tensor<f32>
    })`

// programs use the collectives, alone, one after another, in pairs and in a loop.
func programs(n int) []program {
	in := fmt.Sprintf("tensor<%dxf32>", length)
	sum := func(of, groups string) string {
		return fmt.Sprintf(`"stablehlo.all_reduce"(%s) %s {replica_groups = %s} : (%s) -> %s`, of, adder, groups, in, in)
	}
	var circle, pairs []string
	for i := range n {
		circle = append(circle, fmt.Sprintf("[%d, %d]", i, (i+1)%n))
		if i%2 == 0 {
			pairs = append(pairs, fmt.Sprintf("[%d, %d]", i, i+1))
		}
	}
	module := func(name, result, body string) program {
		return program{name, fmt.Sprintf("module @%s {\n  func.func public @main(%%x: %s) -> %s {\n%s\n  }\n}\n", name, in,
			result, body), n}
	}
	return []program{
		module("alone", in, fmt.Sprintf("%%y = stablehlo.sine %%x : %s\n return %%y : %s", in, in)),
		module("sum", in, fmt.Sprintf("%%y = %s\n return %%y : %s", sum("%x", everyone(n)), in)),
		module("pairs", in, fmt.Sprintf("%%y = %s\n return %%y : %s",
			sum("%x", fmt.Sprintf("dense<[%s]> : tensor<%dx2xi64>", strings.Join(pairs, ", "), len(pairs))), in)),
		module("gather", fmt.Sprintf("tensor<%dxf32>", n*length), fmt.Sprintf(
			"%%y = \"stablehlo.all_gather\"(%%x) {all_gather_dim = 0 : i64, replica_groups = %s} : (%s) -> tensor<%dxf32>\n "+
				"return %%y : tensor<%dxf32>",
			everyone(n), in, n*length, n*length)),
		module("scatter", fmt.Sprintf("tensor<%dxf32>", length/n), fmt.Sprintf(
			"%%y = \"stablehlo.reduce_scatter\"(%%x) %s {scatter_dimension = 0 : i64, replica_groups = %s} : (%s) -> "+
				"tensor<%dxf32>\n return %%y : tensor<%dxf32>",
			adder, everyone(n), in, length/n, length/n)),
		module("around", in, fmt.Sprintf(
			"%%s = stablehlo.cosine %%x : %s\n %%y = \"stablehlo.collective_permute\"(%%s) {source_target_pairs = dense<[%s]> "+
				": tensor<%dx2xi64>} : (%s) -> %s\n return %%y : %s",
			in, strings.Join(circle, ", "), n, in, in, in)),
		module("turned", in, fmt.Sprintf(
			"%%y = \"stablehlo.all_to_all\"(%%x) {split_dimension = 0 : i64, concat_dimension = 0 : i64, split_count = %d : "+
				"i64, replica_groups = %s} : (%s) -> %s\n return %%y : %s",
			n, everyone(n), in, in, in)),
		module("loop", in, fmt.Sprintf(`
    %%zero = stablehlo.constant dense<0> : tensor<i32>
    %%one = stablehlo.constant dense<1> : tensor<i32>
    %%five = stablehlo.constant dense<5> : tensor<i32>
    %%half = stablehlo.constant dense<0.3> : %s
    %%r:2 = stablehlo.while(%%i = %%zero, %%v = %%x) : tensor<i32>, %s
      cond {
        %%c = stablehlo.compare LT, %%i, %%five : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %%c : tensor<i1>
      } do {
        %%s = %s
        %%m = stablehlo.multiply %%s, %%half : %s
        %%w = stablehlo.add %%m, %%v : %s
        %%k = stablehlo.add %%i, %%one : tensor<i32>
        stablehlo.return %%k, %%w : tensor<i32>, %s
      }
    return %%r#1 : %s`, in, in, sum("%v", everyone(n)), in, in, in, in)),
	}
}

// natively returns what one driver with all devices makes of a program, by device.
func natively(t *testing.T, p program) [][]byte {
	t.Helper()
	d := driver(t, p.replicas)
	x, err := d.Compile(t.Context(), device.Program{Format: "mlir", Code: []byte(p.text)}, p.options())
	statustest.OKf(t, err, "%s", p.name)
	defer x.Close()
	rows := make([][]device.Buffer, p.replicas)
	for i := range rows {
		b := statustest.Value(d.FromHost(device.Host{Shape: input, Data: values(i), Device: i})).OK(t)
		defer b.Close()
		rows[i] = []device.Buffer{b}
	}
	r := statustest.Value(x.Execute(device.Run{LaunchID: 1, Inputs: rows, Only: -1})).OK(t)
	out := make([][]byte, p.replicas)
	for i, row := range r.Outputs {
		out[i] = make([]byte, row[0].Shape().HostBytes())
		var pin runtime.Pinner
		pin.Pin(&out[i][0])
		e, err := row[0].ToHost(out[i])
		if err == nil {
			err = e.Wait(context.Background())
		}
		if err == nil {
			err = r.Done[i].Wait(context.Background())
		}
		pin.Unpin()
		row[0].Close()
		statustest.OK(t, err)
	}
	return out
}

// Programs with every collective compute, on any number of workers, bit for bit what
// one driver with all devices computes.
func TestCollectivesHaveTheBitsOfOneDriver(t *testing.T) {
	const devices = 4
	want := map[string][][]byte{}
	for _, p := range programs(devices) {
		want[p.name] = natively(t, p)
	}
	for _, workers := range []int{1, 2, 4} {
		t.Run(fmt.Sprint(workers, " workers"), func(t *testing.T) {
			r := open(t, workers, devices/workers)
			s := r.connect(t, "client")
			x := s.Array(input, clustertest.UpTo(devices), values)
			for _, p := range programs(devices) {
				remote := s.compile(p)
				statustest.Equal(t, remote.Info.Collective, p.name != "alone",
					"%s: the program says of its devices waiting for each other", p.name)
				for round := range 3 {
					token, y := s.Start(remote, x)
					statustest.OKf(t, s.Wait(token), "%s, round %d", p.name, round)
					for d := range devices {
						got, err := s.Read(y, d, int64(len(want[p.name][d])))
						if err != nil || !bytes.Equal(got, want[p.name][d]) {
							t.Errorf("%s, round %d, device %d: %v, other bits than in one driver: %v", p.name, round, d, err,
								!bytes.Equal(got, want[p.name][d]))
						}
					}
					s.Free([]uint64{y})
				}
			}
			s.Free([]uint64{x})
			r.free()
		})
	}
}

// A run whose part on one worker cannot begin ends the parts of the others, which
// wait for it in a collective, with the same error; and the devices go on.
func TestPartThatCannotBeginEndsTheOthers(t *testing.T) {
	r := open(t, 2, 1)
	s := r.connect(t, "client")
	sum := s.compile(calling(2))
	x := s.Array(input, clustertest.UpTo(2), values)
	token, warm := s.startCalling(sum, negate, x)
	statustest.OK(t, s.Wait(token))
	fail := make(chan func(error), 1)
	p := &client.PutSpec{Object: s.Objects(1), Shape: input, Devices: []uint32{0, 1}, Token: s.Tokens(1)}
	p.Fill = func(d uint32, dst []byte, written func(error)) {
		if d == 1 {
			fail <- written
			return
		}
		copy(dst, values(0))
		written(nil)
	}
	statustest.OK(t, s.Put(p))
	begun := make(chan struct{}, 2)
	token, y := s.startCalling(sum, func(h *client.HostCall) { negate(h); begun <- struct{}{} }, p.Object)
	beside, z := s.startCalling(sum, negate, x)
	<-begun // the other worker has what it adds in the collective
	(<-fail)(status.New(status.DataLoss, "the file of the array was cut short"))
	for _, of := range []uint64{p.Token, token} {
		statustest.Fails(t, fmt.Sprintf("operation %d", of), s.Wait(of), status.DataLoss, "cut short")
	}
	statustest.Checkf(t, s.Wait(beside), "a run behind")
	s.Free([]uint64{x, y, z, warm, p.Object})
	r.free()
}
