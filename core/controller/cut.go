package controller

import (
	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// cut is a transfer, divided among the workers of a binding: all work that grows with its moves. Making it reads only
// what does not change, so Server does that without its lock.
type cut struct {
	in      *binding
	err     error    // the transfer makes no sense
	long    error    // a worker's part of it fits into no message
	to      []uint32 // virtual devices, each once
	at      *place   // theirs, where it was made beforehand; not the session's yet
	workers set      // slots
	sources []source
	pairs   [][2]int // slots of workers between which bytes move
	own     ownParts // fields of the moves that begin or end at a worker's devices; none for one worker alone
}

// source is an array that a transfer reads.
type source struct {
	object uint64
	on     set // virtual devices
	move   int // the first that reads it
}

// cutMoves divides a transfer.
func cutMoves(b *binding, m *wire.Transfer) *cut {
	c := &cut{in: b}
	known := map[uint64]int{} // of sources
	var seen set
	for i, move := range m.Moves {
		if move == nil || int(move.To) >= b.len() || int(move.From) >= b.len() {
			c.err = invalid("move %d names a device that is not in this session, which has devices 0 to %d", i,
				b.len()-1)
			return c
		}
		if isTold(move) {
			c.err = invalid("move %d has an index or a peer, which are not a client's to say", i)
			return c
		}
		if !seen.has(int(move.To)) {
			seen.add(int(move.To))
			c.to = append(c.to, move.To)
		}
		at, found := known[move.Source]
		if !found {
			at = len(c.sources)
			known[move.Source] = at
			c.sources = append(c.sources, source{object: move.Source, move: i})
		}
		c.sources[at].on.add(int(move.From))
		c.workers.add(b.slot(move.From))
		c.workers.add(b.slot(move.To))
	}
	if c.workers.count() > 1 {
		c.divide(m.Moves)
		c.measure(m)
	}
	return c
}

// isTold reports whether a move has fields that only a controller may set, for workers.
func isTold(m *wire.Move) bool { return m.GetIndex() != 0 || m.GetPeer() != 0 }

// divide assigns moves to the workers at their ends. It does not change them, since they may be cut again.
func (c *cut) divide(moves []*wire.Move) {
	own := make([][]byte, 64*len(c.workers)) // by slot
	deal := func(slot int, m *wire.Move) {
		own[slot] = wire.AppendMove(own[slot], m)
	}
	pairs := map[[2]int]bool{}
	for i, m := range moves {
		m.Index = uint32(i + 1)
		from, to := c.in.slot(m.From), c.in.slot(m.To)
		if from != to {
			m.Peer = c.in.view.Device(int(m.From)).Worker
			deal(to, m)
			m.Peer = c.in.view.Device(int(m.To)).Worker
			if pair := [2]int{min(from, to), max(from, to)}; !pairs[pair] {
				pairs[pair] = true
				c.pairs = append(c.pairs, pair)
			}
		}
		deal(from, m)
		m.Index, m.Peer = 0, 0
	}
	c.own = partsOf(c.workers, func(slot int) []byte { return own[slot] })
}

// measure looks for a part of a transfer that fits into no message: the numbers that divide has added may make it too
// long, although the client's message is short enough.
func (c *cut) measure(m *wire.Transfer) {
	longest := 0
	for _, p := range c.own {
		longest = max(longest, p.size)
	}
	if n := proto.Size(&wire.Transfer{Op: m.Op, Object: m.Object, Array: m.Array}) + longest; n > maxPart {
		c.long = status.New(status.InvalidArgument, "the moves of one worker are a message of %d bytes, of at most %d; move "+
			"fewer shards at a time", n, maxPart)
	}
}

// maxPart bounds the bytes of an operation in a worker's message.
const maxPart = wire.MaxFrame - wire.MaxDispatch

// cutBeforehand is the least number of moves for which a transfer is divided before Step: fewer take some microseconds.
const cutBeforehand = 64

// surveyTransfer returns work on a long transfer that reads only what does not change.
func surveyTransfer(ev *Event, s *session, m *wire.Transfer) func() {
	if len(m.Moves) < cutBeforehand {
		return nil
	}
	b := s.binding
	return func() {
		c := cutMoves(b, m)
		if c.err == nil {
			c.at, c.err = b.newPlace(s, c.to)
		}
		ev.cut = c
	}
}
