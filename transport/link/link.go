// Package link makes connections of clients and workers to their controller that outlive their sockets: a connection
// that breaks costs time and nothing else.
//
// A Conn is a transport.Conn over one line after the other, a line being a connection of transport/stream or
// transport/inproc. Dial makes it on the side that connects, an Acceptor on the side that is connected to. Whoever uses
// it sees one connection, which ends once; it need not know that the line was another one for a while.
//
// # What it guarantees
//
// Every frame that Send took arrives, once and in order, or the Conn ends at both sides. transport/resume counts the
// frames of a direction on both sides and keeps them until the peer has them; after a break each side tells the other
// how many it has, and the other sends the rest. Frames are counted where Recv returns them, so an operation is neither
// lost nor done twice.
//
// # How long
//
// A line that has broken is replaced within the lease, which the accepting side tells the other in its Welcome. The
// side that dialled dials again, at most a second and a half apart. Both sides count the lease from when they
// noticed, and end the Conn when it is over; the accepting side at once where it learns that the other process has
// died. A process that was stopped (SIGSTOP) does not count the time in which it did not run. After a Goodbye, of
// either side, nothing is replaced. Nor is a line that breaks before the accepting side has heard anything behind
// its Welcome: the other side may not have got it, and would know nothing of the link.
//
// # Who may resume
//
// Who shows what a new connection shows (token, certificate, versions), is let in as the same holder, and knows the
// secret of the link, which only its Welcome told. Attempts are numbered and a number counts once, so that a recorded
// hello is of no use. The term names the start of the controller that made the link: no other start resumes it.
//
// # What bounds memory
//
// Send waits where the peer has not acknowledged keepBytes, so a Conn keeps that and one message more. The receiver
// acknowledges often enough (see transport/resume) that a peer that receives never makes Send wait. While the goroutine
// that receives is outside Recv, acknowledgements are not read, and it may be the one that sends: then only the line's
// own bound has Send wait.
//
// # Concurrency
//
// Send and its kin may be called from any goroutine, Recv from one. The goroutine in Recv does all that replaces a
// line, so no frame of an old line is received behind one of the new. mu comes before the locks of lines; it is held
// while a frame is handed to a line, which never waits, and not during Recv, Dial or Watch's function.
// core/client, core/controller and core/cluster import it.
package link

import (
	"cmp"
	"context"
	"encoding/binary"
	"os"
	"sync"
	"time"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/resume"
)

// keepBytes is what may be sent and not acknowledged before Send waits: less than a line's own bound, so that Send
// never waits for a line while it holds mu, and many times what a receiver leaves unacknowledged.
const keepBytes = 768 << 10

// line is a connection that a Conn goes over.
type line interface {
	transport.Conn
	transport.Peeker
	// Post is Send that never waits.
	Post(kind wire.Kind, payload []byte) error
}

// Conn is a transport.Conn, transport.Batcher and transport.Watched.
type Conn struct {
	peer    string
	lease   time.Duration // told by the accepting side; written before the first Recv
	replace replacer
	watch   func(why error)

	ctx    context.Context // ends with the Conn
	cancel context.CancelFunc

	mu        sync.Mutex // guards the rest, up to since
	room      sync.Cond  // sent has room again, or the Conn has ended
	line      line       // nil while there is none
	batch     transport.Batcher
	last      line // the latest, which may have broken
	sent      resume.Sent
	receiving bool  // a goroutine is in Recv, and reads acknowledgements
	waiting   int   // goroutines in Send that wait for room
	parting   bool  // a Goodbye was sent or received
	ended     error // why it has ended
	since     time.Time

	// Of the goroutine in Recv.
	received resume.Received
	heard    bool // something came behind the Welcome
}

// replacer finds the next line.
type replacer interface {
	// next waits for a line that the peer knows to be this Conn's, until it has one, the lease is over or the Conn
	// has ended; then it returns why. broken is why there is none.
	next(c *Conn, broken error) error
	// ends is told that the Conn has ended; it may be told so twice.
	ends()
}

func newConn(l line, r replacer) *Conn {
	c := &Conn{peer: l.Peer(), replace: r}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.room.L = &c.mu
	c.use(l)
	return c
}

// use has frames go over a line. Mu is held, or the Conn is new.
func (c *Conn) use(l line) {
	c.line, c.last = l, l
	c.batch, _ = l.(transport.Batcher)
}

// Peer implements transport.Conn.
func (c *Conn) Peer() string { return c.peer }

// Watch implements transport.Watched.
func (c *Conn) Watch(changed func(why error)) { c.watch = changed }

// Greeted passes the bound of frames on to the line.
func (c *Conn) Greeted(maxFrame int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if g, ok := c.line.(interface{ Greeted(maxFrame int) }); ok {
		g.Greeted(maxFrame)
	}
}

// way is how a frame leaves.
type way uint8

const (
	now   way = iota
	later     // with Flush, or what else is sent
	joins     // in one message with others
	joinsLater
)

// Send implements transport.Conn. While there is no line, it returns as soon as the frame is kept.
func (c *Conn) Send(kind wire.Kind, payload []byte) error { return c.send(kind, payload, now) }

// Later implements transport.Batcher.
func (c *Conn) Later(kind wire.Kind, payload []byte) error { return c.send(kind, payload, later) }

// Join implements transport.Batcher.
func (c *Conn) Join(kind wire.Kind, payload []byte, held bool) error {
	if held {
		return c.send(kind, payload, joinsLater)
	}
	return c.send(kind, payload, joins)
}

// Flush implements transport.Batcher.
func (c *Conn) Flush(here bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.batch != nil {
		c.batch.Flush(here)
	}
}

// Pending is the number of bytes that were sent and not acknowledged.
func (c *Conn) Pending() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sent.Bytes()
}

func (c *Conn) send(kind wire.Kind, payload []byte, how way) error {
	switch {
	case len(payload) > wire.MaxFrame:
		return wire.TooLong(kind, len(payload))
	case kind == 0:
		return status.New(status.InvalidArgument, "a message of no kind cannot be sent")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.sent.Bytes() >= keepBytes && c.receiving && c.ended == nil {
		if c.batch != nil {
			c.batch.Flush(false) // what fills it may be for later, and its Flush may come from who waits here
		}
		c.waiting++
		c.room.Wait()
		c.waiting--
	}
	if c.ended != nil {
		return c.ended
	}
	if kind == wire.KindWelcome { // the first word, which is not a link's yet
		return c.line.Send(kind, payload)
	}
	c.parting = c.parting || kind == wire.KindGoodbye
	c.sent.Add(kind, payload)
	var err error
	switch {
	case c.line == nil: // it is sent over the next
	case c.batch == nil || how == now:
		err = c.line.Send(kind, payload)
	case how == later:
		err = c.batch.Later(kind, payload)
	default:
		err = c.batch.Join(kind, payload, how == joinsLater)
	}
	if status.CodeOf(err) == status.InvalidArgument { // the line takes no such frame, and no later one would
		c.end(err)
		return err
	}
	return nil // a line that broke is replaced by the goroutine in Recv
}

// Recv implements transport.Conn. Where the line breaks, it waits for the next.
func (c *Conn) Recv() (wire.Kind, []byte, error) {
	defer c.leave()
	for {
		c.mu.Lock()
		c.receiving = true
		l, ended := c.last, c.ended
		c.mu.Unlock()
		if ended != nil {
			return 0, nil, ended
		}
		kind, payload, err := l.Recv()
		switch {
		case err != nil:
			if err = c.broke(l, err); err == nil {
				continue
			}
		case kind == wire.KindReceived:
			c.heard = true
			if err = c.acknowledged(payload); err == nil {
				continue
			}
		default:
			c.heard = true
			if c.count(kind, payload) {
				_ = l.Post(wire.KindReceived, binary.LittleEndian.AppendUint64(nil, c.received.Count()))
			}
			if kind == wire.KindGoodbye {
				c.mu.Lock()
				c.parting = true
				c.mu.Unlock()
			}
			return kind, payload, nil
		}
		return 0, nil, c.finish(err)
	}
}

// leave notes that the goroutine in Recv leaves it. It may come to need a lock that a goroutine in Send holds.
func (c *Conn) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.receiving = false
	if c.waiting > 0 {
		c.room.Broadcast()
	}
}

// Buffered implements transport.Conn. An acknowledgement is no message, and after an error Recv waits for a line.
func (c *Conn) Buffered() bool {
	c.mu.Lock()
	l := c.last
	c.mu.Unlock()
	kind := l.Peek()
	return kind != 0 && kind != wire.KindReceived
}

// count counts a frame, or those of a burst, which were sent as such. It reports whether an acknowledgement is due.
func (c *Conn) count(kind wire.Kind, payload []byte) (due bool) {
	if kind != wire.KindBurst {
		return c.received.Add(len(payload), false)
	}
	for len(payload) > 0 {
		_, part, rest, err := wire.NextFrame(payload)
		if err != nil {
			break // for the caller of Recv to find
		}
		due = c.received.Add(len(part), false) || due
		payload = rest
	}
	return due
}

// acknowledged is told how many frames the peer has.
func (c *Conn) acknowledged(payload []byte) error {
	if len(payload) != 8 {
		return status.New(status.InvalidArgument, "%s sent an acknowledgement of %d bytes; it has 8", c.peer, len(payload))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.sent.Ack(binary.LittleEndian.Uint64(payload)); err != nil {
		return status.Wrap(err, "%s", c.peer)
	}
	c.room.Broadcast()
	return nil
}

// broke replaces a line that Recv failed on. On an error the Conn is to end with it.
func (c *Conn) broke(l line, why error) error {
	c.mu.Lock()
	if c.ended != nil || c.parting || !c.heard || !resume.Outlasts(why) {
		defer c.mu.Unlock()
		return cmp.Or(c.ended, why)
	}
	c.line, c.batch = nil, nil
	c.since = time.Now()
	c.mu.Unlock()
	drop(l)
	if c.watch != nil {
		c.watch(why)
	}
	if err := c.replace.next(c, why); err != nil {
		return err
	}
	if c.watch != nil {
		c.watch(nil)
	}
	return nil
}

// carry has the Conn go on over a line whose peer has received so many frames. answer is called before anything is
// sent. On an error the line stays the caller's.
func (c *Conn) carry(l line, received uint64, answer func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended != nil {
		return c.ended
	}
	if err := c.sent.Ack(received); err != nil {
		return err
	}
	if err := answer(); err != nil {
		return err
	}
	err := c.sent.Again(func(kind wire.Kind, payload []byte, _ *os.File) error { return l.Post(kind, payload) })
	if err != nil {
		return err
	}
	c.use(l)
	c.room.Broadcast()
	return nil
}

// end ends the Conn, once. Mu is held.
func (c *Conn) end(why error) {
	if c.ended != nil {
		return
	}
	c.ended = why
	c.sent.Close()
	c.room.Broadcast()
	c.cancel()
}

// finish is end by the goroutine in Recv. It returns why the Conn has ended.
func (c *Conn) finish(why error) error {
	c.mu.Lock()
	closed := c.ended != nil // by Close, which may still write what was sent
	c.end(why)
	why = c.ended
	l := c.last
	c.mu.Unlock()
	if !closed {
		drop(l)
		c.replace.ends()
	}
	return why
}

// Close implements transport.Conn. Without a line, what was sent and not acknowledged is lost.
func (c *Conn) Close() error {
	c.mu.Lock()
	l := c.last
	c.end(status.New(status.Cancelled, "the connection to %s was closed on this side", c.peer))
	c.mu.Unlock()
	c.replace.ends()
	return l.Close()
}

// drop ends a line that has broken, without waiting for it to write.
func drop(l line) {
	if d, ok := l.(interface{ Drop() }); ok {
		d.Drop()
	} else {
		l.Close()
	}
}
