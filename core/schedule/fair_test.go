//go:build !race && !invariants

package schedule

import (
	"cmp"
	"container/heap"
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/openpathways/pathways/core/status/statustest"
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
	got   map[uint32]int64 // device time by load.session, of gangs that have ended
	newer uint32           // sessions that began when others had ended
	loads []*load
	log   []stretch // of all gangs that have ended, in the order of their ends
}

// stretch is when a gang had its devices.
type stretch struct {
	l          *load
	begin, end int64
}

// load is a session that always has gangs to run.
type load struct {
	session uint32
	tenant  *Tenant
	devices DeviceSet
	length  func() int64
	cost    int64 // measured before
	depth   int   // gangs that are submitted and have not ended, at most; 0: the next is submitted when one has its place
	apart   bool  // without a collective: a gang's devices begin and end by themselves
	// With batch, so many gangs are submitted at a time, and when all have ended, the next after trip.
	batch, out int
	trip       int64
	// Gangs after which the session ends, and another one of the tenant's goes on; 0: it does not end.
	lives   int
	runs    int    // gangs of the session that is there
	current uint32 // that one, if it is not the first
	longest int64
	pending int   // submitted and not started
	until   int64 // when it has had enough; 0: never
	waited  int64 // at most, for a place
	delayed int64 // at most, until a gang began
	since   int64 // when its oldest pending gang was submitted
}

type job struct {
	id      uint64
	l       *load
	devices DeviceSet // the load's; of a gang that is apart one, in a job for each
	jobs    *int      // of the gang, that have not ended
	length  int64
	asked   int64 // when it was submitted
	begun   bool
	end     int64
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

// between goes on to a time and from there to another, and returns the device time that sessions got in between.
func (b *bench) between(from, until int64) map[uint32]int64 {
	b.until(from)
	before := maps.Clone(b.got)
	b.until(until)
	took := maps.Clone(b.got)
	for s, n := range before {
		took[s] -= n
	}
	return took
}

func newBench(t interface{ Fatalf(string, ...any) }, p Policy, devices int) *bench {
	return &bench{t: t, st: New(Config{Policy: p, MaxQueued: 1 << 20, OneByOne: true}), busy: make([][]*job, devices),
		jobs: map[uint64]*job{}, got: map[uint32]int64{}}
}

// feed has a session ask for a gang, as a controller does: the next one when this one has its place.
func (b *bench) feed(l *load) {
	b.next++
	j := &job{id: b.next, l: l, devices: l.devices, jobs: new(int), length: l.length(), asked: b.now}
	l.longest = max(l.longest, j.length)
	b.jobs[j.id] = j
	if l.pending == 0 {
		l.since = b.now
	}
	l.pending++
	if l.runs++; l.lives > 0 && l.runs > l.lives {
		const after = 1000 // sessions that are there from the beginning
		b.newer++
		l.runs, l.current = 1, after+b.newer
	}
	b.apply(Event{Kind: Submit, Gang: Gang{
		ID: j.id, Session: cmp.Or(l.current, l.session), Tenant: l.tenant, Devices: l.devices, Cost: l.cost,
		Collective: !l.apart}})
}

// feedBatch has a session ask for its next batch.
func (b *bench) feedBatch(l *load) {
	l.out = l.batch
	for range l.batch {
		b.feed(l)
	}
	for b.st.More() {
		b.apply(Event{Kind: Resume})
	}
}

// step applies an event, and what follows from it.
func (b *bench) step(ev Event) {
	b.apply(ev)
	for b.st.More() {
		b.apply(Event{Kind: Resume})
	}
}

func (b *bench) apply(ev Event) {
	ev.Now = b.now
	for _, a := range b.st.Step(ev, nil) {
		if a.Kind != Start {
			b.t.Fatalf("gang %d: %v", a.ID, a.Err)
		}
		j := b.jobs[a.ID]
		j.l.pending--
		j.l.waited = max(j.l.waited, b.now-j.l.since)
		j.l.since = b.now
		for d := range j.devices.All() {
			of := j
			if j.l.apart {
				part := *j
				of = &part
				of.devices, of.length = Devices(d), j.l.length()
			}
			if b.busy[d] = append(b.busy[d], of); j.l.apart {
				*j.jobs++
				b.begin(of)
			}
		}
		if !j.l.apart {
			*j.jobs++
			b.begin(j)
		}
		b.apply(Event{Kind: Launched, ID: a.ID})
		if j.l.pending == 0 && j.l.depth == 0 && (j.l.until == 0 || b.now < j.l.until) {
			b.feed(j.l)
		}
	}
}

// begin starts a gang that is at the head of all its devices.
func (b *bench) begin(j *job) {
	for d := range j.devices.All() {
		if b.busy[d][0] != j {
			return
		}
	}
	j.begun, j.end = true, b.now+j.length
	j.l.delayed = max(j.l.delayed, b.now-j.asked)
	heap.Push(&b.ends, j)
}

// until lets time pass.
func (b *bench) until(end int64) {
	for {
		if due := b.st.Due(); due > 0 && due <= end && (len(b.ends) == 0 || due < b.ends[0].end) {
			b.now = due
			b.step(Event{Kind: Resume})
			continue
		}
		if len(b.ends) == 0 || b.ends[0].end > end {
			break
		}
		j := heap.Pop(&b.ends).(*job)
		b.now = j.end
		if j.jobs == nil { // a trip
			b.feedBatch(j.l)
			continue
		}
		b.got[j.l.session] += j.length * int64(j.devices.Len())
		b.log = append(b.log, stretch{j.l, j.end - j.length, j.end})
		j.l.cost = (3*cmp.Or(j.l.cost, j.length) + j.length) / 4
		for d := range j.devices.All() {
			b.busy[d] = b.busy[d][1:]
		}
		for d := range j.devices.All() {
			if len(b.busy[d]) > 0 && !b.busy[d][0].begun {
				b.begin(b.busy[d][0])
			}
		}
		if *j.jobs--; *j.jobs > 0 {
			b.step(Event{Kind: Left, ID: j.id, Gang: Gang{Devices: j.devices}, Time: j.length})
			continue
		}
		delete(b.jobs, j.id)
		b.step(Event{Kind: Completed, ID: j.id, Time: j.length})
		if j.l.batch > 0 {
			if j.l.out--; j.l.out == 0 {
				heap.Push(&b.ends, &job{l: j.l, end: b.now + j.l.trip})
			}
			continue
		}
		if j.l.depth > 0 {
			b.feed(j.l)
			for b.st.More() {
				b.apply(Event{Kind: Resume})
			}
		}
		b.checkIdle()
	}
	b.now = end
}

// checkIdle fails where a gang waits though all its devices are idle, and no other gang that waits has a claim to one:
// one that uses other devices, too, and waits for these.
func (b *bench) checkIdle() {
	for _, l := range b.loads {
		if l.pending == 0 || l.tenant != nil && l.tenant.AtMost > 0 {
			continue
		}
		free := true
		for d := range l.devices.All() {
			free = free && len(b.busy[d]) == 0
		}
		for _, o := range b.loads {
			free = free && (o == l || o.pending == 0 || o.devices.Len() == 1 || !o.devices.overlaps(&l.devices.mask) ||
				l.devices.covers(&o.devices.mask))
		}
		if free {
			b.t.Fatalf("devices %v are idle at %d, and session %d waits for them", l.devices, b.now, l.session)
		}
	}
}

const second = 1e9

// Tenants that always have work get device time by their weights, however many sessions they have, whenever these came,
// and whether they stay or others begin in their place after a run or two. Sessions of a tenant that stay share what it
// gets equally, or get more than that beside some that do not stay.
func TestFairSharesFollowTenantsNotTheirSessions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		choose := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		b := newBench(t, &Fair{Gangs: 512}, 2)
		sum, longest, session := 0.0, int64(0), uint32(0)
		var all []*Tenant
		var late []*load
		for i := range rapid.IntRange(2, 4).Draw(t, "tenants") {
			brief := rapid.SampledFrom([][]bool{{false}, {true}, {false, true}}[rapid.IntRange(0, 2).Draw(t, "sessions end")])
			of := &Tenant{ID: uint32(i + 1), Weight: float64(rapid.IntRange(1, 8).Draw(t, "weight"))}
			all = append(all, of)
			sum += of.Weight
			for range rapid.IntRange(1, 5).Draw(t, "sessions") {
				length := int64(1e6 * (1 << rapid.IntRange(0, 6).Draw(t, "length"))) // 1 to 64 ms
				session++
				l := &load{session: session, tenant: of, devices: Devices(0, 1),
					length: func() int64 { return length*3/4 + choose.Int64N(length/2) }}
				longest = max(longest, length*5/4)
				if brief.Draw(t, "brief") {
					l.lives = rapid.IntRange(1, 3).Draw(t, "lives")
				}
				b.loads = append(b.loads, l)
				if rapid.Bool().Draw(t, "late") {
					late = append(late, l)
				} else {
					b.feed(l)
				}
			}
		}
		b.until(1 * second)
		for _, l := range late {
			b.feed(l)
		}
		took := b.between(2*second, 12*second)
		tolerance := max(0.02, float64(longest)/(10*second))
		for _, of := range all {
			var got, stay []float64
			for _, l := range b.loads {
				if l.tenant == of {
					if l.lives == 0 {
						stay = append(stay, float64(took[l.session])/(2*10*second))
					}
					got = append(got, float64(took[l.session])/(2*10*second))
				}
			}
			total := 0.0
			for _, n := range got {
				total += n
			}
			if want := of.Weight / sum; max(total-want, want-total) > tolerance {
				t.Errorf("tenant %d of weight %v and %d sessions got %.1f %% of the devices, expected %.1f %%", of.ID, of.Weight,
					len(got), 100*total, 100*want)
			}
			for _, n := range stay {
				want := total / float64(len(got))
				if n < want-tolerance || len(stay) == len(got) && n > want+tolerance {
					t.Errorf("a session of tenant %d got %.1f %% of the devices, expected %.1f %%", of.ID, 100*n, 100*want)
				}
			}
		}
	})
}

// Tenants that always have work get what their classes, weights and bounds give them, also when these have changed
// meanwhile, and nothing else leaves devices idle.
func TestFairSharesFollowClassesAndBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		choose := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		b := newBench(t, &Fair{Gangs: 512}, 2)
		longest := int64(0)
		for i := range rapid.IntRange(1, 5).Draw(t, "tenants") {
			length := int64(1e6 * (1 << rapid.IntRange(0, 6).Draw(t, "length"))) // 1 to 64 ms
			longest = max(longest, length*5/4)
			b.loads = append(b.loads, &load{session: uint32(i + 1), devices: Devices(0, 1),
				length: func() int64 { return length*3/4 + choose.Int64N(length/2) }})
		}
		tolerance := max(0.02, 2*float64(longest)/(10*second))
		var before []float64
		for range rapid.IntRange(1, 2).Draw(t, "files of tenants") {
			all := drawTerms(t, b.loads)
			for _, l := range b.loads {
				if b.step(Event{Kind: Terms, Gang: Gang{Tenant: l.tenant}}); l.runs == 0 {
					b.feed(l)
				}
			}
			took := b.between(b.now+5*second, b.now+15*second)
			want := Shares(all)
			for i, l := range b.loads {
				got := float64(took[l.session]) / (2 * 10 * second)
				if off := max(got-want[i], want[i]-got); off > tolerance || got < l.tenant.AtLeast-tolerance {
					t.Errorf("tenant %+v got %.1f %% of the devices, expected %.1f %%", *l.tenant, 100*got, 100*want[i])
				}
				least := want[i]
				if before != nil {
					least = min(least, before[i])
				}
				// Its next gang comes once its part of the time has paid for the one before.
				if bound := 2*float64(l.longest)/least + second; float64(l.waited) > bound {
					t.Errorf("tenant %+v waited %d ms for a gang of %d ms, expected at most %.0f", *l.tenant, l.waited/1e6,
						l.longest/1e6, bound/1e6)
				}
				l.waited = 0
			}
			before = want
		}
	})
}

// drawTerms gives each load a tenant of its own, of any weight, class and bounds.
func drawTerms(t *rapid.T, loads []*load) (all []*Tenant) {
	least := 0.9
	for _, l := range loads {
		of := &Tenant{ID: l.session, Weight: float64(rapid.IntRange(1, 8).Draw(t, "weight")),
			Class: rapid.IntRange(-1, 1).Draw(t, "class")}
		if rapid.Bool().Draw(t, "at least") {
			of.AtLeast = min(least, 0.1*float64(rapid.IntRange(1, 5).Draw(t, "least")))
			least -= of.AtLeast
		}
		if rapid.Bool().Draw(t, "at most") {
			of.AtMost = max(of.AtLeast, 0.1*float64(rapid.IntRange(1, 9).Draw(t, "most")))
		}
		l.tenant = of
		all = append(all, of)
	}
	return all
}

// Whatever devices sessions use, and however many gangs they have under way, none waits without end.
func TestFairStarvesNoSession(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := newBench(t, &Fair{Gangs: 512}, 3)
		longest := int64(DefaultWindow)
		var all []*Tenant
		for i := range rapid.IntRange(1, 3).Draw(t, "tenants") {
			all = append(all, &Tenant{ID: uint32(i + 1), Weight: float64(rapid.IntRange(1, 8).Draw(t, "weight")),
				Class: rapid.IntRange(0, 1).Draw(t, "class")})
		}
		for i := range rapid.IntRange(2, 8).Draw(t, "sessions") {
			length := int64(1e6 * (1 << rapid.IntRange(0, 6).Draw(t, "length"))) // 1 to 64 ms
			longest = max(longest, length)
			devices := rapid.SliceOfNDistinct(rapid.IntRange(0, 2), 1, 3, rapid.ID[int]).Draw(t, "devices")
			b.loads = append(b.loads, &load{session: uint32(i + 1), tenant: rapid.SampledFrom(all).Draw(t, "tenant"),
				devices: Devices(devices...), depth: rapid.IntRange(0, 8).Draw(t, "depth"),
				length: func() int64 { return length }})
		}
		for _, l := range b.loads {
			for range max(1, l.depth) {
				b.feed(l)
			}
		}
		b.until(60 * second)
		// At worst a session has its part of what its tenant has of the floor, beside all others, and owes for times when it
		// had more.
		weights, sessions := 0.0, map[*Tenant]float64{}
		for _, of := range all {
			weights += of.Weight
		}
		for _, l := range b.loads {
			sessions[l.tenant]++
		}
		for _, l := range b.loads {
			share := Floor * l.tenant.Weight / weights / sessions[l.tenant]
			bound := int64(4 * float64(longest) / share)
			if waits := max(l.waited, b.now-l.since); l.waited > bound || l.pending > 0 && waits > bound {
				t.Errorf("session %d of tenant %+v waited %d ms, expected at most %d", l.session, *l.tenant, waits/1e6, bound/1e6)
			}
		}
	})
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

// Sessions of a tenant have the same of its devices where one uses them all at once and the other one by one, also
// beside another tenant, and where the devices differ in what they have left to do.
func TestFairServesATenantsWideGangsBesideItsNarrowOnes(t *testing.T) {
	choose := rand.New(rand.NewPCG(1, 1))
	b := newBench(t, &Fair{Gangs: 512}, 2)
	add := func(session uint32, of *Tenant, devices ...int) {
		b.loads = append(b.loads, &load{session: session, tenant: of, devices: Devices(devices...), depth: 64, apart: true,
			length: func() int64 { return 2e6 + choose.Int64N(4e6) }})
	}
	one, other := &Tenant{ID: 1, Weight: 3}, &Tenant{ID: 2, Weight: 1}
	add(1, one, 0, 1)
	add(2, one, 0)
	add(2, one, 1)
	add(3, other, 0, 1)
	for _, l := range b.loads {
		for range l.depth {
			b.feed(l)
		}
	}
	got := b.between(2*second, 12*second)
	for session, want := range map[uint32]float64{1: 0.375, 2: 0.375, 3: 0.25} {
		if part := float64(got[session]) / (2 * 10 * second); part < want-0.02 || part > want+0.02 {
			t.Errorf("session %d got %.1f %% of the devices, expected %.1f %%", session, 100*part, 100*want)
		}
	}
}

// A tenant whose gangs use several devices is not behind others of its weight on the one where it gets least, however
// long theirs take, and although a wider one, which that device keeps back, makes it seem far ahead on another.
func TestFairSharesOfGangsThatOverlap(t *testing.T) {
	for _, apart := range []bool{false, true} {
		b := newBench(t, &Fair{Gangs: 512}, 3)
		add := func(session uint32, weight float64, length int64, devices ...int) {
			b.loads = append(b.loads, &load{session: session, tenant: &Tenant{ID: session, Weight: weight},
				devices: Devices(devices...), apart: apart, length: func() int64 { return length }})
		}
		add(1, 4, 2e6, 0, 1)
		add(2, 2, 2e6, 0)
		add(3, 1, 19e6, 0, 1, 2)
		add(4, 4, 79e6, 1)
		for _, l := range b.loads {
			b.feed(l)
		}
		got := b.between(4*second, 14*second)
		wide, long := float64(got[1])/(2*10*second), float64(got[4])/(10*second)
		if wide < long-0.02 || wide < 0.3 {
			t.Errorf("without a collective: %v; the tenant with gangs of two devices got %.1f %% of them, and the other of "+
				"its weight %.1f %%", apart, 100*wide, 100*long)
		}
	}
}

// A gang behind some that leave no room for it has its place shortly before the last of them ends, by their estimates,
// and no other then: so its device has it as soon as it is free. Behind one that was not measured, or many short ones,
// it waits for an end.
func TestFairPlacesTheNextGangShortlyBeforeLongOnesEnd(t *testing.T) {
	for _, c := range []struct {
		cost, due int64 // of each gang, and when one more has its place; 0: not known, and when one has ended
	}{{5e6, 0}, {20e6, 35e6}, {26e6, 21e6}, {45e6, 40e6}, {900e6, 895e6}, {0, 0}} {
		s := New(Config{Policy: new(Fair)})
		var started []uint64
		step := func(ev Event) {
			for _, a := range s.Step(ev, nil) {
				started = append(started, a.ID)
				s.Step(Event{Kind: Launched, ID: a.ID, Now: ev.Now}, nil)
			}
		}
		for id := range uint64(12) {
			step(Event{Kind: Submit, Gang: Gang{ID: id + 1, Session: 1, Devices: Devices(0), Cost: c.cost}})
		}
		before := len(started)
		statustest.Equal(t, s.Due(), c.due, "%d placed gangs of %d: the next is due at", before, c.cost)
		if c.due == 0 {
			continue
		}
		if step(Event{Kind: Resume, Now: c.due - 1}); len(started) != before || s.Due() != c.due {
			t.Errorf("gangs of %d: %d have their places before they are due", c.cost, len(started)-before)
		}
		if step(Event{Kind: Resume, Now: c.due}); len(started) != before+1 || s.Due() != c.due+c.cost {
			t.Errorf("gangs of %d: %d have their places when one is due, and more at %d", c.cost, len(started)-before, s.Due())
		}
		s.check()
	}
}
