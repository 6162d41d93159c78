package worker

import (
	"sync/atomic"

	"github.com/openpathways/pathways/core/worker/assembly"
	"github.com/openpathways/pathways/core/worker/devicequeue"
	"github.com/openpathways/pathways/transport"
)

// came tells the destination of a move, which is here, that its piece has come, or why it will not.
func (v *move) came(g *gang, t *transfer, err error) {
	v.queue.soon(func() { v.queue.step(g, t, v.local, assembly.Event{Kind: assembly.Came, Err: err}) })
}

// expect asks for the pieces of a shard that come from other processes.
func (q *queue) expect(g *gang, t *transfer, l *leg) {
	for _, v := range l.gets {
		if v.arrives {
			q.expectPiece(g, t, l, v)
		}
	}
	if err := g.failure(); err != nil { // it failed before Expect did know
		q.w.config.Exchange.Fail(transport.Transfers(g.Session), g.op, err)
	}
}

// expectPiece asks for a piece. It may be there already, and then comes before Expect returns, while the queue's owner
// is busy with this call: met tells which of the two is second, and that one counts the piece.
func (q *queue) expectPiece(g *gang, t *transfer, l *leg, v *move) {
	var met atomic.Bool
	e := assembly.Event{Kind: assembly.Came, Away: true} // its error is written before met is
	q.w.config.Exchange.Expect(v.from.worker, v.key(g), v.bytes(), nil, func(b transport.Block, err error) {
		switch e.Err = err; {
		case err != nil:
		case v.whole:
			l.landing.take(b)
		default:
			in := v.box()
			in.from, in.start = v.size, make([]int64, len(v.size))
			in.copy(q.landing(g, t, l), t.shape.Dims, b.Data, width(t.shape))
			b.Release()
		}
		if met.Swap(true) {
			q.now(func() { q.step(g, t, l, e) })
		}
	})
	if met.Swap(true) {
		q.step(g, t, l, e)
	}
}

// make hands a shard all of whose pieces have come to the driver.
func (q *queue) make(g *gang, t *transfer, l *leg) {
	buf := l.copied // which the driver may still be writing: its end is that of the part, even if the shard was freed
	if buf == nil {
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
	q.fill(g, t.object, l.shard, buf, moveWords, func(err error) { q.moved(g, t, l, err) })
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

// drop lets go of what has come for a shard that will not be made. No one writes to it any more.
func (l *leg) drop() {
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

// landing returns the bytes of the shard that a leg puts together.
func (q *queue) landing(g *gang, t *transfer, l *leg) []byte {
	at := &l.landing
	at.mu.Lock()
	defer at.mu.Unlock()
	if at.block.Release == nil {
		at.block = q.w.pinned(g.Session, t.shape.HostBytes())
	}
	return at.block.Data
}
