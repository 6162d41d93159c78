//go:build !race && !invariants

package schedule

import (
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// Over any ten seconds, a tenant that always has work gets its share of device time, of those who want it at the time:
// within two points or one longest gang and a quarter, and never less than what it is guaranteed by more. Tenants come
// and go, which costs as much each time, with one session or several, that stay or do not.
func TestFairSharesHoldOverAnyTenSeconds(t *testing.T) {
	const (
		end  = 24 * second
		span = 10 * second
	)
	rapid.Check(t, func(t *rapid.T) {
		choose := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		b := newBench(t, &Fair{Gangs: 512}, 2)
		type presence struct {
			of          *Tenant
			from, until int64 // for which it asks
			end         int64 // of its last gang
		}
		var all []presence
		longest, least := int64(0), 0.9
		for i := range rapid.IntRange(2, 5).Draw(t, "tenants") {
			of := &Tenant{ID: uint32(i + 1), Weight: float64(rapid.IntRange(1, 8).Draw(t, "weight"))}
			if rapid.Bool().Draw(t, "guaranteed") {
				of.AtLeast = min(least, 0.1*float64(rapid.IntRange(1, 5).Draw(t, "least")))
				least -= of.AtLeast
			}
			p := presence{of: of, from: rapid.Int64Range(0, 6).Draw(t, "from") * second,
				until: rapid.Int64Range(18, 24).Draw(t, "until") * second}
			all = append(all, p)
			for range rapid.IntRange(1, 3).Draw(t, "sessions") {
				length := int64(1e6 * (1 << rapid.IntRange(0, 9).Draw(t, "length"))) // 1 to 512 ms
				longest = max(longest, length*5/4)
				b.loads = append(b.loads, &load{session: uint32(len(b.loads) + 1), tenant: of, devices: Devices(0, 1),
					until: p.until, lives: rapid.IntRange(0, 2).Draw(t, "lives"),
					length: func() int64 { return length*3/4 + choose.Int64N(length/2) }})
			}
		}
		slices.SortStableFunc(all, func(a, b presence) int { return int(a.from/second - b.from/second) })
		for _, p := range all {
			b.until(p.from)
			for _, l := range b.loads {
				if l.tenant == p.of {
					b.feed(l)
				}
			}
		}
		b.until(end + 5*second)
		for _, s := range b.log {
			i := slices.IndexFunc(all, func(p presence) bool { return p.of == s.l.tenant })
			all[i].end = s.end
		}
		// A gang has its place before it is known what the one before it took, which is up to a quarter more than estimated.
		tolerance := max(0.02, 1.25*float64(longest)/span)
		for from := int64(0); from+span <= end; from += second {
			for _, p := range all {
				if p.from > from || p.until < from+span {
					continue
				}
				want, changes := 0.0, 0
				for _, o := range all {
					for _, at := range []int64{o.from, o.end} {
						if o.of != p.of && from < at && at < from+span {
							changes++
						}
					}
				}
				const step = second / 20
				for at := from; at < from+span; at += step {
					of := []*Tenant{p.of}
					for _, o := range all {
						if o.of != p.of && o.from <= at && at < o.end {
							of = append(of, o.of)
						}
					}
					want += Shares(of)[0] * step / span
				}
				got := 0.0
				for _, s := range b.log {
					if s.l.tenant == p.of {
						got += float64(max(0, min(s.end, from+span)-max(s.begin, from))) / span
					}
				}
				within := tolerance * float64(1+changes) // those who come and go have one gang before their time, or after it
				if max(got-want, want-got) > within || got < p.of.AtLeast-within {
					t.Errorf("from %d s on tenant %+v got %.1f %% of the devices, expected %.1f %%, within %.1f", from/second,
						*p.of, 100*got, 100*want, 100*within)
				}
			}
		}
	})
}

// A long gang counts as what it takes from when it has its place: so two tenants whose gangs are all longer than the
// window never wait for two of each other's that one is enough for.
func TestFairChargesLongGangsWhenTheyArePlaced(t *testing.T) {
	const length = 512e6
	b := newBench(t, &Fair{Gangs: 512}, 1)
	for i, weight := range []float64{5, 3} {
		b.loads = append(b.loads, &load{session: uint32(i + 1), tenant: &Tenant{ID: uint32(i + 1), Weight: weight},
			devices: Devices(0), length: func() int64 { return length }})
	}
	for _, l := range b.loads {
		b.feed(l)
	}
	b.until(60 * second)
	last := int64(10 * second) // by then both are measured
	for _, s := range b.log {
		if s.l.session == 1 && s.end > last {
			if wait := s.begin - last; wait > length {
				t.Errorf("the tenant of weight 5 of 8 waited %d ms, for several gangs of %d", wait/1e6, int64(length)/1e6)
			}
			last = s.end
		}
	}
}

// Tenants that ask for little wait for one window, or for a longer gang and the end of another, which is a tenth of a
// window, and for one another: whatever the others have queued, and whatever their weights. Gangs that take longer than
// those before them take that much longer here, too, since a place cannot be taken back.
func TestFairServesATenantBelowItsShareWithinAWindow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		choose := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		b := newBench(t, &Fair{Gangs: 512}, 2)
		varies := rapid.Bool().Draw(t, "lengths vary by a quarter")
		longest, id := int64(0), uint32(0)
		add := func(length int64) *load {
			id++
			l := &load{session: id, devices: Devices(0, 1),
				tenant: &Tenant{ID: id, Weight: float64(rapid.IntRange(1, 8).Draw(t, "weight"))},
				length: func() int64 {
					if varies {
						return length*3/4 + choose.Int64N(length/2)
					}
					return length
				}}
			b.loads = append(b.loads, l)
			return l
		}
		for range rapid.IntRange(1, 5).Draw(t, "busy") {
			length := int64(1e6 * (1 << rapid.IntRange(0, 9).Draw(t, "length"))) // 1 to 512 ms
			length += rapid.Int64Range(0, length).Draw(t, "more")
			longest = max(longest, length)
			b.feed(add(length))
		}
		var modest []*load
		for range rapid.IntRange(1, 3).Draw(t, "modest") {
			l := add(2e6)
			l.until = 1 // nothing but what it is fed
			modest = append(modest, l)
		}
		b.until(2 * second)
		for range 20 {
			b.until(b.now + second/2 + choose.Int64N(second))
			for _, l := range modest {
				b.feed(l)
				for b.st.More() {
					b.apply(Event{Kind: Resume})
				}
			}
		}
		b.until(b.now + 2*second)
		const window, early = int64(DefaultWindow), int64(DefaultWindow) / 10
		bound := max(window, longest+early) + int64(len(modest)-1)*2e6
		if varies { // a gang takes up to 5/4 where 3/4 was expected
			bound = max(window*5/3, longest*5/4+early+longest/2) + int64(len(modest))*3e6
		}
		for _, l := range modest {
			if l.pending > 0 || l.delayed > bound {
				t.Errorf("tenant %+v waited %.3f ms for a gang of 2 ms to begin, expected at most %.3f; %d wait", *l.tenant,
					float64(l.delayed)/1e6, float64(bound)/1e6, l.pending)
			}
		}
	})
}

// A session's gangs get their places in the order of submission on each device, and behind those that they come after.
// Nothing else keeps one waiting while its devices are free.
func TestFairPlacesGangsOfASessionSideBySide(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const devices = 4
		s := New(Config{Policy: new(Fair)})
		var waiting []Gang
		running := map[uint64]Gang{} // not measured, so a device has one
		act := func(actions []Action) {
			for len(actions) > 0 {
				a := actions[0]
				i := slices.IndexFunc(waiting, func(g Gang) bool { return g.ID == a.ID })
				if a.Kind == Start {
					running[a.ID] = waiting[i]
					actions = s.Step(Event{Kind: Launched, ID: a.ID}, actions)
				}
				waiting = slices.Delete(waiting, i, i+1)
				actions = actions[1:]
			}
		}
		for id := range uint64(rapid.IntRange(5, 60).Draw(t, "events")) {
			switch ids := sortedKeys(running); {
			case len(ids) > 0 && rapid.IntRange(0, 2).Draw(t, "ends") == 0:
				ended := rapid.SampledFrom(ids).Draw(t, "ended")
				delete(running, ended)
				act(s.Step(Event{Kind: Completed, ID: ended, Time: 1e6}, nil))
			case len(waiting) > 0 && rapid.IntRange(0, 5).Draw(t, "cancelled") == 0:
				act(s.Step(Event{Kind: Cancel, ID: rapid.SampledFrom(waiting).Draw(t, "cancel").ID}, nil))
			default:
				g := Gang{ID: id + 1, Session: 1, Devices: Devices(rapid.SliceOfN(rapid.IntRange(0, devices-1), 1, 2).Draw(t,
					"devices")...)}
				if id > 0 && rapid.IntRange(0, 3).Draw(t, "comes after") == 0 {
					g.After = []uint64{rapid.Uint64Range(1, id).Draw(t, "after")}
				}
				waiting = append(waiting, g)
				act(s.Step(Event{Kind: Submit, Gang: g}, nil))
			}
			s.check()
			for i, g := range waiting {
				kept := false
				for _, r := range running {
					kept = kept || r.Devices.overlaps(&g.Devices.mask)
					if r.ID > g.ID && r.Devices.overlaps(&g.Devices.mask) {
						t.Fatalf("gang %d has its place before gang %d, on the same device", r.ID, g.ID)
					}
				}
				for _, before := range waiting[:i] {
					kept = kept || before.Devices.overlaps(&g.Devices.mask) || slices.Contains(g.After, before.ID)
				}
				if !kept {
					t.Fatalf("gang %d on %v waits, though its devices are free and nothing is before it: %v", g.ID, g.Devices,
						waiting)
				}
			}
		}
	})
}
