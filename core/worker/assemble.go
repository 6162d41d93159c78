package worker

import (
	"sync/atomic"

	"github.com/openpathways/pathways/core/worker/assembly"
	"github.com/openpathways/pathways/core/worker/devicequeue"
	"github.com/openpathways/pathways/transport"
)

// came tells the destination of a move, which is here, that its piece has arrived, or why it will not.
func (v *move) came(g *gang, t *transfer, err error) {
	v.queue.soon(func() { v.queue.step(g, t, v.local, assembly.Event{Kind: assembly.Came, Err: err}) })
}

// expect asks for the pieces of a shard that come from other processes.
func (q *queue) expect(g *gang, t *transfer, l *leg) {
	q.receives(t, l)
	whole := l.gets[0].whole && l.gets[0].cut.pieces == 0
	if t.shape.HostBytes() > quickRoom && !whole && l.incoming == nil { // the system may take long to find memory
		go q.expectPieces(g, t, l, false)
		return
	}
	q.expectPieces(g, t, l, true)
}

// quickRoom is memory that the system finds in less time than a goroutine takes to wake.
const quickRoom = 64 << 10

func (q *queue) expectPieces(g *gang, t *transfer, l *leg, owned bool) {
	for _, v := range l.gets {
		switch {
		case !v.arrives:
		case v.cut.pieces == 0:
			q.expectPiece(g, t, l, v, owned)
		case l.incoming != nil:
			q.getPieces(g, t, l, v, nil)
		default:
			landing := q.landing(g, t, l)
			q.soon(func() { q.getPieces(g, t, l, v, landing) })
		}
	}
	if err := g.failure(); err != nil { // it failed before Expect did know
		q.w.config.Exchange.Fail(transport.Transfers(g.Session), g.op, err)
	}
}

// expectPiece asks for a piece, which goes straight to its place in the shard. It may be there already, and then comes
// before Expect returns, while the queue's owner is busy with this call, if owned: met tells which of the two is
// second, and that one counts the piece.
func (q *queue) expectPiece(g *gang, t *transfer, l *leg, v *move, owned bool) {
	var met atomic.Bool
	met.Store(!owned)
	e := assembly.Event{Kind: assembly.Came, Away: true} // its error is written before met is
	arrived := func(err error) {
		e.Err = err
		if met.Swap(true) {
			q.now(func() { q.step(g, t, l, e) })
		}
	}
	if v.whole {
		q.w.config.Exchange.Expect(v.peer, v.key(g), v.bytes(), nil, func(b transport.Block, err error) {
			if err == nil {
				l.landing.take(b)
			}
			arrived(err)
		})
	} else {
		part := transport.Part{Data: q.landing(g, t, l), At: v.region().place(t.shape.Dims, width(t.shape))}
		q.w.config.Exchange.ExpectPart(v.peer, v.key(g), part, arrived)
	}
	if owned && met.Swap(true) {
		q.step(g, t, l, e)
	}
}

// make hands a shard all of whose pieces have come to the driver.
func (q *queue) make(g *gang, t *transfer, l *leg) {
	buf := l.copied // which the driver may still be writing: its end is that of the part, even if the shard was freed
	var cause func(error, func(error))
	switch {
	case l.incoming != nil:
	case buf != nil:
		cause = q.causeOf(g, l.gets[0])
	default:
		if l.shard.Freed() {
			q.giveUp(g, t, l, nil)
			return
		}
		q.landing(g, t, l) // pieces may all be empty
		block := l.landing.block
		l.landing.block = transport.Block{} // the driver's from here on
		var err error
		if buf, err = q.fromHost(t.shape, t.memory, block); err != nil {
			g.allocated(err)
			q.giveUp(g, t, l, err)
			return
		}
	}
	explain := func(err error) error { return q.moving(g, err) }
	q.fill(g, t.object, l.shard, buf, explain, cause, func(err error) {
		if l.incoming != nil {
			l.incoming.Close()
		}
		q.moved(g, t, l, err)
	})
}

// causeOf returns a function that finds out why what the driver copied to this device failed: mostly because its source
// did, of whose error drivers keep the text alone. The source's queue knows that error.
func (q *queue) causeOf(g *gang, v *move) func(err error, then func(error)) {
	return func(err error, then func(error)) {
		v.out.soon(func() {
			v.out.blame(g.Session, []uint64{v.source}, err, func(err error) { q.soon(func() { then(err) }) })
		})
	}
}

// giveUp fails a shard that will not be made because of err. Without one it was freed, and its bytes are of no use.
func (q *queue) giveUp(g *gang, t *transfer, l *leg, err error) {
	l.drop()
	if why := g.failure(); why != nil {
		err = why
	}
	if err == nil {
		q.state.Spoil(l.shard, devicequeue.ErrFreed)
	} else {
		q.state.Spoil(l.shard, q.moving(g, err))
	}
	q.moved(g, t, l, err)
}

// drop releases the pieces that have come for a shard that will not be made. No one writes to it any more.
func (l *leg) drop() {
	if l.incoming != nil {
		l.incoming.Close()
	}
	if l.copied != nil {
		l.copied.Close()
		l.copied = nil
	}
	if l.landing.block.Release != nil {
		l.landing.block.Release()
		l.landing.block = transport.Block{}
	}
}

// take keeps a block that is the whole shard.
func (l *landing) take(b transport.Block) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.block = b
}

// senders returns the processes that pieces of the shard come from.
func (l *leg) senders() (peers []uint64) {
	for _, v := range l.gets {
		if v.arrives {
			peers = append(peers, v.peer)
		}
	}
	return peers
}

// landing returns the bytes of the shard that a leg puts together.
func (q *queue) landing(g *gang, t *transfer, l *leg) []byte {
	at := &l.landing
	at.mu.Lock()
	defer at.mu.Unlock()
	if at.block.Release == nil {
		at.block = q.w.room(g.Session, t.shape.HostBytes(), l.senders())
	}
	return at.block.Data
}
