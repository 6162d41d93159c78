package cluster_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/cluster"
	"github.com/openpathways/pathways/core/cluster/clustertest"
	"github.com/openpathways/pathways/core/observe"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/device/sim"
)

func (s *session) profile() client.StopProfile {
	s.T.Helper()
	stop := statustest.Value(s.StartProfile(s.T.Context())).OK(s.T)
	return stop
}

// ran is the programs that ran on a device, in the order of time.
func ran(p client.Profile, device int32) (names []string) {
	slices.SortStableFunc(p.Spans, func(a, b observe.Span) int { return int(a.Submitted - b.Submitted) })
	for _, s := range p.Spans {
		if s.Device == device {
			names = append(names, s.Program)
		}
	}
	return names
}

// A profile has each computation of its session on each of its devices, once, and
// nothing of others, whether it was launched by itself, for all devices of a worker, or
// by a play.
func TestProfileHasWhatItsSessionRan(t *testing.T) {
	l, _ := open(t, 2, 2)
	s, other := connect(t, l, "client"), connect(t, l, "other")
	all := clustertest.UpTo(4)
	one, sum, alone, far := s.program(addOne, all...), s.program(sumAll, all...), s.program(addOne, 1),
		other.program(addOne, all...)
	x, y, z := s.vector(all, ramp), s.vector([]int{1}, ramp), other.vector(all, ramp)
	before, _ := s.Start(one, x)
	statustest.OK(t, s.Wait(before))
	d := draw(1)
	g := d.keeps(d.run(sum, d.run(one, 1)))
	id := s.define(g)
	begun := time.Now().UnixNano()
	stop := s.profile()
	for range 3 {
		s.Start(one, x)
		other.Start(far, z)
	}
	s.Start(sum, x)
	s.Start(alone, y)
	s.play(id, g, x)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	p := stop(ctx) // it waits for them
	ended := time.Now().UnixNano()
	want := []string{"add_one", "add_one", "add_one", "sum", "add_one", "sum"}
	for _, k := range all {
		w := want
		if k == 1 {
			w = slices.Insert(slices.Clone(want), 4, "add_one")
		}
		statustest.EqualSlices(t, ran(p, int32(k)), w, "device %d ran", k)
	}
	gangs := map[uint64]int{}
	for _, span := range p.Spans {
		if span.Submitted < begun || span.Launched < span.Submitted || span.End < span.Submitted || span.End > ended {
			t.Errorf("%+v is not within the profile, from %d to %d", span, begun, ended)
		}
		gangs[span.Gang]++
	}
	if len(gangs) != 7 || len(p.Devices) != 4 || p.Devices[3].Worker != "worker-1" || p.Dropped > 0 || len(p.Missing) > 0 {
		t.Errorf("%d gangs, %+v", len(gangs), p)
	}
	// And nothing from before or after.
	stop = s.profile()
	if p := stop(ctx); len(p.Spans) > 0 {
		t.Error(p.Spans)
	}
}

// A worker that is lost during a profile is missing from it, by its name.
func TestProfileWithoutALostWorker(t *testing.T) {
	l, _ := open(t, 2, 1)
	s := connect(t, l, "client")
	one := s.program(addOne, 0)
	x := s.vector([]int{0}, ramp)
	stop := s.profile()
	token, _ := s.Start(one, x)
	statustest.OK(t, s.Wait(token))
	l.Lose(1)
	p := stop(t.Context())
	statustest.EqualSlices(t, ran(p, 0), []string{"add_one"}, "device 0 ran")
	if len(p.Missing) != 1 || !strings.HasPrefix(p.Missing[0], "worker worker-1: ") {
		t.Errorf("missing: %q", p.Missing)
	}
}

// A session that goes while it records leaves nothing behind that records, and workers
// have a bound for profiles that are never stopped.
func TestAbandonedProfilesEnd(t *testing.T) {
	l, _ := open(t, 1, 1)
	s, other := connect(t, l, "client"), connect(t, l, "other")
	for i := range 6 {
		stop := s.profile()
		p := client.Profile{}
		if i > 3 {
			p = stop(t.Context())
			if len(p.Missing) == 0 || !strings.Contains(p.Missing[0], status.ResourceExhausted.String()) &&
				!strings.Contains(p.Missing[0], "too many") {
				t.Errorf("profile %d: %q", i, p.Missing)
			}
		}
	}
	s.Close()
	stop := other.profile()
	if p := stop(t.Context()); len(p.Missing) > 0 {
		t.Error(p.Missing)
	}
}

// What a device does from its launch to its end is as long as the computation.
func TestSpansAreAsLongAsComputations(t *testing.T) {
	drivers := simulatedOn(t, 1, sim.Options{Devices: 1, Island: sim.NewIsland(sim.Real, 1), Cost: 20 * time.Millisecond})
	s := connect(t, start(t, cluster.InProcess{Drivers: drivers}), "client")
	one := s.program(addOne, 0)
	x := s.vector([]int{0}, ramp)
	stop := s.profile()
	s.Start(one, x)
	p := stop(t.Context())
	if len(p.Spans) != 1 || p.Spans[0].End-p.Spans[0].Submitted < 20e6 {
		t.Errorf("%+v, of a computation of 20 ms", p.Spans)
	}
}

// A profile has the way of each operation, by its number: its call, its arrival at each of its workers, and the bytes
// that it moves there.
func TestProfileHasTheWayOfEachOperation(t *testing.T) {
	l, _ := open(t, 2, 2)
	s, other := connect(t, l, "client"), connect(t, l, "other")
	all := clustertest.UpTo(4)
	sum := s.program(sumAll, all...)
	foreign := other.vector(all, ramp)
	stop := s.profile()
	x := s.vector(all, ramp)
	token, _ := s.Start(sum, x)
	statustest.OK(t, s.Wait(token))
	_, _ = s.read(x, 3)
	_, _ = other.read(foreign, 3)
	p := stop(t.Context())
	ops := map[string]uint64{}
	for _, e := range p.Events {
		if e.Kind == observe.Call {
			ops[e.Name] = e.Op
		}
		if e.End < e.Begin || (e.Kind == observe.Call) != (e.Worker == "") || e.Op == 0 {
			t.Errorf("%+v", e)
		}
	}
	var got []string
	for _, e := range p.Events {
		for name, op := range ops {
			if e.Op == op && e.Kind != observe.Call {
				what := map[observe.Kind]string{observe.Arrival: "arrives at", observe.Move: e.Name + " at"}[e.Kind]
				got = append(got, fmt.Sprintf("%s: %s %s, %d bytes", name, what, e.Worker, e.Bytes))
			}
		}
	}
	slices.Sort(got)
	want := []string{
		"fetch: arrives at worker-1, 0 bytes",
		"fetch: fetch at worker-1, 16 bytes",
		"put: arrives at worker-0, 0 bytes",
		"put: arrives at worker-1, 0 bytes",
		"put: put at worker-0, 32 bytes",
		"put: put at worker-1, 32 bytes",
		"run: arrives at worker-0, 0 bytes",
		"run: arrives at worker-1, 0 bytes",
	}
	if !slices.Equal(want, got) {
		t.Errorf("%q\nexpected %q", got, want)
	}
}
