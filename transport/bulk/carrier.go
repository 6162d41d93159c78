package bulk

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"os"
	"sync"
	"time"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport/resume"
	"github.com/openpathways/pathways/transport/stream"
)

// A link outlives its connections. When one breaks, messages wait, see package resume, and the side that dialed dials
// again. Both sides first wait until nothing of the old connection is read any more, so that the count of received
// messages is final and no old bytes are written; then each tells the other its count, and sends the messages that the
// other has not received. Attempts are numbered, and one that comes after a later one is refused.
//
// Bytes that were on streams may be lost with them. The receiver asks for each of
// its unfinished blocks again, from the start, behind the messages that are sent
// again. The sender keeps the bytes until the receiver has them all.
//
// If a link has no connection for Config.DialTime, its blocks under way fail on both sides, and so do later ones, at
// once, until it has one again.

// carrier is a connection that a link goes over, with its stripes.
type carrier struct {
	conn *stream.Conn
	done chan struct{} // closed when nothing is read from it any more

	// The peer's mu guards these.
	stripes []net.Conn // that long blocks go over, where the link is not shared
	dialing bool       // stripes are, or were, made by this side
	full    bool       // the line is: only the first stripe takes pieces
	over    bool
	running sync.WaitGroup // goroutines of stripes
}

func newCarrier(conn *stream.Conn) *carrier {
	return &carrier{conn: conn, done: make(chan struct{})}
}

// run reads from one connection after the other until the link has ended.
func (l *link) run() {
	for c := l.last; c != nil; c = l.another() {
		err := l.receive(c.conn)
		if lasts(err) {
			l.breaks(c, err)
		} else {
			l.lost(err)
			c.conn.Close()
		}
		c.conn.Drop()
		c.conn.DropFiles()
		c.running.Wait()
		close(c.done)
	}
	if l.arena != nil {
		l.arena.Wait()
	}
	l.x.forget(l)
}

// lasts reports whether a link outlives an error of its connection.
func lasts(err error) bool {
	_, bye := err.(errGoodbye)
	return !bye && resume.Outlasts(err)
}

// breaks is told that a connection has broken, by the first that sees it.
func (l *link) breaks(c *carrier, err error) {
	p := l.peer
	p.mu.Lock()
	if p.lost != nil || l.carrier != c {
		p.mu.Unlock()
		return
	}
	l.carrier = nil
	l.since, l.broken = time.Now(), err
	p.broke(err)
	l.detach(c)
	for _, t := range l.outgoing {
		t.stale = t.granted && !t.taken && !l.shared
	}
	l.sending = nil
	l.patience = time.AfterFunc(l.x.config.DialTime, func() { p.giveUp(l, c) })
	name := p.title()
	p.mu.Unlock()
	l.x.log.Info("a link broke and is made again", "peer", name, "why", err)
	c.conn.Drop()
}

// detach ends the stripes of a connection. The peer's mu is held.
func (l *link) detach(c *carrier) {
	c.over = true
	for _, s := range c.stripes {
		s.Close()
	}
	l.more.Broadcast()
}

// another waits for the next connection; nil says that the link has ended.
func (l *link) another() *carrier {
	if !l.accepted {
		return l.redial()
	}
	select {
	case c := <-l.next:
		return c
	case <-l.over:
		return nil
	}
}

// redial connects again.
func (l *link) redial() *carrier {
	for attempt := 0; ; attempt++ {
		c, err := l.again()
		if c != nil {
			return c
		}
		if !resume.Passes(err) && l.x.ctx.Err() == nil {
			l.lost(status.Wrap(err, "it does not resume a link"))
		}
		timer := time.NewTimer(resume.Pause(l.peer.pair(), attempt))
		select {
		case <-timer.C:
		case <-l.over:
			timer.Stop()
			return nil
		}
		l.peer.mu.Lock()
		if err != nil && l.peer.lost == nil {
			l.broken = err // the latest reason
		}
		l.peer.mu.Unlock()
	}
}

// again makes one attempt to connect again.
func (l *link) again() (*carrier, error) {
	x, p := l.x, l.peer
	p.mu.Lock()
	if p.lost != nil {
		p.mu.Unlock()
		return nil, p.lost
	}
	l.attempt++
	attempt, received := l.attempt, l.received.Count()
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(x.ctx, x.config.DialTime)
	defer cancel()
	conn, err := p.connect(ctx, l.address, x.config.Options)
	if err != nil {
		return nil, err
	}
	conn.TakeFiles()
	c, err := l.taken(conn, attempt, received)
	if err != nil {
		conn.Drop()
		conn.DropFiles()
	}
	return c, err
}

// taken asks the peer to take a connection for this link.
func (l *link) taken(conn *stream.Conn, attempt, received uint64) (*carrier, error) {
	if err := conn.Post(kindResume, resumeFrame(l.token, attempt, received)); err != nil {
		return nil, err
	}
	kind, payload, err := l.x.first(conn)
	switch {
	case err != nil:
		return nil, err
	case kind == kindGoodbye:
		r := reader{b: payload}
		if why := r.status(); !r.bad && why != nil {
			return nil, why
		}
		return nil, status.New(status.Unavailable, "%s ends", conn.Peer())
	case kind != kindResume || len(payload) != resumeSize || !bytes.Equal(payload[:tokenSize], l.token[:]) ||
		binary.LittleEndian.Uint64(payload[tokenSize:]) != attempt:
		return nil, wrong("a message of kind %d with %d bytes where it was to take a link up again", kind, len(payload))
	}
	return l.carry(conn, attempt, binary.LittleEndian.Uint64(payload[tokenSize+8:]), func() error { return nil })
}

// retake puts a connection to use that the peer dialed for this link. Answer is
// called before anything else is sent. On an error the connection stays the caller's.
func (l *link) retake(conn *stream.Conn, attempt, received uint64, answer func() error) error {
	p := l.peer
	p.mu.Lock()
	switch {
	case p.lost != nil:
		defer p.mu.Unlock()
		return p.lost
	case attempt <= l.attempt:
		defer p.mu.Unlock()
		return status.New(status.Aborted, "attempt %d came after attempt %d", attempt, l.attempt)
	}
	l.attempt = attempt
	last := l.carrier
	done := l.last.done
	p.mu.Unlock()
	if last != nil {
		l.breaks(last, status.New(status.Unavailable, "the peer has connected again"))
	}
	select {
	case <-done:
	case <-l.over:
		return p.reason()
	}
	c, err := l.carry(conn, attempt, received, answer)
	if err == nil {
		l.next <- c // there is room: each carrier is made when the one before is done
	}
	return err
}

// carry has the link go on over a connection, of whose attempt both sides know. The
// peer has received so many messages.
func (l *link) carry(conn *stream.Conn, attempt, received uint64, answer func() error) (*carrier, error) {
	p := l.peer
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.lost != nil:
		return nil, p.lost
	case attempt != l.attempt:
		return nil, status.New(status.Aborted, "attempt %d came after attempt %d", attempt, l.attempt)
	}
	if err := l.sent.Ack(received); err != nil {
		return nil, err
	}
	if err := answer(); err != nil {
		return nil, err
	}
	c := newCarrier(conn)
	err := l.sent.Again(func(kind wire.Kind, payload []byte, file *os.File) error {
		if file != nil {
			return conn.PostFile(kind, payload, file)
		}
		return conn.Post(kind, payload)
	})
	if err != nil {
		return nil, err
	}
	l.carrier, l.last, l.broken = c, c, nil
	l.patience.Stop()
	for _, t := range l.incoming {
		t.again()
	}
	if len(l.incoming)+len(l.outgoing) > 0 {
		l.reach()
	}
	p.back()
	name, after := p.title(), time.Since(l.since).Round(time.Millisecond)
	l.x.calls.Do(func() { l.x.log.Info("a link has a new connection", "peer", name, "after", after) })
	return c, nil
}

// again asks for the bytes of a block whose streams broke. The peer's mu is held.
func (t *incoming) again() {
	if t.link.shared || !t.granted || t.lent != nil || t.err != nil || t.got == t.size {
		return
	}
	t.begun, t.got = 0, 0
	t.asked++
	t.link.post(kindAgain, numbers(nil, t.n))
}

// onAgain is told that the peer lacks bytes of a block. What was said of the block's
// end before the answer does not hold any more.
func (l *link) onAgain(n uint64) error {
	t := l.outgoing[n]
	if t == nil || l.shared || !t.granted || t.taken {
		return wrong("that it lacks block %d, which was not sent", n)
	}
	stale := t.stale // otherwise the block was begun on this connection
	t.stale = false
	if stale && (t.err == nil || !t.failed) {
		t.final = false
	}
	said := uint64(0)
	if t.final {
		said = 1
	}
	l.post(kindAfresh, numbers(nil, n, said))
	switch {
	case !stale:
	case t.err != nil:
		t.settle()
	case t.bytes != nil:
		t.given, t.writing = 0, true
		t.spread()
	}
	return nil
}

// onAfresh is the answer to again.
func (l *link) onAfresh(n, said uint64) error {
	t := l.incoming[n]
	if t == nil || t.asked == 0 || said > 1 {
		return wrong("that it begins block %d again, which was not asked", n)
	}
	t.asked--
	t.final = said == 1
	t.settle()
	return nil
}
