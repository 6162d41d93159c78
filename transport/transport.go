// Package transport carries bytes between the processes of a cluster.
//
// Two things travel, apart from each other. Control messages go over a Conn:
// ordered, small, batched by the slower side. The bytes of arrays go through
// an Exchange: blocks under keys, pushed by the process that has them to the one that expects them,
// by shared memory on one host and by TCP between hosts, never through a third
// process.
//
// Every connection begins with Hello and Welcome, see Greet and Await.
// transport/inproc joins parts in one process, transport/stream processes by
// unix sockets, TCP and TLS; transport/bulk is the Exchange over them, and
// transport/shm its memory. transport/transporttest is the suite all pass.
//
// # Liveness
//
// Every wait here ends: with what it waits for, with its context, or with the
// error that says why the other side has gone. A peer that is silent for longer
// than Config of the implementation allows is gone. After an error every call
// of a Conn returns that error.
package transport

import (
	"context"
	"time"

	"github.com/openpathways/pathways/core/shape/strided"
	"github.com/openpathways/pathways/core/wire"
)

// Conn is one ordered stream of messages in each direction.
//
// Send may be called from any goroutine, Recv from one. Close may be called at
// any time, more than once; it first tries for a bounded time to write what was
// sent.
type Conn interface {
	// Send queues one message, which the connection's single writer puts into its next write along with all others that
	// are queued. It copies payload. If the queue's bound is reached it waits until there is room, or the connection
	// fails. INVALID_ARGUMENT means that the message is longer than the connection takes, see wire.MaxFrame, and was not
	// sent; the sender ends what it was about. Any other error means that the connection has ended; nil does not mean that
	// the message arrived.
	Send(kind wire.Kind, payload []byte) error
	// Recv waits for the next message. The payload is the caller's until the next
	// call of Recv.
	Recv() (kind wire.Kind, payload []byte, err error)
	// Buffered reports whether Recv has a message at hand and will not wait: a reader
	// that batches its answers flushes when this is false.
	Buffered() bool
	Close() error
	// Peer is for people: an address or a name.
	Peer() string
}

// Batcher is a Conn whose messages can wait for each other and leave in one write.
type Batcher interface {
	// Later is Send of a message that waits for Flush, or for whatever else is sent.
	Later(kind wire.Kind, payload []byte) error
	// Join is Send, or Later, of a message that becomes one with the message before
	// it, a KindBurst, where that was joined too and has yet to leave.
	Join(kind wire.Kind, payload []byte, later bool) error
	// Flush has what waits leave: written by the caller where that is cheap and here
	// is true, else by the connection's own goroutine.
	Flush(here bool)
}

// Peeker is a Conn that can show its next message.
type Peeker interface {
	// Peek returns the kind of the message that Recv has at hand and returns without waiting; 0 if there is none.
	Peek() wire.Kind
}

// Watched is a Conn that outlives its connections, see transport/link.
type Watched interface {
	// Watch has changed called when the Conn has lost its connection, with the reason why, and with nil when it has
	// another. The calls are made one by one, on the goroutine that is in Recv. It is set before the first Recv.
	Watch(changed func(why error))
}

// Key names a block of bytes on its way between two processes. Keys are made by
// the system, not by peers' choice, and are used once: what arrives under a key
// before it is expected is bounded, and dropped when its sender goes.
type Key struct {
	Space uint64 // a session's transfers or an island's collectives, see Transfers, Collectives
	ID    uint64 // the operation or gang
	Part  uint64 // the device, or the step and rank of a collective
}

// Transfers is the space of a session's operations.
func Transfers(session uint32) uint64 { return uint64(session) }

// SessionOf returns the session whose operations a space is of, if it is such a space.
func SessionOf(space uint64) (session uint32, ok bool) { return uint32(space), space>>32 == 0 }

// Collectives is the space of an island's gangs.
func Collectives(island uint32) uint64 { return 1<<63 | uint64(island) }

// Contents is the space of what travels apart from messages, see transport/content.
// The ID is the number that the controller gave the transfer.
func Contents() uint64 { return 1 << 62 }

// Block is memory that holds what arrived. Data is 64-byte aligned and lies
// outside the Go heap. Release returns the memory, once.
type Block struct {
	Data    []byte
	Release func()
	Lent    bool // by its sender, whose memory it is: it is not to be written
}

// Part is a region of an array: where the bytes of a block lie in its memory.
type Part struct {
	Data []byte // of the array
	At   strided.Layout
}

// PostSize bounds what Exchange.Post takes.
const PostSize = 16 << 10

// Exchange moves blocks between this process and its peers. All methods may be
// called from any goroutine. Callbacks run on goroutines of the exchange: they
// must not wait for another block.
type Exchange interface {
	// Push sends size bytes to a peer. When there is memory for them, fill is
	// called with it, and calls written when the bytes are in it (or with the
	// error why they never will be, which the receiver then gets). Fill may return
	// before that. The memory may be the receiver's own, mapped here. done is
	// called once, when the peer has the bytes or never will.
	Push(peer uint64, key Key, size int64, fill func(dst []byte, written func(error)), done func(error))
	// PushBytes is Push of bytes at hand, which stay until done is called. done
	// may be nil where data may be copied at once (short blocks).
	PushBytes(peer uint64, key Key, data []byte, done func(error))
	// Post sends up to PostSize bytes, of which it keeps none, without asking what
	// becomes of them: where they do not arrive, the receiver hears why. It returns false,
	// and has sent nothing, if they cannot go at once: push them then.
	Post(peer uint64, key Key, data []byte) bool
	// Expect says what to do with a block. Into, where it is not nil, is where
	// the bytes are to go, has their size, and the Block then has no memory of
	// its own. A block of another size than expected is INVALID_ARGUMENT.
	// arrived is called once: with the block, with the sender's error, or with
	// UNAVAILABLE when the peer it is expected from has gone or cannot be reached. It
	// may be called before Expect returns.
	Expect(peer uint64, key Key, size int64, into []byte, arrived func(Block, error))
	// Lends reports whether size bytes of a peer would be written by itself into memory of this process, and whether there
	// is enough of it for them to stay for long. If that is false, Expect without Into is for bytes that go soon.
	Lends(peer uint64, size int64) bool
	// Fail ends all pushes and expectations of a space and ID with err, and drops
	// what arrived for them.
	Fail(space, id uint64, err error)
	// Peers says where processes are, and which have gone. What waits for one of those
	// fails with UNAVAILABLE and the text of why, which names it; why may be nil. Links
	// are made when first needed, and again where they break. What is under way waits for
	// that for a bounded time, or fails with UNAVAILABLE that names both processes.
	Peers(come []*wire.Process, gone []uint64, why error)
	// Self returns the process number of this side.
	Self() uint64
	// Close ends all links; what is under way fails. Callbacks that say so may come after Close has returned.
	Close() error
}

// Mover is an Exchange that moves regions of arrays from one place in memory to another.
type Mover interface {
	Exchange
	// PushPart is PushBytes of a region of an array, which stays as it is until done is called. Regions of an array under
	// one space and ID may be copied together, once all the peers that are to get them expect them. So no peer may wait
	// for its region before another expects its own.
	PushPart(peer uint64, key Key, part Part, done func(error))
	// ExpectPart is Expect of a block that goes into a region of an array of this process. Arrived is called when no
	// process writes to it any more. With an error, a peer that Room has shown the memory to may still write: the
	// memory is not used again then, and may be released.
	ExpectPart(peer uint64, key Key, part Part, arrived func(error))
	// Room is memory for an array whose parts come from these peers, on the account of a space: where they are on this
	// host they write into it. It may take as long as the system takes to find memory. Without it, the array has to lie
	// elsewhere: what is at hand here is for bytes that go soon.
	Room(space uint64, size int64, peers []uint64) (Block, bool)
	// Keeps reports whether blocks that have come, and size bytes more, may stay for long: enough memory is left for bytes
	// on their way, which would wait otherwise.
	Keeps(size int64) bool
	// Read returns bytes that a peer has laid on its Shelf.
	//
	// Errors: INVALID_ARGUMENT where none are; why the peer has gone.
	Read(peer uint64, offset, size int64) (Block, error)
}

// Post is a block for PostAll.
type Post struct {
	Key  Key
	Data []byte
}

// Poster is an Exchange that can post several blocks to a peer in one write.
type Poster interface {
	// PostAll is Post of the first blocks, until one cannot go at once. It returns how
	// many went.
	PostAll(peer uint64, blocks []Post) int
}

// PostAll posts blocks to a peer, in one write where the exchange can do that. It returns
// how many of them went; the caller pushes the others.
func PostAll(x Exchange, peer uint64, blocks []Post) (n int) {
	if p, ok := x.(Poster); ok && len(blocks) > 1 {
		return p.PostAll(peer, blocks)
	}
	for n < len(blocks) && x.Post(peer, blocks[n].Key, blocks[n].Data) {
		n++
	}
	return n
}

// Lender is an Exchange that can show peers memory of this process, so that its
// bytes are not copied.
type Lender interface {
	// CanLend is nil if a peer can read these bytes where they are, then why it cannot.
	CanLend(peer uint64, data []byte) error
	// Lend is PushBytes of bytes that the peer gets to read where they are: a Block
	// that is Lent, unless it expects them in memory of its own. Done is called once,
	// when the peer has released the block, with the error why it never had it, or
	// when Peers has said that the peer is gone or Close ends the exchange: until
	// then the bytes stay as they are. They are in a block of this process's pool.
	Lend(peer uint64, key Key, data []byte, done func(error))
}

// Shelf is an Exchange with memory that peers read in place, without a message of this process: the request to read it
// says where, see Mover.Read.
type Shelf interface {
	// Lay returns memory of size bytes that all these peers can read, and where it is. It returns false if one of them
	// cannot, or has yet to be shown the memory, or if there is no room. Release is called when none of them reads it any
	// more.
	Lay(peers []uint64, size int64) (block Block, offset int64, ok bool)
}

// Memory is what an Exchange has of the machine's memory, in bytes.
type Memory struct {
	Used  map[uint64]int64 // of blocks, by the space of their keys
	Free  int64            // for the next blocks; it goes back to the system when it has not been used for a while
	Limit int64            // of all that
	Lent  int64            // of peers' memory, which is read here and is theirs
}

// Apart is a peer that an Exchange has no connection to, though it wants one and has
// not heard that the peer is gone, from the controller or by its goodbye.
type Apart struct {
	Peer  uint64
	Since time.Time
	Why   error
}

// Breaks is how the connections to a peer have broken that an Exchange makes again.
type Breaks struct {
	Peer   uint64
	Count  uint64
	Last   time.Time
	Lasted time.Duration // the last time, until there was a connection again; 0: there is none
	Why    error         // the last time
}

// Dialer makes connections to addresses such as "unix:/run/x" and
// "tcp:host:port", says hello on them, and returns what the other side answered. A
// refusal is the error.
type Dialer interface {
	Dial(ctx context.Context, address string, hello *wire.Hello) (Conn, *wire.Welcome, error)
}

// Listener accepts the connections that come to an address, once their Hello has
// been read and checked.
type Listener interface {
	// Accept waits for the next. One goroutine calls it; an error means that the
	// listener is closed.
	Accept() (*Incoming, error)
	// Address is the address at which a Dialer reaches it.
	Address() string
	Close() error
}
