//go:build !race && !invariants

package schedule

import "testing"

// A tenant whose gang takes far longer than its others, since its worker stood still, is kept back for ten seconds
// more than usually, whatever its weight, class and bounds. The time over which shares hold is as long.
func TestFairKeepsATenantBackForTenSecondsAfterAStall(t *testing.T) {
	const stall, at = 20 * second, 5 * second
	for _, of := range []Tenant{{Weight: 1}, {Weight: 0.1}, {Weight: 1, Class: -1}, {Weight: 1, AtLeast: 0.1},
		{Weight: 1, AtMost: 0.5}, {Weight: 1, AtMost: 0.05}, {Weight: 3, AtMost: 0.3, AtLeast: 0.2}} {
		for _, length := range []int64{2e6, 200e6} {
			b := newBench(t, &Fair{Gangs: 512}, 1)
			of.ID = 1
			stalls := true
			b.loads = []*load{{session: 1, tenant: &of, devices: Devices(0), length: func() int64 {
				if stalls && b.now > at {
					stalls = false
					return stall
				}
				return length
			}}, {session: 2, tenant: &Tenant{ID: 2, Weight: 1}, devices: Devices(0), length: func() int64 { return length }}}
			for _, l := range b.loads {
				b.feed(l)
			}
			b.until(120 * second)
			last, usual, longest := int64(0), int64(0), int64(0) // from one of its gangs to the next
			for _, s := range b.log {
				switch between := s.begin - last; {
				case s.l.session != 1:
					continue
				case s.begin < at:
					usual = max(usual, between)
				default:
					longest = max(longest, between)
				}
				last = s.end
			}
			longest = max(longest, b.now-last)
			if longest > 10*second+usual+4*DefaultWindow || longest < 5*second {
				t.Errorf("tenant %+v with gangs of %d ms is kept back for %d ms, expected 10 s more than the usual %d", of,
					length/1e6, longest/1e6, usual/1e6)
			}
		}
	}
}

// A gang that took very long lets its tenant save up time no longer than 64 times that: later, others wait a moment
// when the tenant that has asked for little wants much.
func TestFairForgetsALongGang(t *testing.T) {
	const long = 10 * second
	b := newBench(t, &Fair{Gangs: 512}, 1)
	add := func(id, tenant uint32, depth int, length int64) *load {
		l := &load{session: id, tenant: &Tenant{ID: tenant, Weight: 1}, devices: Devices(0), depth: depth,
			length: func() int64 { return length }}
		b.loads = append(b.loads, l)
		return l
	}
	b.feed(add(1, 2, 0, 10e6)) // always has more
	first := add(2, 1, 1, 1e6)
	first.length = func() int64 { first.length = func() int64 { return 1e6 }; return long }
	b.feed(first)
	b.feed(add(3, 1, 1, 1e6)) // so that the tenant has never nothing
	b.until(70 * long)
	b.feed(add(4, 1, 0, 10e6))
	b.until(80 * long)
	last, most := int64(70*long), int64(0)
	for _, s := range b.log {
		if s.l.session == 1 && s.begin > 70*long {
			last, most = s.end, max(most, s.begin-last)
		}
	}
	if most > 4*DefaultWindow {
		t.Errorf("the other tenant waited %d ms, expected a few windows", most/1e6)
	}
}
