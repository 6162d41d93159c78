//go:build !race && !invariants

package schedule

import (
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// mostOff returns by how much of the longest gang a tenant's device time is off its share over any stretch, of any
// length, while loads that use the same device always have gangs that wait.
func (b *bench) mostOff() float64 {
	weights, longest := 0.0, int64(0)
	for _, l := range b.loads {
		weights += l.tenant.Weight
		longest = max(longest, l.longest)
	}
	most := 0.0
	for _, l := range b.loads {
		off, least, greatest := 0.0, 0.0, 0.0 // device time beyond its share since the beginning
		for _, s := range b.log {
			took := float64(s.end - s.begin)
			if off -= took * l.tenant.Weight / weights; s.l == l {
				off += took
			}
			least, greatest = min(least, off), max(greatest, off)
		}
		most = max(most, greatest-least)
	}
	return most / float64(longest)
}

// longGangs has tenants of some weights come together, with gangs that all take long, for a minute.
func longGangs(t interface{ Fatalf(string, ...any) }, length func() int64, weights ...float64) *bench {
	b := newBench(t, &Fair{Gangs: 512}, 1)
	for i, weight := range weights {
		b.loads = append(b.loads, &load{session: uint32(i + 1), tenant: &Tenant{ID: uint32(i + 1), Weight: weight},
			devices: Devices(0), cost: 512e6, length: length})
	}
	for _, l := range b.loads {
		b.feed(l)
	}
	b.until(60 * second)
	return b
}

// Two to five tenants of any weights, whose gangs take equally long, but for a quarter or not at all, are off their
// shares by at most two and a quarter gangs over stretches of any length.
func TestFairSharesOfLongGangsHoldOverAnyStretch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		choose := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		length := func() int64 { return 512e6*3/4 + choose.Int64N(512e6/2) }
		if rapid.Bool().Draw(t, "equal") {
			length = func() int64 { return 512e6 }
		}
		weights := rapid.SliceOfN(rapid.Float64Range(1, 8), 2, 5).Draw(t, "weights")
		if off := longGangs(t, length, weights...).mostOff(); off > 2.25 {
			t.Errorf("weights %v: off by %.2f gangs, expected at most 2.25", weights, off)
		}
	})
}

// Between two gangs of a tenant whose weight is that of ten others together is one of theirs.
func TestFairServesAHeavyTenantBetweenLightOnes(t *testing.T) {
	weights := []float64{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 10}
	if off := longGangs(t, func() int64 { return 512e6 }, weights...).mostOff(); off > 1.5 {
		t.Errorf("off by %.2f gangs, expected at most 1.5", off)
	}
}

// A tenant that is below its share and comes with a long gang waits for the one that runs, the next if that has its
// place already, and one more at most.
func TestFairServesALongGangOfATenantBelowItsShare(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		choose := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		b := newBench(t, &Fair{Gangs: 512}, 1)
		longest, weights := int64(512e6*5/4), 0.0
		add := func(length int64) *load {
			id := uint32(len(b.loads) + 1)
			l := &load{session: id, devices: Devices(0),
				tenant: &Tenant{ID: id, Weight: float64(rapid.IntRange(1, 8).Draw(t, "weight"))},
				length: func() int64 { return length*3/4 + choose.Int64N(length/2) }}
			weights += l.tenant.Weight
			b.loads = append(b.loads, l)
			return l
		}
		for range rapid.IntRange(1, 5).Draw(t, "busy") {
			add(int64(1e6 * (64 << rapid.IntRange(0, 3).Draw(t, "length")))) // 64 to 512 ms
		}
		for _, l := range b.loads {
			b.feed(l)
		}
		modest := add(512e6)
		modest.until = 1 // nothing but what it is fed
		b.until(2 * second)
		for range 10 {
			b.until(b.now + int64(2*float64(longest)*weights/modest.tenant.Weight) + choose.Int64N(second))
			b.feed(modest)
			for b.st.More() {
				b.apply(Event{Kind: Resume})
			}
		}
		b.until(b.now + 10*second)
		if bound := 3 * longest; modest.pending > 0 || modest.delayed > bound {
			t.Errorf("tenant %+v waited %d ms for a gang of 512 ms to begin, expected at most %d", *modest.tenant,
				modest.delayed/1e6, bound/1e6)
		}
	})
}
