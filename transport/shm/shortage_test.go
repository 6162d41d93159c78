package shm

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/openpathways/pathways/core/bubble"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/device/host"
)

func TestSegmentsLeaveTheHostAPartOfItsMemory(t *testing.T) {
	for memory, want := range map[int64]int64{0: 0, 1 << 30: 64 << 20, 24 << 30: 1536 << 20, 64 << 30: 4 << 30,
		2 << 40: 4 << 30} {
		statustest.Equal(t, left(memory, false), want, "bytes that are left of %d", memory)
		statustest.Equal(t, left(memory, true), want/2, "bytes that clients leave of %d", memory)
	}
}

// A pool asks the system what the host has, whatever its own limit.
func TestHostHasNoMemoryForMoreThanItself(t *testing.T) {
	size := 2 * host.Memory()
	a := NewPool(Config{Limit: 2 * size}).Arena("a", false, nil)
	if _, err := a.Make(int(size)); !errors.Is(err, errShort) || status.CodeOf(err) != status.ResourceExhausted {
		t.Errorf("twice the host's memory: %v", err)
	}
}

// taken is the bytes of the files of pools.
func taken(t testing.TB, pools ...*Pool) (sum int64) {
	t.Helper()
	for _, p := range pools {
		p.mu.Lock()
		for s := range p.all {
			var info unix.Stat_t
			statustest.OK(t, unix.Fstat(int(s.File.Fd()), &info))
			sum += info.Blocks * 512
		}
		p.mu.Unlock()
	}
	return sum
}

// Pools that know nothing of each other share what their host has: what one holds the other waits for.
func TestPoolsOfAHostWaitForItsMemory(t *testing.T) {
	var p, other *Pool
	spare := func() int64 { return 8<<20 - taken(t, p, other) }
	p = NewPool(Config{Limit: 1 << 30, Idle: time.Hour, Spare: spare})
	other = NewPool(Config{Limit: 1 << 30, Idle: time.Millisecond, Spare: spare})
	a, b := p.Arena("a", true, nil), other.Arena("b", true, nil)
	first := get(t, b, 6<<20)
	if _, err := a.Make(6 << 20); !errors.Is(err, errShort) {
		t.Errorf("beside memory of another pool: %v", err)
	}
	statustest.Equal(t, p.Stats().Mapped, 0, "bytes that count for a segment that was not made")
	waits := make(chan *Block, 2)
	for range 2 {
		a.Get(0, 3<<20, func(b *Block, err error) {
			statustest.Check(t, err)
			waits <- b
		})
	}
	select {
	case <-waits:
		t.Error("there is more memory than the host has")
	case <-time.After(2 * retryAfter):
	}
	first.Release()
	for range 2 { // the second has its own pool's memory, if the host has no more
		(<-waits).Release()
	}
	p.Trim()
}

// Arrays that hold all that a worker may take are fetched and released; bytes that would become arrays wait for that.
func TestFetchesGoOnWherePutsWait(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const memory, array = 64 << 20, 2 << 20
		var pools []*Pool
		of := func(client bool) func() int64 {
			return func() int64 { return 3*array + left(memory, false) - left(memory, client) - taken(t, pools...) }
		}
		worker := NewPool(Config{Limit: 1 << 30, Spare: of(false)})
		client := NewPool(Config{Limit: 1 << 30, Client: true, Spare: of(true)})
		pools = []*Pool{worker, client}
		puts, fetches := worker.Arena("puts", true, nil), client.Arena("fetches", true, nil)
		const all = 8
		put := make(chan *Block, all)
		for range all {
			puts.Get(0, array, func(b *Block, err error) {
				statustest.Check(t, err)
				put <- b
			})
		}
		time.Sleep(2 * retryAfter) // until the worker may take no more
		for range all {
			array := <-put
			if array == nil {
				continue
			}
			fetches.Get(0, len(array.Data), func(b *Block, err error) {
				statustest.Check(t, err)
				if err == nil {
					b.Release()
				}
				array.Release()
			})
		}
		synctest.Wait()
		worker.Trim()
		client.Trim()
	})
}

// A segment is made longer than its block, in view of others, only where the host has memory for that.
func TestSegmentIsNoLongerThanTheHostHasMemory(t *testing.T) {
	var p *Pool
	p = NewPool(Config{Limit: 1 << 30, Spare: func() int64 { return 6<<20 - taken(t, p) }})
	a := p.Arena("a", true, nil)
	for range 3 {
		defer statustest.Value(a.Make(2 << 20)).OK(t).Release()
	}
	statustest.Equal(t, p.Stats().Mapped, 6<<20, "bytes that count")
}

// Memory without blocks goes at once where the host has too little.
func TestIdleMemoryGoesWhereTheHostIsShort(t *testing.T) {
	var p *Pool
	p = NewPool(Config{Limit: 1 << 30, Idle: time.Hour, Wait: 1, Spare: func() int64 { return 4<<20 - taken(t, p) }})
	get(t, p.Arena("a", true, nil), 3<<20).Release()
	get(t, p.Arena("b", true, nil), 3<<20).Release()
	p.Trim()
}

// A segment whose host runs out of memory while it is made goes back.
func TestSegmentIsAdmittedStepByStep(t *testing.T) {
	before := mappings(t)
	spare := []int64{2*step + huge, step + huge - 1}
	p := NewPool(Config{Limit: 1 << 30, Spare: func() (is int64) {
		is, spare = spare[0], spare[1:]
		return is
	}})
	statustest.Fails(t, "the host runs out after a step", statustest.Of(p.Arena("a", true, nil).Make(2*step+huge)),
		status.ResourceExhausted, fmt.Sprint(step+huge, " bytes for a are needed"))
	statustest.Equal(t, p.Stats().Mapped, 0, "bytes that count")
	if n := mappings(t); n > before {
		t.Errorf("%d mappings are left", n-before)
	}
}

// Who waits for memory of the host is told when none of the pool's has come back for long, and so are all others.
func TestWaitForTheHostsMemoryEnds(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		spare := int64(1 << 30)
		p := NewPool(Config{Limit: 1 << 30, Wait: time.Minute, Spare: func() int64 { return spare }})
		a, other := p.Arena("a", true, nil), p.Arena("other", true, nil)
		blocks := []*Block{get(t, a, 64<<10), get(t, a, 64<<10)}
		spare = 0
		told := make(chan error, 3)
		for range 3 {
			other.Get(0, 64<<10, func(_ *Block, err error) { told <- err })
		}
		after := func(d time.Duration, want int) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			statustest.MustEqual(t, len(told), want, "requests that were told")
		}
		after(50*time.Second, 0)
		blocks[0].Release()
		after(50*time.Second, 0)
		after(20*time.Second, 3)
		for range 3 {
			statustest.Fails(t, "after a minute", <-told, status.ResourceExhausted, "2097152 bytes for other", "fewer workers")
		}
		blocks[1].Release()
		p.Trim()
	})
}
