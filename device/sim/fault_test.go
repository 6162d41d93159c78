package sim_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/sim"
)

func stats(t testing.TB, d *sim.Driver, dev int) device.MemoryStats {
	t.Helper()
	m := statustest.Value(d.MemoryStats(dev)).OK(t)
	return m
}

func TestMemoryAboveTheLimitIsRefused(t *testing.T) {
	d := open(t, sim.Options{Devices: 2, Memory: 1000, HostMemory: 100})
	s := shape.Shape{DType: shape.U8, Dims: []int64{600}}
	host := device.Host{Shape: s, Data: make([]byte, 600)}
	b, err := d.FromHost(host)
	statustest.OK(t, err)
	_, err = d.FromHost(host)
	statustest.Fails(t, "FromHost", err, status.ResourceExhausted, "device 0", "600 bytes needed", "600 in use",
		"limit 1000")
	_, err = b.CopyTo(0, "")
	statustest.Fails(t, "CopyTo", err, status.ResourceExhausted, "600 bytes needed")
	_, err = b.CopyTo(0, "pinned_host")
	statustest.Fails(t, "CopyTo pinned memory", err, status.ResourceExhausted, "limit 100", "pinned_host")
	zeros := sim.Program{Name: "zeros", Results: []sim.Result{
		{Op: "zeros", DType: "u8", Dims: []int64{300}}, {Op: "zeros", DType: "u8", Dims: []int64{300}}}}
	_, err = compile(t, d, zeros, 1, 0).Execute(device.Run{Inputs: noInputs(2), Only: -1})
	statustest.Fails(t, "Execute", err, status.ResourceExhausted, "device 0", "300 bytes needed", "900 in use")
	statustest.OK(t, b.Ready().Wait(context.Background())) // the copy holds the bytes too
	for dev, want := range []int64{600, 0} {               // all or none
		statustest.Equal(t, stats(t, d, dev).InUse, want, "device %d: bytes in use after a refused Execute", dev)
	}
	b.Close()
	statustest.Equal(t, stats(t, d, 0), (device.MemoryStats{Limit: 1000}), "after Close")
}

// Temporary memory is charged while a computation runs, and only then.
func TestTemporaryMemoryCountsWhileARunComputes(t *testing.T) {
	is := sim.NewIsland(sim.Manual, 1)
	d := open(t, sim.Options{Memory: 1000, Island: is})
	p := plain("temp", time.Second)
	p.Temp = 600
	exe := compile(t, d, p, 0)
	a, b := execute(t, exe, 1, nil), execute(t, exe, 2, nil) // one at a time they fit
	is.Advance(time.Second / 2)
	statustest.Equal(t, stats(t, d, 0).InUse, 600, "bytes in use while one runs")
	is.Settle()
	for _, r := range []*device.Results{a, b} {
		statustest.Check(t, r.Done[0].Wait(context.Background()))
	}
	statustest.Equal(t, stats(t, d, 0), (device.MemoryStats{Limit: 1000}), "at the end")
}

// Code is charged once on each device, from the first run there until the executable is closed.
func TestCodeTakesMemoryUntilItIsClosed(t *testing.T) {
	d := open(t, sim.Options{Devices: 2, Memory: 1000})
	p := plain("big", 0)
	p.Code = 600
	exe, other := compile(t, d, p, 0), compile(t, d, p, 0)
	in := func(want int64) {
		t.Helper()
		for device, want := range []int64{want, 0} {
			statustest.Equal(t, stats(t, d, device).InUse, want, "bytes in use on device %d", device)
		}
	}
	in(0)
	execute(t, exe, 1, nil)
	execute(t, exe, 2, nil)
	in(600)
	_, err := other.Execute(device.Run{LaunchID: 3, Inputs: [][]device.Buffer{nil}, Only: -1})
	statustest.Fails(t, "other code beside", err, status.ResourceExhausted)
	exe.Close()
	in(0)
	execute(t, other, 4, nil)
	in(600)
}

// A donated argument's bytes become the result's: a chain of donations fits
// where two arrays do not.
func TestDonationTakesNoMemory(t *testing.T) {
	d := open(t, sim.Options{Memory: 8})
	p := sim.Program{Name: "inc", Params: []sim.Param{{DType: "f32", Dims: []int64{2}, Donated: true}},
		Results: []sim.Result{{Op: "add", Args: []int{0}, Value: 1}}}
	exe := compile(t, d, p, 0)
	b := put(t, d, 0, 1, 2)
	_, err := exe.Execute(device.Run{Inputs: [][]device.Buffer{{b}}, NotDonated: []int{0}, Only: -1})
	statustest.Fails(t, "without donation", err, status.ResourceExhausted)
	for range 10 {
		b = execute(t, exe, 0, []device.Buffer{b}).Outputs[0][0]
	}
	statustest.Equal(t, fmt.Sprint(get(t, b)), "[11 12]", "got")
	if got := stats(t, d, 0); got.InUse != 8 {
		t.Errorf("%+v, want 8 bytes in use", got)
	}
}

// Donated results of which one reads what another replaces.
func TestDonatedResultsMayReadWhatOthersReplace(t *testing.T) {
	d := open(t, sim.Options{})
	in := sim.Param{DType: "f32", Dims: []int64{1}, Donated: true}
	p := sim.Program{Name: "fibonacci", Params: []sim.Param{in, in},
		Results: []sim.Result{{Op: "copy", Args: []int{1}}, {Op: "add", Args: []int{0, 1}}}}
	exe := compile(t, d, p, 0)
	row := []device.Buffer{put(t, d, 0, 1), put(t, d, 0, 1)}
	for range 8 {
		row = execute(t, exe, 0, row).Outputs[0]
	}
	if x, y := get(t, row[0]), get(t, row[1]); x[0] != 34 || y[0] != 55 {
		t.Errorf("got %v %v, want 34 55", x, y)
	}
}

func TestFailRunFailsOneRun(t *testing.T) {
	cause := status.New(status.DataLoss, "bit rot")
	d := open(t, sim.Options{Devices: 3})
	for _, p := range []sim.Program{plain("alone", 0), gang("together", 0)} {
		statustest.OK(t, d.FailRun(1, 2, cause))
		exe := compile(t, d, p, 0, 1, 2)
		for run := 1; run <= 3; run++ {
			out := execute(t, exe, int32(run), noInputs(3)...)
			for dev, e := range out.Done {
				err := e.Wait(context.Background())
				if run == 2 && (dev == 1 || p.Gang) {
					statustest.Fails(t, fmt.Sprintf("%s run %d device %d", p.Name, run, dev), err, status.DataLoss, "bit rot")
				} else if err != nil {
					t.Errorf("%s run %d device %d: %v", p.Name, run, dev, err)
				}
			}
		}
	}
	statustest.Fails(t, "FailRun 0", d.FailRun(0, 0, cause), status.InvalidArgument)
	statustest.Fails(t, "FailRun of nothing", d.FailRun(0, 1, nil), status.InvalidArgument)
	statustest.Fails(t, "FailRun on no device", d.FailRun(3, 1, cause), status.InvalidArgument)
}

func TestFailAllocFailsOneAllocation(t *testing.T) {
	d := open(t, sim.Options{})
	statustest.OK(t, d.FailAlloc(0, 2, status.New(status.ResourceExhausted, "fragments")))
	exe := compile(t, d, sum(), 0)
	in := []device.Buffer{put(t, d, 0, 1)}
	before := stats(t, d, 0).InUse
	_, err := exe.Execute(device.Run{Inputs: [][]device.Buffer{in}, Only: -1})
	statustest.Fails(t, "the second array", err, status.ResourceExhausted, "fragments")
	statustest.Equal(t, stats(t, d, 0).InUse, before, "bytes in use after the failure")
	statustest.Equal(t, get(t, execute(t, exe, 0, in).Outputs[0][0])[0], 1, "its element afterwards")
}

func TestLostDeviceFailsWhatNeedsIt(t *testing.T) {
	is := sim.NewIsland(sim.Manual, 1)
	d := open(t, sim.Options{Devices: 3, Island: is})
	kept, lost := put(t, d, 0, 7), put(t, d, 1, 7)
	is.Settle()
	running := execute(t, compile(t, d, gang("running", time.Second), 0, 1), 1, noInputs(2)...)
	behind := execute(t, compile(t, d, gang("behind", time.Second), 1, 2), 2, noInputs(2)...)
	each := execute(t, compile(t, d, plain("each", time.Second), 0, 1, 2), 3, noInputs(3)...)
	is.Advance(time.Second / 2)
	statustest.OK(t, d.Lose(1, "a cosmic ray"))
	is.Settle()
	wait := func(what string, e device.Event, ok bool) {
		t.Helper()
		err := e.Wait(context.Background())
		if ok && err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if !ok {
			statustest.Fails(t, what, err, status.Unavailable, "device 1", "a cosmic ray")
		}
	}
	for i := range 2 {
		wait("a gang that ran there", running.Done[i], false)
		wait("a gang that waited for it", behind.Done[i], false)
	}
	for i, e := range each.Done {
		wait(fmt.Sprint("device ", i), e, i != 1)
	}
	_, err := lost.ToHost(make([]byte, 4))
	statustest.Fails(t, "ToHost of an array there", err, status.Unavailable, "a cosmic ray")
	_, err = kept.CopyTo(1, "")
	statustest.Fails(t, "CopyTo there", err, status.Unavailable)
	_, err = compile(t, d, sum(), 1).Execute(device.Run{Inputs: [][]device.Buffer{{lost}}, Only: -1})
	statustest.Fails(t, "Execute there", err, status.Unavailable, "argument 0")
	done := execute(t, compile(t, d, gang("late", 0), 0, 1), 4, noInputs(2)...)
	is.Settle()
	wait("a gang launched later", done.Done[0], false)
	live := statustest.Value(kept.CopyTo(2, "")).OK(t)
	is.Settle()
	statustest.Checkf(t, live.Ready().Wait(context.Background()), "CopyTo a device that lives")
}

// A loss reaches the members that wait for the device, whether their part of
// the gang came before or after.
func TestLoseAcrossMembers(t *testing.T) {
	m := join(t, sim.NewIsland(sim.Instant, 1), 3, 1)
	early := execute(t, compile(t, m[0], gang("a", 0), 0, 1, 2), 1, nil)
	statustest.OK(t, m[2].Lose(0, "unplugged"))
	statustest.Fails(t, "the part that waited", early.Done[0].Wait(context.Background()),
		status.Unavailable, "device 2", "unplugged")
	_, err := compile(t, m[1], gang("a", 0), 0, 1, 2).Execute(device.Run{LaunchID: 1, Inputs: noInputs(1), Only: -1})
	statustest.Fails(t, "the part that came later", err, status.Unavailable, "unplugged")
	pair := execute(t, compile(t, m[0], gang("b", 0), 0, 1), 2, nil)
	execute(t, compile(t, m[1], gang("b", 0), 0, 1), 2, nil)
	statustest.Checkf(t, pair.Done[0].Wait(context.Background()), "a gang without the lost device")
}
