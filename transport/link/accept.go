package link

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"sync"
	"time"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
)

// The accepting side. It guarantees that a connection continues a link only if its dialer is the process to which the
// link's Welcome went, and that of several attempts only the last continues it. Why this is true:
//
//   - give compares everything that says who the dialer is, before it touches the link: the term, the secret (in
//     constant time), the role, and the holder that the connection's own handshake has shown. A refusal leaves the
//     link as it was.
//   - Attempt numbers only rise, under the lock of the link. A Hello that was recorded and is sent again has a number
//     that was used. A dialer that gave an attempt up has made a higher one, which replaces the offer of the lower;
//     the lower one is refused with ABORTED, and its connection closed.
//   - An offer only waits: the goroutine in Recv takes it and answers. So Resumed's count of received frames is taken
//     when the old line is no longer read.
//
// # Links of an earlier start
//
// A controller that starts again knows its links by what it kept of them (Saved), not by their frames. Restore makes
// such a link without a line. The dialer resumes it with the term that it knows; the answer tells the new term, and
// both sides count from 1 again: what either had sent and the other had not acknowledged is forgotten, and the
// dialer's Recv returns wire.KindRestarted, so that the layers above say what they have. A dialer that did not get
// the answer asks with the old term again, and is answered as before. A process that received it has the new term, and
// once a frame from it has come, the old one is refused.
//
// Every wait has an end: next returns at the end of the lease, with the process at the other end, or with the Conn; a
// dialer whose offer is not taken gives up after transport.HelloTime and dials again.

// secretSize is the bytes of a link's secret, too many to guess.
const secretSize = 16

// Config configures an Acceptor.
type Config struct {
	Lease time.Duration // how long a link is kept without a line; 0: connections are not links
	Term  uint64        // of this start of the controller, higher than those of all before
	// Died blocks until the process that sent a hello is known to have died, and then returns why; or until ctx ends,
	// and then returns nil. It is called while a link has no line. If Died is nil, the lease alone decides.
	Died func(ctx context.Context, hello *wire.Hello) error
}

// Acceptor makes links of new connections, and passes connections that resume a link to it. Its methods may be called
// from any goroutine.
type Acceptor struct {
	config Config

	mu    sync.Mutex // guards the rest
	last  uint64
	links map[uint64]*accepted
}

// NewAcceptor makes an Acceptor.
func NewAcceptor(c Config) *Acceptor { return &Acceptor{config: c, links: map[uint64]*accepted{}} }

// accepted replaces the lines of a link that was accepted.
type accepted struct {
	from   *Acceptor
	conn   *Conn
	hello  *wire.Hello
	holder transport.Holder
	id     uint64
	secret [secretSize]byte
	beat   uint32 // heartbeat_ms of the first Welcome

	restored bool // it is of an earlier start

	came chan struct{} // offer is there
	mu   sync.Mutex    // guards the rest
	tops uint64        // the highest attempt
	// offer is a connection that resumes the link, and is neither taken nor refused yet.
	offer *transport.Incoming
	over  bool
}

// Take receives a connection that has said hello. If it is to be a link, in.Conn becomes a Conn, and Take returns
// false. If it resumes a link or asks to, Take returns true, and the connection belongs to the Acceptor. Take itself
// does not block; if a connection is to be refused, it returns a function that does so, which may block.
func (a *Acceptor) Take(in *transport.Incoming) (resumes bool, refuse func()) {
	r := in.Hello.GetResume()
	if r == nil {
		a.begin(in)
		return false, nil
	}
	instead, err := a.give(in, r)
	switch {
	case err != nil:
		return true, func() { in.Refuse(err) }
	case instead != nil:
		return true, func() { instead.Refuse(overtaken(in.Hello.Resume.Attempt)) }
	}
	return true, nil
}

func overtaken(by uint64) error {
	return status.New(status.Aborted, "attempt %d to resume the link came meanwhile", by)
}

// begin makes a link of a connection that may have one.
func (a *Acceptor) begin(in *transport.Incoming) {
	l, ok := in.Conn.(line)
	role := in.Hello.Role
	if !ok || a.config.Lease <= 0 || role != wire.Role_ROLE_CLIENT && role != wire.Role_ROLE_WORKER {
		return
	}
	r := &accepted{from: a, hello: in.Hello, holder: in.Holder, came: make(chan struct{}, 1)}
	rand.Read(r.secret[:])
	r.conn = newConn(l, r)
	r.conn.lease = a.config.Lease
	a.mu.Lock()
	a.last++
	r.id = a.last
	a.links[r.id] = r
	a.mu.Unlock()
	in.Conn = offering{r.conn, r}
}

// Saved is what a controller keeps of a link, for its next start.
type Saved struct {
	ID     uint64
	Secret []byte
	Hello  *wire.Hello // that began it
	Holder transport.Holder
	Beat   uint32 // heartbeat_ms of the first Welcome
}

// Saved returns what to keep of the link of a connection that was let in, and false if the connection is not a link.
func SavedOf(c transport.Conn) (Saved, bool) {
	o, ok := c.(offering)
	if !ok {
		return Saved{}, false
	}
	return Saved{ID: o.r.id, Secret: o.r.secret[:], Hello: o.r.hello, Holder: o.r.holder, Beat: o.r.beat}, true
}

// Restore makes a link that an earlier start has kept. Its lease begins with the first Recv.
func (a *Acceptor) Restore(s Saved) transport.Conn {
	r := &accepted{from: a, hello: s.Hello, holder: s.Holder, id: s.ID, beat: s.Beat, restored: true,
		came: make(chan struct{}, 1)}
	copy(r.secret[:], s.Secret)
	r.conn = newConn(noLine{peer: s.Hello.GetName()}, r)
	r.conn.lease, r.conn.heard = a.config.Lease, true
	r.conn.line, r.conn.batch = nil, nil
	a.mu.Lock()
	a.last = max(a.last, r.id)
	a.links[r.id] = r
	a.mu.Unlock()
	return offering{r.conn, r}
}

// noLine is the line of a link that was restored and not resumed yet: it has broken.
type noLine struct{ peer string }

var errNoLine = status.New(status.Unavailable, "the controller has ended, and has started again")

func (n noLine) Peer() string                   { return n.peer }
func (noLine) Send(wire.Kind, []byte) error     { return errNoLine }
func (noLine) Post(wire.Kind, []byte) error     { return errNoLine }
func (noLine) Recv() (wire.Kind, []byte, error) { return 0, nil, errNoLine }
func (noLine) Buffered() bool                   { return false }
func (noLine) Peek() wire.Kind                  { return 0 }
func (noLine) Room(int)                         {}
func (noLine) Close() error                     { return nil }

// offering is a Conn whose Welcome says how to resume it.
type offering struct {
	*Conn
	r *accepted
}

// Offer fills in Welcome.link.
func (o offering) Offer(w *wire.Welcome) {
	r := o.r
	r.beat = w.HeartbeatMs
	w.Link = &wire.Link{Id: r.id, Secret: r.secret[:], Term: r.from.config.Term,
		LeaseMs: r.from.config.Lease.Milliseconds()}
}

// give offers a connection to the link that it resumes. It returns the connection that was offered before and not
// taken yet, if there is one.
func (a *Acceptor) give(in *transport.Incoming, r *wire.Resume) (instead *transport.Incoming, err error) {
	a.mu.Lock()
	l := a.links[r.Link]
	a.mu.Unlock()
	secret := r.Secret
	r.Secret = nil // so that printing the hello does not show it
	switch {
	case r.Term < a.config.Term && (l == nil || !l.restored):
		return nil, status.New(status.FailedPrecondition, "it resumes link %d of the controller's term %d; this one has "+
			"started since, with term %d, and does not know it", r.Link, r.Term, a.config.Term)
	case r.Term > a.config.Term:
		return nil, status.New(status.FailedPrecondition, "it resumes link %d of the controller's term %d, which is later "+
			"than this one's, %d: another controller has taken over", r.Link, r.Term, a.config.Term)
	case l == nil:
		return nil, status.New(status.NotFound, "link %d has ended: the controller keeps one for %v without a connection "+
			"(--lease)", r.Link, a.config.Lease)
	case subtle.ConstantTimeCompare(secret, l.secret[:]) != 1:
		return nil, status.New(status.PermissionDenied, "link %d is another process's: the secret that was shown is not its",
			r.Link)
	case r.Term < a.config.Term && l.conn.hasReceived():
		return nil, status.New(status.FailedPrecondition, "it resumes link %d of term %d, and has continued it in term %d",
			r.Link, r.Term, a.config.Term)
	case in.Hello.Role != l.hello.Role || in.Holder != l.holder:
		return nil, status.New(status.PermissionDenied, "link %d was begun with other credentials", r.Link)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.over:
		return nil, status.New(status.NotFound, "link %d has ended", r.Link)
	case r.Attempt <= l.tops:
		return nil, status.New(status.Aborted, "attempt %d to resume link %d came after attempt %d", r.Attempt, r.Link,
			l.tops)
	}
	l.tops = r.Attempt
	instead, l.offer = l.offer, in
	select {
	case l.came <- struct{}{}:
	default: // next has not looked yet
	}
	l.conn.displace()
	return instead, nil
}

// displace ends the present line: the peer has another.
func (c *Conn) displace() {
	c.mu.Lock()
	l := c.line
	c.displaced = l
	c.mu.Unlock()
	if l != nil {
		drop(l)
	}
}

// take returns the offer, or nil, and removes it.
func (r *accepted) take() *transport.Incoming {
	r.mu.Lock()
	defer r.mu.Unlock()
	in := r.offer
	r.offer = nil
	return in
}

// next implements replacer.
func (r *accepted) next(c *Conn, broken error) error {
	died := make(chan error, 1)
	if look := r.from.config.Died; look != nil {
		ctx, stop := context.WithCancel(c.ctx)
		looked := make(chan struct{})
		go func() {
			defer close(looked)
			if why := look(ctx, r.hello); why != nil {
				died <- why
			}
		}()
		defer func() {
			stop()
			<-looked
		}()
	}
	lease := c.lease
	timer := time.NewTimer(lease)
	defer timer.Stop()
	due := time.Now().Add(lease)
	for {
		select {
		case <-r.came:
			if in := r.take(); in != nil {
				err := r.resume(c, in)
				if err == nil {
					return nil
				}
				in.Refuse(err)
			}
		case why := <-died:
			return why
		case <-timer.C:
			if late := time.Since(due); late > lease/4 { // this process was stopped, and accepted no connection
				timer.Reset(lease)
				due = time.Now().Add(lease)
				continue
			}
			return status.New(status.Unavailable, "%w; the process has not connected again within the lease of %v (--lease)",
				transport.ByName(broken), lease)
		case <-c.ctx.Done():
			return broken // finish knows why it has ended
		}
	}
}

// resume continues the link over a connection.
func (r *accepted) resume(c *Conn, in *transport.Incoming) error {
	l, ok := in.Conn.(line)
	if !ok {
		return status.New(status.Internal, "the connection cannot carry a link")
	}
	received, answer := in.Hello.Resume.Received, &wire.Resumed{Received: c.received.Count()}
	if term := r.from.config.Term; in.Hello.Resume.Term < term { // which give has allowed
		received, answer.Term = 0, term
	}
	return c.carry(l, received, func() error {
		return in.Welcome(&wire.Welcome{HeartbeatMs: r.beat, Resumed: answer})
	})
}

// ends implements replacer.
func (r *accepted) ends() {
	r.from.mu.Lock()
	delete(r.from.links, r.id)
	r.from.mu.Unlock()
	r.mu.Lock()
	in := r.offer
	r.offer, r.over = nil, true
	r.mu.Unlock()
	if in != nil {
		in.Refuse(status.New(status.NotFound, "link %d has ended", r.id))
	}
}
