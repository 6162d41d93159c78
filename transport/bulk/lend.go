package bulk

import (
	"sync"

	"github.com/openpathways/pathways/core/shape/strided"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/shm"
)

var _ transport.Lender = (*Exchange)(nil)

// CanLend implements transport.Lender.
func (x *Exchange) CanLend(peer uint64, data []byte) error {
	p, err := x.find(peer, false)
	if err != nil {
		return err
	}
	if !p.shares() {
		return errElsewhere(p.name())
	}
	if s, _ := x.pool.Find(data); s == nil {
		return errNotShared
	}
	return nil
}

var errNotShared = status.New(status.FailedPrecondition,
	"the bytes do not lie in shared memory of this process's pool, which others on this host can read")

func errElsewhere(peer string) error {
	return status.New(status.FailedPrecondition,
		"%s is not on this host, or not there: it cannot read this process's memory", peer)
}

// Lend implements transport.Lender.
func (x *Exchange) Lend(peer uint64, key transport.Key, data []byte, done func(error)) {
	x.push(&outgoing{to: peer, key: key, size: int64(len(data)), data: data, lend: true, done: done})
}

// show lends a block. The peer's mu is held, as in all below.
func (t *outgoing) show() {
	l := t.link
	s, offset := l.x.pool.Find(t.data)
	switch {
	case !l.shared:
		t.err = errElsewhere(l.peer.title())
	case s == nil:
		t.err = errNotShared
	case l.shown[s] == 0 && len(l.shown) >= maxShared: // more, and the peer would hang up
		t.err = status.New(status.ResourceExhausted,
			"%s reads from %d pieces of memory of this process already; release some, or allocate from fewer allocators",
			l.peer.title(), maxShared)
	case l.shown[s] == 0:
		if t.err = l.postFile(kindShow, segmentFrame(l.numbered+1, s.Size), s.File); t.err == nil {
			l.numbered++
			l.shown[s] = l.numbered
			s.Then(func() { l.withdraw(s, kindHide, l.shown) })
		}
	}
	if t.err != nil {
		t.settle() // the peer hears of it
		return
	}
	t.offered, t.lent = true, true
	l.post(kindLend, lendFrame(t.n, t.key, t.size, l.shown[s], offset))
	l.reach()
}

// withdraw tells the peer by a message of this kind that memory has gone, by the number under which the peer knows it.
// It may be called under any lock.
func (l *link) withdraw(s *shm.Segment, kind wire.Kind, numbers map[*shm.Segment]uint32) {
	l.x.calls.Do(func() {
		l.peer.mu.Lock()
		defer l.peer.mu.Unlock()
		l.post(kind, segmentFrame(numbers[s], 0)[:4])
		delete(numbers, s)
	})
}

// settleLent is settle of a block that the peer can read: the peer may be asked to return it, but only the peer's
// answer is the end.
func (t *outgoing) settleLent() {
	switch {
	case t.taken && !t.final:
		t.final = true
		t.link.post(kindWritten, numbers(nil, t.n))
	case t.err != nil && !t.final:
		t.final = true
		t.link.post(kindFailed, withStatus(numbers(nil, t.n), t.err))
	}
	if t.taken {
		t.tell()
		delete(t.link.outgoing, t.n)
	}
}

// keepLent keeps a block whose link has ended: the peer may still read it.
func (t *outgoing) keepLent(err error) {
	if t.err == nil {
		t.err = err
	}
	x := t.link.x
	x.returning.Lock()
	defer x.returning.Unlock()
	x.unreturned = append(x.unreturned, t)
}

// giveBack ends blocks that were lent to peers that have gone.
func (x *Exchange) giveBack(of func(*outgoing) bool) {
	x.returning.Lock()
	var back, rest []*outgoing
	for _, t := range x.unreturned {
		if of(t) {
			back = append(back, t)
		} else {
			rest = append(rest, t)
		}
	}
	x.unreturned = rest
	x.returning.Unlock()
	for _, t := range back {
		t.peer.mu.Lock()
		t.tell()
		t.peer.mu.Unlock()
	}
}

// lent is the place of a block that the peer lends.
type lent struct {
	data []byte
	done func() // releases the mapping, once
}

// onLend handles the offer of a block that can be read in place.
func (l *link) onLend(n uint64, key transport.Key, size int64, segment uint32, offset int64) (then func(), err error) {
	m := l.views[segment]
	if m == nil {
		return nil, wrong("a block of shared memory %d, which it did not show", segment)
	}
	data, done, err := m.Use(offset, size)
	if err != nil {
		return nil, err
	}
	t, err := l.add(n, key, size)
	if err != nil {
		done()
		return nil, err
	}
	l.x.lent.Add(size)
	t.lent = &lent{data, sync.OnceFunc(func() {
		done()
		l.x.lent.Add(-size)
	})}
	return t.offer(), nil
}

// borrow hands a block to the caller of Expect. If it returns true, its caller has to call memory once
// the lock is free.
func (t *incoming) borrow() (more bool) {
	e := t.expected
	if e.Into != nil {
		t.writing++
		return true
	}
	t.told = true
	got := transport.Block{Data: t.lent.data, Lent: true, Release: sync.OnceFunc(t.giveBack)}
	t.link.x.calls.Do(func() { e.Arrived(got, nil) })
	return false
}

// copyLent takes the bytes out of the peer's memory.
func (t *incoming) copyLent() {
	moveStrided(t.expected.Into, t.expected.At, t.lent.data, strided.Dense(t.size))
	t.giveBack()
}

// giveBack is called when a block is not read any more. It is called without the lock.
func (t *incoming) giveBack() {
	t.link.peer.mu.Lock()
	defer t.link.peer.mu.Unlock()
	if t.told {
		t.taken = true
		t.answer()
	} else {
		t.writing--
	}
	t.copied = true
	t.settle()
}
