package bulk

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/resume"
	"github.com/openpathways/pathways/transport/stream"
)

// A peer is in one of four states. All that this process has to do with it goes through the peer's mu, so that a block
// is pushed in one of them.
//
//	without a link   out is nil: blocks wait in waiting, at most maxOffers, and dial is under way as soon as the
//	                 controller has said where the process is
//	linked           out is set and stays: blocks go there, and waiting is empty. A link outlives its connections
//	away             still one of the above, but there has been no connection for DialTime. What was under way has
//	                 failed, once, and what comes fails at once, until back. Dialing goes on
//	lost             lost is set once and stays. What was under way has failed, the links have ended, and nothing
//	                 comes after that: process numbers are not used again
//
// # Why every push ends
//
// A block is told its end by tell, which clears done, so at most once. It is told at least once: a block that waits for
// a link is either taken over by the link (joined, under mu, so that none is added behind), or fails by failAll,
// markAway or end. A link's blocks end with its messages, and fail with it. And no state lasts without an end in sight:
// dial ends with a link, with lost, or passes into away after DialTime; so does a link without a connection (giveUp).
//
// A block that has failed here is still offered if there is a link, as failed: the receiver may be waiting for it, and
// must hear that it will not come.
//
// # Locks
//
// mu comes before the locks of the table, the connections, the copies and the memory, and is never held while a
// callback runs, a connection is dialed or fillHere copies: callers collect the blocks to fill, and fill them once
// they have released mu.

// peer is another process.
type peer struct {
	x      *Exchange
	number uint64

	linking sync.Mutex    // held while it is decided whether what the peer dials is a new link, before mu
	mu      sync.Mutex    // guards the rest, the links, and their blocks
	process *wire.Process // nil until the controller has spoken of it
	links   map[*link]struct{}
	out     *link       // what is pushed goes this way
	waiting []*outgoing // for a link
	wanted  bool        // a link is wanted
	dialing bool
	since   time.Time // dialing, or lost: since when
	tried   error     // dialing: the latest reason why it failed
	away    error     // it cannot be reached for now: what is under way with it fails
	lost    error     // why it has gone; nil while it is there
	gone    bool      // as Peers says, or its goodbye
	breaks  transport.Breaks
}

// pair is a number for this process and the peer.
func (p *peer) pair() uint64 { return p.x.Self()<<32 | p.number }

// name is what people call it.
func (p *peer) name() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.title()
}

// title is name where mu is held.
func (p *peer) title() string {
	if p.process != nil && p.process.Name != "" {
		return fmt.Sprintf("process %d (%s)", p.number, p.process.Name)
	}
	return fmt.Sprintf("process %d", p.number)
}

// known is told where the process is.
func (p *peer) known(process *wire.Process) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.process = process
	if p.wanted || len(p.waiting) > 0 {
		p.dial()
	}
}

// shares reports whether blocks come, or would come, through shared memory.
func (p *peer) shares() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.lost != nil || p.away != nil:
		return false
	case p.out != nil:
		return p.out.shared
	}
	return p.process != nil && p.process.Host == p.x.config.Host &&
		slices.ContainsFunc(p.process.Addresses, func(a string) bool { return strings.HasPrefix(a, "unix:") })
}

// want has a link made.
func (p *peer) want() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wanted = true
	p.dial()
}

// submit sends a block on its way: over the link, or into waiting. What cannot go has its end told at once.
func (p *peer) submit(t *outgoing) {
	p.mu.Lock()
	t.peer = p
	if t.err = cmp.Or(p.lost, p.away); t.err == nil {
		t.err = p.x.table.Refused(p.number, t.key) // the receiver hears of it
	}
	if t.err != nil {
		t.tell()
	}
	var fill bool
	switch {
	case p.lost != nil:
	case p.out != nil:
		fill = p.out.submit(t)
	case len(p.waiting) >= maxOffers:
		if t.err == nil {
			t.err = status.New(status.ResourceExhausted, "%d blocks wait for a link to %s; push fewer at a time", len(p.waiting),
				p.title())
			t.tell()
		}
	default:
		t.keep()
		p.waiting = append(p.waiting, t)
		p.dial()
	}
	p.mu.Unlock()
	if fill {
		t.fillHere()
	}
}

// failAll fails the blocks under some keys.
func (p *peer) failAll(of func(transport.Key) bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fail(of, err)
}

// fail is failAll where mu is held.
func (p *peer) fail(of func(transport.Key) bool, err error) {
	for _, t := range p.waiting {
		if of(t.key) && t.err == nil {
			t.err = err // the receiver hears of it when there is a link
			t.tell()
		}
	}
	for l := range p.links {
		for _, t := range l.outgoing {
			if of(t.key) {
				t.fail(err)
			}
		}
		for _, t := range l.incoming {
			if of(t.key) {
				t.fail(err)
			}
		}
	}
}

// giveUp ends what is under way with a peer, one of whose links has had no connection
// for long since this one.
func (p *peer) giveUp(l *link, since *carrier) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lost == nil && l.carrier == nil && l.last == since {
		p.markAway(l.broken)
	}
}

// markAway fails all that is under way with a peer, and what comes until back. The caller has mu.
func (p *peer) markAway(why error) {
	if p.away != nil {
		return
	}
	p.away = status.New(status.Unavailable, "%s and %s cannot reach each other, and try again: %w", p.x.title(), p.title(),
		why)
	name := p.title()
	p.x.calls.Do(func() { p.x.log.Warn("a peer cannot be reached", "peer", name, "why", why) })
	p.x.end(p.x.table.Forsake(p.number, p.away), p.away)
	p.fail(func(transport.Key) bool { return true }, p.away)
}

// broke records that a connection broke. The caller has mu.
func (p *peer) broke(why error) {
	p.breaks = transport.Breaks{Peer: p.number, Count: p.breaks.Count + 1, Last: time.Now(), Why: why}
}

// back ends what broke and markAway began when all links have connections. The caller has mu.
func (p *peer) back() {
	for l := range p.links {
		if l.carrier == nil {
			return
		}
	}
	if b := &p.breaks; b.Count > 0 && b.Lasted == 0 {
		b.Lasted = max(time.Since(b.Last), 1)
	}
	if p.away != nil {
		p.away = nil
		p.x.table.Regain(p.number)
		name := p.title()
		p.x.calls.Do(func() { p.x.log.Warn("a peer is reached again", "peer", name) })
	}
}

// apart reports whether there is no connection to the peer that there should be.
func (p *peer) apart() (a transport.Apart, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a.Peer = p.number
	switch {
	case p.gone || p.x.ctx.Err() != nil:
		return a, false
	case p.lost != nil:
		a.Since, a.Why = p.since, p.lost
	case p.tried != nil:
		a.Since, a.Why = p.since, p.tried
	}
	for l := range p.links {
		if l.broken != nil && (a.Why == nil || l.since.Before(a.Since)) {
			a.Since, a.Why = l.since, l.broken
		}
	}
	return a, a.Why != nil
}

// connected reports whether there is a connection to the peer.
func (p *peer) connected() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		if l.carrier != nil {
			return true
		}
	}
	return false
}

// reason is why the peer is lost, or nil.
func (p *peer) reason() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lost
}

// dial makes a link if there is none and the process can be reached. Mu is held.
func (p *peer) dial() {
	if p.dialing || p.out != nil || p.lost != nil || p.process == nil || len(p.process.Addresses) == 0 ||
		p.x.ctx.Err() != nil {
		return
	}
	p.dialing, p.since = true, time.Now()
	process := p.process
	p.x.running.Go(func() {
		err := p.reach(process)
		p.mu.Lock()
		p.dialing, p.tried = false, nil
		p.mu.Unlock()
		if err != nil {
			p.lose(err)
		}
	})
}

// linked reports whether there is nothing to dial for.
func (p *peer) linked() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out != nil || p.lost != nil
}

// reach tries the addresses of a process until one answers, the process has come by
// itself, or it has gone. An error is a refusal that will not change.
func (p *peer) reach(process *wire.Process) error {
	for attempt := 0; ; attempt++ {
		err := p.try(process)
		if err == nil || p.linked() {
			return nil
		}
		if !resume.Passes(err) && p.x.ctx.Err() == nil {
			return status.Wrap(err, "%s refused a link to %s", p.name(), p.x.title())
		}
		p.mu.Lock()
		p.tried = err
		if p.out == nil && time.Since(p.since) >= p.x.config.DialTime {
			p.markAway(err)
		}
		p.mu.Unlock()
		timer := time.NewTimer(resume.Pause(p.pair(), attempt))
		select {
		case <-timer.C:
		case <-p.x.ctx.Done():
			timer.Stop()
			return nil // Close ends what waits
		}
	}
}

// try tries each address of a process once.
func (p *peer) try(process *wire.Process) error {
	ctx, cancel := context.WithTimeout(p.x.ctx, p.x.config.DialTime)
	defer cancel()
	var failed error
	for _, address := range process.Addresses {
		if strings.HasPrefix(address, "unix:") && process.Host != p.x.config.Host {
			continue
		}
		conn, err := p.connect(ctx, address, p.x.config.Options)
		if err != nil {
			failed = cmp.Or(failed, err)
			continue
		}
		l := newLink(p, conn)
		l.address = address
		rand.Read(l.token[:])
		conn.TakeFiles() // one may come right behind the answer
		if err := p.x.announce(conn, kindLink, l.token); err != nil {
			failed = cmp.Or(failed, err)
			continue
		}
		if err := p.joined(l); err != nil {
			conn.Close()
			return err
		}
		return nil
	}
	if failed == nil {
		failed = status.New(status.Unavailable, "none of its addresses %q can be reached from this machine",
			process.Addresses)
	}
	return failed
}

// connect dials the process. Another one may listen at its address, which has taken the place of one that was lost, and
// would take what is not meant for it: it is told nothing.
func (p *peer) connect(ctx context.Context, address string, o stream.Options) (*stream.Conn, error) {
	conn, welcome, err := stream.Dial(ctx, address, p.x.hello(), o)
	if err == nil && welcome.Process != p.number {
		conn.Close()
		err = status.New(status.Unavailable, "process %d answers at %s instead of %s", welcome.Process, address, p.name())
	}
	return conn, err
}

// title returns this process's name for people.
func (x *Exchange) title() string {
	if name := x.config.Hello.GetName(); name != "" {
		return fmt.Sprintf("process %d (%s)", x.config.Self, name)
	}
	return fmt.Sprintf("process %d", x.config.Self)
}

func (x *Exchange) hello() *wire.Hello {
	h := proto.CloneOf(x.config.Hello)
	h.Role, h.Process, h.Host = wire.Role_ROLE_PEER, x.config.Self, x.config.Host
	return h
}

// joined puts a new link to use, and runs it. The first link takes over the blocks that wait; a second one, where both
// processes dialed at once, only receives. On an error the caller closes the connection.
func (p *peer) joined(l *link) error {
	p.mu.Lock()
	if p.lost != nil {
		defer p.mu.Unlock()
		p.x.goodbye(l)
		return p.lost
	}
	p.links[l] = struct{}{}
	if l.accepted {
		_ = l.carrier.conn.Post(kindLink, l.token[:]) // before all else; streams may come from now on
	}
	var fill []*outgoing
	if p.out == nil {
		p.out = l
		for _, t := range p.waiting {
			if l.submit(t) {
				fill = append(fill, t)
			}
		}
		p.waiting = nil
	}
	p.x.running.Go(l.run)
	p.back()
	p.mu.Unlock()
	for _, t := range fill {
		t.fillHere()
	}
	return nil
}

// lose ends everything from and to the process. False says that it had ended.
func (p *peer) lose(err error) bool {
	p.mu.Lock()
	ended := p.end(err)
	p.mu.Unlock()
	if ended {
		p.x.depart(p.number, err)
	}
	return ended
}

// depart keeps why a process is lost, and forgets one that was lost long ago.
func (x *Exchange) depart(number uint64, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if oldest, ok := x.departed.Add(number, err); ok {
		delete(x.peers, oldest)
	}
}

// end is lose where mu is held.
func (p *peer) end(err error) bool {
	if p.lost != nil {
		return false
	}
	p.lost, p.since = err, time.Now()
	_, expected := p.x.table.Lose(p.number, err)
	p.x.end(expected, err)
	for _, t := range p.waiting {
		if t.err == nil {
			t.err = err
			t.tell()
		}
	}
	p.waiting = nil
	for l := range p.links {
		p.x.goodbye(l)
		l.lose(err)
	}
	p.links, p.out = nil, nil
	return true
}

// goodbye tells the peer of a link that it ends because this process does.
func (x *Exchange) goodbye(l *link) {
	if x.ctx.Err() != nil {
		l.post(kindGoodbye, withStatus(nil, x.why))
	}
}
