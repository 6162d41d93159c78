package schedule

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/openpathways/pathways/core/invariants"
	"github.com/openpathways/pathways/core/status/statustest"
)

// island is devices that block as accelerators do: each has a queue, and work in it
// is done when it is at the head of the queues of all its gang's devices at once.
// Launching a gang puts its work into the queues one device after the other, in any
// order, and between any two of these steps anything else may happen.
type island struct {
	queues  map[int][]uint64
	devices map[uint64]DeviceSet
	todo    map[uint64][]int // devices that a launch has still to reach
	seen    map[int][]uint64 // what came to a device, for the order
}

func newIsland() *island {
	return &island{map[int][]uint64{}, map[uint64]DeviceSet{}, map[uint64][]int{}, map[int][]uint64{}}
}

func (l *island) start(rng *rand.Rand, id uint64, devices DeviceSet) {
	l.devices[id] = devices
	l.todo[id] = slices.Collect(devices.All())
	rng.Shuffle(len(l.todo[id]), func(i, j int) { l.todo[id][i], l.todo[id][j] = l.todo[id][j], l.todo[id][i] })
}

// launchStep takes one launch one device further and reports whether it is through.
func (l *island) launchStep(id uint64) bool {
	d := l.todo[id][0]
	l.queues[d] = append(l.queues[d], id)
	l.seen[d] = append(l.seen[d], id)
	if l.todo[id] = l.todo[id][1:]; len(l.todo[id]) > 0 {
		return false
	}
	delete(l.todo, id)
	return true
}

// completed takes out one gang whose collective finds all its members.
func (l *island) completed() (uint64, bool) {
	for _, id := range sortedKeys(l.devices) {
		done := true
		for d := range l.devices[id].All() {
			done = done && len(l.queues[d]) > 0 && l.queues[d][0] == id
		}
		if done {
			for d := range l.devices[id].All() {
				l.queues[d] = l.queues[d][1:]
			}
			delete(l.devices, id)
			return id, true
		}
	}
	return 0, false
}

func sortedKeys[V any](m map[uint64]V) []uint64 {
	keys := make([]uint64, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// runIsland runs random gangs in a random interleaving and returns the gangs that hang.
// Without the scheduler each gang starts as it is submitted.
func runIsland(t *testing.T, seed uint64, scheduled bool) (hung int, log *island) {
	rng := rand.New(rand.NewPCG(seed, 1))
	s, l := New(Config{}), newIsland()
	sets := map[uint64]DeviceSet{}
	act := func(actions []Action) {
		for _, a := range actions {
			if a.Kind != Start {
				t.Fatalf("seed %d: %v, want starts alone", seed, a)
			}
			if scheduled {
				l.start(rng, a.ID, sets[a.ID])
			}
		}
	}
	const gangs = 40
	ended := 0
	for next := uint64(1); ; {
		launching := sortedKeys(l.todo)
		switch {
		case next <= gangs && (len(launching) == 0 || rng.IntN(3) == 0):
			var ids []int
			for d := range 4 {
				if rng.IntN(2) == 0 {
					ids = append(ids, d)
				}
			}
			g := Gang{ID: next, Devices: Devices(append(ids, rng.IntN(4))...)}
			if next > 2 && rng.IntN(3) == 0 {
				g.After = []uint64{next - 1 - uint64(rng.IntN(2))}
			}
			next++
			sets[g.ID] = g.Devices
			if !scheduled {
				l.start(rng, g.ID, g.Devices)
				continue
			}
			act(s.Step(Event{Kind: Submit, Gang: g}, nil))
		case len(launching) > 0:
			id := launching[rng.IntN(len(launching))]
			if l.launchStep(id) && scheduled {
				act(s.Step(Event{Kind: Launched, ID: id}, nil))
			}
		default:
			id, ok := l.completed()
			if !ok {
				return gangs - ended, l
			}
			ended++
			if scheduled {
				act(s.Step(Event{Kind: Completed, ID: id}, nil))
			}
		}
	}
}

// Random gangs on devices that block always finish under the scheduler, and the
// devices of every pair agree on the order of what they share. The same gangs
// without it hang, or this test would show nothing.
func TestRandomGangsFinishOnDevicesThatBlock(t *testing.T) {
	hangs := 0
	for seed := range uint64(300) {
		hung, l := runIsland(t, seed, true)
		if hung > 0 {
			t.Fatalf("seed %d: %d gangs hang", seed, hung)
		}
		statustest.OKf(t, l.sameOrder(), "seed %d", seed)
		if hung, _ := runIsland(t, seed, false); hung > 0 {
			hangs++
		}
	}
	if hangs == 0 {
		t.Error("nothing hangs without the scheduler either")
	}
}

func (l *island) sameOrder() error {
	for a, first := range l.seen {
		for b, second := range l.seen {
			common := func(of, in []uint64) []uint64 {
				return slices.DeleteFunc(slices.Clone(of), func(id uint64) bool { return !slices.Contains(in, id) })
			}
			if x, y := common(first, second), common(second, first); !slices.Equal(x, y) {
				return fmt.Errorf("device %d sees %v, device %d %v", a, x, b, y)
			}
		}
	}
	return nil
}

// Once State has grown to the load, events cost no memory.
func TestStepDoesNotAllocate(t *testing.T) {
	if invariants.Checked {
		t.Skip("the checks of the build tag invariants allocate")
	}
	for _, devices := range []int{1, 8, 4096} {
		s := New(Config{})
		set, after := firstDevices(devices), make([]uint64, 1)
		var out []Action
		id := uint64(1)
		round := func() {
			out = s.Step(Event{Kind: Submit, Gang: Gang{ID: id, Devices: set}}, out[:0])
			after[0] = id
			out = s.Step(Event{Kind: Submit, Gang: Gang{ID: id + 1, Devices: set, After: after}}, out)
			out = s.Step(Event{Kind: Launched, ID: id}, out)
			out = s.Step(Event{Kind: Launched, ID: id + 1}, out)
			out = s.Step(Event{Kind: Completed, ID: id}, out)
			out = s.Step(Event{Kind: Completed, ID: id + 1}, out)
			id += 2
		}
		for range 2000 {
			round()
		}
		statustest.Equal(t, testing.AllocsPerRun(1000, round), 0, "%d devices: allocations a round", devices)
	}
}
