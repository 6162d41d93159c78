package bulk

import (
	"github.com/openpathways/pathways/core/shape/strided"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/match"
	"github.com/openpathways/pathways/transport/shm"
)

// A block that comes meets what expects it (meet), gets memory (memory, have), is granted to the peer (grant), and ends
// in settle, which is called after each change and does what has become due:
//
//	answer   once (taken): the bytes were taken, or will not be. The peer's Push is done with it
//	Arrived  once (told), with the block or the first error (err). Bytes that come after an error go nowhere
//	forget   when the peer has said its last (final), this side has answered, and no bytes are asked for again
//
// None of them is done while a stripe or a copy of this side has the memory (writing). A peer that was granted a room
// and has not said its last may still write there; so the room's segment is retired instead of used again.

// incoming is a block that the peer pushes. The peer's mu guards all that changes.
type incoming struct {
	link  *link
	n     uint64
	key   transport.Key
	size  int64
	eager bool
	quiet bool   // no answer is wanted
	data  []byte // of an eager block that waits to be expected
	lent  *lent  // where the peer shows the bytes

	expected *match.Expected
	told     bool           // Arrived was, or will be, called
	block    *shm.Block     // memory of the bytes
	into     []byte         // where stripes write
	at       strided.Layout // of the block in into
	room     *shm.Segment   // the peer writes into the array that the block is a part of, which lies here
	granted  bool
	writing  int   // stripes and copies that have the memory
	begun    int64 // bytes that stripes have begun to write
	got      int64 // bytes that they have written
	copied   bool  // the bytes are where they are expected
	asked    int   // how often its bytes were asked for again without an answer yet
	final    bool  // the peer has said its last
	taken    bool  // this side has
	err      error
}

// add records a block that the peer pushes.
func (l *link) add(n uint64, key transport.Key, size int64) (*incoming, error) {
	switch {
	case l.incoming[n] != nil:
		return nil, wrong("block %d twice", n)
	case len(l.incoming) >= l.x.offers+eagerBytes/eagerCost: // quiet ones are not offers
		return nil, wrong("more than %d blocks that have not ended", len(l.incoming))
	}
	t := &incoming{link: l, n: n, key: key, size: size}
	l.incoming[n] = t
	return t, nil
}

// onEager handles a block that comes with its bytes, which are data until it returns.
func (l *link) onEager(n uint64, key transport.Key, data []byte, quiet bool) (then func(), err error) {
	size := int64(len(data))
	if size > eagerSize {
		return nil, wrong("a block of %d bytes that was not requested; at most %d are allowed", size, eagerSize)
	}
	if l.held += eagerUse(size); l.held > eagerBytes {
		return nil, wrong("%d bytes of blocks that were not requested; at most %d are allowed", l.held, eagerBytes)
	}
	t, err := l.add(n, key, size)
	if err != nil {
		return nil, err
	}
	t.eager, t.quiet, t.final = true, quiet, true
	e, err := l.x.table.Offer(l.peer.number, key, t)
	switch {
	case err != nil:
		t.fail(err)
		return nil, nil
	case e == nil:
		t.data = clone(data)
		return nil, nil
	}
	t.data = data
	if !t.meet(e) {
		return nil, nil
	}
	t.data = clone(data)
	return t.memory, nil
}

// onOffer handles the offer of a block.
func (l *link) onOffer(n uint64, key transport.Key, size int64) (then func(), err error) {
	t, err := l.add(n, key, size)
	if err != nil {
		return nil, err
	}
	return t.offer(), nil
}

// offer tells the caller that expects a block that it has come. Then is called when the lock is free.
func (t *incoming) offer() (then func()) {
	t.link.reach()
	e, err := t.link.x.table.Offer(t.link.peer.number, t.key, t)
	switch {
	case err != nil:
		t.fail(err)
	case e != nil && t.meet(e):
		return t.memory
	}
	return nil
}

// expect is called when a block that was in the table is expected.
func (t *incoming) expect(e *match.Expected) {
	t.link.peer.mu.Lock()
	more := t.meet(e)
	t.link.peer.mu.Unlock()
	if more {
		t.memory()
	}
}

// meet brings a block together with what expects it. If it returns true, its caller has to call memory once the lock is
// free.
func (t *incoming) meet(e *match.Expected) (more bool) {
	t.expected = e
	switch {
	case t.err != nil:
		t.settle()
	case e.Size != t.size || e.Into != nil && e.At.Bytes() != t.size:
		t.fail(status.New(status.InvalidArgument, "%s sends %d bytes where process %d expects %d", t.link.peer.title(),
			t.size, t.link.x.config.Self, e.Size))
	case t.lent != nil:
		return t.borrow()
	case t.eager && e.Into != nil:
		moveStrided(e.Into, e.At, t.data, strided.Dense(t.size))
		t.data, t.copied = nil, true
		t.settle()
	case t.eager:
		b := t.link.x.arena.Try(t.key.Space, int(t.size))
		if b == nil {
			return true
		}
		t.have(b)
	case !t.link.shared && e.Into != nil:
		t.into, t.at = e.Into, e.At
		t.grant(0, 0)
	case e.Into != nil && t.place():
	default:
		return true
	}
	return false
}

// memory gets memory for a block. It is called without the lock.
func (t *incoming) memory() {
	p := t.link.peer
	if t.lent != nil {
		t.copyLent()
		return
	}
	arena := t.link.x.arena
	if t.link.shared && !t.eager {
		arena = t.link.arena
	}
	arena.Get(t.key.Space, int(t.size), func(b *shm.Block, err error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		switch {
		case err != nil:
			t.fail(err)
		case t.err != nil:
			b.Release()
		default:
			t.have(b)
		}
	})
}

// have is given the memory.
func (t *incoming) have(b *shm.Block) {
	t.block = b
	l := t.link
	switch s := b.Segment; {
	case t.eager:
		move(b.Data, t.data)
		t.data, t.copied = nil, true
		t.settle()
	case !l.shared:
		t.into, t.at = b.Data, strided.Dense(t.size)
		t.grant(0, 0)
	case s == nil:
		t.grant(0, 0) // no bytes
	default:
		if !l.announced[s.Number] {
			if err := l.postFile(kindSegment, segmentFrame(s.Number, s.Size), s.File); err != nil {
				t.fail(err)
				return
			}
			l.announced[s.Number] = true
		}
		t.grant(s.Number, b.Offset)
	}
}

func (t *incoming) grant(segment uint32, offset int64) {
	t.granted = true
	t.link.postAbout(t.size, kindGrant, grantFrame(nil, t.n, segment, offset))
}

// onFinal is told that the bytes of a block were sent, or never will be.
func (l *link) onFinal(n uint64, why error) (then func(), err error) {
	t := l.incoming[n]
	if t != nil && t.lent != nil && why == nil && t.taken { // the answer to the answer
		t.final = true
		t.settle()
		return nil, nil
	}
	if t == nil || t.final && t.asked == 0 || why == nil && !t.granted {
		return nil, wrong("the end of block %d, which had not begun", n)
	}
	t.final = true
	if t.err == nil && why != nil && !t.told {
		t.err = why
		if t.expected == nil {
			l.lay(t)
		}
	}
	if t.err == nil && l.shared && t.lent == nil {
		return t.arrived(), nil
	}
	t.settle()
	return nil, nil
}

// lay keeps a failed block for a while, until it is expected.
func (l *link) lay(t *incoming) {
	if len(l.failed) < maxFailed {
		l.failed = append(l.failed, t)
		return
	}
	if old := l.failed[l.oldest]; old.expected == nil {
		l.x.table.Withdraw(l.peer.number, old.key)
	}
	l.failed[l.oldest] = t
	l.oldest = (l.oldest + 1) % maxFailed
}

// arrived takes the bytes out of shared memory, where that is asked for.
func (t *incoming) arrived() (then func()) {
	into, at := t.expected.Into, t.expected.At
	if into == nil || t.room != nil {
		t.copied = true
		t.settle()
		return nil
	}
	t.writing++
	copies := func() {
		moveStrided(into, at, t.block.Data, strided.Dense(t.size))
		t.link.peer.mu.Lock()
		defer t.link.peer.mu.Unlock()
		t.writing--
		t.copied = true
		t.settle()
	}
	if t.size < longCopy {
		return copies
	}
	return func() { t.link.x.running.Go(copies) } // called from run: there is one at least
}

// answer tells the peer that the bytes were taken, or will not be.
func (t *incoming) answer() {
	l := t.link
	use := eagerUse(t.size)
	switch {
	case !t.quiet:
		if t.eager {
			l.held -= use
		}
		l.postAbout(t.size, kindTaken, withStatus(numbers(nil, t.n), t.err))
		return
	case l.owed+use < creditBack:
		l.owed += use
	default:
		l.held -= l.owed + use
		l.post(kindCredit, numbers(nil, uint64(l.owed+use)))
		l.owed = 0
	}
}

func (t *incoming) fail(err error) {
	if t.lent != nil && t.told {
		return // it belongs to the caller that has it
	}
	if t.err == nil {
		t.err = err
	}
	t.settle()
}

// settle tells the peer and the caller of Expect what has become due, and forgets the block when both sides have said
// their last.
func (t *incoming) settle() {
	l := t.link
	if t.final && t.asked == 0 && t.granted && !l.shared && t.got == t.size {
		t.copied = true
	}
	if t.writing > 0 || t.err == nil && !t.copied {
		return
	}
	if t.lent != nil {
		t.lent.done()
	}
	if t.room != nil && !t.final {
		t.room.Retire() // the peer may still write there
	}
	if !t.taken {
		t.taken = true
		t.answer()
	}
	if e := t.expected; e != nil && !t.told {
		t.told = true
		var got transport.Block
		err := t.err
		if err == nil {
			got = transport.Block{Data: e.Into, Release: func() {}}
			if e.Into == nil {
				got = transport.Block{Data: t.block.Data, Release: t.block.Release}
				t.block = nil
			}
		}
		l.x.calls.Do(func() { e.Arrived(got, err) })
	}
	over := t.final && t.asked == 0
	if t.block != nil && (over || t.err != nil && !l.shared) { // no stripe writes there; into shared memory a peer may
		t.block.Release()
		t.block = nil
	}
	if over {
		delete(l.incoming, t.n)
	}
}
