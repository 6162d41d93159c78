package bulk

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/openpathways/pathways/core/shape/strided"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport/resume"
	"github.com/openpathways/pathways/transport/shm"
	"github.com/openpathways/pathways/transport/stream"
)

// A link brings messages about blocks from one process to another and back. What becomes of the blocks is said in
// outgoing.go and incoming.go, and how a link outlives its connections in carrier.go.
//
// # What is guaranteed, and why
//
// A message is handled once, and in the order in which post had the peer's mu, however often the connection breaks.
// post numbers it (sent) before it writes it, and under the same lock, so both orders are one. The peer counts what it
// has handled (received), by one goroutine (run), which reads the next connection when it is done with the last; and
// the next connection begins with what the peer has not counted. Acknowledgments alone have no number: a later one
// says more than one that was lost.
//
// The goroutine that reads from a peer never waits for it, so two processes cannot wait for each other here. What
// handles a message posts its answers, and posting does not wait. What may pile up is bounded all the same: blocks by
// credit and maxOffers, memory by maxShared, and a peer that leaves maxUnread bytes unread is lost.
//
// Nothing that a peer says reaches memory unchecked. Each number of a block or segment is looked up in what this side
// has given or was told, each size and place is compared with it, and what does not fit is an error (wrong), with which
// the peer is lost, and no other. So a process that fails, or lies, can harm its own blocks alone.
//
// The end comes once (peer.lose), and everything under way ends with it: lose closes the memory into which the peer may
// still write before any block of it is given back, so that it is not used again; then it fails each block; and closing
// over ends the waits for another connection.

// link joins this process and a peer: a connection at a time, see carrier. The
// peer's mu guards all that changes.
type link struct {
	x        *Exchange
	peer     *peer
	shared   bool            // long blocks go through shared memory
	accepted bool            // the peer dialed
	address  string          // that was dialed here
	token    [tokenSize]byte // connections after the first, and streams, name it
	arena    *shm.Arena      // what the peer writes into, where it is shared

	// Its connections.
	carrier  *carrier      // nil while it has none
	last     *carrier      // the latest, which may have broken
	next     chan *carrier // for run, of a link that the peer dialed
	over     chan struct{} // closed when the link has ended
	attempt  uint64        // of the dialing side to connect again
	sent     resume.Sent
	received resume.Received // of run; read by others when last is done
	since    time.Time       // when it lost its carrier
	broken   error           // and why; nil while it has one
	patience *time.Timer

	// What this side pushes.
	number   uint64 // the last
	outgoing map[uint64]*outgoing
	credit   int64                   // bytes of eager blocks that may be sent
	quiet    int64                   // of those that went without asking for an answer
	segments map[uint32]*shm.Mapping // the peer's memory here
	shown    map[*shm.Segment]uint32 // memory of this side that the peer has
	numbered uint32                  // number given to one last
	shelf    uint64                  // the message that showed the shelf; 0: none yet
	frame    []byte                  // for eager blocks
	corked   bool                    // messages wait for uncork, to leave in one write
	soon     bool                    // a goroutine is about to have messages leave that were posted for later
	sending  []*outgoing             // with bytes for the stripes, in turns
	more     sync.Cond               // there are; or the carrier is over

	// What the peer pushes.
	incoming  map[uint64]*incoming
	held      int64                   // bytes of eager blocks whose credit has not gone back
	owed      int64                   // of those, quiet ones that were taken
	announced map[uint32]bool         // segments that the peer has
	rooms     map[*shm.Segment]uint32 // memory for arrays that it has, too
	roomed    uint32                  // number given to one last
	views     map[uint32]*shm.Mapping // the peer's memory that it lends from
	failed    []*incoming             // failed offers that were not expected: a ring
	oldest    int                     // of failed, once it is full
}

func newLink(p *peer, conn *stream.Conn) *link {
	l := &link{x: p.x, peer: p, shared: conn.PassesFiles(), rooms: map[*shm.Segment]uint32{},
		next: make(chan *carrier, 1), over: make(chan struct{}), credit: eagerBytes,
		frame:    make([]byte, 0, 8+keySize+eagerSize),
		outgoing: map[uint64]*outgoing{}, segments: map[uint32]*shm.Mapping{}, shown: map[*shm.Segment]uint32{},
		incoming: map[uint64]*incoming{}, announced: map[uint32]bool{}, views: map[uint32]*shm.Mapping{}}
	l.carrier = newCarrier(conn)
	l.last = l.carrier
	l.more.L = &p.mu
	if l.shared {
		l.arena = l.x.pool.Arena(fmt.Sprintf("blocks from process %d", p.number), true, l.dropped)
	}
	return l
}

// receive reads from the peer until the connection breaks.
func (l *link) receive(conn *stream.Conn) error {
	for {
		kind, payload, err := conn.Recv()
		switch {
		case err != nil:
			return err
		case kind == kindAck:
			err = l.onAck(payload)
		default:
			// This goroutine itself calls back those that wait for a short block.
			short := (kind == kindEager || kind == kindQuiet) && l.x.calls.Take()
			err = l.handle(conn, kind, payload)
			if short {
				l.x.calls.Run()
			}
			if err == nil && l.received.Add(len(payload), kind == kindSegment || kind == kindShow) {
				_ = conn.Post(kindAck, numbers(nil, l.received.Count())) // the next one tells more
			}
		}
		if err != nil {
			return err
		}
		if unread := conn.Pending(); unread > maxUnread {
			return status.New(status.ResourceExhausted, "it has not read %d bytes of answers", unread)
		}
	}
}

// onAck is told how many messages the peer has.
func (l *link) onAck(payload []byte) error {
	r := reader{b: payload}
	count := r.u64()
	if !r.end() {
		return wrong("an acknowledgment with %d bytes", len(payload))
	}
	l.peer.mu.Lock()
	defer l.peer.mu.Unlock()
	return l.sent.Ack(count)
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
		l.peer.mu.Lock()
		l.peer.gone = true
		l.peer.mu.Unlock()
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
		l.arena.Close(err) // before blocks are released: they are not used again
	}
	for s := range l.rooms {
		s.Retire() // the peer may still write there
	}
	for _, t := range l.outgoing {
		if t.lent {
			t.keepLent(err)
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
	if c := l.carrier; c != nil {
		l.carrier = nil
		l.detach(c)
		go c.conn.Close() // it may wait for what was sent; run waits for it too
	}
	if l.patience != nil {
		l.patience.Stop()
	}
	l.sent.Close()
	close(l.over)
}

// handle does what a message of the peer says. An error is a message that no
// process of Open Pathways sends.
func (l *link) handle(conn *stream.Conn, kind wire.Kind, payload []byte) error {
	r := reader{b: payload}
	l.peer.mu.Lock()
	then, err := l.take(conn, kind, &r)
	l.peer.mu.Unlock()
	if r.bad {
		err = wrong("a message of kind %d with %d bytes", kind, len(payload))
	}
	if err == nil && then != nil {
		then()
	}
	return err
}

// take does what a message says, as far as that is done under the peer's mu, which the
// caller holds, and returns what is left to do without it.
func (l *link) take(conn *stream.Conn, kind wire.Kind, r *reader) (then func(), err error) {
	if l.peer.lost != nil {
		return nil, l.peer.lost
	}
	switch kind {
	case kindEager, kindQuiet, kindOffer, kindWritten, kindFailed, kindLend, kindGrant, kindPlace, kindTaken:
		return l.takeOfBlock(kind, r)
	case kindSegment, kindUnmap, kindHide, kindShow:
		return nil, l.takeOfSegment(conn, kind, r)
	case kindAgain, kindAfresh:
		return nil, l.takeOfResuming(kind, r)
	case kindCredit:
		return nil, l.takeCredit(r)
	case kindGoodbye:
		if why := r.status(); !r.bad {
			return nil, errGoodbye{why}
		}
		return nil, nil
	}
	return nil, wrong("a message of kind %d", kind)
}

// takeOfBlock is take of a message about one block.
func (l *link) takeOfBlock(kind wire.Kind, r *reader) (then func(), err error) {
	n := r.u64()
	switch kind {
	case kindEager, kindQuiet:
		if key := r.key(); !r.bad {
			return l.onEager(n, key, r.b, kind == kindQuiet)
		}
	case kindOffer:
		key, size := r.key(), r.size()
		if r.end() {
			return l.onOffer(n, key, size)
		}
	case kindWritten:
		if r.end() {
			return l.onFinal(n, nil)
		}
	case kindFailed:
		if why := r.status(); !r.bad && why == nil {
			return nil, wrong("a block that failed without an error")
		} else if !r.bad {
			return l.onFinal(n, why)
		}
	case kindLend:
		key, size, segment, offset := r.key(), r.size(), r.u32(), r.size()
		if r.end() {
			return l.onLend(n, key, size, segment, offset)
		}
	case kindGrant:
		segment, offset := r.u32(), r.size()
		if r.end() {
			return l.onGrant(n, segment, offset, strided.Layout{})
		}
	case kindPlace:
		segment, offset := r.u32(), r.size()
		if at := r.layout(); r.end() {
			return l.onPlace(n, segment, offset, at)
		}
	case kindTaken:
		if why := r.status(); !r.bad {
			return nil, l.onTaken(n, why)
		}
	}
	return nil, nil // what is wrong with it stands in r
}

// takeOfSegment is take of a message about memory that both processes map.
func (l *link) takeOfSegment(conn *stream.Conn, kind wire.Kind, r *reader) error {
	number := r.u32()
	switch kind {
	case kindSegment:
		if size := r.size(); r.end() {
			return mapSegment(l.segments, number, size, conn.File(), l.x.pool.Map)
		}
	case kindShow:
		if size := r.size(); r.end() {
			return mapSegment(l.views, number, size, conn.File(), l.x.pool.MapToRead)
		}
	case kindUnmap:
		if r.end() {
			return unmapSegment(l.segments, number)
		}
	case kindHide:
		if r.end() {
			return unmapSegment(l.views, number)
		}
	}
	return nil // what is wrong with it stands in r
}

// takeOfResuming is take of a message about what a broken connection has lost.
func (l *link) takeOfResuming(kind wire.Kind, r *reader) error {
	n := r.u64()
	if kind == kindAgain {
		if r.end() {
			return l.onAgain(n)
		}
		return nil
	}
	if said := r.u64(); r.end() {
		return l.onAfresh(n, said)
	}
	return nil
}

// takeCredit is take of bytes that the peer has room for again.
func (l *link) takeCredit(r *reader) error {
	back := r.size()
	if !r.end() {
		return nil
	}
	if back > l.quiet {
		return wrong("%d bytes of credit back, of %d", back, l.quiet)
	}
	l.quiet -= back
	l.credit += back
	return nil
}

// wrong is an error of a peer that does not keep to the rules.
func wrong(format string, args ...any) error {
	return status.New(status.InvalidArgument, "it sent "+format, args...)
}

// mapSegment adds memory of the peer to what is mapped here.
func mapSegment(segments map[uint32]*shm.Mapping, number uint32, size int64, file *os.File,
	open func(*os.File, int64) (*shm.Mapping, error)) error {
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

// post sends a message. While the link has no connection, it waits for the next.
func (l *link) post(kind wire.Kind, payload []byte) {
	l.sent.Add(kind, payload)
	switch { // if it fails, run hears why
	case l.carrier == nil:
	case l.corked:
		_ = l.carrier.conn.PostLater(kind, payload)
	default:
		_ = l.carrier.conn.Post(kind, payload)
	}
}

// postAbout is post of a message about a block. That about a long one leaves when the goroutines that can run have had
// their turn, together with what they say: a transfer of many arrays is many messages at a time, and each write wakes
// the peer. A block that is alone on its link has nothing to wait for: one of 256 KiB took a fifth longer. On this host
// its offer waits even so, since regions of its array that go to other peers are offered meanwhile, to be copied with
// it.
func (l *link) postAbout(size int64, kind wire.Kind, payload []byte) {
	isAlone := len(l.outgoing)+len(l.incoming) == 1 && (kind != kindOffer || !l.shared)
	if size < longCopy || isAlone || l.carrier == nil {
		l.post(kind, payload)
		return
	}
	l.sent.Add(kind, payload)
	_ = l.carrier.conn.PostLater(kind, payload)
	if l.soon {
		return
	}
	l.soon = true
	l.x.running.Go(func() { // run, which has a carrier, waits for it
		runtime.Gosched()
		l.peer.mu.Lock()
		defer l.peer.mu.Unlock()
		l.soon = false
		if l.carrier != nil {
			l.carrier.conn.Flush(true)
		}
	})
}

// uncork has the messages leave that were posted while the link was corked.
func (l *link) uncork() {
	l.corked = false
	if l.carrier != nil {
		l.carrier.conn.Flush(true)
	}
}

// postFile is post of a message and a file.
func (l *link) postFile(kind wire.Kind, payload []byte, file *os.File) error {
	if err := l.sent.AddFile(kind, payload, file); err != nil {
		return err
	}
	if l.carrier != nil {
		_ = l.carrier.conn.PostFile(kind, payload, file) // if it fails, it is sent again
	}
	return nil
}
