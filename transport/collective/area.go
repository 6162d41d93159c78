package collective

import (
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/openpathways/pathways/transport/pages"
)

// An area is the part of a board in which one member writes blocks that the others read in place.
//
// A block is written once, however many read it, and stays until each of its readers has said that it is through, by
// clearing its bit in the block's word. So no message goes back to the writer, which looks at the words when it needs
// room. A reader that is lost never clears its bit: lost does it then. If there is no room, the writer sends the block
// another way; so a slow reader costs its peers an area at most, and never a wait.
type area struct {
	data  []byte // of this member
	words []byte // of this member: readers, by slot

	mu     sync.Mutex
	spans  [slotsMax]span // by slot
	used   [granules]bool // of data
	busy   []int          // slots with a span
	dead   uint64         // places whose members are lost
	limit  int            // granules that may be used
	huge   int            // granules, from the first on, for which huge pages were asked
	high   int            // granules that may have memory
	taken  bool           // since the timer was set
	timer  *time.Timer    // nil if no granule has memory
	closed bool
}

type span struct{ at, n int } // granules

const (
	areaBytes    = 64 << 20
	granule      = 64 << 10
	granules     = areaBytes / granule
	hugeGranules = hugePage / granule
	slotsMax     = 256 // blocks of an area at a time
	hugePage     = pages.Huge
	areaIdle     = 10 * time.Second // after this long without a new block, the memory goes back to the system
)

// spot is the place of a block: in whose area it is, and which word its readers clear.
type spot struct {
	slot int
	at   int64
}

// word returns the word of a slot.
func word(words []byte, slot int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&words[slot*8]))
}

// take returns memory for a block that readers, a bit a place, will read; nil if there is no room. It is not zero.
func (a *area) take(size int64, readers uint64) (spot, []byte) {
	n := int((size + granule - 1) / granule)
	a.mu.Lock()
	defer a.mu.Unlock()
	if readers &^= a.dead; n > a.limit || a.closed || readers == 0 {
		return spot{}, nil
	}
	a.reclaim()
	slot := 0
	for slot < slotsMax && a.spans[slot].n > 0 {
		slot++
	}
	at := a.room(n)
	if slot == slotsMax || at < 0 {
		return spot{}, nil
	}
	for i := at; i < at+n; i++ {
		a.used[i] = true
	}
	a.spans[slot], a.busy = span{at, n}, append(a.busy, slot)
	a.high, a.taken = max(a.high, at+n), true
	a.widen(at, n)
	if a.timer == nil {
		a.timer = time.AfterFunc(areaIdle, a.trim)
	}
	word(a.words, slot).Store(readers)
	return spot{slot, int64(at) * granule}, a.data[at*granule:][:size:size]
}

// widen asks for huge pages for a long block, before its memory has small ones. If there are none, it asks again when
// the area has been idle.
func (a *area) widen(at, n int) {
	if end := (at + n + hugeGranules - 1) / hugeGranules * hugeGranules; n >= hugeGranules/2 && end > a.huge {
		_ = pages.Collapse(a.data[a.huge*granule : end*granule])
		a.huge, a.high = end, max(a.high, end)
	}
}

// room returns the first of n granules that are free, or -1. mu is held, as below.
func (a *area) room(n int) int {
	free := 0
	for i, used := range a.used[:a.limit] {
		if used {
			free = 0
		} else if free++; free == n {
			return i - n + 1
		}
	}
	return -1
}

// reclaim frees the blocks that all readers are done with.
func (a *area) reclaim() {
	left := a.busy[:0]
	for _, slot := range a.busy {
		if word(a.words, slot).Load() != 0 {
			left = append(left, slot)
			continue
		}
		s := &a.spans[slot]
		clear(a.used[s.at : s.at+s.n])
		*s = span{}
	}
	a.busy = left
}

// lost clears the bits of a place whose member has gone.
func (a *area) lost(place int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.dead |= 1 << place
	for _, slot := range a.busy {
		word(a.words, slot).And(^(uint64(1) << place))
	}
}

// trim returns the memory of an area that was not used for a while. It does so under mu, so that nothing is written
// there meanwhile: a use at that moment waits for it, after areaIdle without any.
func (a *area) trim() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return
	}
	a.reclaim()
	if a.taken || len(a.busy) > 0 {
		a.taken = false
		a.timer.Reset(areaIdle)
		return
	}
	_ = unix.Madvise(a.data[:a.high*granule], unix.MADV_REMOVE) // else it stays
	a.high, a.huge, a.timer = 0, 0, nil
}

// bytes is the memory that the area may have.
func (a *area) bytes() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return int64(a.high) * granule
}

func (a *area) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	if a.timer != nil {
		a.timer.Stop()
	}
}
