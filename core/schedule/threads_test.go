package schedule

import (
	"math/rand/v2"
	"slices"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pool is devices that are not queues but share threads. A shard of a gang that
// was launched takes any thread that is free, once those of the gangs it reads have
// ended on its device, and keeps it until it ends: a collective's shard not before
// all shards of its gang have a thread. A State under test orders the gangs.
type pool struct {
	t         *testing.T
	seed      uint64
	rng       *rand.Rand
	st        *State
	threads   int // free
	gangs     map[uint64]*pooled
	launching []uint64
}

type pooled struct {
	gang                    Gang
	over                    bool // ended, or never to run
	launched                bool
	waiting, running, ended []int // devices
}

// runPool runs random gangs on a pool in a random interleaving and returns the gangs
// that hang.
func runPool(t *testing.T, seed uint64, threads int, policy Policy) (hung int) {
	const gangs = 30
	l := &pool{t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 2)), st: New(Config{Policy: policy}), threads: threads,
		gangs: map[uint64]*pooled{}}
	for next := uint64(1); ; {
		can := l.possible()
		if next <= gangs {
			can = append(can, func() { l.submit(next); next++ })
		}
		if len(can) == 0 {
			break
		}
		can[l.rng.IntN(len(can))]()
	}
	for _, p := range l.gangs {
		if !p.over {
			hung++
		}
	}
	if s := l.st; hung == 0 && (s.Queued() != 0 || s.Running() != 0 || l.threads != threads) {
		t.Fatalf("seed %d: all gangs are done, and %d are queued, %d running, %d threads of %d free", seed, s.Queued(),
			s.Running(), l.threads, threads)
	}
	return hung
}

func (l *pool) step(ev Event) {
	for _, a := range l.st.Step(ev, nil) {
		switch a.Kind {
		case Start:
			l.launching = append(l.launching, a.ID)
		case Fail:
			l.gangs[a.ID].over = true
		case Refuse:
			l.t.Fatalf("seed %d: gang %d is refused", l.seed, a.ID)
		}
	}
	l.st.check()
}

// submit draws a gang that reads what gangs before it make, mostly the last ones.
func (l *pool) submit(id uint64) {
	rng := l.rng
	g := Gang{ID: id, Session: 1, Collective: rng.IntN(4) > 0}
	ids := rng.Perm(4)[:1+rng.IntN(4)]
	for range rng.IntN(3) {
		of := l.gangs[id-min(id-1, 1+uint64(rng.IntN(4)))]
		if of == nil || slices.Contains(g.Reads, of.gang.ID) {
			continue
		}
		var covered []int
		for _, d := range ids {
			if of.gang.Devices.Has(d) {
				covered = append(covered, d)
			}
		}
		if len(g.Reads) == 0 && rng.IntN(2) == 0 {
			covered = slices.Collect(of.gang.Devices.All())
		}
		if len(covered) > 0 {
			ids = covered
			g.Reads = append(g.Reads, of.gang.ID)
			if !of.launched {
				g.After = append(g.After, of.gang.ID)
			}
		}
	}
	g.Devices = Devices(ids...)
	l.gangs[id] = &pooled{gang: g, waiting: slices.Collect(g.Devices.All())}
	l.step(Event{Kind: Submit, Gang: g})
}

// possible returns all that can happen now to the gangs that are there.
func (l *pool) possible() (can []func()) {
	for i, id := range l.launching {
		can = append(can, func() {
			l.launching = slices.Delete(l.launching, i, i+1)
			l.gangs[id].launched = true
			l.step(Event{Kind: Launched, ID: id})
		})
	}
	for _, id := range sortedKeys(l.gangs) {
		p := l.gangs[id]
		switch {
		case p.over:
			continue
		case len(p.ended) == p.gang.Devices.Len():
			can = append(can, func() { p.over = true; l.step(Event{Kind: Completed, ID: id}) })
			continue
		case !p.launched && l.rng.IntN(200) == 0:
			can = append(can, func() { l.step(Event{Kind: Cancel, ID: id}) })
		}
		for i, d := range p.waiting {
			if l.threads > 0 && l.ready(p, d) {
				can = append(can, func() {
					l.threads--
					p.waiting = slices.Delete(p.waiting, i, i+1)
					p.running = append(p.running, d)
				})
			}
		}
		for i, d := range p.running {
			if len(p.waiting) == 0 || !p.gang.Collective {
				can = append(can, func() {
					l.threads++
					p.running = slices.Delete(p.running, i, i+1)
					p.ended = append(p.ended, d)
				})
			}
		}
	}
	return can
}

// ready reports whether the shard of p on d may take a thread.
func (l *pool) ready(p *pooled, d int) bool {
	return p.launched && !slices.ContainsFunc(p.gang.Reads, func(id uint64) bool {
		of := l.gangs[id]
		return !of.over && !slices.Contains(of.ended, d)
	})
}

// Random gangs on devices that share threads always finish under the policy, and
// it keeps nothing of them. Placed in the order of submission alone some of them
// hang, or this test would show nothing.
func TestRandomGangsFinishOnSharedThreads(t *testing.T) {
	hangs := 0
	for seed := range uint64(200) {
		threads := 4 + int(seed%4)
		policy := &Threads{Pool: threads, Apart: seed%3 == 0}
		if hung := runPool(t, seed, threads, policy); hung > 0 {
			t.Fatalf("seed %d: %d gangs hang", seed, hung)
		}
		if policy.used != 0 || len(policy.queue)+len(policy.free)+len(policy.chains)+len(policy.of) > 0 {
			t.Fatalf("seed %d: the policy is left with %+v", seed, policy)
		}
		if runPool(t, seed, threads, new(FIFO)) > 0 {
			hangs++
		}
	}
	t.Logf("in the order of submission %d of 200 hang", hangs)
	if hangs == 0 {
		t.Error("nothing hangs without the policy either")
	}
}

// A loop of steps: each gang reads the one before, which is under way.
func BenchmarkThreads(b *testing.B) {
	s := New(Config{Policy: &Threads{Pool: 8}})
	reads := make([]uint64, 1)
	g := Gang{ID: 1, Devices: firstDevices(8), Collective: true, Reads: reads}
	s.Step(Event{Kind: Submit, Gang: g}, nil)
	s.Step(Event{Kind: Launched, ID: g.ID}, nil)
	rounds(b, s, g, reads, 0, 1)
}
