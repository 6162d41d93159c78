package sim_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/sim"
)

// A computation takes its cost, one after the other on a device and at the same
// time on several.
func TestDevicesComputeInOrderAndInParallel(t *testing.T) {
	is := sim.NewIsland(sim.Manual, 1)
	d := open(t, sim.Options{Devices: 2, Island: is, Cost: 3 * time.Second})
	var log []string
	note := func(what string, r *device.Results) {
		for i, e := range r.Done {
			e.Then(func(error) { log = append(log, fmt.Sprintf("%s%d@%v", what, i, is.Now())) })
		}
	}
	byDefault := sim.Program{Name: "default"}
	note("a", execute(t, compile(t, d, plain("a", time.Second), 0), 1, nil))
	note("b", execute(t, compile(t, d, gang("b", time.Second), 0, 1), 2, nil, nil))
	note("c", execute(t, compile(t, d, plain("c", 5*time.Second), 0, 1), 3, nil, nil))
	note("d", execute(t, compile(t, d, byDefault, 1), 4, nil))
	is.Advance(time.Second - 1)
	if len(log) != 0 {
		t.Errorf("before a second: %v", log)
	}
	is.Advance(1)
	is.Settle()
	// b holds device 1 while it waits for device 0.
	if got, want := strings.Join(log, " "), "a0@1s b0@2s b1@2s c0@7s c1@7s d0@10s"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	statustest.Equal(t, is.Now(), 10*time.Second, "Settle left the clock at")
}

// What ends at one time ends in the order in which it started.
func TestTiesEndInOrderOfStart(t *testing.T) {
	is := sim.NewIsland(sim.Manual, 1)
	d := open(t, sim.Options{Devices: 8, Island: is})
	var log []int
	for _, dev := range []int{3, 1, 7, 0, 5, 2, 6, 4} {
		execute(t, compile(t, d, plain("p", time.Second), dev), 0, nil).Done[0].Then(func(error) { log = append(log, dev) })
	}
	is.Settle()
	if got := fmt.Sprint(log); got != "[3 1 7 0 5 2 6 4]" || is.Now() != time.Second {
		t.Errorf("%s at %v, want [3 1 7 0 5 2 6 4] at 1s", got, is.Now())
	}
}

// A donation does not write under a slow read that came before it.
func TestDonationDuringRead(t *testing.T) {
	is := sim.NewIsland(sim.Manual, 1)
	d := open(t, sim.Options{Island: is, Latency: time.Hour})
	b := put(t, d, 0, 1)
	is.Settle()
	before := make([]byte, 4)
	read := statustest.Value(b.ToHost(before)).OK(t)
	p := sum()
	p.Params[0].Donated = true
	p.Results[0] = sim.Result{Op: "add", Args: []int{0}, Value: 1}
	out := execute(t, compile(t, d, p, 0), 0, []device.Buffer{b})
	is.Advance(time.Minute)
	if !out.Done[0].Ready() || read.Ready() {
		t.Fatal("want the computation to end before the read does")
	}
	after := make([]byte, 4)
	statustest.OK(t, statustest.Of(out.Outputs[0][0].ToHost(after)))
	is.Settle()
	if x, y := values(before)[0], values(after)[0]; x != 1 || y != 2 {
		t.Errorf("read %v before the donation and %v after, want 1 and 2", x, y)
	}
}

// Copies take latency and bandwidth, and no place in the queue.
func TestCopiesTakeLatencyAndBandwidth(t *testing.T) {
	is := sim.NewIsland(sim.Manual, 1)
	d := open(t, sim.Options{Island: is, Latency: time.Second, Bandwidth: 4})
	run := execute(t, compile(t, d, plain("long", time.Hour), 0), 1, nil)
	b := put(t, d, 0, 1, 2) // 8 bytes: 1 s + 2 s
	is.Advance(3*time.Second - 1)
	if b.Ready().Ready() {
		t.Error("the copy is there too early")
	}
	is.Advance(1)
	if !b.Ready().Ready() || run.Done[0].Ready() {
		t.Error("the copy is not there although the queue does not hold it up")
	}
}

// An Instant clock counts time without spending it.
func TestInstantClockSpendsNoTime(t *testing.T) {
	is := sim.NewIsland(sim.Instant, 1)
	d := open(t, sim.Options{Island: is})
	r := execute(t, compile(t, d, plain("year", 365*24*time.Hour), 0), 1, nil)
	statustest.OK(t, r.Done[0].Wait(context.Background()))
	statustest.Equal(t, is.Now(), 365*24*time.Hour, "the clock")
}

// trace runs random work on a Manual clock and tells when everything ended.
func trace(t *testing.T, seed uint64) string {
	is := sim.NewIsland(sim.Manual, seed)
	d := open(t, sim.Options{Devices: 4, Island: is, Cost: time.Millisecond, Jitter: time.Millisecond,
		Latency: time.Microsecond})
	rng := rand.New(rand.NewPCG(9, 9)) // the same work whatever the seed
	var log strings.Builder
	var last device.Buffer
	for i := range 200 {
		devs := rng.Perm(4)[:1+rng.IntN(4)]
		var rows [][]device.Buffer
		for _, dev := range devs {
			b := put(t, d, dev, float32(i))
			if last != nil && rng.IntN(2) == 0 {
				var err error
				if b, err = last.CopyTo(dev, ""); err != nil {
					t.Fatal(err)
				}
			}
			rows = append(rows, []device.Buffer{b})
		}
		if i%50 == 7 {
			statustest.OK(t, d.FailRun(devs[0], 1, status.New(status.Internal, "scripted")))
		}
		p := sum()
		if i%3 == 0 {
			p.Results[0].Op = "copy"
		}
		out := execute(t, compile(t, d, p, devs...), int32(i), rows...)
		for k, e := range out.Done {
			e.Then(func(err error) { fmt.Fprintf(&log, "%d on %d at %v: %v\n", i, devs[k], is.Now(), err) })
		}
		last = out.Outputs[0][0]
		is.Advance(time.Duration(rng.IntN(2000)) * time.Microsecond)
	}
	is.Settle()
	return log.String()
}

func TestSameSeedGivesTheSameTrace(t *testing.T) {
	a, b, c := trace(t, 1), trace(t, 1), trace(t, 2)
	if a != b {
		t.Error("the same seed gave two traces")
	}
	if a == c {
		t.Error("two seeds gave one trace")
	}
	if !strings.Contains(a, "scripted") || strings.Count(a, "\n") < 200 {
		t.Errorf("the trace is not of the work:\n%s", a)
	}
}

func TestAllReduceAcrossMembers(t *testing.T) {
	m := join(t, sim.NewIsland(sim.Instant, 1), 3, 2)
	ids := []int{0, 1, 2, 3, 4, 5}
	var outs []*device.Results
	for i, d := range m {
		for j, dev := range d.Devices() {
			if want := 2*i + j; dev.ID != want {
				t.Errorf("member %d device %d is %+v, want id %d", i, j, dev, want)
			}
		}
		exe := compile(t, d, sum(), ids...)
		statustest.Equal(t, fmt.Sprint(exe.Devices()), "[0 1]", "member %d runs on its devices", i)
		for launch := int32(1); launch <= 5; launch++ {
			x, y := put(t, d, 0, float32(10*i)*float32(launch)), put(t, d, 1, float32(10*i+1)*float32(launch))
			outs = append(outs, execute(t, exe, launch, []device.Buffer{x}, []device.Buffer{y}))
		}
	}
	for i, out := range outs {
		want := float32(63 * (i%5 + 1)) // 0+1+10+11+20+21
		for _, row := range out.Outputs {
			statustest.Equal(t, get(t, row[0])[0], want, "member %d launch %d", i/5, i%5+1)
		}
	}
}

func TestLaunchHasOneProgramAndRunsOnce(t *testing.T) {
	m := join(t, sim.NewIsland(sim.Instant, 1), 2, 1)
	a := compile(t, m[0], gang("a", 0), 0, 1)
	execute(t, a, 1, nil)
	_, err := a.Execute(device.Run{LaunchID: 1, Inputs: noInputs(1), Only: -1})
	statustest.Fails(t, "the same launch twice", err, status.InvalidArgument, "launch 1")
	_, err = compile(t, m[1], gang("b", 0), 0, 1).Execute(device.Run{LaunchID: 1, Inputs: noInputs(1), Only: -1})
	statustest.Fails(t, "another program under the launch", err, status.InvalidArgument, "launch 1", `"a"`)
	execute(t, compile(t, m[1], gang("a", 0), 0, 1), 1, nil)
}

func TestKindJoinsMembersOfAnIsland(t *testing.T) {
	ctx := context.Background()
	kind := sim.Kind{Options: sim.Options{Devices: 3}}
	d, err := kind.Join(ctx, device.Membership{})
	statustest.OK(t, err)
	if len(d.Devices()) != 3 || !strings.Contains(d.PlatformVersion(), "simulated") {
		t.Errorf("%d devices of %q", len(d.Devices()), d.PlatformVersion())
	}
	statustest.Check(t, d.Close())

	kv := newStore()
	_, err = kind.Join(ctx, device.Membership{Node: 2, Nodes: 2, Store: kv})
	statustest.Fails(t, "a member that is not one", err, status.InvalidArgument, "member 2 of 2")
	_, err = kind.Join(ctx, device.Membership{Node: 0, Nodes: 2})
	statustest.Fails(t, "no store", err, status.InvalidArgument, "store")
	_, err = sim.Kind{Options: sim.Options{Devices: -1}}.Join(ctx, device.Membership{})
	statustest.Fails(t, "negative devices", err, status.InvalidArgument)

	short, cancel := context.WithCancel(ctx)
	cancel()
	if _, err = kind.Join(short, device.Membership{Node: 0, Nodes: 2, Store: kv}); !errors.Is(err, context.Canceled) {
		t.Errorf("a member that never comes: %v, want context.Canceled", err)
	}

	// Two members with islands of their own, as in two processes.
	kv = newStore()
	var both sync.WaitGroup
	for i := range 2 {
		both.Go(func() {
			_, err := kind.Join(ctx, device.Membership{Node: i, Nodes: 2, Store: kv})
			statustest.Fails(t, "members on two islands", err, status.Unimplemented, "member")
		})
	}
	both.Wait()
}

// Closing while other goroutines launch ends in closed drivers and fired events.
func TestCloseUnderLoad(t *testing.T) {
	for range 20 {
		d := open(t, sim.Options{Devices: 4, Cost: time.Microsecond})
		exe := compile(t, d, gang("g", 0), 0, 1, 2, 3)
		var work sync.WaitGroup
		for range 4 {
			work.Go(func() {
				for {
					out, err := exe.Execute(device.Run{Inputs: noInputs(4), Only: -1})
					if err != nil {
						statustest.Fails(t, "Execute", err, status.FailedPrecondition)
						return
					}
					statustest.Check(t, out.Done[3].Wait(context.Background()))
				}
			})
		}
		statustest.Check(t, d.Close())
		work.Wait()
	}
}
