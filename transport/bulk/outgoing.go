package bulk

import (
	"sync"

	"github.com/openpathways/pathways/core/shape/strided"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/shm"
)

// A block that is pushed over a link goes one of four ways, which submit chooses:
//
//	quiet    short, and its sender asked for no answer: one message, and the block is forgotten at once. Its credit
//	         comes back with that of others
//	eager    short, and there is credit: its bytes are in the message that announces it
//	offered  long, or there is no credit: the message has its size, and the bytes go when the peer grants memory. On
//	         one host this side then writes them there, otherwise they go over stripes
//	lent     it lies in shared memory that the peer maps to read, see lend.go
//
// # What is guaranteed, and why
//
// Each side says its last once: this one that the bytes are all there (kindEager, kindWritten) or never will be
// (kindFailed), which sets final; the peer that it took them or will not, which sets taken. settle is the only place
// that forgets a block, and does so when both are set. So a number that the peer names is either in link.outgoing, or
// a violation of the protocol: onGrant and onTaken refuse it, and the peer is lost.
//
// done is called once, since tell clears it: when the block failed, or when the peer has taken it. Until then the
// caller leaves data alone, so a block without done is copied (keep) before it has to wait.
//
// While writing is set, something outside of the lock has the bytes: fill, a copy, or stripes. settle says and frees
// nothing until it is cleared, so memory is not released under a writer, and a failure that comes meanwhile is told
// behind it.
//
// Credit is taken in submit and quietly, and comes back once: with the answer to an eager block (onTaken), with
// kindCredit for quiet ones, and in settle for an eager block that failed before its bytes were sent.

// outgoing is a block that this side pushes. The peer's mu guards all that changes.
type outgoing struct {
	to   uint64
	key  transport.Key
	size int64
	data []byte         // of PushBytes and PushPart
	from strided.Layout // of the block in data
	fill func(dst []byte, written func(error))
	part bool        // PushPart's
	done func(error) // nil once it was called
	kept bool        // data is a copy
	lend bool        // data is to be shown

	peer    *peer
	link    *link // nil until there is one, as all below
	n       uint64
	offered bool // the peer knows of it
	eager   bool // goes without being asked for
	granted bool
	lent    bool // the peer can read data where it is
	writing bool // fill, a copy or a stripe has the bytes; nothing is told till then
	stale   bool // its streams broke: it goes on when the peer asks for it again
	failed  bool // the peer was told that it failed
	final   bool // this side has said its last
	taken   bool // the peer has
	err     error

	block  *shm.Block     // what fill writes, where that is not the peer's memory
	unmap  func()         // releases the peer's memory
	bytes  []byte         // for the stripes
	lies   strided.Layout // of the block in bytes
	given  int64          // bytes that stripes have begun
	pieces int            // that they have not ended
	pass   *pass          // that awaits it; while writing is set, it is the copies'
}

// keep copies bytes that the caller does not keep.
func (t *outgoing) keep() {
	if t.done == nil && t.data != nil && !t.kept { // a part is never without done
		t.data, t.kept = clone(t.data), true
	}
}

// tell calls done, once.
func (t *outgoing) tell() {
	if done := t.done; done != nil {
		err := t.err
		t.done = nil
		t.peer.x.calls.Do(func() { done(err) })
	}
}

func eagerUse(size int64) int64 { return size + eagerCost }

// submit announces a block. True asks the caller to have it filled when the lock
// is free.
func (l *link) submit(t *outgoing) (fill bool) {
	if len(l.outgoing) >= maxOffers || l.sent.Bytes() > maxUnread/2 {
		if t.err == nil {
			t.err = status.New(status.ResourceExhausted, "%d blocks are under way to %s; push fewer at a time", len(l.outgoing),
				l.peer.title())
			t.tell()
		}
		return false
	}
	if t.done == nil && t.fill == nil && !t.lend && t.err == nil && t.size <= eagerSize && l.quietly(t.key, t.data) {
		return false
	}
	l.number++
	t.link, t.n = l, l.number
	l.outgoing[t.n] = t
	switch {
	case t.err != nil:
		t.settle()
	case t.lend:
		t.show()
	case t.size <= eagerSize && l.credit >= eagerUse(t.size):
		l.credit -= eagerUse(t.size)
		t.eager = true
		if t.fill != nil {
			t.writing = true
			return true
		}
		t.send(t.packed())
	default:
		t.offer()
	}
	return false
}

// packed returns the bytes of a short block.
func (t *outgoing) packed() []byte {
	if t.from.IsDense() {
		return t.data[t.from.Offset : t.from.Offset+t.from.Run]
	}
	b := make([]byte, t.size)
	moveStrided(b, strided.Dense(t.size), t.data, t.from)
	return b
}

// quietly sends a short block that is not answered, if there is credit. It reports whether it did.
func (l *link) quietly(key transport.Key, data []byte) bool {
	use := eagerUse(int64(len(data)))
	if l.credit < use {
		return false
	}
	l.number++
	l.credit -= use
	l.quiet += use
	l.post(kindQuiet, eagerFrame(l.frame[:0], l.number, key, data))
	return true
}

func (t *outgoing) offer() {
	t.keep()
	t.offered = true
	if t.part && t.isCopied() && t.err == nil && t.size <= t.link.x.pool.Limit()/2 {
		t.link.x.await(t)
	}
	t.link.postAbout(t.size, kindOffer, offerFrame(t.n, t.key, t.size))
	t.link.reach()
}

// send sends the bytes of an eager block.
func (t *outgoing) send(data []byte) {
	t.offered, t.final = true, true
	t.link.post(kindEager, eagerFrame(t.link.frame[:0], t.n, t.key, data))
}

// fillHere has a block filled in memory of this process. It is called without the
// lock, and writing is set.
func (t *outgoing) fillHere() {
	t.peer.x.arena.Get(t.key.Space, int(t.size), func(b *shm.Block, err error) {
		if err != nil {
			t.written(err)
			return
		}
		t.block = b // writing is set, so no other goroutine looks
		t.write(b.Data, strided.Dense(t.size), false)
	})
}

// isCopied reports whether the copies have the block, once there is memory for it.
func (t *outgoing) isCopied() bool { return t.link.shared && t.fill == nil && t.size >= longCopy }

// write has the bytes put into memory, where at says. Placed says that this is an array's. It is called without the
// lock.
func (t *outgoing) write(dst []byte, at strided.Layout, placed bool) {
	x := t.peer.x
	switch {
	case t.fill != nil && at.IsDense():
		t.callFill(dst[at.Offset:at.Offset+at.Run], t.written)
	case t.fill != nil:
		t.fillApart(dst, at)
	case t.isCopied():
		x.copy(t, dst, at, placed)
	default:
		moveStrided(dst, at, t.data, t.from)
		t.written(nil)
	}
}

// callFill has the caller of Push write the block, which is contiguous.
func (t *outgoing) callFill(dst []byte, written func(error)) {
	t.peer.x.calls.Do(func() {
		var once sync.Once
		t.fill(dst, func(err error) { once.Do(func() { written(err) }) })
	})
}

// fillApart has the caller of Push write the block into memory of this process, from where it goes to a region.
func (t *outgoing) fillApart(dst []byte, at strided.Layout) {
	t.peer.x.arena.Get(t.key.Space, int(t.size), func(b *shm.Block, err error) {
		if err != nil {
			t.written(err)
			return
		}
		t.callFill(b.Data, func(err error) {
			if err == nil {
				moveStrided(dst, at, b.Data, strided.Dense(t.size))
			}
			b.Release()
			t.written(err)
		})
	})
}

// written is called when the bytes are in the memory that write had, or with the error why not.
func (t *outgoing) written(err error) {
	t.peer.mu.Lock()
	defer t.peer.mu.Unlock()
	if t.unmap != nil {
		t.unmap()
		t.unmap = nil
	}
	if t.err == nil {
		t.err = err
	}
	switch {
	case t.err != nil:
	case t.eager:
		t.send(t.block.Data)
	case t.link.shared:
		t.end()
	default:
		t.bytes, t.lies = t.block.Data, strided.Dense(t.size)
		t.spread()
		return
	}
	t.writing = false
	t.settle()
}

// end says that all bytes were sent.
func (t *outgoing) end() {
	t.final = true
	t.link.postAbout(t.size, kindWritten, numbers(nil, t.n))
}

func (t *outgoing) fail(err error) {
	if t.err == nil {
		t.err = err
	}
	if t.bytes != nil && t.given < t.size {
		t.skip()
	}
	t.settle()
}

// settle says what there is to say, to the peer and to the caller, and forgets the
// block when both sides have said their last.
func (t *outgoing) settle() {
	if t.writing {
		return
	}
	if t.lent {
		t.settleLent()
		return
	}
	if t.pass != nil && (t.err != nil || t.taken) {
		t.link.x.leave(t)
	}
	if t.err != nil && !t.final {
		if t.eager {
			t.eager = false
			t.link.credit += eagerUse(t.size)
		}
		if !t.offered {
			t.offer()
		}
		t.final, t.failed = true, true
		t.link.post(kindFailed, withStatus(numbers(nil, t.n), t.err))
	}
	if t.block != nil && t.final && !(t.granted && !t.link.shared && !t.taken && t.err == nil) { // the peer may ask again
		t.block.Release()
		t.block, t.bytes = nil, nil
	}
	if t.err != nil || t.taken {
		t.tell()
	}
	if t.final && t.taken {
		delete(t.link.outgoing, t.n)
	}
}

// onGrant handles memory for a block: where in it the block goes, from an offset on.
func (l *link) onGrant(n uint64, segment uint32, offset int64, at strided.Layout) (then func(), err error) {
	t := l.outgoing[n]
	if t == nil || t.eager || t.granted || t.taken || t.lent {
		return nil, wrong("memory for block %d, which does not wait for it", n)
	}
	if at.Run == 0 {
		at = strided.Dense(t.size)
	}
	extent, err := at.Check(t.size)
	if err != nil {
		return nil, err
	}
	t.granted = true
	var dst []byte
	switch {
	case l.shared && t.size == 0:
		dst = []byte{}
	case l.shared:
		m := l.segments[segment]
		if m == nil {
			return nil, wrong("a block of shared memory %d, which it did not share", segment)
		}
		var unmap func()
		if dst, unmap, err = m.Use(offset, extent); err != nil {
			return nil, err
		}
		if t.final {
			unmap()
		} else {
			t.unmap = unmap
		}
	}
	switch {
	case t.final: // it failed meanwhile
	case l.shared:
		t.writing = true
		return func() { t.write(dst, at, segment >= roomNumber) }, nil
	case t.fill != nil:
		t.writing = true
		return t.fillHere, nil
	default:
		t.writing = true
		t.bytes, t.lies = t.data, t.from
		t.spread()
	}
	return nil, nil
}

// onTaken is told that the peer has a block, or will not take it.
func (l *link) onTaken(n uint64, why error) error {
	t := l.outgoing[n]
	switch {
	case t == nil || t.taken || !t.offered:
		return wrong("an answer to block %d, which was not asked", n)
	case why == nil && !t.final && !t.lent:
		return wrong("an acknowledgment of block %d, which it does not have", n)
	}
	t.taken = true
	if t.eager {
		l.credit += eagerUse(t.size)
	}
	if t.err == nil {
		t.err = why
	}
	t.settle()
	return nil
}
