package sim

import (
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Clock is the kind of time of an island.
type Clock int

// The clocks.
const (
	Instant Clock = iota // virtual; jumps to the next event as soon as there is one
	Manual               // virtual; advanced by Advance, Settle and Driver.Close
	Real                 // the machine's
)

// Island is the clock and the interconnect that simulated devices share.
type Island struct {
	id    string
	clock Clock
	start time.Time

	mu      sync.Mutex
	turned  sync.Cond // signaled at the end of each turn
	turning bool      // whether a goroutine carries out due entries
	ending  bool      // whether it commits one
	now     time.Duration
	due     agenda
	seq     uint64
	timer   *time.Timer // Real only: set for the first of due
	rng     *rand.Rand
	calls   []func()        // to make once mu is free
	launch  map[joint]*gang // gangs of several members of which some have not arrived
	losses  map[joint]error // devices of several members that are lost, by id
	drivers map[*Driver]struct{}
}

// joint is a number within an epoch of several members.
type joint struct {
	epoch  uint64
	number int
}

var islands atomic.Uint64

// NewIsland returns an island. The seed determines everything that is random on it.
func NewIsland(c Clock, seed uint64) *Island {
	is := &Island{
		id:    fmt.Sprintf("%d.%d", os.Getpid(), islands.Add(1)),
		clock: c, start: time.Now(),
		rng:     rand.New(rand.NewPCG(seed, 0)),
		launch:  map[joint]*gang{},
		losses:  map[joint]error{},
		drivers: map[*Driver]struct{}{},
	}
	is.turned.L = &is.mu
	return is
}

// Now returns the time on the island since it was made.
func (is *Island) Now() time.Duration {
	is.mu.Lock()
	defer is.mu.Unlock()
	return is.time()
}

func (is *Island) time() time.Duration {
	if is.clock == Real {
		return max(is.now, time.Since(is.start))
	}
	return is.now
}

// moment returns the time of the current event. Work that waits for the event continues at
// the time when the event was due, even if a Real clock is later when a goroutine handles
// it: a real device starts its next computation by itself.
func (is *Island) moment() time.Duration {
	if is.ending {
		return is.now
	}
	return is.time()
}

// Advance advances a Manual clock by d and carries out everything that becomes due on the
// way. It does nothing on other clocks, and must not be called by a function passed to
// Event.Then.
func (is *Island) Advance(d time.Duration) {
	if is.clock != Manual || d < 0 {
		return
	}
	is.mu.Lock()
	end := is.now + d
	is.turn(end)
	is.now = max(is.now, end)
	is.unlock()
}

// Settle blocks until nothing is due any more: all work is done, deadlocked, or waits for
// further calls. It advances a Manual clock as far as that takes.
func (is *Island) Settle() {
	is.mu.Lock()
	is.settle(func() bool { return true })
	is.unlock()
}

// settle continues while something is due and wanted returns true. It is called and
// returns with mu held.
func (is *Island) settle(wanted func() bool) {
	for (len(is.due) > 0 || is.turning || len(is.calls) > 0) && wanted() {
		switch {
		case len(is.calls) > 0:
			is.call()
		case is.clock == Manual && !is.turning:
			is.turn(is.due[0].at)
		default:
			is.arm()
			is.turned.Wait()
		}
	}
}

// unlock starts what has become due, releases mu, and makes the calls that were deferred.
func (is *Island) unlock() {
	is.arm()
	is.release()
}

// call makes the deferred calls, releasing mu meanwhile.
func (is *Island) call() {
	is.release()
	is.mu.Lock()
}

// release releases mu, and makes the calls that were deferred.
func (is *Island) release() {
	calls := is.calls
	is.calls = nil
	is.mu.Unlock()
	for _, f := range calls {
		f()
	}
}

// arm makes sure that due entries are carried out.
func (is *Island) arm() {
	if is.turning || len(is.due) == 0 || is.clock == Manual {
		return
	}
	if is.clock == Instant {
		is.turning = true
		go is.carry()
		return
	}
	wait := is.due[0].at - is.time()
	if is.timer == nil {
		is.timer = time.AfterFunc(wait, is.ring)
	} else {
		is.timer.Reset(wait)
	}
}

// ring carries out due entries on a Real clock.
func (is *Island) ring() {
	is.mu.Lock()
	is.turn(is.time())
	is.unlock()
}

// carry is the body of the goroutine of an Instant clock, which has set turning.
func (is *Island) carry() {
	is.mu.Lock()
	is.turning = false
	is.turn(math.MaxInt64)
	is.unlock()
}

// turn carries out, in order, the entries that are due until end. Only one goroutine does
// so at a time. It is called and returns with mu held.
func (is *Island) turn(end time.Duration) {
	for is.turning {
		if is.clock != Manual {
			return
		}
		is.turned.Wait()
	}
	is.turning = true
	for len(is.due) > 0 && is.due[0].at <= end {
		e := heap.Pop(&is.due).(*entry)
		e.taken = true
		is.now = max(is.now, e.at)
		if e.work != nil {
			is.mu.Unlock()
			e.work()
			is.mu.Lock()
		}
		is.ending = true
		e.commit()
		is.ending = false
		if len(is.calls) > 0 {
			is.call()
		}
	}
	is.turning = false
	is.turned.Broadcast()
}

// entry is something that happens at a certain time: work, without the lock, which may
// take real time, and then commit, with the lock.
type entry struct {
	at     time.Duration
	seq    uint64
	taken  bool // whether its turn has come
	work   func()
	commit func()
}

// after adds an entry to the agenda, d later than now.
func (is *Island) after(d time.Duration, work, commit func()) *entry {
	return is.set(is.moment()+d, work, commit)
}

// set adds an entry to the agenda.
func (is *Island) set(at time.Duration, work, commit func()) *entry {
	is.seq++
	e := &entry{at: at, seq: is.seq, work: work, commit: commit}
	heap.Push(&is.due, e)
	return e
}

// agenda is a heap of entries, by time and then in the order in which they were added.
type agenda []*entry

func (a agenda) Len() int { return len(a) }
func (a agenda) Less(i, j int) bool {
	return a[i].at < a[j].at || (a[i].at == a[j].at && a[i].seq < a[j].seq)
}
func (a agenda) Swap(i, j int) { a[i], a[j] = a[j], a[i] }
func (a *agenda) Push(x any)   { *a = append(*a, x.(*entry)) }
func (a *agenda) Pop() any {
	old := *a
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*a = old[:len(old)-1]
	return e
}
