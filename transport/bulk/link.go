package bulk

import (
	"fmt"
	"net"
	"os"
	"sync"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport/shm"
	"github.com/openpathways/pathways/transport/stream"
)

// link is a connection to a peer. The peer's mu guards all that changes.
type link struct {
	x        *Exchange
	peer     *peer
	conn     *stream.Conn
	shared   bool            // long blocks go through shared memory
	accepted bool            // the peer dialled
	address  string          // that was dialled here
	token    [tokenSize]byte // streams name it
	arena    *shm.Arena      // what the peer writes into, where it is shared

	// What this side pushes.
	number   uint64 // the last
	outgoing map[uint64]*outgoing
	credit   int64                   // bytes of eager blocks that may be sent
	quiet    int64                   // of those that went without asking for an answer
	segments map[uint32]*shm.Mapping // the peer's memory here
	lends    bool                    // the peer knows what lending is
	shown    map[*shm.Segment]uint32 // memory of this side that the peer has
	last     uint32                  // number given to one
	frame    []byte                  // for eager blocks
	strands  []net.Conn              // that long blocks go over, where it is not shared
	sending  []*outgoing             // with bytes for the strands, in turns
	more     sync.Cond               // there are; or the link has ended
	dialing  bool                    // strands are, or were, made by this side

	// What the peer pushes.
	incoming  map[uint64]*incoming
	held      int64                   // bytes of eager blocks whose credit has not gone back
	owed      int64                   // of those, quiet ones that were taken
	announced map[uint32]bool         // segments that the peer has
	views     map[uint32]*shm.Mapping // the peer's memory that it lends from
	failed    []*incoming             // failed offers that nobody expected: a ring
	oldest    int                     // of failed, once it is full
}

func newLink(p *peer, conn *stream.Conn, protocol uint32) *link {
	l := &link{x: p.x, peer: p, conn: conn, shared: conn.PassesFiles(), lends: protocol >= wire.ProtocolLend, credit: eagerBytes, frame: make([]byte, 0, 8+keySize+eagerSize),
		outgoing: map[uint64]*outgoing{}, segments: map[uint32]*shm.Mapping{}, shown: map[*shm.Segment]uint32{},
		incoming: map[uint64]*incoming{}, announced: map[uint32]bool{}, views: map[uint32]*shm.Mapping{}}
	l.more.L = &p.mu
	if l.shared {
		l.arena = l.x.pool.Arena(fmt.Sprintf("blocks from process %d", p.number), true, l.dropped)
	}
	return l
}

// run reads from the peer until the link breaks, with which the peer is lost.
func (l *link) run() {
	var err error
	for err == nil {
		var kind wire.Kind
		var payload []byte
		if kind, payload, err = l.conn.Recv(); err == nil {
			// Who waits for a short block is told by this goroutine.
			short := (kind == kindEager || kind == kindQuiet) && l.x.calls.Take()
			err = l.handle(kind, payload)
			if short {
				l.x.calls.Run()
			}
		}
		if unread := l.conn.Pending(); err == nil && unread > maxUnread {
			err = status.New(status.ResourceExhausted, "it has not read %d bytes of answers", unread)
		}
	}
	l.lost(err)
	l.conn.Close()
	l.conn.DropFiles()
	if l.arena != nil {
		l.arena.Wait()
	}
	l.x.forget(l)
}

// errGoodbye is the end of a link whose peer has said that it ends.
type errGoodbye struct{ why error }

func (e errGoodbye) Error() string {
	if e.why == nil {
		return "it has said goodbye"
	}
	return e.why.Error()
}

// lost is told that the link broke.
func (l *link) lost(err error) {
	name := l.peer.name()
	if bye, ok := err.(errGoodbye); ok {
		err = status.New(status.Unavailable, "%s has gone", name)
		if bye.why != nil {
			err = status.New(status.Unavailable, "%s has gone: %w", name, bye.why)
		}
		if l.peer.lose(err) {
			l.x.log.Debug("a peer has gone", "peer", name, "why", bye)
		}
		return
	}
	if l.peer.lose(status.New(status.Unavailable, "%s is lost: %w", name, err)) {
		l.x.log.Warn("a peer is lost", "peer", name, "why", err)
	}
}

// lose ends the link. The peer's mu is held.
func (l *link) lose(err error) {
	if l.arena != nil {
		l.arena.Close(err) // before blocks are released: nobody gets them
	}
	for _, t := range l.outgoing {
		if t.lent {
			t.strand(err)
			continue
		}
		t.final, t.taken = true, true
		t.fail(err)
	}
	for _, t := range l.incoming {
		t.final, t.taken = true, true
		t.fail(err)
	}
	for _, m := range l.segments {
		m.Close()
	}
	clear(l.segments)
	for _, m := range l.views { // what is lent from them stays
		m.Close()
	}
	clear(l.views)
	l.failed = nil
	for _, s := range l.strands {
		s.Close()
	}
	l.more.Broadcast()
	go l.conn.Close() // it may wait for what was sent; run waits for it too
}

// handle does what a message of the peer says. An error is a message that no
// process of Open Pathways sends.
func (l *link) handle(kind wire.Kind, payload []byte) error {
	r := reader{b: payload}
	var then func() // without the lock
	var err error
	l.peer.mu.Lock()
	switch {
	case l.peer.lost != nil:
		err = l.peer.lost
	case kind == kindEager || kind == kindQuiet:
		n, key := r.u64(), r.key()
		if !r.bad {
			then, err = l.onEager(n, key, r.b, kind == kindQuiet)
		}
	case kind == kindOffer:
		n, key, size := r.u64(), r.key(), r.size()
		if r.end() {
			then, err = l.onOffer(n, key, size)
		}
	case kind == kindWritten:
		if n := r.u64(); r.end() {
			then, err = l.onFinal(n, nil)
		}
	case kind == kindFailed:
		n := r.u64()
		if why := r.status(); !r.bad && why == nil {
			err = wrong("a block that failed without an error")
		} else if !r.bad {
			then, err = l.onFinal(n, why)
		}
	case kind == kindSegment:
		number, size := r.u32(), r.size()
		if r.end() {
			err = mapSegment(l.segments, number, size, l.conn.File(), shm.Map)
		}
	case kind == kindUnmap || kind == kindHide:
		segments := l.segments
		if kind == kindHide {
			segments = l.views
		}
		if number := r.u32(); r.end() {
			err = unmapSegment(segments, number)
		}
	case kind == kindShow:
		number, size := r.u32(), r.size()
		if r.end() {
			err = mapSegment(l.views, number, size, l.conn.File(), shm.MapToRead)
		}
	case kind == kindLend:
		n, key, size, segment, offset := r.u64(), r.key(), r.size(), r.u32(), r.size()
		if r.end() {
			then, err = l.onLend(n, key, size, segment, offset)
		}
	case kind == kindGrant:
		n, segment, offset := r.u64(), r.u32(), r.size()
		if r.end() {
			then, err = l.onGrant(n, segment, offset)
		}
	case kind == kindTaken:
		n := r.u64()
		if why := r.status(); !r.bad {
			err = l.onTaken(n, why)
		}
	case kind == kindCredit:
		if back := r.size(); r.end() {
			if back > l.quiet {
				err = wrong("%d bytes of credit back, of %d", back, l.quiet)
				break
			}
			l.quiet -= back
			l.credit += back
		}
	case kind == kindGoodbye:
		if why := r.status(); !r.bad {
			err = errGoodbye{why}
		}
	default:
		err = wrong("a message of kind %d", kind)
	}
	l.peer.mu.Unlock()
	if r.bad {
		err = wrong("a message of kind %d with %d bytes", kind, len(payload))
	}
	if err == nil && then != nil {
		then()
	}
	return err
}

// wrong is an error of a peer that does not keep to the rules.
func wrong(format string, args ...any) error {
	return status.New(status.InvalidArgument, "it sent "+format, args...)
}

// mapSegment adds memory of the peer to what is mapped here.
func mapSegment(segments map[uint32]*shm.Mapping, number uint32, size int64, file *os.File, open func(*os.File, int64) (*shm.Mapping, error)) error {
	switch {
	case file == nil:
		return wrong("shared memory without a file")
	case number == 0 || segments[number] != nil || len(segments) >= maxShared:
		file.Close()
		return wrong("shared memory number %d, with %d others", number, len(segments))
	}
	m, err := open(file, size)
	if err == nil {
		segments[number] = m
	}
	return err
}

func unmapSegment(segments map[uint32]*shm.Mapping, number uint32) error {
	m := segments[number]
	if m == nil {
		return wrong("the end of shared memory %d, which it did not share", number)
	}
	delete(segments, number)
	m.Close()
	return nil
}

// dropped is told by the arena of a segment that has gone. It may come from under
// any lock.
func (l *link) dropped(s *shm.Segment) {
	l.x.calls.Do(func() {
		l.peer.mu.Lock()
		defer l.peer.mu.Unlock()
		if l.announced[s.Number] {
			delete(l.announced, s.Number)
			l.post(kindUnmap, segmentFrame(s.Number, 0)[:4])
		}
	})
}

// post sends a message. Where the link has broken, run hears of it.
func (l *link) post(kind wire.Kind, payload []byte) { _ = l.conn.Post(kind, payload) }
