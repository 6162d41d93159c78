//go:build !race && !invariants

package schedule

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

var overlapDraws = flag.Int("overlap-draws", 150, "how many random sets of tenants with different devices are tried")

// overlapping adds up to six busy tenants of random weights with gangs of random lengths to a bench, each of which uses
// some devices in a row, together or apart. It returns the longest gang.
func overlapping(b *bench, choose *rand.Rand, tenants int) (longest int64) {
	devices := len(b.busy)
	for i := range uint32(tenants) {
		length := int64(1e6 * (1 << choose.IntN(7))) // 1 to 64 ms
		longest = max(longest, length*5/4)
		n := 1 + choose.IntN(devices)
		set, first := make([]int, n), choose.IntN(devices-n+1)
		for k := range set {
			set[k] = first + k
		}
		b.loads = append(b.loads, &load{session: i + 1, tenant: &Tenant{ID: i + 1, Weight: float64(1 + choose.IntN(4))},
			devices: Devices(set...), apart: choose.IntN(2) == 0,
			length: func() int64 { return length*3/4 + choose.Int64N(length/2) }})
	}
	for _, l := range b.loads {
		b.feed(l)
	}
	return longest
}

// leastPart is the part of its devices' time that a load's tenant has at least: that of its weight among the tenants
// that use the one where this is least.
func (b *bench) leastPart(l *load) float64 {
	part := 1.0
	for d := range l.devices.All() {
		weights := 0.0
		for _, o := range b.loads {
			if o.devices.Has(d) {
				weights += o.tenant.Weight
			}
		}
		part = min(part, l.tenant.Weight/weights)
	}
	return part
}

// Tenants that use different devices, which overlap, have their parts over ten seconds: within two points or one
// longest gang in nine of ten random draws, and never less by much. Both are true of the default number of draws alone:
// of 2,000, 211 miss more, and one tenant has 3.5 % instead of 16.7 % (docs/guides/sharing.md).
func TestFairSharesOfTenantsWithDifferentDevices(t *testing.T) {
	const span = 10 * second
	draws := *overlapDraws
	short, sum := 0, 0.0
	var worst struct{ got, part float64 }
	for seed := range uint64(draws) {
		choose := rand.New(rand.NewPCG(seed, 1))
		b := newBench(t, &Fair{Gangs: 512}, 2+choose.IntN(3))
		longest := overlapping(b, choose, 2+choose.IntN(5))
		took := b.between(4*second, 4*second+span)
		missed := 0.0
		for _, l := range b.loads {
			got := float64(took[l.session]) / float64(l.devices.Len()) / span
			least := b.leastPart(l)
			if missed = max(missed, least-got); least-got > worst.part-worst.got {
				worst.got, worst.part = got, least
			}
			if got < 0.5*least-0.02 {
				t.Errorf("draw %d: tenant %+v got %.1f %% of devices %v, expected at least %.1f %%", seed, *l.tenant, 100*got,
					l.devices, 100*least)
			}
		}
		if beyond := missed - max(0.02, float64(longest)/span); beyond > 0 {
			short++
			sum += beyond
		}
	}
	said := fmt.Sprintf("in %d of %d draws a tenant misses more of its part than is allowed for, by %.2f points on"+
		" average of all; in the worst one it gets %.1f %% instead of %.1f %%", short, draws, 100*sum/float64(draws),
		100*worst.got, 100*worst.part)
	t.Log(said)
	if short > draws/10 || sum > 0.004*float64(draws) {
		t.Error(said)
	}
}

// A tenant that asks for little waits for about a window, or one longer gang, also where others' devices overlap.
func TestFairServesATenantBelowItsShareAmongDifferentDevices(t *testing.T) {
	var all []float64 // waits, in windows or longest gangs
	for seed := range uint64(60) {
		choose := rand.New(rand.NewPCG(seed, 2))
		b := newBench(t, &Fair{Gangs: 512}, 2+choose.IntN(3))
		longest := max(DefaultWindow, overlapping(b, choose, 1+choose.IntN(5)))
		l := &load{session: 7, tenant: &Tenant{ID: 7, Weight: float64(1 + choose.IntN(4))}, until: 1,
			devices: Devices(choose.Perm(len(b.busy))[:1+choose.IntN(len(b.busy))]...), length: func() int64 { return 2e6 }}
		b.loads = append(b.loads, l)
		b.until(2 * second)
		for range 20 {
			b.until(b.now + second/2 + choose.Int64N(second))
			l.delayed = 0
			b.feed(l)
			for b.st.More() {
				b.apply(Event{Kind: Resume})
			}
			b.until(b.now + second)
			if l.pending > 0 {
				t.Fatalf("draw %d: a gang on devices %v waits for more than a second", seed, l.devices)
			}
			all = append(all, float64(l.delayed)/float64(longest))
		}
	}
	slices.Sort(all)
	most, most99 := all[len(all)-1], all[len(all)*99/100]
	t.Logf("99 of 100 wait for at most %.2f windows or longest gangs, all for %.2f", most99, most)
	if most99 > 2 || most > 6 {
		t.Errorf("99 of 100 wait for at most %.2f windows or longest gangs, all for %.2f; expected 2 and 6", most99, most)
	}
}
