package collective

import (
	"encoding/binary"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	uberatomic "go.uber.org/atomic"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/transport"
)

// A key's part is the site, group, occurrence and round of a block, so that two
// processes never have two blocks under one key. Occurrences wrap: 2^32 of them
// are never on their way at once.
const (
	sites     = 1 << 16
	groupsMax = 1 << 15
)

func part(site, group int, occurrence uint32, round int) uint64 {
	return uint64(site)<<48 | uint64(group)<<33 | uint64(occurrence)<<1 | uint64(round)
}

// roundsMax bounds the rounds of a table. If there may be more than two, keys have fewer occurrences: a process that is
// so far ahead of another of its group has filled its area, or what it may have under way, long before.
const roundsMax = 1 << 13

func (m *meeting) part() uint64 {
	t := m.table
	round := t.first + m.round
	if !t.together && max(t.all, len(t.rounds)) <= 2 {
		return part(m.site, t.index, m.occurrence, round)
	}
	return part(m.site, t.index, 0, 0) | uint64(m.occurrence)%(1<<33/roundsMax)*roundsMax | uint64(round)
}

// inlineWork is up to how many bytes a meeting's steps are done by the goroutine that
// brought the last block: an exchange's goroutine, or the last device to arrive.
const inlineWork = 256 << 10

// copiedAtOnce is up to how many bytes a block is handed to the exchange without
// waiting for it to be sent.
const copiedAtOnce = 4 << 10

// meeting is the calls of one group's members of this process at one occurrence
// of a site.
type meeting struct {
	gang       *gang
	table      *table
	site       int
	occurrence uint32
	lanes      *lanes // that this is one of; nil if there are none

	// While members are missing gang.mu guards these, after that the goroutine
	// that has brought holds to zero.
	calls   []Call
	kept    []byte // see table
	missing int
	round   int
	direct  bool   // all read what the others lend
	loan    loan   // of the arrays here
	told    []byte // to the peers, about these
	inline  int    // 1 + the call in hand of the goroutine that ends the meeting; 0, or free, is none

	peers  []from       // by table.peers
	holds  atomic.Int64 // what the round waits for: blocks, pushes that read our memory, and start
	failed uberatomic.Error

	at   int       // in gang.started; guarded by gang.mu
	seen time.Time // when Waits first found it; guarded by gang.mu
}

// from holds what a meeting has received from a peer.
type from struct {
	block  transport.Block // set before its hold is let go
	place  int             // of the peer on the board, if letter or lent is set
	letter letter          // of the block, if that lies in an area or comes by the exchange
	owes   atomic.Uint32   // what the exchange has yet to do, for Waits
	lent   [][]byte        // borrowed from it; nil if it has gone
	files  []*lender       // that these are in
	lease  lease           // of these
}

const (
	aBlock = 1 << iota // to bring a block of the peer's
	toTake             // to have the peer take ours
)

func newMeeting(g *gang, site int, t *table, occurrence uint32) *meeting {
	return &meeting{gang: g, table: t, site: site, occurrence: occurrence, calls: make([]Call, t.calls), missing: t.calls,
		kept: make([]byte, t.kept)}
}

// start begins a round: it pushes what the peers need and expects theirs. A caller that has a call in hand passes 1 +
// its index, else 0.
//
// The round waits for one hold more than what it expects and pushes, which start releases last. So a block that comes
// meanwhile, on another goroutine, cannot end the round before all of it is under way.
func (m *meeting) start(inHand int) {
	t, g := m.table, m.gang
	if t.lanes != nil {
		m.split()
		return
	}
	if len(t.peers) == 0 {
		m.inline = inHand
		m.work()
		return
	}
	if m.peers == nil {
		m.peers = make([]from, len(t.peers))
	}
	key := m.key()
	m.holds.Store(1)
	board := g.engine.board
	if board != nil && t.near == nil {
		board = nil
	}
	if board != nil {
		if !board.enter() {
			m.inline = inHand
			m.end(status.New(status.Cancelled, "the worker is stopping"))
			return
		}
		defer board.leave()
	}
	m.expect(board, key)
	if t.together {
		m.publish(board, key)
	} else {
		m.push(board, key)
	}
	if err := g.wait(m); err != nil { // aborted while the above was told
		g.fail(err)
	}
	if board != nil {
		board.arrive()
	}
	if m.holds.Add(-1) == 0 {
		m.inline = inHand
		m.work()
	}
}

func (m *meeting) key() transport.Key {
	return transport.Key{Space: m.gang.engine.space, ID: m.gang.id, Part: m.part()}
}

// expect asks for the peers' blocks of the round.
func (m *meeting) expect(board *Board, key transport.Key) {
	t, r := m.table, &m.table.rounds[m.round]
	if board != nil && len(r.mail) > 0 {
		m.holds.Add(1)
		if board.expect(m, m.gang.id, key.Part, r.mail) {
			m.fetch()
			m.holds.Add(-1)
		}
	}
	if t.together {
		return
	}
	for i, peer := range t.peers {
		size := r.gets[i].bytes
		if size == 0 || board != nil && t.near[i] {
			continue
		}
		var into []byte
		if to := r.into[i]; to != nil {
			into = m.memory(*to)[to.reg.off:][:to.reg.run]
		}
		m.owes(i, aBlock)
		m.gang.engine.exchange.Expect(peer, key, size, into, func(b transport.Block, err error) {
			m.peers[i].block = b
			m.settle(i, aBlock, err)
		})
	}
}

// publish writes the blocks that peers need from this process, once.
func (m *meeting) publish(board *Board, key transport.Key) {
	r := &m.table.rounds[m.round]
	if len(r.to) == 0 {
		return
	}
	if r.where {
		m.lends(board)
	}
	if r.out.bytes > mailMax {
		m.show(board, key, &r.out, r.to, r.readers)
		return
	}
	packed := m.pack(nil, &r.out)
	board.postAll(m.table.peers, r.to, mail{id: m.gang.id, part: key.Part}, isHere, (*packed)[:r.out.bytes])
	scratch.Put(packed)
}

// show writes a block into the area, and tells peers where it is. Readers are their places. If the area has no room,
// the block goes to each by the exchange.
func (m *meeting) show(board *Board, key transport.Key, s *pack, peers []int, readers uint64) {
	k := mail{id: m.gang.id, part: key.Part}
	if at, data := board.area.take(s.bytes, readers); data != nil {
		m.fill(data, s)
		board.refer(m.table.peers, peers, k, at, s.bytes)
		return
	}
	var size [8]byte
	binary.LittleEndian.PutUint64(size[:], uint64(s.bytes))
	for _, i := range peers {
		board.post(m.table.peers[i], k, comes, size[:])
		m.pushFilled(i, key, s)
	}
}

// pushFilled has the exchange send a block that lies in several pieces.
func (m *meeting) pushFilled(i int, key transport.Key, s *pack) {
	m.owes(i, toTake)
	m.gang.engine.exchange.Push(m.table.peers[i], key, s.bytes, func(dst []byte, written func(error)) {
		written(m.fillLate(dst, s))
	}, func(err error) { m.settle(i, toTake, err) })
}

// push hands the peers' blocks of the round to the exchange, or leaves them on the board.
func (m *meeting) push(board *Board, key transport.Key) {
	t, r, ex := m.table, &m.table.rounds[m.round], m.gang.engine.exchange
	if len(r.shown) > 0 {
		m.show(board, key, &r.sends[r.shown[0]], r.shown, r.readers)
	}
	var packed *[]byte // the block before, where all are the same
	for i, peer := range t.peers {
		s := &r.sends[i]
		near := board != nil && t.near[i]
		switch {
		case s.bytes == 0 || slices.Contains(r.shown, i):
		case near && s.bytes > mailMax:
			m.show(board, key, s, []int{i}, board.readers(t.peers[i:i+1]))
		case s.bytes <= copiedAtOnce:
			if packed == nil || !s.same {
				packed = m.pack(packed, s)
			}
			if near {
				board.post(peer, mail{id: m.gang.id, part: key.Part}, isHere, (*packed)[:s.bytes])
			} else {
				ex.PushBytes(peer, key, (*packed)[:s.bytes], nil)
			}
		case len(s.pieces) == 1 && s.pieces[0].from.reg.count == 1: // it lies in one piece
			m.owes(i, toTake)
			reg := s.pieces[0].from.reg
			ex.PushBytes(peer, key, m.memory(s.pieces[0].from)[reg.off:reg.off+reg.run], func(err error) {
				m.settle(i, toTake, err)
			})
		default:
			m.pushFilled(i, key, s)
		}
	}
	if packed != nil {
		scratch.Put(packed)
	}
}

// owes takes a hold for what the exchange is about to be told.
func (m *meeting) owes(peer int, what uint32) {
	m.holds.Add(1)
	m.peers[peer].owes.Or(what)
}

// settle is letGo of the blocks that owes took.
func (m *meeting) settle(peer int, what uint32, err error) {
	m.peers[peer].owes.And(^what)
	m.letGo(err)
}

// hold takes a hold on the round, unless it is over.
func (m *meeting) hold() bool {
	for {
		n := m.holds.Load()
		if n == 0 {
			return false
		}
		if m.holds.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// letGo ends one hold. It may be on a goroutine of the exchange, which must not
// wait, nor work for long.
func (m *meeting) letGo(err error) { m.let(err, 0) }

// let is letGo for a caller that has a call in hand; see start.
func (m *meeting) let(err error, inHand int) {
	if err != nil {
		why := status.Wrap(err, "%s", m.calls[0].Spec.Name())
		if (m.failed.CompareAndSwap(nil, why) || m.failed.Load() == err) && m.gang.reason() == nil {
			go m.gang.fail(m.failed.Load())
		}
	}
	if m.holds.Add(-1) > 0 {
		return
	}
	// A goroutine with a call in hand has nothing else to do, nor has one that is free.
	if inHand == 0 && (m.table.rounds[m.round].work > inlineWork || m.round+1 < len(m.table.rounds)) {
		go m.carryOn()
		return
	}
	m.inline = inHand
	m.work()
}

// free is in place of 1 + the call in hand of a goroutine that has none, and nothing else to do.
const free = -1

// carryOn is work on a goroutine of its own. It stays for the next rounds: each of them then wakes one thread, and not
// first the board's, and by that another one.
func (m *meeting) carryOn() {
	m.inline = free
	m.work()
	if b := m.gang.engine.board; b != nil {
		for b.linger(m, free) {
		}
	}
}

// work does what the round's blocks are for, then goes on to the next or ends
// the calls.
func (m *meeting) work() {
	r := &m.table.rounds[m.round]
	err, unlent := m.gang.waited(m), -1
	if err == nil {
		err = m.failed.Load()
	}
	if err == nil {
		if m.lanes != nil && m.round == 0 {
			if next := m.lanes.next(); next != nil {
				go next.start(0)
			}
		}
		if m.isLarge() {
			m.gang.engine.board.spread(m.table.peers)
		}
		if r.where {
			if m.direct = m.borrows(); !m.direct {
				m.giveBack()
			}
			err = m.failed.Load()
		}
		switch {
		case err != nil || r.where && !m.direct:
		case m.direct && len(r.steps) > 0:
			unlent = m.runLent(r)
		default:
			err = m.run(r)
		}
	}
	for i := range m.peers {
		m.peers[i].release(m.gang.engine.board)
	}
	if err == nil && unlent >= 0 {
		m.stays(unlent)
		return
	}
	if next, more := m.after(); err == nil && more {
		inHand := m.inline
		m.inline = 0
		m.round = next
		m.start(inHand)
		return
	}
	if m.isLarge() {
		m.gang.engine.board.rest()
	}
	m.end(err)
}

// isLarge reports whether the members, who share a board, work on this for long.
func (m *meeting) isLarge() bool { return m.table.together && len(m.table.rounds) > several }

// end ends the calls that have arrived. Each goes on with its device's program
// on a goroutine of its own, so that a chain of collectives is no recursion and
// a device never waits for another's work; but for the one in hand, which goes on
// when its Enter returns.
func (m *meeting) end(err error) {
	m.giveBack()
	if m.lanes != nil {
		var last bool
		if err, last = m.lanes.end(err); !last {
			return
		}
	}
	if err == nil {
		m.count()
	}
	for i, c := range m.calls {
		if c.Done != nil && i != m.inline-1 {
			go c.Done(err)
		}
	}
	if m.inline > 0 {
		m.calls[m.inline-1].Done(err)
	}
}

// scratch keeps buffers for small blocks.
var scratch = sync.Pool{New: func() any { b := make([]byte, copiedAtOnce); return &b }}

// pack writes a small block.
func (m *meeting) pack(to *[]byte, s *pack) *[]byte {
	if to == nil {
		to = scratch.Get().(*[]byte)
	}
	m.fill((*to)[:s.bytes], s)
	return to
}

// fillLate is fill for the exchange, which may call it for a push that was given up, when the
// calls have ended.
func (m *meeting) fillLate(dst []byte, s *pack) error {
	if !m.hold() {
		return status.New(status.Cancelled, "the gang has ended")
	}
	m.fill(dst, s)
	m.letGo(nil)
	return nil
}

func (m *meeting) fill(dst []byte, s *pack) {
	for i := range s.pieces {
		p := &s.pieces[i]
		move(dst, dense(p.at, p.from.reg.bytes()), m.memory(p.from), p.from.reg, plainly)
	}
}

// release returns the memory of a peer's blocks in a round.
func (f *from) release(board *Board) {
	if f.block.Release != nil {
		f.block.Release()
	}
	if f.letter.form != isHere {
		board.free(f.place, f.letter)
		board.leave()
	}
	f.block, f.letter = transport.Block{}, letter{}
}

// deliver takes a letter. The board's mu is held.
func (m *meeting) deliver(peer, place int, l letter) {
	f := &m.peers[peer]
	if want := m.table.rounds[m.round].gets[peer].bytes; l.size != want {
		m.fails(status.New(status.Internal, "%s: process %d sent %d bytes, %d were expected", m.calls[0].Spec.Name(),
			m.table.peers[peer], l.size, want))
	}
	if l.form != isHere {
		f.place, f.letter, f.block.Data = place, l, l.data
		m.gang.engine.board.inside.Add(1) // until release
		return
	}
	f.block.Data = make([]byte, len(l.data)) // at least at a multiple of its elements' size
	copy(f.block.Data, l.data)
}

// delivered is told that all letters of the round are there. It releases the board's hold.
func (m *meeting) delivered(inHand int) {
	m.fetch()
	m.let(m.failed.Load(), inHand)
}

// fails has the meeting end with an error, unless it has one.
func (m *meeting) fails(err error) { m.failed.CompareAndSwap(nil, err) }

// fetch asks the exchange for the blocks that come by it.
func (m *meeting) fetch() {
	for i := range m.peers {
		if m.peers[i].letter.form != comes {
			continue
		}
		m.owes(i, aBlock)
		m.gang.engine.exchange.Expect(m.table.peers[i], m.key(), m.peers[i].letter.size, nil,
			func(b transport.Block, err error) {
				m.peers[i].block = b
				m.settle(i, aBlock, err)
			})
	}
}

// memory returns the buffer that a ref is a region of.
func (m *meeting) memory(r ref) []byte {
	switch r.kind {
	case operand:
		return m.calls[r.call].Operands[r.buf]
	case result:
		return m.calls[r.call].Results[r.buf]
	case kept:
		return m.kept
	case told:
		return m.told
	case folded:
		return m.loan.arrays[len(m.loan.arrays)-len(m.calls[0].Results)+r.buf]
	case lent:
		return m.peers[r.call].lent[r.buf]
	}
	return m.peers[r.call].block.Data
}
