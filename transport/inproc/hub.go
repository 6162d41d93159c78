package inproc

import (
	"cmp"
	"fmt"
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
)

// longCopy is from how many bytes on a copy has a goroutine of its own.
const longCopy = 256 << 10

// Hub joins the exchanges of process numbers inside one process.
type Hub struct {
	pool *shm.Pool

	// Delay is how long it takes the receiver to hear of a block, and where there is a
	// Bandwidth, how long a byte of it is under way; set before the first Push; nil is
	// no time. For simulation.
	Delay func(from, to uint64) time.Duration
	// Bandwidth is how many bytes a second go from one process to another, block after
	// block, set before the first Push; nil, or 0 or less: any number.
	Bandwidth func(from, to uint64) float64
	// Patience is how long what is under way between two processes waits while they are
	// apart, set before Part; it then fails.
	Patience time.Duration

	// Arrived is told of each block that has arrived; it may be nil.
	Arrived func(from, to uint64, key transport.Key, size int64)

	mu        sync.Mutex
	exchanges map[uint64]*Exchange
	awaited   map[uint64]bool // of exchanges: those of processes that others have heard of, and that have yet to Join
	closed    map[uint64]bool // processes whose exchanges have closed
	away      map[uint64]bool // processes that are cut off
	apart     map[pair]*apart
	held      []*transfer       // because of either
	pushed    atomic.Uint64     // transfers
	busy      map[way]time.Time // until when each way is taken by what went before
}

// way is from one process to another.
type way struct{ from, to uint64 }

// NewHub makes a hub whose blocks come from pool.
func NewHub(pool *shm.Pool) *Hub {
	return &Hub{pool: pool, exchanges: map[uint64]*Exchange{}, awaited: map[uint64]bool{}, closed: map[uint64]bool{},
		away: map[uint64]bool{}, apart: map[pair]*apart{}, busy: map[way]time.Time{}}
}

// Exchange implements transport.Exchange. A block is written by its sender straight into the receiver's memory, once
// the receiver expects it: a block that no process expects takes no memory.
type Exchange struct {
	hub   *Hub
	self  uint64
	table *match.Table[*transfer] // what others offer, and this one expects
	arena *shm.Arena
	calls match.Calls // callbacks of this side's Push and Expect

	mu     sync.Mutex
	flying map[*transfer]struct{} // this side sends or receives them
	names  map[uint64]string
	shelf  shelf
}

// transfer is a block on its way.
type transfer struct {
	from, to *Exchange
	number   uint64 // of the hub's
	key      transport.Key
	size     int64
	data     []byte         // of PushBytes, PushPart and Lend
	at       strided.Layout // of the block in data
	lend     bool
	fill     func(dst []byte, written func(error))
	done     func(error)

	mu       sync.Mutex
	expected *match.Expected // nil until matched
	block    *shm.Block      // nil if it goes into the receiver's own memory
	writing  bool            // fill has the memory
	ended    bool
	err      error // why it fails when the memory is free again
}

// Join makes the exchange of a process. Its own errors call it by its name, if it has one. Blocks that others sent to
// it before, having heard of it, wait for it.
func (h *Hub) Join(self uint64, name string) (*Exchange, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.awaited[self]:
		delete(h.awaited, self)
	case h.exchanges[self] != nil:
		return nil, status.New(status.AlreadyExists, "process number %d has an exchange already", self)
	default:
		h.exchanges[self] = h.newExchange(self)
	}
	x := h.exchanges[self]
	x.mu.Lock()
	x.names[self] = name
	x.mu.Unlock()
	return x, nil
}

func (h *Hub) newExchange(self uint64) *Exchange {
	x := &Exchange{hub: h, self: self, table: match.New[*transfer](), flying: map[*transfer]struct{}{},
		names: map[uint64]string{}, shelf: shelf{blocks: map[int64][]byte{}}}
	x.arena = h.pool.Arena("blocks", false, nil)
	return x
}

// await makes the exchange of a process that another has heard of, and that has yet to Join.
func (h *Hub) await(process uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.exchanges[process] == nil && !h.closed[process] {
		h.exchanges[process], h.awaited[process] = h.newExchange(process), true
	}
}

func (h *Hub) find(number uint64) *Exchange {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.exchanges[number]
}

// Self implements transport.Exchange.
func (x *Exchange) Self() uint64 { return x.self }

// Push implements transport.Exchange.
func (x *Exchange) Push(peer uint64, key transport.Key, size int64, fill func(dst []byte, written func(error)),
	done func(error)) {
	x.push(peer, &transfer{from: x, key: key, size: size, fill: fill, done: done})
}

// PushBytes implements transport.Exchange.
func (x *Exchange) PushBytes(peer uint64, key transport.Key, data []byte, done func(error)) {
	if done == nil {
		data = append([]byte(nil), data...)
		done = func(error) {}
	}
	x.PushPart(peer, key, transport.Part{Data: data, At: strided.Dense(int64(len(data)))}, done)
}

// PushPart implements transport.Exchange.
func (x *Exchange) PushPart(peer uint64, key transport.Key, part transport.Part, done func(error)) {
	x.push(peer, &transfer{from: x, key: key, size: part.At.Bytes(), data: part.Data, at: part.At, done: done})
}

// Post implements transport.Exchange.
func (x *Exchange) Post(peer uint64, key transport.Key, data []byte) bool {
	if len(data) > transport.PostSize || x.table.Refused(peer, key) != nil || x.hub.find(peer) == nil {
		return false
	}
	x.PushBytes(peer, key, data, nil)
	return true
}

var _ transport.Lender = (*Exchange)(nil)

// CanLend implements transport.Lender: all memory is this process's.
func (x *Exchange) CanLend(peer uint64, _ []byte) error {
	if x.hub.find(peer) == nil {
		return status.New(status.Unavailable, "%s is not there", x.name(peer))
	}
	return nil
}

// Lend implements transport.Lender. What is lent is read in this process: until it is
// released, also where an end has gone or closed.
func (x *Exchange) Lend(peer uint64, key transport.Key, data []byte, done func(error)) {
	x.push(peer, &transfer{from: x, key: key, size: int64(len(data)), data: data, at: strided.Dense(int64(len(data))),
		lend: true, done: done})
}

func (x *Exchange) push(peer uint64, t *transfer) {
	if err := x.table.Away(peer); err != nil && x.hub.find(peer) != nil {
		done := t.done
		x.calls.Do(func() { done(err) })
		t.to, t.err, t.ended, t.done = x.hub.find(peer), err, true, nil
		t.arrive() // who expects it there hears of it, when they are not apart any more
		return
	}
	if err := x.table.Refused(peer, t.key); err != nil {
		done := t.done
		x.calls.Do(func() { done(err) })
		if to := x.hub.find(peer); to != nil { // who expects it there hears of it
			t.to, t.err, t.ended, t.done = to, err, true, nil
			t.offer()
		}
		return
	}
	if t.to = x.hub.find(peer); t.to == nil {
		x.calls.Do(func() {
			t.done(status.New(status.Unavailable, "%s is not there", x.name(peer)))
		})
		return
	}
	t.number = x.hub.pushed.Add(1)
	x.track(t)
	if x.hub.Delay != nil {
		time.AfterFunc(x.hub.Delay(x.self, peer), t.arrive)
	} else {
		t.offered()
	}
}

// offered offers a transfer that may have been failed.
func (t *transfer) offered() {
	t.offer()
	// Fail may have come before the offer was in the table.
	if err := t.from.table.Refused(t.to.self, t.key); err != nil {
		t.fail(err)
	}
}

// arrive shows a transfer whose time has come, unless a side is cut off.
func (t *transfer) arrive() {
	h := t.from.hub
	h.mu.Lock()
	if h.away[t.from.self] || h.away[t.to.self] || h.apart[pairOf(t.from.self, t.to.self)] != nil {
		h.held = append(h.held, t)
		h.mu.Unlock()
		return
	}
	h.mu.Unlock()
	if h.Arrived != nil {
		h.Arrived(t.from.self, t.to.self, t.key, t.size)
	}
	t.offered()
}

// Cut cuts a process off: no other hears of its blocks, and it of no other's, until
// Heal. It is for hubs that have a Delay.
func (h *Hub) Cut(process uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.away[process] = true
}

// Heal undoes Cut.
func (h *Hub) Heal(process uint64) {
	h.mu.Lock()
	delete(h.away, process)
	h.release()
}

// release has those arrive that are held without cause. It ends the caller's hold of
// mu.
func (h *Hub) release() {
	held := h.held
	h.held = nil
	h.mu.Unlock()
	for _, t := range held { // from now on, not all at one moment
		time.AfterFunc(h.Delay(t.from.self, t.to.self), t.arrive)
	}
}

// offer shows a transfer to its receiver.
func (t *transfer) offer() {
	e, err := t.to.table.Offer(t.from.self, t.key, t)
	switch {
	case err != nil:
		t.fail(err)
	case e != nil:
		t.begin(e)
	}
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

// Room implements transport.Exchange.
func (x *Exchange) Room(space uint64, size int64, _ []uint64) (transport.Block, bool) {
	if !x.Keeps(size) {
		return transport.Block{}, false
	}
	b, err := x.arena.MakeFor(space, int(size))
	if err != nil {
		return transport.Block{}, false
	}
	return transport.Block{Data: b.Data, Release: b.Release}, true
}

func (x *Exchange) expect(e *match.Expected) {
	t, found, err := x.table.Expect(e)
	switch {
	case err != nil:
		x.calls.Do(func() { e.Arrived(transport.Block{}, err) })
	case found:
		t.begin(e)
	}
}

// begin lends the sender memory to write to.
func (t *transfer) begin(e *match.Expected) {
	t.mu.Lock()
	if t.ended {
		err := t.err
		t.mu.Unlock()
		t.to.calls.Do(func() { e.Arrived(transport.Block{}, err) })
		return
	}
	t.expected = e
	t.mu.Unlock()
	t.to.track(t)
	if err := t.to.table.Refused(t.from.self, t.key); err != nil {
		t.fail(err) // Fail came between
		return
	}
	switch {
	case e.Size != t.size || e.Into != nil && e.At.Bytes() != t.size:
		t.fail(status.New(status.InvalidArgument, "process %d sends %d bytes where process %d expects %d", t.from.self,
			t.size, t.to.self, e.Size))
	case e.Into != nil:
		t.write(e.Into, e.At)
	case t.lend:
		t.cross(t.show)
	default:
		t.to.arena.Get(t.key.Space, int(t.size), func(b *shm.Block, err error) {
			if err != nil {
				t.fail(err)
				return
			}
			t.mu.Lock()
			if t.ended {
				t.mu.Unlock()
				b.Release()
				return
			}
			t.block = b
			t.mu.Unlock()
			t.write(b.Data, strided.Dense(t.size))
		})
	}
}

// show lends the receiver the sender's memory.
func (t *transfer) show() {
	t.mu.Lock()
	if t.ended {
		t.mu.Unlock()
		return
	}
	t.ended = true
	t.mu.Unlock()
	t.from.untrack(t)
	t.to.untrack(t)
	release := sync.OnceFunc(func() { t.from.calls.Do(func() { t.done(nil) }) })
	t.to.calls.Do(func() { t.expected.Arrived(transport.Block{Data: t.data, Release: release, Lent: true}, nil) })
}

// write has the sender fill memory.
func (t *transfer) write(dst []byte, at strided.Layout) {
	t.mu.Lock()
	if t.ended {
		t.mu.Unlock()
		return
	}
	t.writing = true
	t.mu.Unlock()
	copies := func() {
		strided.Copy(dst, at, t.data, t.at)
		t.written(nil)
	}
	switch {
	case t.fill != nil && !at.IsDense():
		t.pack(dst, at)
	case t.fill != nil:
		dst = dst[at.Offset : at.Offset+at.Run]
		t.from.calls.Do(func() {
			var once sync.Once
			t.fill(dst, func(err error) { once.Do(func() { t.written(err) }) })
		})
	case t.size < longCopy:
		t.from.calls.Do(copies)
	default:
		go copies()
	}
}

// pack has the sender fill memory of its own, from where the bytes go to a region.
func (t *transfer) pack(dst []byte, at strided.Layout) {
	t.from.arena.Get(t.key.Space, int(t.size), func(b *shm.Block, err error) {
		if err != nil {
			t.written(err)
			return
		}
		t.from.calls.Do(func() {
			var once sync.Once
			t.fill(b.Data, func(err error) {
				once.Do(func() {
					if err == nil {
						strided.Copy(dst, at, b.Data, strided.Dense(t.size))
					}
					b.Release()
					t.written(err)
				})
			})
		})
	})
}

func (t *transfer) written(err error) {
	t.cross(func() { t.landed(err) })
}

func (t *transfer) landed(err error) {
	t.mu.Lock()
	t.writing = false
	if t.err == nil {
		t.err = err
	}
	err = t.err
	t.mu.Unlock()
	t.end(err)
}

// fail ends a transfer, as soon as nothing writes.
func (t *transfer) fail(err error) {
	t.mu.Lock()
	if t.err == nil {
		t.err = err
	}
	writing := t.writing
	err = t.err
	t.mu.Unlock()
	if !writing {
		t.end(err)
	}
}

// end tells both sides, once.
func (t *transfer) end(err error) {
	t.mu.Lock()
	if t.ended || t.writing {
		t.mu.Unlock()
		return
	}
	t.ended = true
	e, b, done := t.expected, t.block, t.done
	t.mu.Unlock()
	t.from.untrack(t)
	t.to.untrack(t)
	if done != nil {
		t.from.calls.Do(func() { done(err) })
	}
	if e == nil {
		return // it stays in the table as a failed offer, until it is expected or dropped
	}
	got := transport.Block{Data: e.Into, Release: func() {}}
	if b != nil {
		if err != nil {
			b.Release()
		} else {
			got = transport.Block{Data: b.Data, Release: b.Release}
		}
	}
	if err != nil {
		got = transport.Block{}
	}
	t.to.calls.Do(func() { e.Arrived(got, err) })
}

func (x *Exchange) track(t *transfer) {
	x.mu.Lock()
	x.flying[t] = struct{}{}
	x.mu.Unlock()
}

func (x *Exchange) untrack(t *transfer) {
	x.mu.Lock()
	delete(x.flying, t)
	x.mu.Unlock()
}

// failAll fails the transfers of this side, and those that wait in its table.
func (x *Exchange) failAll(offers []*transfer, expected []*match.Expected, err error, of func(*transfer) bool) {
	for _, t := range offers {
		t.fail(err)
	}
	for _, e := range expected {
		x.calls.Do(func() { e.Arrived(transport.Block{}, err) })
	}
	var flying []*transfer
	x.mu.Lock()
	for t := range x.flying {
		if of(t) {
			flying = append(flying, t)
		}
	}
	x.mu.Unlock()
	slices.SortFunc(flying, func(a, b *transfer) int { return cmp.Compare(a.number, b.number) }) // the oldest first
	for _, t := range flying {
		t.fail(err)
	}
}

// Lends implements transport.Exchange.
func (x *Exchange) Lends(_ uint64, size int64) bool { return x.Keeps(size) }

// Keeps implements transport.Mover.
func (x *Exchange) Keeps(size int64) bool { return x.hub.pool.Keeps(size) }

// Fail implements transport.Exchange.
func (x *Exchange) Fail(space, id uint64, err error) {
	offers, expected := x.table.Fail(space, id, err)
	x.failAll(offers, expected, err, func(t *transfer) bool { return t.key.Space == space && t.key.ID == id })
}

// Peers implements transport.Exchange.
func (x *Exchange) Peers(come []*wire.Process, gone []uint64, why error) {
	for _, p := range come {
		x.mu.Lock()
		x.names[p.Number] = p.Name
		x.mu.Unlock()
		x.hub.await(p.Number)
	}
	for _, peer := range gone {
		x.lose(peer, transport.Gone(x.name(peer), why))
	}
}

func (x *Exchange) lose(peer uint64, err error) {
	offers, expected := x.table.Lose(peer, err)
	x.failAll(offers, expected, err, func(t *transfer) bool { return t.from.self == peer || t.to.self == peer })
}

// name returns a process's name for people.
func (x *Exchange) name(peer uint64) string {
	x.mu.Lock()
	defer x.mu.Unlock()
	if n := x.names[peer]; n != "" {
		return fmt.Sprintf("process %d (%s)", peer, n)
	}
	return fmt.Sprintf("process %d", peer)
}

// Close implements transport.Exchange. To the others the process has gone.
func (x *Exchange) Close() error {
	h := x.hub
	h.mu.Lock()
	if h.exchanges[x.self] != x {
		h.mu.Unlock()
		return nil
	}
	delete(h.exchanges, x.self)
	h.closed[x.self] = true
	for p, cut := range h.apart {
		if p.a == x.self || p.b == x.self {
			delete(h.apart, p)
			for _, timer := range cut.timers {
				timer.Stop()
			}
		}
	}
	var others []*Exchange
	for _, number := range slices.Sorted(maps.Keys(h.exchanges)) {
		others = append(others, h.exchanges[number])
	}
	h.mu.Unlock()
	err := status.New(status.Cancelled, "the exchange of process %d is closed", x.self)
	offers, expected := x.table.Close(err)
	for _, t := range offers {
		t.fail(status.New(status.Unavailable, "%s has closed its exchange", t.from.name(x.self)))
	}
	for _, o := range others {
		o.lose(x.self, status.New(status.Unavailable, "%s has closed its exchange", o.name(x.self)))
	}
	x.failAll(nil, expected, err, func(*transfer) bool { return true })
	x.arena.Close(err)
	x.arena.Wait()
	return nil
}
