//go:build !race && !invariants

package cluster_test

import (
	"flag"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/bubble"
	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/cluster"
	"github.com/openpathways/pathways/core/status/statustest"
	tenants "github.com/openpathways/pathways/core/tenant"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/device/sim"
	"github.com/openpathways/pathways/transport/inproc"
)

// How the paper's experiments on sharing come out on a clock of their own: simulated devices take the time that they
// say, messages take hop, and what processes compute takes none. So the numbers are those of the order that the
// controller keeps, and do not depend on this machine. By default they are tried on a few devices, and without the race
// detector, since what they show is the policy of one goroutine.
var (
	clockWorkers = flag.Int("clock-workers", 2, "workers of the tests on a clock of their own")
	clockEach    = flag.Int("clock-devices", 1, "devices of each of these workers")
	clockClients = flag.String("clock-clients", "4", "how many clients share them, such as 1,4,16")
	clockCosts   = flag.String("clock-costs", "2ms", "how long their computations are, such as 330µs,1.04ms")
	clockSeconds = flag.Int("clock-seconds", 2, "for how long shares are looked at")
)

// hop is how long a message is under way from one machine of a datacenter to another.
const hop = 50 * time.Microsecond

// onItsClock runs f with a cluster on a clock of its own. Its network may have a bandwidth; messages take hop, unless
// it says how long.
func onItsClock(t *testing.T, c cluster.InProcess, f func(t *testing.T, l *cluster.Local)) {
	t.Helper()
	onTheClockOf(t, c, *clockWorkers, sim.Options{Devices: *clockEach}, f)
}

// onTheClockOf is onItsClock with so many workers, of such devices.
func onTheClockOf(t *testing.T, c cluster.InProcess, workers int, o sim.Options,
	f func(t *testing.T, l *cluster.Local)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		if c.Network == nil {
			c.Network = &inproc.Conditions{}
		}
		if c.Network.Delay == nil {
			c.Network.Delay = func(string, string) time.Duration { return hop }
		}
		o.Island = sim.NewIsland(sim.Real, 1)
		c.Drivers = simulatedOn(t, workers, o)
		f(t, start(t, c))
	})
}

// Devices compute nearly all the time, however many clients share them, each of which has 16 computations under way.
func TestDevicesOfManyClientsAreNotIdle(t *testing.T) {
	const least = 0.99
	for _, cost := range costsOf(t) {
		for _, count := range strings.Split(*clockClients, ",") {
			t.Run(fmt.Sprintf("cost=%v/clients=%s", cost, count), func(t *testing.T) {
				var clients int
				statustest.OK(t, statustest.Of(fmt.Sscan(count, &clients)))
				onItsClock(t, cluster.InProcess{}, func(t *testing.T, l *cluster.Local) {
					var all []*stream
					for i := range clients {
						name := fmt.Sprintf("client-%d", i)
						all = append(all, occupy(connect(t, l, name), name, *clockWorkers**clockEach, cost))
					}
					runAll(t, all, 2*clients) // what a program takes is measured once
					const gangs = 1000
					took := runAll(t, all, gangs)
					use := gangs * cost.Seconds() / took.Seconds()
					t.Attr("use", fmt.Sprintf("%.4f", use))
					t.Attr("rate", fmt.Sprintf("%.1f", gangs/took.Seconds()))
					if clients >= 4 && use < least {
						t.Errorf("%d clients: devices compute %.1f %% of the time, want %.0f %%", clients, 100*use, 100*least)
					}
				})
			})
		}
	}
}

// costsOf returns how long the computations are.
func costsOf(t *testing.T) (costs []time.Duration) {
	t.Helper()
	for _, text := range strings.Split(*clockCosts, ",") {
		cost := statustest.Value(time.ParseDuration(text)).OK(t)
		costs = append(costs, cost)
	}
	return costs
}

// Four tenants that always want more get their shares of device time: over all of the time within two points of what
// the device computed, and over any second within five.
func TestTenantsGetTheirSharesOfDeviceTime(t *testing.T) {
	for _, weights := range [][]float64{{1, 1, 1, 1}, {1, 2, 4, 8}} {
		t.Run(fmt.Sprintf("weights=%v", weights), func(t *testing.T) {
			token := func(path string) (string, error) { return strings.Repeat(filepath.Base(path), 32), nil }
			onItsClock(t, cluster.InProcess{Tenants: tenantsOf(t, weights, token)}, func(t *testing.T, l *cluster.Local) {
				stop, running := make(chan struct{}), sync.WaitGroup{}
				for i := range weights {
					name := fmt.Sprintf("t%d", i)
					shown, _ := token(name)
					m := occupy(begin(t, func(n client.Notify) (client.Cluster, error) {
						return l.ConnectAsking(t.Context(), &wire.Hello{Name: name, Token: shown}, n)
					}), name, *clockWorkers**clockEach, costsOf(t)[0])
					running.Go(func() { m.runUntil(t, stop) })
				}
				did := firstDevice(l, 0, time.Duration(*clockSeconds+1)*time.Second)
				close(stop)
				running.Wait()
				const sec = int64(time.Second)
				end := did[len(did)-1].end
				begin := end - int64(*clockSeconds)*sec
				whole := furthest(did, weights, begin, end)
				var second distance
				for from := begin; from <= end-sec; from += sec / 10 {
					one := furthest(did, weights, from, from+sec)
					second = distance{max(second.points, one.points), max(second.ofShare, one.ofShare)}
				}
				for name, d := range map[string]distance{"second": second, "whole": whole} {
					t.Attr(name, fmt.Sprintf("%.5f", d.points))
					t.Attr(name+"_of_share", fmt.Sprintf("%.5f", d.ofShare))
				}
				if second.points > 0.05 || whole.points > 0.02 {
					t.Errorf("tenants are off their shares by %.1f %% over a second and %.1f %% over %d, want 5 and 2",
						100*second.points, 100*whole.points, *clockSeconds)
				}
			})
		})
	}
}

// tenantsOf makes a table of tenants t0, t1 … with these weights.
func tenantsOf(t testing.TB, weights []float64, token func(path string) (string, error)) *tenants.Table {
	t.Helper()
	var text strings.Builder
	for i, weight := range weights {
		fmt.Fprintf(&text, "[tenants.t%d]\ntoken-file = \"t%d\"\nweight = %v\n", i, i, weight)
	}
	table := statustest.Value(tenants.Parse("tenants.toml", text.String(), token)).OK(t)
	return table
}

// distance is how far what a tenant got of the time that a device computed is from its share: as a part of that time,
// and as a part of the share.
type distance struct{ points, ofShare float64 }

// furthest returns the largest distances of any tenant between two times. Sessions are numbered in the order of the
// weights.
func furthest(all []did, weights []float64, from, to int64) (most distance) {
	got, total, sum := map[uint32]float64{}, 0.0, 0.0
	for _, d := range all {
		got[d.session] += 0
		if ns := min(d.end, to) - max(d.begin, from); ns > 0 {
			got[d.session] += float64(ns)
			total += float64(ns)
		}
	}
	for _, w := range weights {
		sum += w
	}
	for i, session := range slices.Sorted(maps.Keys(got)) {
		share := weights[i] / sum
		off := math.Abs(got[session]/total - share)
		most = distance{max(most.points, off), max(most.ofShare, off/share)}
	}
	return most
}

// runUntil runs gangs until it is stopped.
func (m *stream) runUntil(b testing.TB, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			m.run(b, 0, 0)
			return
		default:
		}
		if len(m.tokens) == backlog {
			m.end(b)
		}
		m.start()
	}
}
