package sim_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/sim"
)

// What spans devices of several separate drivers runs as a part on each of them: a device calls its collectives when
// its inputs are there, goes on with what they bring, and fails as they do.
func TestPartsCallTheirCollectives(t *testing.T) {
	d := statustest.Value(sim.OpenSeparate(sim.Options{})).OK(t)
	defer d.Close()
	var fails error
	var calls []*device.CollectiveCall
	statustest.OK(t, d.ServeCollectives(func(c *device.CollectiveCall) {
		calls = append(calls, c)
		for i, x := range c.Operands[0] {
			c.Results[0][i] = 2 * x // as if another device had brought the same
		}
		c.Done(fails)
	}))
	s32 := shape.Shape{DType: shape.S32, Dims: []int64{2}}
	whole := sim.Program{Name: "total", Params: []sim.Param{{DType: "s32", Dims: s32.Dims}}, Results: []sim.Result{
		{Op: "add", Args: []int{0}, Value: 1}, {Op: "all-reduce", Args: []int{0}}}}
	part := statustest.Value(d.Partition(t.Context(), whole.Source(), nil, 2)).OK(t)
	if !part.Collective {
		t.Error("its devices do not wait for each other")
	}
	x := statustest.Value(d.Compile(t.Context(), part.Program, part.Options)).OK(t)
	defer x.Close()
	in := statustest.Value(d.FromHost(device.Host{Shape: s32, Data: []byte{3, 0, 0, 0, 4, 0, 0, 0}})).OK(t)
	defer in.Close()
	run := func(launch int32) (out [][]byte, err error) {
		r := statustest.Value(x.Execute(device.Run{LaunchID: launch, Inputs: [][]device.Buffer{{in}}, Only: 0})).OK(t)
		err = r.Done[0].Wait(t.Context())
		for _, b := range r.Outputs[0] {
			data := make([]byte, 8)
			if e, bad := b.ToHost(data); bad == nil && e.Wait(t.Context()) == nil {
				out = append(out, data)
			}
			b.Close()
		}
		return out, err
	}
	out, err := run(7)
	statustest.OK(t, err)
	want := [][]byte{{4, 0, 0, 0, 5, 0, 0, 0}, {6, 0, 0, 0, 8, 0, 0, 0}}
	if !slices.EqualFunc(out, want, bytes.Equal) {
		t.Errorf("the results are %v, want %v", out, want)
	}
	const spec = "all-reduce site=0 groups=0:2 reduction=sum type=s32 in=s32[2] out=s32[2]"
	if len(calls) != 1 || calls[0].Launch != 7 || calls[0].Spec != spec {
		t.Errorf("the device called %+v, want one of launch 7, %s", calls, spec)
	}
	fails = status.New(status.Unavailable, "a worker is gone")
	_, err = run(8)
	statustest.Fails(t, "a run whose collective fails", err, status.Unavailable, "a worker is gone")

	_, err = d.Compile(t.Context(), part.Program, sim.CompileOptions([]int{0, 1}))
	statustest.Fails(t, "a part for two devices", err, status.InvalidArgument, "want one")
}

// Devices that wait for each other, and reduce nothing, do so in a call, too.
func TestGangsWithoutAReductionMeetInACall(t *testing.T) {
	d := statustest.Value(sim.OpenSeparate(sim.Options{})).OK(t)
	defer d.Close()
	for _, gang := range []bool{true, false} {
		p := sim.Program{Name: "p", Gang: gang, Results: []sim.Result{{Op: "fill", DType: "s32", Value: 1}}}
		part := statustest.Value(d.Partition(t.Context(), p.Source(), nil, 3)).OK(t)
		if part.Collective != gang {
			t.Errorf("gang %v: collective %v", gang, part.Collective)
		}
	}
}
