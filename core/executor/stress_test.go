package executor_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/openpathways/pathways/core/executor"
	"github.com/openpathways/pathways/core/schedule"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
)

// arena is an island under random load, with what is seen of it.
type arena struct {
	t       *testing.T
	is      *executor.Island
	closeAt int64 // submissions until Close; 0 is never
	entered atomic.Int64
	closing atomic.Bool // Close may have been called
	closed  atomic.Bool // Close has returned
	bound   int64
	inside  atomic.Int64   // gangs under way that the bound is about
	later   sync.WaitGroup // goroutines that end gangs

	mu      sync.Mutex     // guards the rest
	holder  []uint64       // by device: the gang of several devices that is being launched
	order   [][]uint64     // by device: gangs of several devices
	gangs   []uint64       // that others may read from
	verdict map[uint64]int // launches and failures
	over    map[uint64]bool
}

// run is one gang.
type run struct {
	*arena
	devices []int
	after   []uint64
	rng     *rand.Rand
	turn    executor.Turn
	own     bool // launched by its own thread
}

// launch puts the gang into the queues of its devices.
func (r *run) launch() (underWay bool) {
	gang := r.turn.Gang
	counted := !r.turn.Now || r.turn.Cell != nil
	if counted {
		if n := r.inside.Add(1); r.bound > 0 && n > r.bound {
			r.t.Errorf("%d gangs are under way, the bound is %d", n, r.bound)
		}
	}
	if !r.own && r.closed.Load() {
		r.t.Errorf("gang %d: launched after Close", gang)
	}
	many := len(r.devices) > 1
	r.mu.Lock()
	r.verdict[gang]++
	for _, p := range r.after {
		if !r.over[p] {
			r.t.Errorf("gang %d is launched before gang %d, from which it reads", gang, p)
		}
	}
	for _, d := range r.devices {
		if many && r.holder[d] != 0 {
			r.t.Errorf("gangs %d and %d are launched at once on device %d", r.holder[d], gang, d)
		}
		if many {
			r.holder[d] = gang
		}
	}
	r.mu.Unlock()
	r.join(gang)
	if r.rng.IntN(4) == 0 { // a callback that submits
		turn, err := r.is.Enter(&schedule.Gang{Devices: schedule.Devices(r.devices...)}, true)
		switch {
		case err == nil && turn.Now && turn.Cell == nil:
			r.join(turn.Gang)
		case !r.closing.Load() || status.CodeOf(err) != status.Unavailable:
			r.t.Errorf("from a callback: %+v, %v", turn, err)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range r.devices {
		if many {
			r.holder[d] = 0
		}
	}
	r.over[gang] = true
	if underWay = counted && r.rng.IntN(2) == 0; counted && !underWay {
		r.inside.Add(-1)
	}
	return underWay
}

// compute has the gang done some time later.
func (r *run) compute() {
	r.later.Go(func() {
		runtime.Gosched()
		r.inside.Add(-1)
		tell(r.is, r.turn, executor.CellDone)
	})
}

// Launch is called by the island; the gang may be done before it returns.
func (r *run) Launch(uint64) (underWay bool) {
	if underWay = r.launch(); underWay {
		r.compute()
	}
	return underWay
}

// launchOwn launches the gang on its own thread.
func (r *run) launchOwn() {
	r.own = true
	if r.launch() {
		tell(r.is, r.turn, executor.CellLaunched)
		r.compute()
	} else {
		end(r.is, r.turn)
	}
}

// join puts a gang into the queues of the devices, one after the other.
func (r *run) join(gang uint64) {
	for _, k := range r.rng.Perm(len(r.devices)) {
		if r.rng.IntN(2) == 0 {
			runtime.Gosched()
		}
		if len(r.devices) > 1 {
			r.mu.Lock()
			r.order[r.devices[k]] = append(r.order[r.devices[k]], gang)
			r.mu.Unlock()
		}
	}
}

func (r *run) Fail(gang uint64, err error) {
	if !r.closing.Load() || status.CodeOf(err) != status.Cancelled {
		r.t.Errorf("gang %d failed: %v: %v", gang, status.CodeOf(err), err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.verdict[gang]++
	r.over[gang] = true
}

// gang submits one random gang and sees it through, as far as its thread does. It
// reports whether there may be more.
func (a *arena) gang(rng *rand.Rand) bool {
	r := &run{arena: a, rng: rand.New(rand.NewPCG(rng.Uint64(), 0))}
	r.devices = rng.Perm(len(a.holder))
	if rng.IntN(3) == 0 {
		r.devices = r.devices[:1]
	} else {
		r.devices = r.devices[:2+rng.IntN(len(a.holder)-1)]
	}
	a.mu.Lock()
	for range rng.IntN(3) {
		if n := len(a.gangs); n > 0 { // the newest are those that wait
			r.after = append(r.after, a.gangs[max(0, n-1-rng.IntN(8))])
		}
	}
	a.mu.Unlock()
	turn, err := a.is.Enter(&schedule.Gang{Devices: schedule.Devices(r.devices...), After: r.after}, false)
	if err != nil {
		if !a.closing.Load() || status.CodeOf(err) != status.Unavailable {
			a.t.Errorf("Enter: %v", err)
		}
		return false
	}
	r.turn = turn
	if !turn.Now || turn.Cell != nil { // others can wait for it
		a.mu.Lock()
		a.gangs = append(a.gangs, turn.Gang)
		a.mu.Unlock()
	}
	last := a.entered.Add(1) == a.closeAt
	if last {
		a.closing.Store(true)
	}
	switch {
	case turn.Now:
		r.launchOwn()
	case rng.IntN(3) > 0:
		a.is.Arm(turn.Gang, r)
	default:
		if err := a.is.Await(turn.Gang); err != nil {
			r.Fail(turn.Gang, err)
		} else {
			r.launchOwn()
		}
	}
	if last {
		a.is.Close()
		a.closed.Store(true)
	}
	return !last
}

// Whatever is submitted by however many threads: gangs of several devices that
// share one are not launched at the same time and come to all devices in one
// order, no more than the bound are under way, each gang is launched or failed once, after what it reads from, and all
// of them are.
func TestOrderHoldsUnderManyThreads(t *testing.T) {
	const workers, each = 6, 50
	seeds := uint64(60)
	if testing.Short() {
		seeds = 10
	}
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(seed, 1))
		devices := []int{3, 8, 70}[rng.IntN(3)]
		cells, most, window, bound := rng.IntN(4), 1+rng.IntN(8), rng.IntN(2)*(1+rng.IntN(4)), rng.IntN(2)*(1+rng.IntN(4))
		a := &arena{t: t, bound: int64(bound), holder: make([]uint64, devices), order: make([][]uint64, devices),
			verdict: map[uint64]int{}, over: map[uint64]bool{},
			is: executor.NewIsland(newCells(cells), schedule.Config{MaxQueued: most, Policy: &schedule.FIFO{Window: window}})}
		a.is.Bound(bound)
		if rng.IntN(2) == 0 {
			a.closeAt = 1 + rng.Int64N(workers*each)
		}
		t.Run(fmt.Sprintf("seed=%d,devices=%d,cells=%d,queue=%d,window=%d,bound=%d,close=%d", seed, devices, cells, most,
			window, bound, a.closeAt), func(t *testing.T) {
			a.t = t
			var all sync.WaitGroup
			for w := range workers {
				all.Go(func() {
					rng := rand.New(rand.NewPCG(seed, uint64(2+w)))
					for n := 0; n < each && a.gang(rng); n++ {
					}
				})
			}
			all.Wait()
			for a.closeAt == 0 && !a.done() { // so that Close finds nothing to fail
				runtime.Gosched()
			}
			a.is.Close()
			a.later.Wait()
			a.check()
		})
	}
}

// done reports whether all that was submitted has been launched or has failed.
func (a *arena) done() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return int64(len(a.over)) == a.entered.Load()
}

func (a *arena) check() {
	if !a.done() {
		a.t.Errorf("%d gangs were submitted and %d are over", a.entered.Load(), len(a.over))
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for g := range a.over {
		statustest.Equal(a.t, a.verdict[g], 1, "how often gang %d was launched or failed", g)
	}
	for d := range a.order {
		for o := range d {
			x, y := shared(a.order[d], a.order[o]), shared(a.order[o], a.order[d])
			if !slices.Equal(x, y) {
				a.t.Errorf("devices %d and %d saw gangs in the orders %v and %v", d, o, x, y)
			}
		}
	}
	if now, _ := a.is.Queued(); now != 0 {
		a.t.Errorf("%d gangs wait", now)
	}
}

// shared is what of the gangs is also among the others.
func shared(gangs, others []uint64) (both []uint64) {
	in := map[uint64]bool{}
	for _, g := range others {
		in[g] = true
	}
	for _, g := range gangs {
		if in[g] {
			both = append(both, g)
		}
	}
	return both
}
