// Package shm is the memory that bytes travel through: pooled, pre-faulted,
// 64-byte aligned, outside the Go heap, and, where a peer on the same machine is
// to write into it, shared with that peer.
//
// A Pool bounds and counts it all. Whatever its own bound, it leaves the host some memory, which all pools of a host
// look at before they make more: so together they are bounded, too. An Arena is the part of it that serves one
// purpose and, if it is shared, one peer: no peer can write where another's bytes
// are, and when a peer is lost its arena is closed, so that what it may still
// write goes nowhere. Memory comes in segments; a shared one is a memfd, sealed
// against shrinking, whose file is passed to the peer and mapped there once.
// Nothing is in the file system.
//
// Blocks of up to 32 KiB are cells of slabs, longer ones are runs of pages. A
// segment without blocks stays for a while, then goes back to the system; at once
// where others wait for room.
//
// # Concurrency
//
// Everything may be called from any goroutine. No callback is made under a lock.
package shm

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/device/host"
)

const (
	align       = 64
	page        = 4096
	huge        = 2 << 20
	largestCell = 32 << 10
	slabSize    = 64 << 10
	grownAtMost = 64 << 20 // a segment made for a shorter block is no longer than this
)

// Config bounds a Pool. Zero fields take the defaults.
type Config struct {
	Limit int64         // bytes of all segments; half of the memory that the process may use
	Idle  time.Duration // how long a segment without blocks stays; 10 s
	// Wait is how long requests wait for memory of the host while none of the pool's comes back; 90 s, since workers keep
	// memory of former results for up to a minute.
	Wait time.Duration
	// Client says that the pool is of a client. It leaves the host half as much memory as others do, so that arrays can
	// still be fetched, and then released, where bytes that would become arrays have to wait.
	Client bool
	// Spare returns how many bytes segments may yet take of the host; what the system says.
	Spare func() int64
	// Pin announces memory for blocks to devices, and returns a function that announces its end, or nil. It takes
	// milliseconds, and the function that it returns may have to wait for the devices. Pin is nil if no device needs to
	// know.
	Pin func(data []byte) (unpin func())
}

// Pool is the memory of a process's exchange.
type Pool struct {
	config Config

	mu     sync.Mutex
	mapped int64 // bytes of segments, with those being made
	// Segments that are no more, and are pinned yet: their bytes, and how many they are, with mappings. Settled is
	// signaled when one has gone; it uses mu.
	leaving  int64
	releases int
	settled  sync.Cond
	all      map[*Segment]struct{}
	used     int64               // bytes of blocks, as they were asked for
	arenas   map[*Arena]struct{} // that have blocks, or had some before
	owned    map[uint64]*int64   // of used, by owner; 0 if it had some before
	last     struct {            // in owned
		owner uint64
		bytes *int64 // nil: none
	}
	made    sync.Cond   // a segment was made, or will not be; uses mu
	waiting []*want     // in the order of asking
	round   uint64      // of serve
	idle    []*Segment  // without blocks, the longest idle first
	timer   *time.Timer // returns idle segments
	short   shortage
}

// want is a request that waits for a block.
type want struct {
	arena *Arena
	owner uint64
	size  int
	grows bool // a segment is being made for it
	then  func(*Block, error)
}

// Arena has blocks for one purpose.
type Arena struct {
	pool     *Pool
	purpose  string
	shared   bool
	dropped  func(*Segment)
	segments []*Segment                     // guarded by pool.mu, as all below
	slabs    [largestCell/align + 1][]*slab // with room, by cell
	mapped   int64
	used     int64 // bytes of blocks
	listed   bool  // in Pool.arenas
	numbers  uint32
	coming   []*coming
	grows    bool   // one of these is for a request that waits
	round    uint64 // of serve, in which there was
	dry      int    // no block of this size
	closed   error
	asked    sync.WaitGroup // requests that wait, or are being answered
}

// coming is a segment that is being made.
type coming struct {
	number uint32
	size   int64
	left   int64 // bytes that are promised to no block
}

// Block is a piece of memory. Data is 64-byte aligned.
type Block struct {
	Data    []byte
	Segment *Segment // nil for a block of no bytes
	Offset  int64    // in the segment

	owner    uint64
	length   int64 // of the run; 0 for a cell
	slab     *slab
	released atomic.Bool
}

// NewPool makes a pool.
func NewPool(config Config) *Pool {
	memory := cmp.Or(host.Memory(), 16<<30) // if the system does not say
	if config.Limit == 0 {
		config.Limit = memory / 2
	}
	if config.Idle == 0 {
		config.Idle = 10 * time.Second
	}
	if config.Wait == 0 {
		config.Wait = 90 * time.Second
	}
	if config.Spare == nil {
		config.Spare = spare(left(memory, config.Client))
	}
	p := &Pool{config: config, all: map[*Segment]struct{}{}, arenas: map[*Arena]struct{}{}, owned: map[uint64]*int64{}}
	p.settled.L, p.made.L = &p.mu, &p.mu
	return p
}

// Stats says what a pool holds: bytes of segments, and bytes of blocks by purpose and by owner.
type Stats struct {
	Limit  int64 // of Mapped
	Mapped int64
	Used   map[string]int64
	Owned  map[uint64]int64
}

// Stats counts.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Stats{Limit: p.config.Limit, Mapped: p.mapped + p.leaving, Used: map[string]int64{}, Owned: map[uint64]int64{}}
	for a := range p.arenas {
		if a.used == 0 {
			a.unlist()
			continue
		}
		s.Used[a.purpose] += a.used
	}
	p.last.bytes = nil
	for owner, bytes := range p.owned {
		if *bytes == 0 {
			delete(p.owned, owner)
			continue
		}
		s.Owned[owner] = *bytes
	}
	return s
}

// count records a block that was taken, or, with a negative size, given back. Blocks mostly come and go one after
// the other for one owner, so the maps are left alone then.
func (a *Arena) count(owner uint64, size int64) {
	p := a.pool
	p.used += size
	if a.used += size; !a.listed {
		a.listed = true
		p.arenas[a] = struct{}{}
	}
	if p.last.bytes == nil || p.last.owner != owner {
		p.last.owner, p.last.bytes = owner, p.owned[owner]
		if p.last.bytes == nil {
			p.last.bytes = new(int64)
			p.owned[owner] = p.last.bytes
		}
	}
	*p.last.bytes += size
}

func (a *Arena) unlist() {
	a.listed = false
	delete(a.pool.arenas, a)
}

// keepAtMost is the part of a pool that its users may keep for long: the rest is for
// bytes on their way, which nothing else would make room for.
const keepAtMost = 4

// Keeps reports whether size more bytes may be kept for long.
func (p *Pool) Keeps(size int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.used+size <= p.config.Limit/keepAtMost
}

// Limit returns how many bytes all segments may have.
func (p *Pool) Limit() int64 { return p.config.Limit }

// Find returns the shared segment that contains the bytes, and their offset; nil if there is none. Their block must not
// be released meanwhile.
func (p *Pool) Find(data []byte) (*Segment, int64) {
	at, size := uintptr(unsafe.Pointer(unsafe.SliceData(data))), int64(len(data))
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := range p.all {
		begin := uintptr(unsafe.Pointer(unsafe.SliceData(s.data)))
		if s.File != nil && at >= begin && at-begin <= uintptr(s.Size-size) && size <= s.Size {
			return s, int64(at - begin)
		}
	}
	return nil, 0
}

// Arena makes an arena. Dropped, if it is not nil, is called with each shared segment that is returned to the system
// while the arena is open, so that the peer unmaps it.
func (p *Pool) Arena(purpose string, shared bool, dropped func(*Segment)) *Arena {
	return &Arena{pool: p, purpose: purpose, shared: shared, dropped: dropped}
}

// Get calls then with a block of size bytes, on the account of an owner (0 is no owner): before it returns if there is
// memory at hand, else from another goroutine once memory has been made or has come back. The bytes are not zero.
//
// Errors: RESOURCE_EXHAUSTED where the pool can never hold it, the host has had no memory for it all the time that it
// may wait, or the system refuses; the arena's error when it is closed.
func (a *Arena) Get(owner uint64, size int, then func(*Block, error)) {
	if size == 0 {
		then(&Block{Data: []byte{}}, nil)
		return
	}
	p := a.pool
	p.mu.Lock()
	if a.closed != nil {
		err := a.closed
		p.mu.Unlock()
		then(nil, err)
		return
	}
	if need := segmentFor(size, 0); need > p.config.Limit {
		p.mu.Unlock()
		then(nil, status.New(status.ResourceExhausted,
			"%d bytes for %s are more than the %d that this process's transfers may use, which is half of the memory that its "+
				"machine or its control group has; send smaller pieces, or give it more memory", size, a.purpose,
			p.config.Limit))
		return
	}
	if b := a.take(owner, size); b != nil {
		p.mu.Unlock()
		then(b, nil)
		return
	}
	a.asked.Add(1)
	p.waiting = append(p.waiting, &want{arena: a, owner: owner, size: size, then: then})
	gone := p.serve()
	p.mu.Unlock()
	unmap(gone)
}

// Try returns a block, as Get does, if there is memory at hand for it, else nil.
func (a *Arena) Try(owner uint64, size int) *Block {
	if size == 0 {
		return &Block{Data: []byte{}}
	}
	a.pool.mu.Lock()
	defer a.pool.mu.Unlock()
	if a.closed != nil {
		return nil
	}
	return a.take(owner, size)
}

// Make returns a block without an owner, and does not wait for others' blocks: it is of memory at hand, or of a segment
// that is being made or that Make makes. The bytes are not zero.
//
// Errors: RESOURCE_EXHAUSTED where what others have leaves no room, in the pool or on the host, or the system
// refuses; the arena's error when it is closed.
func (a *Arena) Make(size int) (*Block, error) { return a.MakeFor(0, size) }

// MakeFor is Make of a block on the account of an owner.
func (a *Arena) MakeFor(owner uint64, size int) (*Block, error) {
	if size == 0 {
		return &Block{Data: []byte{}}, nil
	}
	p := a.pool
	p.mu.Lock()
	for {
		if a.closed != nil {
			defer p.mu.Unlock()
			return nil, a.closed
		}
		if b := a.take(owner, size); b != nil {
			p.mu.Unlock()
			return b, nil
		}
		if !a.awaits(size) {
			break
		}
	}
	need, gone := p.room(size, a)
	if p.mapped+need > p.config.Limit {
		mapped := p.mapped
		p.mu.Unlock()
		unmap(gone)
		return nil, status.New(status.ResourceExhausted, "%d bytes for %s do not fit beside %d bytes of memory that are in "+
			"use, of %d that this process's transfers may use, which is half of the memory that its machine or its control "+
			"group has; release arrays, or give it more memory", size, a.purpose, mapped, p.config.Limit)
	}
	c := a.reserve(need, size)
	p.mu.Unlock()
	unmap(gone)
	return a.extend(c, &want{arena: a, owner: owner, size: size})
}

// promise sets room for a block aside, if there is some left.
func (c *coming) promise(size int) bool {
	takes := shareFor(size)
	if c.left < takes {
		return false
	}
	c.left -= takes
	return true
}

// awaits waits for a segment that is being made and has room left for a block; it returns false if there is none.
// Without it, blocks that are asked for at once would each get a segment as long as all those before.
func (a *Arena) awaits(size int) bool {
	for _, c := range a.coming {
		if c.promise(size) {
			for slices.Contains(a.coming, c) {
				a.pool.made.Wait()
			}
			return true
		}
	}
	return false
}

// reserve begins a segment for a block: it counts the segment's bytes, and the block's share of them.
func (a *Arena) reserve(need int64, size int) *coming {
	a.pool.mapped += need
	a.mapped += need
	a.numbers++
	c := &coming{number: a.numbers, size: need, left: need}
	c.promise(size)
	a.coming = append(a.coming, c)
	return c
}

// extend makes a segment that was reserved, and takes a block from it. It is called without the lock. If the host has
// too little memory and the request waits for more, it returns neither a block nor an error.
func (a *Arena) extend(c *coming, w *want) (b *Block, err error) {
	p := a.pool
	s, err := newSegment(a, c.number, c.size)
	if errors.Is(err, errShort) && a.cut(c) {
		s, err = newSegment(a, c.number, c.size)
	}
	p.mu.Lock()
	a.coming = slices.DeleteFunc(a.coming, func(other *coming) bool { return other == c })
	p.made.Broadcast()
	if a.closed != nil {
		err = a.closed
	}
	var gone []*Segment
	waits := false
	if errors.Is(err, errShort) {
		waits = w.grows && p.lacks()
		gone = p.strip()
	}
	if w.grows {
		w.grows, a.grows = false, false
		if !waits {
			p.waiting = slices.DeleteFunc(p.waiting, func(other *want) bool { return other == w })
		}
	}
	if err == nil {
		p.short.since = time.Time{}
		a.segments = append(a.segments, s)
		p.all[s] = struct{}{}
		if b = a.take(w.owner, w.size); s.live == 0 {
			p.rest(s) // other memory came back meanwhile
		}
	} else {
		p.mapped -= c.size
		a.mapped -= c.size
	}
	gone = append(gone, p.serve()...)
	p.mu.Unlock()
	if err != nil && s != nil {
		s.unmap() // it is in no list
	}
	unmap(gone)
	if waits {
		return nil, nil
	}
	return b, err
}

// room returns how long a segment for a block is to be, and makes room for it as far
// as segments without blocks can go.
func (p *Pool) room(size int, a *Arena) (need int64, gone []*Segment) {
	need = segmentFor(size, a.mapped)
	if p.mapped+need > p.config.Limit {
		need = segmentFor(size, 0)
	}
	for p.mapped+need > p.config.Limit && len(p.idle) > 0 {
		gone = append(gone, p.idle[0])
		p.remove(p.idle[0])
	}
	return need, gone
}

// Close ends an arena: requests that wait end with err, and its segments go as soon as their
// blocks are released.
func (a *Arena) Close(err error) {
	p := a.pool
	p.mu.Lock()
	if a.closed != nil {
		p.mu.Unlock()
		return
	}
	a.closed = err
	p.waiting = slices.DeleteFunc(p.waiting, func(w *want) bool {
		if w.arena == a && !w.grows {
			go w.tell(nil, err)
			return true
		}
		return false
	})
	var gone []*Segment
	for _, s := range slices.Clone(a.segments) {
		if s.live == 0 {
			p.remove(s)
			gone = append(gone, s)
		}
	}
	gone = append(gone, p.serve()...)
	p.mu.Unlock()
	unmap(gone)
}

// Wait waits, for an arena that is closed, until every request has been answered and no
// memory is being made any more.
func (a *Arena) Wait() { a.asked.Wait() }

func (w *want) tell(b *Block, err error) {
	w.then(b, err)
	w.arena.asked.Done()
}

// Release returns a block to its arena, once.
func (b *Block) Release() {
	if b.Segment == nil {
		return
	}
	if b.released.Swap(true) {
		panic("shm: a block was released twice")
	}
	s := b.Segment
	a := s.arena
	p := a.pool
	var gone []*Segment
	p.mu.Lock()
	a.count(b.owner, -int64(len(b.Data)))
	s.live--
	if b.slab != nil {
		if l := b.slab; len(l.free) == 0 && l.fresh == l.cells && !s.retired {
			a.slabs[l.cell/align] = append(a.slabs[l.cell/align], l) // it has room again
		}
		b.slab.live--
		b.slab.free = append(b.slab.free, int32((b.Offset-b.slab.offset)/b.slab.cell))
	} else {
		s.give(b.Offset, b.length)
	}
	if s.live == 0 {
		if a.closed != nil || s.retired {
			p.remove(s)
			gone = append(gone, s)
		} else {
			p.rest(s)
		}
	}
	if len(p.waiting) > 0 {
		p.short.since = time.Time{}
		gone = append(gone, p.serve()...)
	}
	p.mu.Unlock()
	unmap(gone)
}

// serve answers the requests for which there is memory, and begins to make segments for the
// others in their order. It returns the segments that had to go for it.
func (p *Pool) serve() (gone []*Segment) {
	full := p.short.retry != nil
	p.round++
	p.waiting = slices.DeleteFunc(p.waiting, func(w *want) bool {
		if w.grows {
			return false
		}
		if a := w.arena; a.round != p.round || w.size < a.dry {
			if b := a.take(w.owner, w.size); b != nil {
				go w.tell(b, nil)
				return true
			}
			a.round, a.dry = p.round, w.size
		}
		if full || w.arena.grows {
			return false // memory goes to the longest waiting first
		}
		need, idle := p.room(w.size, w.arena)
		gone = append(gone, idle...)
		if p.mapped+p.leaving+need > p.config.Limit { // it is looked at again when more has gone
			full = true
			return false
		}
		c := w.arena.reserve(need, w.size)
		w.grows, w.arena.grows = true, true
		go func() {
			if b, err := w.arena.extend(c, w); b != nil || err != nil {
				w.tell(b, err)
			}
		}()
		return false
	})
	if len(p.waiting) == 0 {
		p.short.since = time.Time{}
	}
	return gone
}

// remove takes a segment without blocks out of the books.
func (p *Pool) remove(s *Segment) {
	a := s.arena
	if i := slices.Index(p.idle, s); i >= 0 {
		p.idle = slices.Delete(p.idle, i, i+1)
	}
	a.segments = slices.DeleteFunc(a.segments, func(other *Segment) bool { return other == s })
	a.forgetSlabs(s)
	if len(a.segments) == 0 && a.listed {
		a.unlist()
	}
	delete(p.all, s)
	p.mapped -= s.Size
	a.mapped -= s.Size
	if s.unpin != nil {
		s.leaving = s.Size
		p.leaving += s.Size
	}
	s.told = a.closed == nil && a.dropped != nil && a.shared
}

// forgetSlabs keeps further cells from coming from a segment.
func (a *Arena) forgetSlabs(s *Segment) {
	for i, slabs := range a.slabs {
		if len(slabs) > 0 {
			a.slabs[i] = slices.DeleteFunc(slabs, func(l *slab) bool { return l.segment == s })
		}
	}
}

func unmap(gone []*Segment) {
	for _, s := range gone {
		if s.told {
			s.arena.dropped(s)
		}
		for _, f := range s.then {
			f()
		}
		s.unmap()
	}
}

func roundUp(n, to int64) int64 { return (n + to - 1) / to * to }

func (b *Block) String() string { return fmt.Sprintf("%d bytes at %d", len(b.Data), b.Offset) }
