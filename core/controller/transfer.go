package controller

import (
	"slices"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// Operations that bring bytes to devices, move them between devices, and bring them back. They are dispatched when they
// are admitted: their order is that of gang numbers, and they take no place in an island's schedule.

func shapeOf(a *wire.Array) shape.Shape {
	return shape.Shape{DType: shape.DType(a.GetDtype()), Dims: a.GetDims()}
}

// bytesOf returns the bytes of an array's shard.
func bytesOf(a *wire.Array) (int64, error) {
	sh := shapeOf(a)
	n := sh.Bytes()
	if a == nil || n < 0 || sh.HostBytes() < 0 {
		return 0, invalid("an operation makes an array of no shape, or of one with too many bytes")
	}
	return n, nil
}

func (st *State) put(s *session, m *wire.Put, q *queued) {
	made := q.at
	if made != nil && made.in != s.binding {
		made = nil
	}
	at, err := st.placeMade(s, m.Devices, made)
	if err != nil {
		st.end(s, m.Op, err)
		return
	}
	bytes, err := bytesOf(m.Array)
	if err == nil {
		err = q.err
	}
	var lost error
	if err == nil && st.alive(at) != nil {
		if some, left, why := st.putLeft(s, m, at); some != nil {
			at, lost = left, why
			q.message, q.payload, q.kept = some, encoded(some), true
		}
	}
	if err == nil && st.known == nil {
		err = st.alive(at)
	}
	st.make(s, m.Op, m.Object, bytes, m.Array.GetMemory(), at, err, wire.KindPut, at.workers, at.conns, q)
	if err := m.Lost.Err(); err != nil && lost == nil { // before the controller started again
		lost = status.New(status.DataLoss, "a part of this array was lost on its way: %w", err)
	}
	if lost != nil && s.objects[m.Object] != nil {
		s.loses(m.Object, lost)
	}
}

// make performs an operation that makes one object.
func (st *State) make(s *session, op, id uint64, bytes int64, memory string, at *place, err error, kind wire.Kind,
	workers set, conns []uint64, q *queued) {
	sizes, counted := [1]int64{bytes}, [1]int64{}
	if st.isCounted(at, memory) {
		counted = sizes
	}
	if e := st.create(s, id, sizes[:], counted[:], at, err); e != nil {
		st.end(s, op, e)
		return
	}
	if err != nil {
		st.end(s, op, err)
		return
	}
	g := st.newGang(s, op)
	g.place, g.first, g.makes, g.bytes = at, id, 1, counted[0]
	g.kind, g.to, g.conns, g.payload, g.kept = kind, workers, conns, q.payload, q.kept
	if len(conns) > 1 {
		g.message = q.message
	}
	if kind == wire.KindTransfer {
		g.asked, g.cut = q.message, q.cut
	}
	st.admit(g)
}

func (st *State) transfer(s *session, m *wire.Transfer, q *queued) {
	c := q.cut
	if c == nil || c.in != s.binding {
		c = cutMoves(s.binding, m)
	}
	if c.err != nil {
		st.end(s, m.Op, c.err)
		return
	}
	err := q.err
	if err == nil {
		err = c.long
	}
	for i := 0; i < len(c.sources) && err == nil && st.known == nil; i++ {
		err = st.movable(s, m, &c.sources[i])
	}
	at, e := st.placeMade(s, c.to, c.at)
	if e != nil {
		st.end(s, m.Op, e)
		return
	}
	bytes, e := bytesOf(m.Array)
	if err == nil {
		err = e
	}
	if err == nil && st.known == nil {
		err = st.areThere(c.workers)
	}
	q.cut = c
	st.make(s, m.Op, m.Object, bytes, m.Array.GetMemory(), at, err, wire.KindTransfer, c.workers,
		st.connsOf(c.workers), q)
}

// areThere returns why one of these workers has gone, nil if none has.
func (st *State) areThere(workers set) (err error) {
	workers.each(func(slot int) {
		if err == nil && st.peers[slot].conn == 0 {
			err = st.workers[slot].gone
		}
	})
	return err
}

// transferable returns why a transfer that has waited for its turn cannot proceed; nil if it can.
func (st *State) transferable(g *gang, m *wire.Transfer) error {
	for i := range g.cut.sources {
		if err := st.movable(g.s, m, &g.cut.sources[i]); err != nil {
			return err
		}
	}
	return st.areThere(g.cut.workers)
}

// movable returns why a transfer cannot read an array; nil if it can.
func (st *State) movable(s *session, m *wire.Transfer, from *source) error {
	switch o := s.objects[from.object]; {
	case o == nil && s.restored:
		return s.forgottenArray(from.object)
	case o == nil:
		return invalid("move %d: array %d is not there; it was freed, or never made", from.move, from.object)
	case o.err != nil:
		return o.err
	case o.donated:
		return invalid("move %d: array %d was donated to an earlier run and cannot be used again", from.move, from.object)
	case o.of != nil:
		return o.asMember(from.object)
	case !o.place.has.covers(from.on):
		if err := s.lost[from.object]; err != nil {
			return err
		}
		i := slices.IndexFunc(m.Moves, func(v *wire.Move) bool {
			return v.Source == from.object && !o.place.has.has(int(v.From))
		})
		return invalid("move %d: array %d has no shard on device %d", i, from.object, m.Moves[i].From)
	case o.put != 0:
		st.awaitPut(o)
	}
	return nil
}

func (st *State) fetch(s *session, m *wire.Fetch, q *queued) {
	at, err := st.place(s, []uint32{m.Device})
	if err == nil {
		err = q.err
	}
	if err == nil && st.known == nil {
		err = st.fetchable(s, m, at)
	}
	if err != nil {
		st.end(s, m.Op, err)
		return
	}
	g := st.newGang(s, m.Op)
	g.place, g.kind, g.to, g.conns, g.payload = at, wire.KindFetch, at.workers, at.conns, q.payload
	g.kept, g.asked = q.kept, m
	st.admit(g)
}

// fetchable returns why a fetch cannot read an array; nil if it can.
func (st *State) fetchable(s *session, m *wire.Fetch, at *place) error {
	switch o := s.objects[m.Object]; {
	case o == nil && s.restored:
		return s.forgottenArray(m.Object)
	case o == nil:
		return invalid("array %d is not there; it was freed, or never made", m.Object)
	case o.err != nil:
		return o.err
	case o.donated:
		return invalid("array %d was donated to an earlier run and cannot be read", m.Object)
	case o.of != nil:
		return o.asMember(m.Object)
	case !o.place.has.has(int(m.Device)):
		if err := s.lost[m.Object]; err != nil {
			return err
		}
		return invalid("array %d has no shard on device %d", m.Object, m.Device)
	case o.put != 0:
		st.awaitPut(o)
	}
	return st.alive(at)
}
