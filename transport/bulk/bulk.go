// Package bulk is transport.Exchange between processes: by shared memory on one
// host, by TCP between hosts.
//
// A link is a connection of ROLE_PEER between two processes, made by the one that
// needs it first, and used in both directions. What is short travels inside the message
// that announces it, within a credit of bytes. What is longer is offered, and sent
// when the receiver expects it and has granted memory for it, so that a block which
// waits takes no memory and holds up no other.
//
// Over a unix socket the grant names a block in shared memory of the receiver, kept for this link, and the sender
// writes straight into it: one copy. If Expect names its own memory, there is a second one, out of the block. Over TCP
// the bytes come in chunks over several streams, straight into their destination.
//
// A block that is lent is named where it lies in shared memory of its sender, which the receiver maps to read, and
// returns when it likes. If a link breaks, what is lent over it stays the peer's until the controller says that the
// peer has gone.
//
// Each block ends with two messages: the sender's, that the bytes are there or
// never will be, and the receiver's, that they were taken or will not be. Until the
// first, the sender may write; until the second, it waits. Each side says its own
// once and forgets the block when it has both. A short block whose sender does not
// ask what became of it is one message, and its credit comes back with others'.
//
// # Liveness
//
// A link whose connection breaks is given another, see carrier.go: nothing is lost and nothing arrives twice. If that
// takes longer than DialTime, what is under way with the peer fails with UNAVAILABLE that names both processes, and
// what comes later fails at once, until there is a connection again; Apart lists such peers.
//
// A process that sends what no process of Open Pathways sends, that says goodbye or
// refuses a link, or which Peers says has gone, is lost: everything from it and to it
// fails with UNAVAILABLE that names it, now and later, since process numbers are not
// used again; of many that are lost, the oldest are forgotten. Memory that a lost peer
// may still write to is not used again either.
//
// Nothing here waits for a peer while it reads from one; what is queued for a peer
// is bounded by the credit and the number of offers, and a peer that exceeds
// either is lost.
//
// # Locks
//
// A peer's mu guards the peer, its links and their blocks. Under it are those of
// the table, the connections, the copies, the memory and the calls, which call no other
// code. Callbacks are made by Exchange.calls alone.
package bulk

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/openpathways/pathways/core/shape/strided"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/match"
	"github.com/openpathways/pathways/transport/shm"
	"github.com/openpathways/pathways/transport/stream"
)

const (
	eagerSize  = transport.PostSize // longer blocks are offered
	eagerBytes = 1 << 20            // of eager blocks on a link that were not taken
	creditBack = 128 << 10          // of quiet blocks come back at once
	eagerCost  = 64                 // what a block costs besides its bytes
	maxOffers  = 1 << 17            // blocks of a side of a link that have not ended
	maxFailed  = 4096               // failed offers of a link that are kept until they are expected
	maxUnread  = 256 << 20          // bytes that wait for a peer to read them; what the other bounds allow is less
	maxShared  = 4096               // segments that a peer may share
	streams    = 4                  // TCP connections of a link for long blocks, that this side makes
	chunk      = 512 << 10          // bytes of a piece on a stream
	maxStreams = 64                 // of a link
	longCopy   = 256 << 10          // from here on another goroutine copies a block
)

// Config is what an Exchange needs to know. Zero fields take the defaults.
type Config struct {
	Self uint64 // the process number that the controller gave
	Host string // as in wire.Hello: unix addresses are for peers with the same
	// Hello is the greeting for peers: Name, Cluster and Proof; the rest is filled in.
	Hello *wire.Hello
	// Options is how links are dialed. A heartbeat and a bound of silence belong
	// here, and in the listeners' options.
	Options stream.Options
	// Listeners are where peers come; the exchange owns them. Without any, this
	// side dials the process that it expects something from.
	Listeners []transport.Listener
	Pool      *shm.Pool // memory of blocks; one of its own
	// Lends puts blocks that come by sockets into shared memory, which this process lends to others of its host.
	Lends    bool
	DialTime time.Duration // how long what is under way waits for a peer to be reached; 10 s
	// Here has Expect make the callback itself where the block has come, and others
	// that are due: for who holds no lock then that a callback may want. It saves a
	// goroutine.
	Here bool
	Log  *slog.Logger // of links that were refused or lost; none
}

var copied atomic.Int64

// Copied is how many bytes of blocks the exchanges of this process have copied from
// memory to memory. What fills a block, and what reads sockets, is not theirs.
func Copied() int64 { return copied.Load() }

// move is copy, counted.
func move(dst, src []byte) { copied.Add(int64(copy(dst, src))) }

// moveStrided is strided.Copy, counted.
func moveStrided(dst []byte, to strided.Layout, src []byte, from strided.Layout) {
	strided.Copy(dst, to, src, from)
	copied.Add(from.Bytes())
}

// clone copies bytes that are not kept.
func clone(data []byte) []byte {
	copied.Add(int64(len(data)))
	return append([]byte(nil), data...)
}

// Exchange implements transport.Exchange.
type Exchange struct {
	config Config
	table  *match.Table[*incoming]
	pool   *shm.Pool
	arena  *shm.Arena // memory that no other process writes to
	rooms  *shm.Arena // memory that several peers write to
	shelf  shelf      // memory that several peers read
	calls  match.Calls
	copies copies // to peers on this host
	log    *slog.Logger
	lent   atomic.Int64 // bytes of peers' memory that are read here

	trips  func(fd int) (trip, shortest time.Duration) // of a socket; tests have their own
	offers int                                         // maxOffers of a peer; tests have fewer

	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	running sync.WaitGroup // goroutines of listeners, links, dialing

	mu       sync.Mutex // guards what follows, up to why; never taken under a peer's
	peers    map[uint64]*peer
	departed match.Recent[uint64]      // of peers, those that are lost
	links    map[[tokenSize]byte]*link // that may get streams
	closed   error
	why      error // it is closed, set before

	returning  sync.Mutex  // guards unreturned
	unreturned []*outgoing // lent over links that have ended, to peers that may still read
}

// New makes an exchange and begins to accept links.
func New(config Config) (*Exchange, error) {
	if config.Self == 0 {
		return nil, status.New(status.InvalidArgument, "an exchange needs the process number that the controller gave")
	}
	if config.Hello == nil {
		config.Hello = new(wire.Hello)
	}
	if config.Pool == nil {
		config.Pool = shm.NewPool(shm.Config{})
	}
	if config.DialTime == 0 {
		config.DialTime = 10 * time.Second
	}
	if config.Log == nil {
		config.Log = slog.New(slog.DiscardHandler)
	}
	config.Options.MaxFrame = transport.ShortFrame // what is longer goes another way
	x := &Exchange{config: config, table: match.New[*incoming](), pool: config.Pool, log: config.Log,
		peers: map[uint64]*peer{}, links: map[[tokenSize]byte]*link{}, trips: trips, offers: maxOffers}
	x.arena = x.pool.Arena("blocks", config.Lends, nil)
	x.rooms = x.pool.Arena("arrays from several", true, nil)
	x.shelf.arena = x.pool.Arena("short blocks", true, nil)
	x.copies.awaits = map[source]*pass{}
	x.ctx, x.cancel = context.WithCancel(context.Background())
	for _, l := range config.Listeners {
		x.running.Go(func() {
			for {
				in, err := l.Accept()
				if err != nil {
					return
				}
				x.Take(in)
			}
		})
	}
	return x, nil
}

// Self implements transport.Exchange.
func (x *Exchange) Self() uint64 { return x.config.Self }

// Push implements transport.Exchange.
func (x *Exchange) Push(peer uint64, key transport.Key, size int64, fill func(dst []byte, written func(error)),
	done func(error)) {
	x.push(&outgoing{to: peer, key: key, size: size, fill: fill, done: done})
}

// PushBytes implements transport.Exchange.
func (x *Exchange) PushBytes(peer uint64, key transport.Key, data []byte, done func(error)) {
	size := int64(len(data))
	x.push(&outgoing{to: peer, key: key, size: size, data: data, from: strided.Dense(size), done: done})
}

// PushPart implements transport.Exchange.
func (x *Exchange) PushPart(peer uint64, key transport.Key, part transport.Part, done func(error)) {
	x.push(&outgoing{to: peer, key: key, size: part.At.Bytes(), data: part.Data, from: part.At, part: true, done: done})
}

func (x *Exchange) push(t *outgoing) {
	p, err := x.find(t.to, false)
	if err == nil {
		p.submit(t)
	} else if t.done != nil {
		x.calls.Do(func() { t.done(err) })
	}
}

// Post implements transport.Exchange. Over a link that stands: where that breaks, the
// peer sees it.
func (x *Exchange) Post(peer uint64, key transport.Key, data []byte) bool {
	p, err := x.find(peer, false)
	if err != nil || int64(len(data)) > eagerSize {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lost == nil && p.out != nil && x.table.Refused(peer, key) == nil && p.out.quietly(key, data)
}

// PostAll implements transport.Poster.
func (x *Exchange) PostAll(peer uint64, blocks []transport.Post) (n int) {
	p, err := x.find(peer, false)
	if err != nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lost != nil || p.out == nil {
		return 0
	}
	p.out.corked = true
	defer p.out.uncork()
	for _, b := range blocks {
		if int64(len(b.Data)) > eagerSize || x.table.Refused(peer, b.Key) != nil || !p.out.quietly(b.Key, b.Data) {
			break
		}
		n++
	}
	return n
}

// Expect implements transport.Exchange.
func (x *Exchange) Expect(peer uint64, key transport.Key, size int64, into []byte,
	arrived func(transport.Block, error)) {
	x.expect(match.ExpectBlock(peer, key, size, into, arrived))
}

// ExpectPart implements transport.Exchange.
func (x *Exchange) ExpectPart(peer uint64, key transport.Key, part transport.Part, arrived func(error)) {
	x.expect(match.ExpectPart(peer, key, part, arrived))
}

func (x *Exchange) expect(e *match.Expected) {
	t, found, err := x.table.Expect(e)
	switch {
	case err != nil:
		x.calls.Do(func() { e.Arrived(transport.Block{}, err) })
	case found:
		here := x.config.Here && x.calls.Take()
		t.expect(e)
		if here {
			x.calls.Run()
		}
	case len(x.config.Listeners) == 0:
		if p, err := x.find(e.Peer, true); err == nil {
			p.want()
		}
	}
}

// Lends implements transport.Exchange.
func (x *Exchange) Lends(peer uint64, size int64) bool {
	p, err := x.find(peer, false)
	return err == nil && p.shares() && x.Keeps(size)
}

// Fail implements transport.Exchange.
func (x *Exchange) Fail(space, id uint64, err error) {
	_, expected := x.table.Fail(space, id, err)
	x.end(expected, err)
	for _, p := range x.all() {
		p.failAll(func(k transport.Key) bool { return k.Space == space && k.ID == id }, err)
	}
}

// end fails expectations. The offers of a table are blocks of links, which end
// there.
func (x *Exchange) end(expected []*match.Expected, err error) {
	for _, e := range expected {
		x.calls.Do(func() { e.Arrived(transport.Block{}, err) })
	}
}

// Peers implements transport.Exchange.
func (x *Exchange) Peers(come []*wire.Process, gone []uint64, why error) {
	for _, process := range come {
		if process.Number == x.config.Self {
			continue
		}
		if p, err := x.find(process.Number, true); err == nil {
			p.known(process)
		}
	}
	for _, number := range gone {
		p, err := x.find(number, true)
		if err != nil {
			continue
		}
		p.lose(transport.Gone(p.name(), why))
		p.mu.Lock()
		p.gone = true
		p.mu.Unlock()
		x.giveBack(func(t *outgoing) bool { return t.to == number })
	}
}

// Apart lists the peers that there is no connection to, by number.
func (x *Exchange) Apart() (apart []transport.Apart) {
	for _, p := range x.all() {
		if a, ok := p.apart(); ok {
			apart = append(apart, a)
		}
	}
	slices.SortFunc(apart, func(a, b transport.Apart) int { return cmp.Compare(a.Peer, b.Peer) })
	return apart
}

// Connected returns how many peers there is a connection to.
func (x *Exchange) Connected() (n int) {
	for _, p := range x.all() {
		if p.connected() {
			n++
		}
	}
	return n
}

// Breaks lists the peers that are there and whose connections have broken, the last ones first.
func (x *Exchange) Breaks() (all []transport.Breaks) {
	for _, p := range x.all() {
		p.mu.Lock()
		if p.breaks.Count > 0 && p.lost == nil {
			all = append(all, p.breaks)
		}
		p.mu.Unlock()
	}
	slices.SortFunc(all, func(a, b transport.Breaks) int { return b.Last.Compare(a.Last) })
	return all
}

// Moved returns how many bytes have come of blocks of a space and ID that are on their way. It is less with each
// block that has come, and bytes that the peer writes into shared memory do not count. It looks at all blocks on
// their way, so it is for callers that ask seldom.
func (x *Exchange) Moved(space, id uint64) (bytes int64) {
	for _, p := range x.all() {
		p.mu.Lock()
		for l := range p.links {
			for _, t := range l.incoming {
				if t.key.Space == space && t.key.ID == id {
					bytes += t.got
				}
			}
		}
		p.mu.Unlock()
	}
	return bytes
}

func (x *Exchange) all() []*peer {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Collect(maps.Values(x.peers))
}

// find returns the peer of a number. Add reports whether one is made that was not
// heard of.
func (x *Exchange) find(number uint64, add bool) (*peer, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed != nil {
		return nil, x.closed
	}
	if p := x.peers[number]; p != nil {
		return p, nil
	}
	if !add {
		return nil, status.New(status.Unavailable, "process %d is not known here; the controller has not spoken of it",
			number)
	}
	p := &peer{x: x, number: number, links: map[*link]struct{}{}}
	x.peers[number] = p
	return p, nil
}

// Leave is Close where something has gone wrong, which the peers are told.
func (x *Exchange) Leave(why error) {
	x.mu.Lock()
	if x.closed == nil {
		x.why = why
	}
	x.mu.Unlock()
	x.Close()
}

// Close implements transport.Exchange. It is not called from a callback. What Push
// has given to be written stays until it is.
func (x *Exchange) Close() error {
	x.mu.Lock()
	if x.closed != nil {
		x.mu.Unlock()
		x.settle()
		return nil
	}
	x.closed = status.New(status.Cancelled, "the exchange of process %d is closed", x.config.Self)
	x.cancel()
	x.mu.Unlock()
	_, expected := x.table.Close(x.closed)
	x.end(expected, x.closed)
	for _, p := range x.all() {
		p.lose(x.closed)
	}
	x.giveBack(func(*outgoing) bool { return true })
	for _, l := range x.config.Listeners {
		l.Close()
	}
	x.arena.Close(x.closed)
	x.rooms.Close(x.closed)
	x.shelf.close(x.closed, false)
	x.settle()
	return nil
}

// settle waits until nothing goes on in an exchange that closes.
func (x *Exchange) settle() {
	x.running.Wait()
	x.shelf.close(x.closed, true)
	x.arena.Wait()
	x.pool.Settle()
}

// Memory counts the memory of blocks that are on their way, or in use.
func (x *Exchange) Memory() transport.Memory {
	s := x.pool.Stats()
	m := transport.Memory{Used: s.Owned, Free: s.Mapped, Limit: s.Limit, Lent: x.lent.Load()}
	for _, used := range s.Owned {
		m.Free -= used
	}
	return m
}
