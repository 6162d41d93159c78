// Package link makes connections of clients and workers to their controller that outlive their sockets: a connection
// that breaks costs time and nothing else.
//
// A Conn is a transport.Conn that goes over one line after another. A line is a connection of transport/stream or
// transport/inproc. Dial makes a Conn on the side that connects, an Acceptor on the side that is connected to. Callers
// see one connection that ends once; they need not know that its line was replaced.
//
// # What it guarantees
//
// Every frame that Send accepted arrives once and in order, or the Conn ends at both sides. Why this is true:
//
//   - Both sides count the frames of a direction, and a line keeps their order. So the count says which frames the peer
//     has, and no frame carries a number.
//   - transport/resume keeps each frame until the peer has acknowledged it. A frame is kept and handed to the line in
//     one critical section of mu, so both have the same order.
//   - Frames are counted where Recv returns them, not where they are read. A frame that was read from a line that
//     breaks is counted if the caller has it, and sent again if not.
//   - After a break, each side tells the other its count, in Hello.resume and Welcome.resumed, and the other sends the
//     rest. The goroutine in Recv replaces the line itself, so no frame of the old line is returned after the count
//     was told.
//
// # How long
//
// A line that has broken is replaced within the lease. The accepting side tells its length in the Welcome. The side
// that dialed dials again, at most a second and a half apart. Both sides count the lease from when they noticed the
// break, and end the Conn when it is over. The accepting side ends it at once if it learns that the other process has
// died. If the accepting process was stopped (SIGSTOP), it begins the lease again when it continues; a dialing process
// that was stopped makes one more attempt, whatever the time.
//
// Two breaks end the Conn at once: one after a Goodbye of either side, and one before the accepting side has heard
// anything after its Welcome, since the other side may not have received the Welcome and cannot resume without it.
//
// # Who may resume
//
// A dialer may resume a link if it shows what a new connection shows (token or certificate, versions), is admitted as
// the same holder and role, and knows the link's secret, which only the Welcome contained. Attempts are numbered and
// each number counts once, so a recorded Hello is of no use. The term names the start of the controller that made the
// link. A later start resumes it only if it has kept it, and then both sides begin anew: see accept.go.
//
// # What bounds memory and waits
//
// Send waits while keepBytes are sent and not acknowledged, so a Conn keeps that and one message more for each
// goroutine that sends. The receiver acknowledges often enough (see transport/resume) that a peer that receives does
// not make Send wait. Acknowledgments are read in Recv. While the goroutine that receives is outside Recv, none are,
// and that goroutine may be the one that sends; so then Send waits for room in the line instead, as without a link, and
// not at all if the line is broken. So what is kept then is what is sent while one message is handled, which is little;
// if it reaches keepMost, the Conn ends.
//
// # Concurrency
//
// Send, Later, Join and Flush may be called from any goroutine, Recv from one. mu comes before the locks of lines.
// While mu is held nothing waits: frames are handed to a line by Post and its kin, which never do.
//
// core/client, core/controller and core/cluster import it.
package link

import (
	"cmp"
	"context"
	"encoding/binary"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/resume"
)

// keepBytes bounds the bytes that are sent and not acknowledged before Send waits: many times what a receiver leaves
// unacknowledged, so that Send seldom waits, and somewhat less than a line's own bound, so that the line does not limit
// it first.
const keepBytes = 768 << 10

// keepMost is what may be kept while no goroutine is in Recv: two of the longest messages. It is a variable so that
// tests reach it soon.
var keepMost = 2 * wire.MaxFrame

// line is a connection that a Conn goes over.
type line interface {
	transport.Conn
	transport.Peeker
	// Post is Send that never waits.
	Post(kind wire.Kind, payload []byte) error
	// Room blocks until fewer than n bytes that were sent wait in the line, or it has broken.
	Room(n int)
}

// batcher is a line on which messages can wait for each other, as those of a transport.Batcher.
type batcher interface {
	// PostLater and PostJoin are Later and Join of a transport.Batcher that never wait.
	PostLater(kind wire.Kind, payload []byte) error
	PostJoin(kind wire.Kind, payload []byte, later bool) error
	Flush(here bool)
}

// Conn is a transport.Conn, transport.Batcher and transport.Watched.
type Conn struct {
	peer    string
	lease   time.Duration // told by the accepting side; written before the first Recv
	replace replacer
	watch   func(why error)

	ctx    context.Context // ends with the Conn
	cancel context.CancelFunc

	mu    sync.Mutex // guards the rest, up to displaced
	room  sync.Cond  // sent has room again, or the Conn has ended
	line  line       // nil while there is none
	batch batcher    // line, or nil
	// last is the latest line, which may have broken. It is written with mu, and only by the goroutine in Recv, which
	// reads it without.
	last    line
	sent    resume.Sent
	parting bool  // a Goodbye was sent or received
	ended   error // why it has ended
	since   time.Time
	// displaced is the line that ended because the peer came over another one, until the goroutine in Recv knows.
	displaced line

	// Read and written without mu, so that Recv seldom takes it: a caller of Send may hold it for a system call.
	over      atomic.Bool  // ended is there
	receiving atomic.Bool  // a goroutine is in Recv, and reads acknowledgments
	waiting   atomic.Int32 // goroutines in Send that wait for room, or are about to

	// Of the goroutine in Recv.
	received resume.Received
	heard    bool // something came after the Welcome
	// again: the other side has started again, and the caller of Recv has yet to hear of it.
	again bool
	came  atomic.Bool // a frame has come, of received
}

// replacer finds the next line.
type replacer interface {
	// next waits for a line that the peer knows to be this Conn's, and has the Conn go on over it (carry). It returns
	// an error if the lease is over, the peer refuses, or the Conn has ended. broken is why the last line ended.
	next(c *Conn, broken error) error
	// ends says that the Conn has ended. It may be called twice.
	ends()
}

func newConn(l line, r replacer) *Conn {
	c := &Conn{peer: l.Peer(), replace: r}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.room.L = &c.mu
	c.use(l)
	return c
}

// use makes l the line. Mu is held, or the Conn is new.
func (c *Conn) use(l line) {
	c.line, c.last = l, l
	c.batch, _ = l.(batcher)
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
		return wire.TooLong(kind, len(payload), wire.MaxFrame)
	case kind == 0 || kind == wire.KindReceived || kind == wire.KindBurst:
		return status.New(status.InvalidArgument, "a message of kind %v cannot be sent over a link", kind)
	case kind == wire.KindHeartbeat && len(payload) == 0:
		return nil // lines send such by themselves, and their Recv passes over them: it must not be counted
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waitForRoom(); c.ended != nil {
		return c.ended
	}
	if kind == wire.KindWelcome || kind == wire.KindWait { // these precede the messages of the link
		return c.line.Post(kind, payload)
	}
	if err := c.hand(kind, payload, how); status.CodeOf(err) == status.InvalidArgument {
		return err // the line accepts no such frame, and is as it was; other errors are for the goroutine in Recv
	}
	c.sent.Add(kind, payload)
	c.parting = c.parting || kind == wire.KindGoodbye
	return nil
}

// waitForRoom waits while too much is sent and not acknowledged. Mu is held, but not while it waits.
func (c *Conn) waitForRoom() {
	for c.sent.Bytes() >= keepBytes && c.ended == nil {
		if c.sent.Bytes() >= keepMost && !c.receiving.Load() {
			c.end(status.New(status.Unavailable, "%d bytes that were sent to %s are not acknowledged, and nothing has been "+
				"received from it meanwhile", c.sent.Bytes(), c.peer))
			drop(c.last) // so that the peer, and a goroutine that comes to Recv, learn of it
			return
		}
		if c.batch != nil {
			c.batch.Flush(false) // what fills it may be for later, and its Flush may come from the goroutine that waits
		}
		c.waiting.Add(1) // before receiving is read: leave does the reverse, so one of the two sees the other
		receiving := c.receiving.Load()
		if receiving {
			c.room.Wait()
		}
		c.waiting.Add(-1)
		if receiving {
			continue
		}
		l := c.last
		c.mu.Unlock()
		l.Room(keepBytes)
		c.mu.Lock()
		if !c.receiving.Load() {
			return
		}
	}
}

// hand hands a frame to the line, if there is one; if not, the next line gets what is kept. Mu is held.
func (c *Conn) hand(kind wire.Kind, payload []byte, how way) error {
	switch {
	case c.line == nil:
		return nil
	case c.batch == nil || how == now:
		return c.line.Post(kind, payload)
	case how == later:
		return c.batch.PostLater(kind, payload)
	}
	return c.batch.PostJoin(kind, payload, how == joinsLater)
}

// Recv implements transport.Conn. If the line breaks, it waits for the next.
func (c *Conn) Recv() (wire.Kind, []byte, error) {
	defer c.leave()
	for {
		c.receiving.Store(true)
		if c.over.Load() {
			return 0, nil, c.why()
		}
		if c.again {
			c.again = false
			return wire.KindRestarted, nil, nil
		}
		l := c.last
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
			if !c.came.Load() {
				c.came.Store(true)
			}
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

// leave records that the goroutine in Recv leaves it. That goroutine may next wait for a lock which a caller of Send
// holds, so callers that wait for acknowledgments are woken.
func (c *Conn) leave() {
	c.receiving.Store(false)
	if c.waiting.Load() > 0 {
		c.mu.Lock()
		c.room.Broadcast()
		c.mu.Unlock()
	}
}

// Buffered implements transport.Conn. It is false before an acknowledgment, which Recv does not return, and before an
// error, after which Recv waits for a line.
func (c *Conn) Buffered() bool {
	kind := c.last.Peek()
	return kind != 0 && kind != wire.KindReceived
}

// count counts a frame, or those of a burst, which were sent as such. It reports whether an acknowledgment is due.
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

// acknowledged forgets frames that the peer has, as its acknowledgment says.
func (c *Conn) acknowledged(payload []byte) error {
	if len(payload) != 8 {
		return status.New(status.InvalidArgument, "%s sent an acknowledgment of %d bytes; it has 8", c.peer, len(payload))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.sent.Ack(binary.LittleEndian.Uint64(payload)); err != nil {
		return status.Wrap(err, "%s", c.peer)
	}
	c.room.Broadcast()
	return nil
}

// broke replaces the line l, on which Recv failed. If it returns an error, the Conn has to end with it.
func (c *Conn) broke(l line, why error) error {
	c.mu.Lock()
	if c.ended != nil || c.parting || !c.heard || !resume.Outlasts(why) {
		defer c.mu.Unlock()
		return cmp.Or(c.ended, why)
	}
	if c.displaced == l {
		why = transport.LostPeer(c.peer, transport.Anew)
	}
	c.line, c.batch, c.displaced = nil, nil, nil
	c.since = time.Now()
	c.mu.Unlock()
	drop(l)
	c.tell(why)
	if err := c.replace.next(c, why); err != nil {
		return err
	}
	c.tell(nil)
	return nil
}

// tell calls the function of Watch. It may wait for a lock that a caller of Send holds, so it is outside of Recv as far
// as these are concerned.
func (c *Conn) tell(why error) {
	if c.watch == nil {
		return
	}
	c.leave()
	c.watch(why)
	c.receiving.Store(true)
}

// carry makes l the line and sends what its peer lacks, which has received so many frames. It calls answer before
// anything is sent. If it returns an error, l stays the caller's.
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

// restart begins both directions anew: the other side has started again and has no frame of either. The goroutine in
// Recv calls it while there is no line.
func (c *Conn) restart() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent.Close()
	c.sent, c.received, c.again = resume.Sent{}, resume.Received{}, true
	c.room.Broadcast()
}

// hasReceived reports whether a frame has come.
func (c *Conn) hasReceived() bool { return c.came.Load() }

// why returns why the Conn has ended.
func (c *Conn) why() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended
}

// end ends the Conn; only the first call has an effect. Mu is held.
func (c *Conn) end(why error) {
	if c.ended != nil {
		return
	}
	c.ended = why
	c.over.Store(true)
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

// drop closes a line that has broken, without waiting until what was sent is written.
func drop(l line) {
	if d, ok := l.(interface{ Drop() }); ok {
		d.Drop()
	} else {
		l.Close()
	}
}
