package sim_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/sim"
)

// Two members launch two gangs in opposite order, like hosts without a common schedule:
// both hang, Hang names them, and Close ends them.
func TestOppositeOrderHangs(t *testing.T) {
	is := sim.NewIsland(sim.Instant, 1)
	m := join(t, is, 2, 1)
	var results []*device.Results
	for i, d := range m {
		a, b := compile(t, d, gang("a", 0), 0, 1), compile(t, d, gang("b", 0), 0, 1)
		first, second := int32(1), int32(2)
		if i == 1 {
			a, b, first, second = b, a, second, first
		}
		results = append(results, execute(t, a, first, nil), execute(t, b, second, nil))
	}
	is.Settle()
	statustest.Fails(t, "Hang", is.Hang(), status.Aborted,
		`launch 1 of "a" holds devices [0] and waits for launch 2 of "b"`,
		`launch 2 of "b" holds devices [1] and waits for launch 1 of "a"`)
	for i, r := range results {
		if r.Done[0].Ready() {
			t.Errorf("part %d of the hanging gangs is done", i)
		}
	}
	statustest.Fails(t, "Close", m[0].Close(), status.Aborted, `"a"`, `"b"`)
	for _, r := range results {
		statustest.Fails(t, "part of a hanging gang", r.Done[0].Wait(context.Background()),
			status.Aborted, "wait for each other")
	}
	statustest.Checkf(t, is.Hang(), "after Close")
	statustest.Checkf(t, m[1].Close(), "Close of the other member")
}

// The same gangs in one order finish.
func TestOneOrderFinishes(t *testing.T) {
	is := sim.NewIsland(sim.Instant, 1)
	for _, d := range join(t, is, 2, 1) {
		a, b := compile(t, d, gang("a", 0), 0, 1), compile(t, d, gang("b", 0), 0, 1)
		ra, rb := execute(t, a, 1, nil), execute(t, b, 2, nil)
		defer func() {
			statustest.Check(t, ra.Done[0].Wait(context.Background()))
			statustest.Check(t, rb.Done[0].Wait(context.Background()))
		}()
	}
	is.Settle()
	statustest.Check(t, is.Hang())
}

// Two threads of one host launch over its devices, one device after the other,
// and meet in the middle.
func TestLaunchesThatMeetInTheMiddleHang(t *testing.T) {
	is := sim.NewIsland(sim.Instant, 1)
	var both sync.WaitGroup
	both.Add(2)
	o := sim.Options{Devices: 2, Island: is}
	first := map[int32]int{1: 0, 2: 1} // by launch, the device it joins first
	o.Launch = func(launch int32, dev int) {
		if dev != first[launch] { // it has joined its first
			both.Done()
			both.Wait()
		}
	}
	d := open(t, o)
	a, b := compile(t, d, gang("a", 0), 0, 1), compile(t, d, gang("b", 0), 1, 0)
	var ra, rb *device.Results
	var threads sync.WaitGroup
	threads.Go(func() { ra, _ = a.Execute(device.Run{LaunchID: 1, Inputs: noInputs(2), Only: -1}) })
	threads.Go(func() { rb, _ = b.Execute(device.Run{LaunchID: 2, Inputs: noInputs(2), Only: -1}) })
	threads.Wait()
	is.Settle()
	statustest.Fails(t, "Hang", is.Hang(), status.Aborted, `"a"`, `"b"`)
	statustest.Fails(t, "Close", d.Close(), status.Aborted)
	for _, r := range []*device.Results{ra, rb} {
		for _, e := range r.Done {
			statustest.Fails(t, "hanging gang", e.Wait(context.Background()), status.Aborted)
		}
	}
}

// A circle through data: a computation at the head of a queue waits for the
// output of a gang that waits for that queue.
func TestHangThroughData(t *testing.T) {
	is := sim.NewIsland(sim.Instant, 1)
	m := join(t, is, 2, 2)
	// Gang g spans both members; only member 0 launches it.
	g := sum()
	in := []device.Buffer{put(t, m[0], 0, 1)}
	half := execute(t, compile(t, m[0], g, 0, 2), 1, in)
	moved, err := half.Outputs[0][0].CopyTo(1, "") // to another queue of member 0
	statustest.OK(t, err)
	waits := execute(t, compile(t, m[0], sum(), 1), 2, []device.Buffer{moved})
	is.Settle()
	statustest.Checkf(t, is.Hang(), "waiting for a member that may come")
	execute(t, compile(t, m[1], g, 0, 2), 1, []device.Buffer{put(t, m[1], 0, 2)})
	statustest.Equal(t, get(t, waits.Outputs[0][0])[0], 3, "got")

	// Now gang h takes device 1 and 3 and stands on device 1 behind a computation
	// that needs h's sibling: a real circle.
	half = execute(t, compile(t, m[0], g, 0, 2), 3, []device.Buffer{put(t, m[0], 0, 1)})
	if moved, err = half.Outputs[0][0].CopyTo(1, ""); err != nil {
		t.Fatal(err)
	}
	execute(t, compile(t, m[0], sum(), 1), 4, []device.Buffer{moved})             // holds device 1, waits for launch 3
	execute(t, compile(t, m[0], gang("h", 0), 1, 2), 5, nil)                      // queued on device 1
	execute(t, compile(t, m[1], gang("h", 0), 1, 2), 5, nil)                      // holds device 2
	execute(t, compile(t, m[1], g, 0, 2), 3, []device.Buffer{put(t, m[1], 0, 2)}) // queued on device 2
	is.Settle()
	statustest.Fails(t, "Hang", is.Hang(), status.Aborted, "launch 3", "launch 4", "launch 5")
	statustest.Fails(t, "Close", m[0].Close(), status.Aborted)
}

// A gang whose other member never comes is no circle, but Close ends it.
func TestCloseEndsIncompleteGang(t *testing.T) {
	for _, who := range []int{0, 1} {
		is := sim.NewIsland(sim.Instant, 1)
		m := join(t, is, 2, 1)
		r := execute(t, compile(t, m[0], gang("a", 0), 0, 1), 1, nil)
		is.Settle()
		statustest.Checkf(t, is.Hang(), "Hang before the other member came")
		err, code := m[who].Close(), status.Aborted
		if who == 1 { // it leaves: no other member has to wait for it
			code = status.Unavailable
			statustest.Checkf(t, err, "Close of the member that never came")
		} else {
			statustest.Fails(t, "Close", err, code)
		}
		statustest.Fails(t, "the waiting part", r.Done[0].Wait(context.Background()), code, "member")
		if who == 1 {
			_, err := compile(t, m[0], gang("a", 0), 0, 1).Execute(device.Run{LaunchID: 2, Inputs: noInputs(1), Only: -1})
			statustest.Fails(t, "Execute with a member that has left", err, status.Unavailable, "member 1")
		}
	}
}

// A gang that waits holds its device: what stands behind it waits too, although
// it could run.
func TestWaitingGangHoldsDevice(t *testing.T) {
	is := sim.NewIsland(sim.Manual, 1)
	m := join(t, is, 2, 1)
	a := execute(t, compile(t, m[0], gang("a", time.Second), 0, 1), 1, nil)
	b := execute(t, compile(t, m[0], plain("b", time.Second), 0), 2, nil)
	is.Advance(time.Hour)
	if a.Done[0].Ready() || b.Done[0].Ready() {
		t.Fatal("the gang or what stands behind it ran before the other device came")
	}
	execute(t, compile(t, m[1], gang("a", time.Second), 0, 1), 1, nil)
	is.Advance(1500 * time.Millisecond)
	if !a.Done[0].Ready() || b.Done[0].Ready() {
		t.Errorf("after 1.5 s: the gang done %v, what stands behind it %v; want true, false", a.Done[0].Ready(),
			b.Done[0].Ready())
	}
	is.Advance(500 * time.Millisecond)
	if !b.Done[0].Ready() {
		t.Error("what stood behind the gang is not done after its cost")
	}
}
