//go:build !race && !invariants

package schedule

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// Tenants whose sessions have only a few gangs under way at a time get more by a greater weight, too, and one that is
// alone beside an idle one has the devices for itself.
func TestFairSharesOfSessionsThatWaitForResults(t *testing.T) {
	for _, c := range []struct {
		depth   int
		weights []float64
		least   []float64
	}{
		{8, []float64{3, 1}, []float64{0.7, 0.2}}, {4, []float64{3, 1}, []float64{0.65, 0.2}},
		{8, []float64{2, 1, 1}, []float64{0.45, 0.2, 0.2}}, {8, []float64{1}, []float64{0.99}},
	} {
		b := newBench(t, &Fair{Gangs: 512}, 1)
		for i, weight := range c.weights {
			b.loads = append(b.loads, &load{session: uint32(i + 1),
				tenant: &Tenant{ID: uint32(i + 1), Weight: weight}, devices: Devices(0), depth: c.depth,
				length: func() int64 { return 4e6 }})
		}
		for range c.depth {
			for _, l := range b.loads {
				b.feed(l)
			}
		}
		b.until(10 * second)
		for i, l := range b.loads {
			if got := float64(b.got[l.session]) / (10 * second); got < c.least[i] {
				t.Errorf("%d gangs at a time, weights %v: session %d got %.1f %%, expected at least %.1f %%", c.depth, c.weights,
					l.session, 100*got, 100*c.least[i])
			}
		}
	}
}

// Tenants that wait for the last of several gangs before they ask for more have their shares, too, but for what the
// device computes meanwhile for others; and the device is hardly idle.
func TestFairSharesOfSessionsThatComeBackSoon(t *testing.T) {
	for _, c := range []struct {
		length, trip int64
		least        float64
	}{{4e6, 1e6, 0.7}, {2e6, 2e6, 0.7}, {1e6, 1e6, 0.62}, {4e5, 1e6, 0.62}} {
		b := newBench(t, &Fair{Gangs: 512}, 1)
		for i, weight := range []float64{3, 1} {
			b.loads = append(b.loads, &load{session: uint32(i + 1), batch: 20, depth: 20, trip: c.trip, devices: Devices(0),
				tenant: &Tenant{ID: uint32(i + 1), Weight: weight}, length: func() int64 { return c.length }})
		}
		for _, l := range b.loads {
			b.feedBatch(l)
		}
		b.until(10 * second)
		one, other := float64(b.got[1])/(10*second), float64(b.got[2])/(10*second)
		if one < c.least || one+other < 0.98 {
			t.Errorf("20 gangs of %d µs, and %d µs until the next: weights of 3 and 1 got %.1f and %.1f %%, expected at "+
				"least %.0f and the rest", c.length/1000, c.trip/1000, 100*one, 100*other, 100*c.least)
		}
	}
}

// A class that comes first does not lose its time to a lower one while another of its tenants, who has few gangs under
// way at a time, has had less: what keeps the greedy one back keeps back the lower class, too.
func TestFairSharesOfClassesBesideASessionThatWaitsForResults(t *testing.T) {
	for _, depth := range []int{1, 2, 4} {
		b := newBench(t, &Fair{Gangs: 512}, 1)
		for i, of := range []struct {
			class, depth int
			length       int64
		}{{0, depth, 1e6}, {0, 0, 1e6}, {-1, 0, 16e6}} {
			id := uint32(i + 1)
			b.loads = append(b.loads, &load{session: id, tenant: &Tenant{ID: id, Weight: 1, Class: of.class},
				devices: Devices(0), depth: of.depth, length: func() int64 { return of.length }})
			for range max(1, of.depth) {
				b.feed(b.loads[i])
			}
		}
		b.until(10 * second)
		if low := float64(b.got[3]) / (10 * second); low < Floor-0.01 || low > 2*Floor {
			t.Errorf("beside %d gangs at a time the lower class got %.1f %%, expected about %.0f %%", depth, 100*low,
				100*Floor)
		}
	}
}

// One that comes waits for what has its place, not for those who have waited for that as well, though some of them have
// had even less than it.
func TestFairServesOneThatComesBeforeThoseThatHaveWaited(t *testing.T) {
	for _, lengths := range [][]int64{{1e6, 512e6, 1e6, 512e6}, {256e6, 512e6, 512e6}} {
		choose := rand.New(rand.NewPCG(0, 1))
		b := newBench(t, &Fair{Gangs: 512}, 1)
		for _, length := range append(lengths, 2e6) {
			id := uint32(len(b.loads) + 1)
			b.loads = append(b.loads, &load{session: id, tenant: &Tenant{ID: id, Weight: 1}, devices: Devices(0),
				length: func() int64 { return length }})
		}
		one := b.loads[len(lengths)]
		one.until = 1 // nothing but what it is fed
		for _, l := range b.loads[:len(lengths)] {
			b.feed(l)
		}
		b.until(2 * second)
		for b.now < 25*second {
			b.until(b.now + second/2 + choose.Int64N(second))
			b.feed(one)
		}
		if most := int64(512e6 + DefaultWindow/10); one.delayed > most {
			t.Errorf("beside runs of %d ns one of 2 ms waited for %.1f ms, expected at most %.1f", lengths,
				float64(one.delayed)/1e6, float64(most)/1e6)
		}
	}
}

// Beside one who has queued thousands of gangs of 350 ms, one who waits for each gang of 2 ms waits for one of them.
func TestFairLetsShortGangsWaitForOneLongOne(t *testing.T) {
	b := newBench(t, &Fair{Gangs: 512}, 1)
	for i, of := range []struct {
		depth  int
		length int64
	}{{5000, 350e6}, {1, 2e6}} {
		b.loads = append(b.loads, &load{session: uint32(i + 1), tenant: &Tenant{ID: uint32(i + 1), Weight: 1},
			devices: Devices(0), depth: of.depth, length: func() int64 { return of.length }})
		for range of.depth {
			b.feed(b.loads[i])
		}
	}
	b.until(120 * second)
	var took []int64 // by the short ones, each from the end of the one before
	last := int64(0)
	for _, s := range b.log {
		if s.l.session == 2 {
			took, last = append(took, s.end-last), s.end
		}
	}
	if len(took) < 300 {
		t.Fatalf("%d short gangs ended in 120 s, expected one after each long one", len(took))
	}
	slices.Sort(took)
	if most := took[len(took)*99/100]; most > 352e6 {
		t.Errorf("99 %% of the short gangs took up to %d ms, expected 2 ms and a long one at most", most/1e6)
	}
}
