// Package inproc joins the parts of a cluster in one process: for the embedded
// case, for tests, and for simulation.
//
// Pair makes two ends of a connection, Network makes connections by address, and
// Hub joins the exchanges of several processes' numbers. Nothing is encoded but
// messages, and blocks are written straight to where they are wanted.
//
// Each direction of a connection is a buffer that Send appends to and Recv swaps
// for an empty one, so a burst costs one wake-up.
package inproc

import (
	"sync"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
)

const (
	maxPending = 1 << 20 // bytes on the way in one direction before Send waits
	keepSize   = 2 << 20 // buffers that grew past it are not kept
)

// Conn is a transport.Conn inside a process.
type Conn struct {
	out, in *queue
	self    string // for people: this end, and the other
	peer    string

	got, rest, spare []byte // Recv's: the buffer at hand, what of it was not received, the one before
	err              error  // Recv's: what it returned, and returns from then on
}

// queue is one direction.
type queue struct {
	mu      sync.Mutex
	more    sync.Cond // Recv waits for messages
	room    sync.Cond // Send waits for room
	pending []byte
	burst   wire.Burst // the last that was sent, of pending or of what path holds
	waiting bool       // Recv waits in more
	sent    error      // why nothing more is sent: the writing end has closed
	over    bool       // the reading end may know of that
	read    error      // why nothing is read any more: the reading end has closed
	broken  error      // why nothing is sent or read
	path    *path      // what it takes to arrive; nil is nothing
}

func newQueue() *queue {
	q := new(queue)
	q.more.L, q.room.L = &q.mu, &q.mu
	return q
}

// Pair makes two ends of a connection, of parts with these names.
func Pair(a, b string) (*Conn, *Conn) {
	ab, ba := newQueue(), newQueue()
	return &Conn{out: ab, in: ba, self: a, peer: b}, &Conn{out: ba, in: ab, self: b, peer: a}
}

// Peer is the name of the other end.
func (c *Conn) Peer() string { return c.peer }

// Send implements transport.Conn.
func (c *Conn) Send(kind wire.Kind, payload []byte) error { return c.send(kind, payload, waits) }

// Post is Send that never waits for room: for those whose protocol bounds what they send.
func (c *Conn) Post(kind wire.Kind, payload []byte) error { return c.send(kind, payload, 0) }

// how a message is sent.
type how uint8

const (
	waits how = 1 << iota // for room
	later                 // it waits for Flush, or for whatever else is sent
	joins                 // may be in one message with others
)

func (c *Conn) send(kind wire.Kind, payload []byte, how how) error {
	if kind == 0 {
		return status.New(status.InvalidArgument, "a message of no kind cannot be sent")
	}
	if len(payload) > wire.MaxFrame {
		return wire.TooLong(kind, len(payload), wire.MaxFrame)
	}
	q := c.out
	q.mu.Lock()
	defer q.mu.Unlock()
	for how&waits != 0 && q.waits() >= maxPending && q.sent == nil && q.read == nil && q.broken == nil {
		q.flush() // what fills it may be for later, and its Flush may come from the goroutine that waits here
		q.room.Wait()
	}
	switch {
	case q.broken != nil:
		return q.broken
	case q.sent != nil:
		return q.sent
	case q.read != nil:
		return q.read
	}
	to := &q.pending
	if q.path != nil {
		to = &q.path.held
	}
	*to = q.burst.Append(*to, kind, payload, how&joins != 0)
	if how&later == 0 {
		q.flush()
	}
	return nil
}

// flush has what was sent leave. Called with the lock.
func (q *queue) flush() {
	switch {
	case q.path != nil:
		q.depart()
	case q.waiting && len(q.pending) > 0:
		q.waiting = false
		q.more.Signal()
	}
}

// Room blocks until fewer than n bytes were sent and not received, or nothing can be sent any more.
func (c *Conn) Room(n int) {
	q := c.out
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.waits() >= n && q.sent == nil && q.read == nil && q.broken == nil {
		q.room.Wait()
	}
}

// waits is the number of bytes that were sent and not received. Called with the
// lock.
func (q *queue) waits() int {
	if q.path != nil {
		return len(q.pending) + q.path.bytes + len(q.path.held)
	}
	return len(q.pending)
}

// Recv implements transport.Conn.
func (c *Conn) Recv() (wire.Kind, []byte, error) {
	if len(c.rest) == 0 {
		if c.err == nil {
			c.err = c.swap()
		}
		if c.err != nil {
			return 0, nil, c.err
		}
	}
	kind, payload, rest, err := wire.NextFrame(c.rest)
	c.rest = rest
	return kind, payload, err
}

// swap waits for messages and takes all there are.
func (c *Conn) swap() error {
	if c.spare = c.got[:0]; cap(c.got) > keepSize {
		c.spare = nil
	}
	c.got, c.rest = nil, nil
	q := c.in
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.pending) == 0 && !q.over && q.read == nil && q.broken == nil {
		q.waiting = true
		q.more.Wait()
	}
	q.waiting = false
	switch {
	case q.broken != nil && len(q.pending) == 0:
		return q.broken
	case q.read != nil: // closed on this side
		return status.New(status.Cancelled, "the connection to %s was closed on this side", c.peer)
	case len(q.pending) == 0:
		return transport.LostPeer(c.peer, transport.Ended)
	}
	c.got, q.pending = q.pending, c.spare
	if q.path == nil {
		q.burst.Left()
	}
	c.rest = c.got
	q.room.Broadcast()
	return nil
}

// Buffered implements transport.Conn.
func (c *Conn) Buffered() bool {
	if len(c.rest) > 0 {
		return true
	}
	q := c.in
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.pending) > 0 || q.over || q.read != nil || q.broken != nil
}

// Peek implements transport.Peeker.
func (c *Conn) Peek() wire.Kind {
	at := c.rest
	if len(at) == 0 {
		c.in.mu.Lock()
		defer c.in.mu.Unlock()
		at = c.in.pending
	}
	kind, _, _, err := wire.NextFrame(at)
	if err != nil {
		return 0
	}
	return kind
}

// Close implements transport.Conn. What was sent can still be received.
func (c *Conn) Close() error {
	end := func(q *queue, where *error, err error) (first bool) {
		if first = *where == nil; first {
			*where = err
		}
		q.more.Broadcast()
		q.room.Broadcast()
		return first
	}
	c.out.mu.Lock()
	if end(c.out, &c.out.sent, status.New(status.Cancelled, "the connection to %s was closed on this side", c.peer)) {
		if c.out.path != nil {
			c.out.depart()
			c.out.end()
		} else {
			c.out.over = true
		}
	}
	c.out.mu.Unlock()
	c.in.mu.Lock()
	end(c.in, &c.in.read, transport.LostPeer(c.self, transport.Ended))
	c.in.mu.Unlock()
	return nil
}
