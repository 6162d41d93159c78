package bulk

import (
	"runtime"
	"slices"
	"sync"
	"unsafe"

	"github.com/openpathways/pathways/core/shape/strided"
	"github.com/openpathways/pathways/transport/uncached"
)

// Long blocks are copied to peers on this host by as many goroutines as there are processors. The regions of an array
// that go to several peers mostly lie side by side, and one pass over the array copies them nearly twice as fast as one
// pass for each (uncached.Spread). So those of one transfer are copied together, when the last peer has placed its own.
//
// # Why each is copied
//
// A block is awaited from its offer until the peer places it, grants it other memory, refuses it, or it fails, as it
// does where the peer is lost or cannot be reached. Each of these is also the end of the peer's part in the transfer,
// without which the transfer does not end. Devices come to transfers in one order, so what a peer does before it places
// a region waits for no transfer that comes later; and not for memory that awaited regions keep, for a room is had at
// once or not at all. A peer without a room may have to wait for other memory before it grants that: rooms leave three
// quarters of the memory for it (shm.Pool.Keeps), longer blocks than half of it are not awaited, and a block that was
// granted some waits for no other. Where the host has no more memory, the pool refuses the block after a while.

// copies is the long blocks that are copied to peers on this host.
type copies struct {
	mu      sync.Mutex // guards the rest, and the passes
	awaits  map[source]*pass
	ready   [lengths][]*pass // those with pieces still to be copied, by length
	turn    int              // of ready, which had the last one
	running int              // goroutines
}

// lengths is how many lengths of passes there are: copied through the caches, in one piece past them, and in several.
const lengths = 3

// source is an array that a transfer takes regions from.
type source struct {
	array     *byte
	size      int
	space, id uint64 // of the blocks' keys
}

// pass is blocks of one array that are copied together, in pieces.
type pass struct {
	source  source
	array   []byte
	awaited int // blocks that have yet to join
	blocks  []*outgoing
	targets []uncached.Target
	bytes   int64
	begun   int64 // pieces
	ended   int64
}

const (
	passBlocks = 64      // of a pass: each run of bytes looks at all of them
	passPiece  = 8 << 20 // bytes that one goroutine copies
	longPass   = 1 << 20 // bytes that are copied past the caches
)

// pieces returns in how many pieces a pass is copied.
func (p *pass) pieces() int64 { return (p.bytes + passPiece - 1) / passPiece }

// await takes a block that is offered, and has others of its array wait for it.
func (x *Exchange) await(t *outgoing) {
	c := &x.copies
	c.mu.Lock()
	defer c.mu.Unlock()
	from := source{unsafe.SliceData(t.data), len(t.data), t.key.Space, t.key.ID}
	p := c.awaits[from]
	if p == nil || p.awaited+len(p.blocks) == passBlocks {
		p = &pass{source: from, array: t.data}
		c.awaits[from] = p
	}
	p.awaited++
	t.pass = p
}

// leave has a block's pass no longer wait for it. It comes after await, or does nothing.
func (x *Exchange) leave(t *outgoing) {
	x.copies.mu.Lock()
	defer x.copies.mu.Unlock()
	if t.pass != nil {
		x.left(t.pass)
		t.pass = nil
	}
}

// left has a pass wait for one block less. The copies' mu is held.
func (x *Exchange) left(p *pass) {
	c := &x.copies
	if p.awaited--; p.awaited > 0 {
		return
	}
	if c.awaits[p.source] == p {
		delete(c.awaits, p.source)
	}
	if len(p.blocks) > 0 {
		x.start(p)
	}
}

// copy has a block copied to its place in the peer's memory: with others of its array if it is placed, else by itself.
// Then it calls written.
func (x *Exchange) copy(t *outgoing, dst []byte, at strided.Layout, placed bool) {
	if !placed {
		x.leave(t)
	}
	c := &x.copies
	c.mu.Lock()
	defer c.mu.Unlock()
	p := t.pass
	if p == nil {
		p = &pass{array: t.data, awaited: 1}
	}
	t.pass = nil
	p.blocks = append(p.blocks, t)
	p.targets = append(p.targets, uncached.Target{Dst: dst, To: at, From: t.from})
	p.bytes += t.size
	x.left(p)
}

// length returns which of the lengths a pass has.
func (p *pass) length() int {
	switch {
	case p.bytes < longPass:
		return 0
	case p.pieces() == 1:
		return 1
	}
	return 2
}

// start has a pass copied. The copies' mu is held.
func (x *Exchange) start(p *pass) {
	c := &x.copies
	c.ready[p.length()] = append(c.ready[p.length()], p)
	for n := p.pieces(); n > 0 && c.running < runtime.GOMAXPROCS(0); n-- {
		c.running++
		x.running.Go(x.copyAll) // a link's run waits for it
	}
}

// next returns the piece that is to be copied next, and its pass; nil if there is none. The lengths take turns, so that
// a short pass does not wait until long ones are copied, as those of weights that are pushed beside a computation, nor
// a long one until no short ones come. The copies' mu is held.
func (c *copies) next() (p *pass, piece int64) {
	for range c.ready {
		c.turn = (c.turn + 1) % lengths
		q := &c.ready[c.turn]
		if len(*q) == 0 {
			continue
		}
		p = (*q)[0]
		piece = p.begun
		if p.begun++; p.begun == p.pieces() {
			*q = slices.Delete(*q, 0, 1)
		}
		return p, piece
	}
	return nil, 0
}

// copyAll copies until there is nothing left to begin.
func (x *Exchange) copyAll() {
	c := &x.copies
	c.mu.Lock()
	defer c.mu.Unlock()
	for p, piece := c.next(); p != nil; p, piece = c.next() {
		c.mu.Unlock()
		p.copy(piece)
		c.mu.Lock()
		if p.ended++; p.ended < p.pieces() {
			continue
		}
		c.mu.Unlock()
		for _, t := range p.blocks {
			t.written(nil)
		}
		c.mu.Lock()
	}
	c.running--
}

// copy copies one piece.
func (p *pass) copy(piece int64) {
	if p.bytes >= longPass {
		copied.Add(uncached.Spread(p.array, p.targets, piece, p.pieces()))
		return
	}
	for _, t := range p.targets {
		moveStrided(t.Dst, t.To, p.array, t.From)
	}
}
