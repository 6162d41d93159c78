package sim_test

import (
	"context"
	"encoding/hex"
	"fmt"
	"testing"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/sim"
)

func TestBadProgramsAreRefused(t *testing.T) {
	d := open(t, sim.Options{Devices: 4})
	for _, c := range []struct{ name, code, text string }{
		{"not JSON", `add_one`, "want JSON"},
		{"unknown field", `{"name": "p", "color": 1}`, "color"},
		{"two values", `{"name": "p"} {"name": "q"}`, "more than one"},
		{"no name", `{}`, "name"},
		{"negative cost", `{"name": "p", "cost_ns": -1}`, "cost_ns"},
		{"unknown type", `{"name": "p", "params": [{"dtype": "float", "dims": []}]}`, `parameter 0: array of dtype "float"`},
		{"token", `{"name": "p", "params": [{"dtype": "token", "dims": []}]}`, "token"},
		{"negative dimension", `{"name": "p", "params": [{"dtype": "f32", "dims": [-1]}]}`, "[-1]"},
		{"huge", `{"name": "p", "params": [{"dtype": "f32", "dims": [4611686018427387904]}]}`, "fit"},
		{"unknown op", `{"name": "p", "results": [{"op": "sort"}]}`, "result 0, sort"},
		{"no such parameter", `{"name": "p", "results": [{"op": "copy", "args": [0]}]}`, "no parameter 0"},
		{"too many args", `{"name": "p", "params": [{"dtype": "f32", "dims": []}], "results": [{"op": "copy", "args": [0, 0]}]}`, "2 args"},
		{"no arithmetic", `{"name": "p", "params": [{"dtype": "f16", "dims": []}], "results": [{"op": "add", "args": [0]}]}`,
			"f16"},
		{"shapes differ", `{"name": "p", "params": [{"dtype": "f32", "dims": []}, {"dtype": "f32", "dims": [1]}], "results": [{"op": "add", "args": [0, 1]}]}`, "f32[1]"},
		{"a fraction of s32", `{"name": "p", "results": [{"op": "fill", "dtype": "s32", "dims": [1], "value": 0.5}]}`, "0.5"},
		{"dims of a copy", `{"name": "p", "params": [{"dtype": "f32", "dims": []}], "results": [{"op": "copy", "args": [0], "dims": [1]}]}`, "parameter 0"},
		{"unknown memory", `{"name": "p", "results": [{"op": "zeros", "dtype": "f32", "memory": "disk"}]}`, "disk"},
		{"unknown code", `{"name": "p", "fail": {"code": "OOPS"}}`, "OOPS"},
		{"a huge number of devices", `{"name": "p", "devices": 1099511627776}`, "1099511627776"},
		{"other number of devices", `{"name": "p", "devices": 3}`, "3 devices"},
	} {
		_, err := d.Compile(context.Background(), device.Program{Format: "sim", Code: []byte(c.code)},
			sim.CompileOptions([]int{0, 1}))
		statustest.Fails(t, c.name, err, status.InvalidArgument, c.text)
	}
	for _, devs := range [][]int{{4}, {0, 0}} {
		_, err := d.Compile(context.Background(), plain("p", 0).Source(), sim.CompileOptions(devs))
		statustest.Fails(t, fmt.Sprint("devices ", devs), err, status.InvalidArgument, fmt.Sprint(devs))
	}
}

func TestProgramsCompute(t *testing.T) {
	d := open(t, sim.Options{Devices: 2})
	p := sim.Program{Name: "p", Params: []sim.Param{{DType: "f32", Dims: []int64{2}}}, Results: []sim.Result{
		{Op: "mul", Args: []int{0}, Value: 3}, {Op: "mul", Args: []int{0, 0}}, {Op: "add", Args: []int{0}, Value: -0.5},
		{Op: "fill", DType: "f32", Dims: []int64{3}, Value: 2.5}, {Op: "zeros", DType: "f32", Dims: []int64{2}},
		{Op: "all-reduce", Args: []int{0}}, {Op: "copy", Args: []int{0}, Memory: "pinned_host"},
	}}
	out := execute(t, compile(t, d, p, 1, 0), 0, []device.Buffer{put(t, d, 1, 2, 5)},
		[]device.Buffer{put(t, d, 0, 10, 20)})
	for k, want := range []string{"[6 15]", "[4 25]", "[1.5 4.5]", "[2.5 2.5 2.5]", "[0 0]", "[12 25]", "[2 5]"} {
		statustest.Equal(t, fmt.Sprint(get(t, out.Outputs[0][k])), want, "result %d: got", k)
	}
	statustest.Equal(t, out.Outputs[0][6].Memory(), "pinned_host", "result 6 is in")
	zeros := out.Outputs[0][4] // as an argument, although it has no bytes
	sums := execute(t, compile(t, d, sim.Program{Name: "q", Params: p.Params, Results: p.Results[2:3]}, 1), 0,
		[]device.Buffer{zeros})
	statustest.Equal(t, fmt.Sprint(get(t, sums.Outputs[0][0])), "[-0.5 -0.5]", "zeros - 0.5")
}

// The options of JAX for four replicas on devices 3, 1, 0, 2, and for two
// partitions on devices 3 and 1, cut down to the fields that say so.
func TestProgramRunsOnTheDevicesOfItsOptions(t *testing.T) {
	d := open(t, sim.Options{Devices: 4})
	for _, c := range []struct {
		name, options, want string
	}{
		{"four replicas", "1a14" + "200428014a0c080410011a060a0403010002" + "6200", "[3 1 0 2]"},
		{"two partitions", "1a14" + "200128024a0e080110021a030a01031a030a0101", "[3 1]"},
		{"unpacked ids", "1a0e" + "200228014a08" + "1a0408030801" + "6200", "[3 1]"},
		{"no assignment", "1a04" + "20032801", "[0 1 2]"},
		{"nothing of devices", "2001", "[0 1]"},
	} {
		options := statustest.Value(hex.DecodeString(c.options)).OK(t)
		prog := plain("p", 0)
		if c.name == "nothing of devices" {
			prog.Devices = 2
		}
		exe, err := d.Compile(context.Background(), prog.Source(), options)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		statustest.Equal(t, fmt.Sprint(exe.Devices()), c.want, "%s: devices", c.name)
	}
	for name, options := range map[string]string{
		"no replicas":             "1a022000",
		"negative partitions":     "1a0b28ffffffffffffffffff01",
		"too many to be counted":  "1a0c" + "20ffffffff07" + "28ffffffff07",
		"too many together":       "1a08" + "20808040" + "28808040",
		"assignment of too few":   "1a0e" + "200328014a08" + "1a0408030801" + "6200",
		"cut off in the middle":   "1a1420042801",
		"a wire type that is not": "07",
	} {
		b, err := hex.DecodeString(options)
		statustest.OK(t, err)
		_, err = d.Compile(context.Background(), plain("p", 0).Source(), b)
		statustest.Fails(t, name, err, status.InvalidArgument)
	}
}

// No bytes from outside bring the driver down, and what it takes runs.
func FuzzCompile(f *testing.F) {
	f.Add(sum().Source().Code, sim.CompileOptions([]int{1, 0}))
	f.Add(gang("g", 0).Source().Code, []byte(nil))
	f.Add([]byte(`{"name":"p","results":[{"op":"fill","dtype":"s4","dims":[2]}]}`), []byte{0x1a, 2, 0x20, 1})
	f.Fuzz(func(t *testing.T, code, options []byte) {
		d := statustest.Value(sim.Open(sim.Options{Devices: 2, Memory: 1 << 12, HostMemory: 1 << 12})).OK(t)
		defer d.Close()
		exe, err := d.Compile(context.Background(), device.Program{Format: "sim", Code: code}, options)
		if err != nil {
			if c := status.CodeOf(err); c != status.InvalidArgument {
				t.Fatalf("%v: %v", c, err)
			}
			return
		}
		blob := statustest.Value(exe.Serialize()).OK(t)
		again, err := d.Load(context.Background(), blob.Data)
		statustest.OKf(t, err, "Load of what Serialize gave")
		if exe.Fingerprint() != again.Fingerprint() {
			t.Fatal("Load changed the fingerprint")
		}
		if out, err := exe.Execute(device.Run{Inputs: noInputs(len(exe.Devices())), Only: -1}); err == nil {
			for _, e := range out.Done {
				_ = e.Wait(context.Background())
			}
		}
	})
}

func FuzzLoad(f *testing.F) {
	d := statustest.Value(sim.Open(sim.Options{Devices: 2})).OK(f)
	defer d.Close()
	exe, err := d.Compile(context.Background(), sum().Source(), sim.CompileOptions([]int{1, 0}))
	statustest.OK(f, err)
	blob := statustest.Value(exe.Serialize()).OK(f)
	f.Add(blob.Data)
	f.Fuzz(func(t *testing.T, blob []byte) {
		exe, err := d.Load(context.Background(), blob)
		if err != nil && status.CodeOf(err) != status.InvalidArgument {
			t.Fatal(err)
		}
		if err == nil {
			exe.Close()
		}
	})
}

// One launch of a gang, with its memory, events and end.
func BenchmarkGang(b *testing.B) {
	scalar := []sim.Param{{DType: "f32", Dims: []int64{}}}
	for _, n := range []int{1, 8, 64, 2048} {
		for _, p := range []sim.Program{
			gang("gang", 1), plain("plain", 1),
			{Name: "sum", Params: scalar, Results: []sim.Result{{Op: "all-reduce", Args: []int{0}}}}} {
			b.Run(fmt.Sprintf("%s/%d", p.Name, n), func(b *testing.B) {
				d := statustest.Value(sim.Open(sim.Options{Devices: n})).OK(b)
				defer d.Close()
				devs, rows := make([]int, n), noInputs(n)
				for i := range devs {
					devs[i] = i
					if p.Name == "sum" {
						x, err := d.FromHost(device.Host{Shape: shape.Shape{DType: shape.F32}, Data: make([]byte, 4), Device: i})
						statustest.OK(b, err)
						rows[i] = []device.Buffer{x}
					}
				}
				exe := compile(b, d, p, devs...)
				b.ReportAllocs()
				for b.Loop() {
					out := execute(b, exe, 0, rows...)
					statustest.OK(b, out.Done[n-1].Wait(context.Background()))
					for _, row := range out.Outputs {
						for _, o := range row {
							o.Close()
						}
					}
				}
			})
		}
	}
}

// One launch of a gang over many members, each of which executes its part.
func BenchmarkMembers(b *testing.B) {
	const members, each = 512, 4
	ds := join(b, sim.NewIsland(sim.Instant, 1), members, each)
	ids := make([]int, members*each)
	for i := range ids {
		ids[i] = i
	}
	exes := make([]device.Executable, members)
	for i, d := range ds {
		exes[i] = compile(b, d, gang("gang", 1), ids...)
	}
	rows := noInputs(each)
	b.ReportAllocs()
	for launch := int32(0); b.Loop(); launch++ {
		var last *device.Results
		for _, exe := range exes {
			last = execute(b, exe, launch, rows...)
		}
		statustest.OK(b, last.Done[0].Wait(context.Background()))
	}
}
