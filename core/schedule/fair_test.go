//go:build !race && !invariants

package schedule

import (
	"cmp"
	"container/heap"
	"fmt"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// bench is devices in simulated time. Each takes the gangs that it is given in the order of their places, a gang begins
// when it is at the head of all its devices, and ends after its own length.
type bench struct {
	t     interface{ Fatalf(string, ...any) }
	st    *State
	now   int64
	busy  [][]*job // by device: placed and not ended, in order
	jobs  map[uint64]*job
	next  uint64
	ends  endings
	got   map[uint32]int64 // device time by session, of gangs that have ended
	loads []*load
}

// load is a session that always has gangs to run.
type load struct {
	session uint32
	weight  float64
	devices DeviceSet
	length  func() int64
	cost    int64 // measured before
	longest int64
	pending int   // submitted and not started
	waited  int64 // at most
	since   int64 // when its oldest pending gang was submitted
}

type job struct {
	id     uint64
	l      *load
	length int64
	begun  bool
	end    int64
}

type endings []*job

func (e endings) Len() int           { return len(e) }
func (e endings) Less(i, j int) bool { return e[i].end < e[j].end }
func (e endings) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *endings) Push(x any)        { *e = append(*e, x.(*job)) }
func (e *endings) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

func newBench(t interface{ Fatalf(string, ...any) }, p Policy, devices int) *bench {
	return &bench{t: t, st: New(Config{Policy: p, MaxQueued: 1 << 20, OneByOne: true}), busy: make([][]*job, devices),
		jobs: map[uint64]*job{}, got: map[uint32]int64{}}
}

// feed has a session ask for a gang, as a controller does: the next one when this one has its place.
func (b *bench) feed(l *load) {
	b.next++
	j := &job{id: b.next, l: l, length: l.length()}
	l.longest = max(l.longest, j.length)
	b.jobs[j.id] = j
	if l.pending == 0 {
		l.since = b.now
	}
	l.pending++
	b.apply(Event{Kind: Submit, Gang: Gang{
		ID: j.id, Session: l.session, Weight: l.weight, Devices: l.devices, Cost: l.cost, Collective: true}})
}

// step applies an event, and what follows from it.
func (b *bench) step(ev Event) {
	b.apply(ev)
	for b.st.More() {
		b.apply(Event{Kind: Resume})
	}
}

func (b *bench) apply(ev Event) {
	for _, a := range b.st.Step(ev, nil) {
		if a.Kind != Start {
			b.t.Fatalf("gang %d: %v", a.ID, a.Err)
		}
		j := b.jobs[a.ID]
		j.l.pending--
		j.l.waited = max(j.l.waited, b.now-j.l.since)
		j.l.since = b.now
		for d := range j.l.devices.All() {
			b.busy[d] = append(b.busy[d], j)
		}
		b.begin(j)
		b.apply(Event{Kind: Launched, ID: a.ID})
		if j.l.pending == 0 {
			b.feed(j.l)
		}
	}
}

// begin starts a gang that is at the head of all its devices.
func (b *bench) begin(j *job) {
	for d := range j.l.devices.All() {
		if b.busy[d][0] != j {
			return
		}
	}
	j.begun, j.end = true, b.now+j.length
	heap.Push(&b.ends, j)
}

// until lets time pass.
func (b *bench) until(end int64) {
	for len(b.ends) > 0 && b.ends[0].end <= end {
		j := heap.Pop(&b.ends).(*job)
		b.now = j.end
		delete(b.jobs, j.id)
		b.got[j.l.session] += j.length * int64(j.l.devices.Len())
		j.l.cost = (3*cmp.Or(j.l.cost, j.length) + j.length) / 4
		for d := range j.l.devices.All() {
			b.busy[d] = b.busy[d][1:]
		}
		for d := range j.l.devices.All() {
			if len(b.busy[d]) > 0 && !b.busy[d][0].begun {
				b.begin(b.busy[d][0])
			}
		}
		b.step(Event{Kind: Completed, ID: j.id, Time: j.length})
		for d, q := range b.busy {
			for _, l := range b.loads {
				if len(q) == 0 && l.devices.Has(d) && l.devices.Len() == 1 && l.pending > 0 && !b.claimed(d) {
					b.t.Fatalf("device %d is idle at %d, and session %d waits for it alone", d, b.now, l.session)
				}
			}
		}
	}
	b.now = end
}

// claimed reports whether a gang of several devices waits for this one.
func (b *bench) claimed(d int) bool {
	for _, l := range b.loads {
		if l.pending > 0 && l.devices.Len() > 1 && l.devices.Has(d) {
			return true
		}
	}
	return false
}

const second = 1e9

// Sessions that always have work get device time by their weights.
func TestFairSharesFollowWeights(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		choose := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		b := newBench(t, &Fair{Gangs: 512}, 4)
		all := Devices(0, 1, 2, 3)
		sum, longest := 0.0, int64(0)
		for i := range rapid.IntRange(2, 6).Draw(t, "sessions") {
			length := int64(1e6 * (1 << rapid.IntRange(0, 8).Draw(t, "length"))) // 1 to 256 ms
			l := &load{session: uint32(i + 1), weight: float64(rapid.IntRange(1, 8).Draw(t, "weight")), devices: all,
				length: func() int64 { return length*3/4 + choose.Int64N(length/2) }}
			sum += l.weight
			longest = max(longest, length*5/4)
			b.loads = append(b.loads, l)
		}
		for _, l := range b.loads {
			b.feed(l)
		}
		b.until(2 * second)
		before := map[uint32]int64{}
		for s, n := range b.got {
			before[s] = n
		}
		b.until(12 * second)
		for _, l := range b.loads {
			got := float64(b.got[l.session]-before[l.session]) / (4 * 10 * second)
			want := l.weight / sum
			if off := max(got-want, want-got); off > max(0.02, float64(longest)/(10*second)) {
				t.Errorf("session %d of weight %v got %.1f %% of the devices, expected %.1f %%", l.session, l.weight, 100*got,
					100*want)
			}
		}
	})
}

// A session that comes waits for one window, or one longer gang, whatever the others have queued.
func TestFairBoundsTheWaitOfASessionThatComes(t *testing.T) {
	for _, long := range []int64{2e6, 350e6} {
		b := newBench(t, &Fair{Gangs: 512}, 2)
		all := Devices(0, 1)
		for i := range 5 {
			b.loads = append(b.loads, &load{session: uint32(i + 1), devices: all, length: func() int64 { return long }})
			b.feed(b.loads[i])
		}
		b.until(5 * second)
		late := &load{session: 9, devices: all, length: func() int64 { return 2e6 }, cost: 2e6}
		b.feed(late)
		b.until(6 * second)
		if bound := max(DefaultWindow, long) + 1; late.waited > bound {
			t.Errorf("gangs of %d ms: a session that came waited %d ms, expected at most %d", long/1e6, late.waited/1e6,
				bound/1e6)
		}
	}
}

// Gangs of few devices do not starve one of many, nor the other way round, and device time is not wasted.
func TestFairPlacesWideGangsBesideNarrowOnes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := newBench(t, &Fair{Gangs: 512}, 4)
		b.loads = append(b.loads, &load{session: 1, devices: Devices(0, 1, 2, 3),
			length: func() int64 { return 5e6 }})
		for d := range 4 {
			length := int64(1e6 * (1 << rapid.IntRange(0, 7).Draw(t, fmt.Sprint("length", d))))
			b.loads = append(b.loads, &load{session: uint32(2 + d), devices: Devices(d), length: func() int64 { return length }})
		}
		for _, l := range b.loads {
			b.feed(l)
		}
		b.until(20 * second)
		used := int64(0)
		for _, n := range b.got {
			used += n
		}
		if share := float64(used) / (4 * 20 * second); share < 0.6 {
			t.Errorf("the devices were in use for %.0f %% of the time", 100*share)
		}
		for _, l := range b.loads {
			if got := float64(b.got[l.session]) / float64(l.devices.Len()) / (20 * second); got < 0.2 {
				t.Errorf("session %d got %.1f %% of its devices", l.session, 100*got)
			}
		}
	})
}
