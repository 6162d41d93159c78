package pjrt

import (
	"bytes"
	"slices"
	"testing"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/xla/compileoptions"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/devicetest"
)

// TestPluginReadsTheDevicesOfCompileOptions checks that the plugin reads the options as they were
// meant: the devices of replicas × partitions, in the order given.
func TestPluginReadsTheDevicesOfCompileOptions(t *testing.T) {
	each(t, func(t *testing.T, p *Plugin) {
		c := client(t, p, 4)
		x := compile(t, c, mlir("grid attributes {mhlo.num_replicas = 2 : i32, mhlo.num_partitions = 2 : i32}", `
  func.func public @main(%x: tensor<4xf32> {mhlo.sharding = "{devices=[2]<=[2]}"}) -> (tensor<4xf32> {mhlo.sharding = "{devices=[2]<=[2]}"}) {
    %r = stablehlo.add %x, %x : tensor<4xf32>
    return %r : tensor<4xf32>
  }`), compileoptions.New(2, 2, []int{3, 1, 0, 2}, false))
		statustest.EqualSlices(t, x.Devices(), []int{3, 1, 0, 2}, "Devices")
		params, donated, known := x.Parameters()
		if !known || len(params) != 1 || params[0].String() != "f32[2]" || len(donated) != 0 {
			t.Errorf("parameters %v, donated %v, known %v: want the shard, f32[2]", params, donated, known)
		}
		if out := x.Outputs(); len(out) != 1 || out[0].Shape.String() != "f32[2]" {
			t.Errorf("outputs %v: want the shard, f32[2]", out)
		}
		var rows [][]device.Buffer
		for i, d := range x.Devices() {
			rows = append(rows, []device.Buffer{put(t, c, device.Host{Shape: f32(2), Data: floats(float32(i), 10), Device: d})})
		}
		for i, row := range run(t, x, rows...).Outputs {
			if got := get(t, row[0]); !bytes.Equal(got, floats(float32(2*i), 20)) {
				t.Errorf("row %d: got %v", i, got)
			}
		}
	})
}

func TestParametersHaveShapesAndDonations(t *testing.T) {
	each(t, func(t *testing.T, p *Plugin) {
		c := client(t, p, 1)
		x := compile(t, c, mlir("many", `
  func.func public @main(%a: tensor<bf16>, %b: tensor<2x3xf64>, %c: tensor<5xi1>, %d: tensor<7xcomplex<f32>> {tf.aliasing_output = 1 : i32}, %e: tensor<0x4xui8>) -> (tensor<bf16>, tensor<7xcomplex<f32>>) {
    %r = stablehlo.add %d, %d : tensor<7xcomplex<f32>>
    return %a, %r : tensor<bf16>, tensor<7xcomplex<f32>>
  }`), nil)
		params, donated, known := x.Parameters()
		var text []string
		for _, p := range params {
			text = append(text, p.String())
		}
		if want := []string{"bf16[]", "f64[2,3]", "pred[5]", "c64[7]", "u8[0,4]"}; !known || !slices.Equal(text, want) {
			t.Errorf("parameters %v, known %v, want %v", text, known, want)
		}
		statustest.EqualSlices(t, donated, []int{3}, "donated")
		if c, err := x.Cost(); err != nil || c.ArgumentBytes < 2+48+5+56 || c.AliasBytes < 56 {
			t.Errorf("the cost is %+v, %v", c, err)
		}
	})
}

// Older plugins for CPUs say the memory of a result in the program's layout only.
func TestResultsAreInTheMemoriesThatTheProgramSays(t *testing.T) {
	each(t, func(t *testing.T, p *Plugin) {
		c := client(t, p, 2)
		x := compile(t, c, mlir("placed", `
  func.func public @main(%x: tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32> {mhlo.memory_kind = "pinned_host"}) {
    %r = stablehlo.add %x, %x : tensor<2xf32>
    return %r, %r : tensor<2xf32>, tensor<2xf32>
  }`), nil)
		row := []device.Buffer{put(t, c, device.Host{Shape: f32(2), Data: floats(1, 2)})}
		for i, b := range run(t, x, row).Outputs[0] {
			want := []string{"device", "pinned_host"}[i]
			statustest.Equal(t, x.Outputs()[i].Memory, want, "the memory that the program says")
			statustest.Equal(t, b.Memory(), want, "the memory of the result")
			back, err := b.CopyTo(1, "")
			statustest.OK(t, err)
			t.Cleanup(back.Close)
			statustest.Equal(t, back.Memory(), "device", "the memory of its copy")
			if got := get(t, back); !bytes.Equal(got, floats(2, 4)) {
				t.Errorf("result %d: its copy is %v", i, got)
			}
		}
	})
}

func TestBufferIsNotDonatedTwiceInARun(t *testing.T) {
	each(t, func(t *testing.T, p *Plugin) {
		c := client(t, p, 1)
		x := compile(t, c, mlir("twice", `
  func.func public @main(%a: tensor<4xf32> {tf.aliasing_output = 0 : i32}, %b: tensor<4xf32>) -> tensor<4xf32> {
    %r = stablehlo.add %a, %b : tensor<4xf32>
    return %r : tensor<4xf32>
  }`), nil)
		b := put(t, c, device.Host{Shape: f32(4), Data: floats(1, 2, 3, 4)})
		row := []device.Buffer{b, b}
		_, err := x.Execute(device.Run{Inputs: [][]device.Buffer{row}, Only: -1})
		refused(t, err, status.InvalidArgument, "argument 0", "argument 1", "donated")
		if b.Deleted() {
			t.Errorf("a run that was refused consumed its argument")
		}
		r := statustest.Value(x.Execute(device.Run{Inputs: [][]device.Buffer{row}, NotDonated: []int{0}, Only: -1})).OK(t)
		t.Cleanup(r.Outputs[0][0].Close)
		if got := get(t, r.Outputs[0][0]); !bytes.Equal(got, floats(2, 4, 6, 8)) {
			t.Errorf("got %v", got)
		}
	})
}

// TestRunWithABadRowStartsOnNoDevice checks that a run with one bad row starts on no device: with
// a collective the others would wait for it without end.
func TestRunWithABadRowStartsOnNoDevice(t *testing.T) {
	each(t, func(t *testing.T, p *Plugin) {
		c := client(t, p, 2)
		x := compile(t, c, devicetest.StableHLO(devicetest.AllReduce, f32(2), 2),
			compileoptions.New(2, 1, []int{0, 1}, false))
		a := put(t, c, device.Host{Shape: f32(2), Data: floats(1, 2)})
		b := put(t, c, device.Host{Shape: f32(2), Data: floats(3, 4), Device: 1})
		run(t, compile(t, c, devicetest.StableHLO(devicetest.Donate, f32(2), 1), compileoptions.New(1, 1, []int{1}, false)),
			[]device.Buffer{b})
		_, err := x.Execute(device.Run{Inputs: [][]device.Buffer{{a}, {b}}, Only: -1})
		refused(t, err, status.FailedPrecondition, "argument 0", "device 1", "deleted or donated")
		b = put(t, c, device.Host{Shape: f32(2), Data: floats(3, 4), Device: 1})
		r := run(t, x, []device.Buffer{a}, []device.Buffer{b})
		if got := get(t, r.Outputs[1][0]); !bytes.Equal(got, floats(4, 6)) {
			t.Errorf("got %v", got)
		}
	})
}

func TestProgramRunsOnlyOnItsDeviceUnlessPortable(t *testing.T) {
	each(t, func(t *testing.T, p *Plugin) {
		c := client(t, p, 2)
		x := compile(t, c, devicetest.StableHLO(devicetest.AddOne, f32(2), 1), compileoptions.New(1, 1, []int{1}, false))
		for _, d := range []int{0, 1} {
			b := put(t, c, device.Host{Shape: f32(2), Data: floats(1, 2), Device: d})
			r, err := x.Execute(device.Run{Inputs: [][]device.Buffer{{b}}, Only: d})
			if d == 0 {
				refused(t, err, status.FailedPrecondition, "compiled for device 1", "portable")
				continue
			}
			statustest.OK(t, err)
			t.Cleanup(r.Outputs[0][0].Close)
			if got := get(t, r.Outputs[0][0]); !bytes.Equal(got, floats(2, 3)) {
				t.Errorf("got %v", got)
			}
		}
	})
}

// BenchmarkExecute is one tiny computation on 1 and on 8 devices, synchronous.
func BenchmarkExecute(b *testing.B) {
	p := plugins(b)[0]
	for _, n := range []int{1, 8} {
		b.Run(map[int]string{1: "1 device", 8: "8 devices"}[n], func(b *testing.B) {
			c := client(b, p, n)
			devices := make([]int, n)
			rows := make([][]device.Buffer, n)
			for i := range n {
				devices[i] = i
				rows[i] = []device.Buffer{put(b, c, device.Host{Shape: f32(4), Data: floats(1, 2, 3, 4), Device: i})}
			}
			x := compile(b, c, devicetest.StableHLO(devicetest.AddOne, f32(4), n), onDevices(devices))
			b.ReportAllocs()
			for b.Loop() {
				r := statustest.Value(x.Execute(device.Run{Inputs: rows, Only: -1})).OK(b)
				for d := range n {
					statustest.OK(b, r.Done[d].Wait(b.Context()))
					r.Outputs[d][0].Close()
				}
			}
		})
	}
}
