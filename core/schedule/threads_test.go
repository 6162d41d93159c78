package schedule

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/openpathways/pathways/core/status/statustest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestGangsOnAPoolStartWhenItHasThreads passes gangs to a State with the policy, launches each as it starts,
// and wants the gangs that start, or fail, by every event.
func TestGangsOnAPoolStartWhenItHasThreads(t *testing.T) {
	type step struct {
		ev   Event
		want string
	}
	waits := func(id uint64, on string, reads ...uint64) Event { // gangs whose shards wait for each other
		devices := statustest.Value(parseDevices(on)).OK(t)
		return Event{Kind: Submit,
			Gang: Gang{ID: id, Session: uint32(id % 2), Devices: devices, Collective: true, Reads: reads}}
	}
	free := func(id uint64, on string, after ...uint64) Event {
		ev := waits(id, on, after...)
		ev.Gang.Collective, ev.Gang.After = false, after
		return ev
	}
	done := func(id uint64) Event { return Event{Kind: Completed, ID: id} }
	failed := func(id uint64) Event { return Event{Kind: Failed, ID: id} }
	cancel := func(id uint64) Event { return Event{Kind: Cancel, ID: id} }

	for _, test := range []struct {
		name   string
		policy Threads
		steps  []step
	}{
		{"a chain is under way as a whole", Threads{Pool: 8}, []step{
			{waits(1, "0-7"), "1"},
			{waits(2, "0-7", 1), "2"},
			{waits(3, "0-7", 2), "3"},
			{waits(4, "0-7", 9, 3), "4"},
			{waits(5, "0-3", 4), "5"},
			{waits(6, "4-7"), ""}, // the chain keeps its eight
			{done(1), ""},
			{done(2), ""},
			{done(3), ""},
			{done(4), ""},
			{done(5), "6"},
		}},
		{"a gang of its own waits until threads are free", Threads{Pool: 8}, []step{
			{waits(1, "0-7"), "1"},
			{waits(2, "0-7", 1), "2"},
			{waits(3, "0-7"), ""},
			{done(1), ""},
			{done(2), "3"},
		}},
		{"a gang waits for as many threads as it has devices", Threads{Pool: 8}, []step{
			{waits(1, "0-2"), "1"},
			{waits(2, "3-5"), "2"},
			{waits(3, "0-2"), ""},
			{done(2), "3"},
		}},
		{"two chains of four fit eight", Threads{Pool: 8}, []step{
			{waits(1, "0-3"), "1"},
			{waits(2, "4-7"), "2"},
			{waits(3, "0-3", 1), "3"},
			{waits(4, "4-7", 2), "4"},
			{waits(5, "0-3", 3), "5"},
			{waits(6, "0-1"), ""},
			{done(2), ""},
			{done(4), "6"},
		}},
		{"two chains of four on the same devices fit eight", Threads{Pool: 8}, []step{
			{waits(1, "0-3"), "1"},
			{waits(2, "0-3"), "2"},
			{waits(3, "0-3", 1), "3"},
			{waits(4, "0-3", 2), "4"},
		}},
		{"a gang that reads one in the middle of a chain waits", Threads{Pool: 8}, []step{
			{waits(1, "0-7"), "1"},
			{waits(2, "0-7", 1), "2"},
			{waits(3, "0-7", 1), ""},
			{done(1), ""},
			{done(2), "3"},
		}},
		{"a gang that reads two chains is of one and waits for the other by what it reads", Threads{Pool: 8}, []step{
			{waits(1, "0-3"), "1"},
			{waits(2, "0-3"), "2"},
			{waits(3, "0-3", 1, 2), "3"},
			{waits(4, "0-3"), ""},
			{done(2), "4"},
		}},
		{"gangs that wait for no other pass", Threads{Pool: 8}, []step{
			{waits(1, "0-7"), "1"},
			{waits(2, "0-7"), ""},
			{free(3, "0-7"), "3"},
			{free(4, "5"), "4"},
			{free(5, "0-7", 1), "5"},
			{free(6, "0-3", 5), "6"},
			{done(3), ""},
			{done(4), ""},
			{done(5), ""},
			{done(6), ""},
			{done(1), "2"},
		}},
		{"a gang that comes after one that waits does not pass it", Threads{Pool: 8}, []step{
			{waits(1, "0-7"), "1"},
			{waits(2, "0-7"), ""},
			{free(3, "0-7", 2), ""},
			{free(4, "2", 3), ""},
			{free(5, "0-7"), "5"},
			{done(1), "2, 3, 4"},
			{waits(6, "0-7", 2), "6"}, // 3 and 4 are none of the chain
			{done(2), ""},
			{done(6), ""},
			{waits(7, "0-7"), "7"}, // and have no threads
		}},
		{"a gang fails with the one that waits and that it comes after", Threads{Pool: 8}, []step{
			{waits(1, "0-7"), "1"},
			{waits(2, "0-7"), ""},
			{free(3, "0-7", 2), ""},
			{waits(4, "0-7"), ""},
			{cancel(2), "fail 2, fail 3"},
			{done(1), "4"},
		}},
		{"those that wait keep their order", Threads{Pool: 8}, []step{
			{waits(1, "0-7"), "1"},
			{waits(2, "0-3"), ""},
			{waits(3, "0-7", 1), ""}, // would continue the chain of 1 indefinitely
			{waits(4, "4-7"), ""},
			{done(1), "2"},
			{done(2), "3"},
			{waits(5, "0-7", 3), ""},
			{done(3), "4"},
			{done(4), "5"},
		}},
		{"a narrow gang does not pass a wide one", Threads{Pool: 8}, []step{
			{waits(1, "0-3"), "1"},
			{waits(2, "0-7"), ""},
			{waits(3, "4-7"), ""},
			{done(1), "2"},
			{done(2), "3"},
		}},
		{"one that is cancelled while it waits makes room", Threads{Pool: 8}, []step{
			{waits(1, "0-3"), "1"},
			{waits(2, "0-7"), ""},
			{waits(3, "4-7"), ""},
			{waits(4, "4-7", 3), ""},
			{cancel(4), "fail 4"},
			{cancel(2), "fail 2, 3"},
			{cancel(3), ""}, // started
			{waits(5, "4-7", 3), "5"},
		}},
		{"a session that closes makes room", Threads{Pool: 8}, []step{
			{waits(1, "0-3"), "1"},
			{waits(2, "0-7"), ""},
			{waits(3, "0-7"), ""},
			{waits(4, "0-7"), ""},
			{Event{Kind: SessionClosed, Session: 0}, "fail 2, fail 4"},
			{done(1), "3"},
		}},
		{"members that fail give their threads back", Threads{Pool: 8}, []step{
			{waits(1, "0-7"), "1"},
			{waits(2, "0-7", 1), "2"},
			{waits(3, "0-7", 2), "3"},
			{waits(4, "0-7"), ""},
			{failed(2), ""},
			{done(1), ""},
			{failed(3), "4"},
			{failed(4), ""},
			{waits(5, "0-7"), "5"},
		}},
		{"a chain that has ended is not gone on with", Threads{Pool: 8}, []step{
			{waits(1, "0-3"), "1"},
			{waits(2, "4-7"), "2"},
			{done(1), ""},
			{waits(3, "0-3"), "3"},
			{waits(4, "0-3", 1), ""},
			{done(2), "4"},
		}},
		{"a pool too small still runs one chain", Threads{Pool: 4}, []step{
			{waits(1, "0-7"), "1"},
			{waits(2, "0-7", 1), "2"},
			{waits(3, "0-1"), ""},
			{done(1), ""},
			{done(2), "3"},
		}},
		{"chains that are to be apart share no device", Threads{Pool: 8, Apart: true}, []step{
			{waits(1, "0-1"), "1"},
			{waits(2, "0-1", 1), "2"},
			{waits(3, "2-3"), "3"},
			{waits(4, "1-3", 2), ""}, // 3 is on two of its devices, and not of its chain
			{waits(5, "6-7"), ""},    // in the order of submission
			{done(3), "4, 5"},
			{waits(6, "0"), ""},
			{done(1), ""},
			{done(2), ""},
			{done(4), "6"},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := New(Config{Policy: &test.policy})
			var reads [4]uint64 // as the caller's, which Step does not keep
			for i, step := range test.steps {
				if step.ev.Kind == Submit {
					n := copy(reads[:], step.ev.Gang.Reads)
					step.ev.Gang.Reads = reads[:n]
				}
				var got []string
				todo := s.Step(step.ev, nil)
				s.check()
				clear(reads[:])
				for ; len(todo) > 0; todo = todo[1:] {
					switch a := todo[0]; a.Kind {
					case Start:
						got = append(got, fmt.Sprint(a.ID))
						todo = s.Step(Event{Kind: Launched, ID: a.ID}, todo)
						s.check()
					case Fail:
						got = append(got, fmt.Sprintf("fail %d", a.ID))
					case Refuse:
						t.Fatalf("gang %d is refused", a.ID)
					}
				}
				if got := strings.Join(got, ", "); got != step.want {
					t.Fatalf("step %d, gang %d: got %q, want %q", i+1, max(step.ev.ID, step.ev.Gang.ID), got, step.want)
				}
			}
		})
	}
}

// pool is devices that are not queues but share threads. A shard of a gang that
// was launched takes any thread that is free, once those of the gangs it reads have
// ended on its device, and keeps it until it ends: a collective's shard not before
// all shards of its gang have a thread.
type pool struct {
	threads int // free
	gangs   map[uint64]*pooled
}

type pooled struct {
	gang                    Gang
	over                    bool // ended, or never to run
	launched                bool
	waiting, running, ended []int // devices
}

// ready reports whether the shard of p on d may take a thread.
func (l *pool) ready(p *pooled, d int) bool {
	return p.launched && !slices.ContainsFunc(p.gang.Reads, func(id uint64) bool {
		of := l.gangs[id]
		return !of.over && !slices.Contains(of.ended, d)
	})
}

// runPool runs random gangs on a pool in a random interleaving and returns the gangs
// that hang.
func runPool(t *testing.T, seed uint64, threads int, policy Policy) (hung int) {
	rng := rand.New(rand.NewPCG(seed, 2))
	s, l := New(Config{Policy: policy}), &pool{threads: threads, gangs: map[uint64]*pooled{}}
	var launching []uint64
	step := func(ev Event) {
		for _, a := range s.Step(ev, nil) {
			switch a.Kind {
			case Start:
				launching = append(launching, a.ID)
			case Fail:
				l.gangs[a.ID].over = true
			case Refuse:
				t.Fatalf("seed %d: gang %d is refused", seed, a.ID)
			}
		}
		s.check()
	}
	const gangs = 30
	submit := func(id uint64) {
		g := Gang{ID: id, Session: 1, Collective: rng.IntN(4) > 0}
		ids := rng.Perm(4)[:1+rng.IntN(4)]
		for range rng.IntN(3) { // of gangs before, mostly the last ones
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
		step(Event{Kind: Submit, Gang: g})
	}
	next := uint64(1)
	for {
		// All that can happen now, and one of it does.
		var can []func()
		if next <= gangs {
			can = append(can, func() { submit(next); next++ })
		}
		for i, id := range launching {
			can = append(can, func() {
				launching = slices.Delete(launching, i, i+1)
				l.gangs[id].launched = true
				step(Event{Kind: Launched, ID: id})
			})
		}
		for _, id := range sortedKeys(l.gangs) {
			p := l.gangs[id]
			switch {
			case p.over:
				continue
			case len(p.ended) == p.gang.Devices.Len():
				can = append(can, func() { p.over = true; step(Event{Kind: Completed, ID: id}) })
				continue
			case !p.launched && rng.IntN(200) == 0:
				can = append(can, func() { step(Event{Kind: Cancel, ID: id}) })
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
		if len(can) == 0 {
			break
		}
		can[rng.IntN(len(can))]()
	}
	for _, p := range l.gangs {
		if !p.over {
			hung++
		}
	}
	if hung == 0 && (s.Queued() != 0 || s.Running() != 0 || l.threads != threads) {
		t.Fatalf("seed %d: all gangs are done, and %d are queued, %d running, %d threads of %d free", seed, s.Queued(),
			s.Running(), l.threads, threads)
	}
	return hung
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
