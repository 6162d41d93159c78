package schedule

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
)

// rounds measures the steps of a gang: it is submitted, the one of so many submissions before is launched, and another
// ends. Each round starts one gang, which is the next to be launched. A gang reads the one before, if reads has room.
func rounds(b *testing.B, s *State, g Gang, reads []uint64, launched, ended uint64) {
	var out []Action
	b.ReportAllocs()
	for b.Loop() {
		if reads != nil {
			reads[0] = g.ID
		}
		g.ID++
		out = s.Step(Event{Kind: Submit, Gang: g}, out[:0])
		out = s.Step(Event{Kind: Launched, ID: g.ID - launched}, out)
		if g.ID > ended {
			out = s.Step(Event{Kind: Completed, ID: g.ID - ended, Time: g.Cost}, out)
		}
		if want := g.ID + 1 - max(launched, 1); len(out) != 1 || out[0].Kind != Start || out[0].ID != want {
			b.Fatalf("got %v, want a start of gang %d", out, want)
		}
	}
}

// One gang from Submit to Completed with nothing in its way.
func BenchmarkGang(b *testing.B) {
	for _, n := range []int{1, 8, 64, 4096} {
		b.Run("devices="+strconv.Itoa(n), func(b *testing.B) {
			rounds(b, New(Config{}), Gang{Devices: firstDevices(n)}, nil, 0, 0)
		})
	}
}

// Gangs that share devices, 64 queued at all times.
func BenchmarkContended(b *testing.B) {
	for _, n := range []int{8, 4096} {
		b.Run("devices="+strconv.Itoa(n), func(b *testing.B) {
			s := New(Config{})
			g := Gang{Devices: firstDevices(n)}
			for range 64 {
				g.ID++
				s.Step(Event{Kind: Submit, Gang: g}, nil)
			}
			rounds(b, s, g, nil, 64, 64)
		})
	}
}

// A chain: each gang reads what the one before makes.
func BenchmarkChain(b *testing.B) {
	s := New(Config{})
	after := make([]uint64, 1)
	g := Gang{ID: 1, Devices: firstDevices(8), After: after}
	s.Step(Event{Kind: Submit, Gang: g}, nil)
	rounds(b, s, g, after, 1, 1)
}

// A gang from Submit to Completed with nothing in its way, and of one session, by each order of clusters; 16 are under
// way.
func BenchmarkAlone(b *testing.B) {
	for order, c := range map[string]Config{
		"fifo": {Policy: &FIFO{Window: 512, Share: 256}},
		"fair": {Policy: &Fair{Gangs: 512}, OneByOne: true},
	} {
		b.Run(order, func(b *testing.B) {
			g := Gang{Session: 1, Tenant: &Tenant{ID: 1, Weight: 1}, Devices: firstDevices(8), Cost: 1e5}
			rounds(b, New(c), g, nil, 0, 16)
		})
	}
}

// A gang of Fair from Submit to Completed, while sessions of so many tenants always have one that waits.
func BenchmarkFair(b *testing.B) {
	for _, n := range []int{1, 16, 256, -256} {
		tenants, bound := n, 0.0 // of negative ones, each has a part at least
		if n < 0 {
			tenants, bound = -n, 0.5/float64(-n)
		}
		b.Run("tenants="+strconv.Itoa(n), func(b *testing.B) {
			s := New(Config{Policy: &Fair{Gangs: 512}, OneByOne: true})
			of := make([]Tenant, tenants)
			var out []Action
			var running []uint64
			id := uint64(0)
			submit := func(tenant int) {
				id++
				out = s.Step(Event{Kind: Submit, Gang: Gang{ID: id<<16 | uint64(tenant), Session: uint32(tenant + 1),
					Tenant: &of[tenant], Devices: firstDevices(8), Cost: 1e6}}, out)
			}
			follow := func() { // what gets its place is launched, and its session submits the next
				for len(out) > 0 || s.More() {
					if len(out) == 0 {
						out = s.Step(Event{Kind: Resume}, out)
						continue
					}
					started := out[0].ID
					out = append(out[:0], out[1:]...)
					out = s.Step(Event{Kind: Launched, ID: started}, out)
					running = append(running, started)
					submit(int(started & 0xffff))
				}
			}
			for i := range of {
				of[i] = Tenant{ID: uint32(i + 1), Weight: float64(i%8 + 1), AtLeast: bound}
				submit(i)
			}
			follow()
			b.ReportAllocs()
			for b.Loop() {
				ended := running[0]
				running = append(running[:0], running[1:]...)
				out = s.Step(Event{Kind: Completed, ID: ended, Time: 1e6}, out)
				follow()
			}
		})
	}
}

// From a gang's end to the next ones' places, with 256 tenants that have bounds on devices of which no two are in one
// group, where each gang wants all of them, or half, chosen at random.
func BenchmarkFairGroups(b *testing.B) {
	const tenants = 256
	for _, groups := range []int{64, 512} {
		for _, all := range []bool{true, false} {
			b.Run(fmt.Sprintf("groups=%d/all=%v", groups, all), func(b *testing.B) {
				choose := rand.New(rand.NewPCG(1, 1))
				s := New(Config{Policy: &Fair{Gangs: 512}, OneByOne: true})
				var out []Action
				var running []uint64
				id, now := uint64(0), int64(0)
				step := func(ev Event) {
					ev.Now = now
					out = s.Step(ev, out)
				}
				var of [tenants]Tenant
				var on [tenants]DeviceSet
				submit := func(tenant int) {
					id++
					step(Event{Kind: Submit, Gang: Gang{ID: id<<16 | uint64(tenant), Session: uint32(tenant + 1),
						Tenant: &of[tenant], Devices: on[tenant], Cost: 1e6}})
				}
				follow := func() {
					for len(out) > 0 || s.More() {
						if len(out) == 0 {
							step(Event{Kind: Resume})
							continue
						}
						started := out[0].ID
						out = append(out[:0], out[1:]...)
						step(Event{Kind: Launched, ID: started})
						running = append(running, started)
						submit(int(started & 0xffff))
					}
				}
				for i := range of {
					of[i] = Tenant{ID: uint32(i + 1), Weight: float64(i%8 + 1), AtLeast: 0.5 / tenants, AtMost: 0.5}
					on[i] = Devices(i%groups, (i+tenants)%groups) // these divide the devices
					submit(i)
				}
				for i := range on {
					if on[i] = firstDevices(groups); !all {
						on[i] = Devices(choose.Perm(groups)[:groups/2]...)
					}
				}
				follow()
				one := func() {
					for len(running) == 0 { // all have had their most for now
						now = s.Due()
						step(Event{Kind: Resume})
						follow()
					}
					ended := running[0]
					running = append(running[:0], running[1:]...)
					now += 1e6
					step(Event{Kind: Completed, ID: ended, Time: 1e6})
					follow()
				}
				for range 8 * tenants {
					one()
				}
				b.ReportAllocs()
				for b.Loop() {
					one()
				}
			})
		}
	}
}

func firstDevices(n int) DeviceSet {
	ids := make([]int, n)
	for i := range ids {
		ids[i] = i
	}
	return Devices(ids...)
}
