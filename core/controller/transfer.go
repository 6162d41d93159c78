package controller

import (
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/wire"
)

// Operations that bring bytes to devices, from one to another, and back. They are dispatched when they are admitted:
// their order is that of gang numbers, and they take no place in an island's schedule.

// bytesOf gives the bytes of an array's shard.
func bytesOf(a *wire.Array) (int64, error) {
	sh := shape.Shape{DType: shape.DType(a.GetDtype()), Dims: a.GetDims()}
	n := sh.Bytes()
	if a == nil || n < 0 || sh.HostBytes() < 0 {
		return 0, invalid("an operation makes an array of no shape, or of one with too many bytes")
	}
	return n, nil
}

func (st *State) put(s *session, m *wire.Put, q *queued) {
	at, err := st.place(s, m.Devices)
	if err != nil {
		st.end(s, m.Op, err)
		return
	}
	bytes, err := bytesOf(m.Array)
	if err == nil {
		err = q.err
	}
	if err == nil {
		err = st.alive(at)
	}
	st.make(s, m.Op, m.Object, bytes, m.Array.GetMemory(), at, err, wire.KindPut, at.workers, at.conns, q)
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
	g.kind, g.to, g.conns, g.payload = kind, workers, conns, q.payload
	if len(conns) > 1 {
		g.message = q.message
	}
	st.admit(g)
}

func (st *State) transfer(s *session, m *wire.Transfer, q *queued) {
	var to []uint32
	var seen, workers set
	err := q.err
	for i, move := range m.Moves {
		if move == nil || int(move.To) >= len(s.slots) || int(move.From) >= len(s.slots) {
			st.end(s, m.Op, invalid("move %d names a device that is not in this session, which has devices 0 to %d", i,
				len(s.slots)-1))
			return
		}
		if move.Index != 0 {
			st.end(s, m.Op, invalid("move %d has an index, which is not a client's to say", i))
			return
		}
		if !seen.has(int(move.To)) {
			seen.add(int(move.To))
			to = append(to, move.To)
		}
		workers.add(s.slots[move.From])
		workers.add(s.slots[move.To])
		if err != nil {
			continue
		}
		switch o := s.objects[move.Source]; {
		case o == nil:
			err = invalid("move %d: array %d is not there; it was freed, or never made", i, move.Source)
		case o.err != nil:
			err = o.err
		case o.donated:
			err = invalid("move %d: array %d was donated to an earlier run and cannot be used again", i, move.Source)
		case o.of != nil:
			err = o.asMember(move.Source)
		case !o.place.has.has(int(move.From)):
			err = invalid("move %d: array %d has no shard on device %d", i, move.Source, move.From)
		case o.put != 0:
			st.awaitPut(o)
		}
	}
	at, e := st.place(s, to)
	if e != nil {
		st.end(s, m.Op, e)
		return
	}
	bytes, e := bytesOf(m.Array)
	if err == nil {
		err = e
	}
	if err == nil {
		workers.each(func(slot int) {
			if w := st.workers[slot]; err == nil && w.gone != nil {
				err = w.gone
			}
		})
	}
	st.make(s, m.Op, m.Object, bytes, m.Array.GetMemory(), at, err, wire.KindTransfer, workers,
		st.connsOf(workers), q)
}

func (st *State) fetch(s *session, m *wire.Fetch, q *queued) {
	at, err := st.place(s, []uint32{m.Device})
	if err == nil {
		err = q.err
	}
	if err == nil {
		switch o := s.objects[m.Object]; {
		case o == nil:
			err = invalid("array %d is not there; it was freed, or never made", m.Object)
		case o.err != nil:
			err = o.err
		case o.donated:
			err = invalid("array %d was donated to an earlier run and cannot be read", m.Object)
		case o.of != nil:
			err = o.asMember(m.Object)
		case !o.place.has.has(int(m.Device)):
			err = invalid("array %d has no shard on device %d", m.Object, m.Device)
		default:
			if err = st.alive(at); o.put != 0 {
				st.awaitPut(o)
			}
		}
	}
	if err != nil {
		st.end(s, m.Op, err)
		return
	}
	g := st.newGang(s, m.Op)
	g.place, g.kind, g.to, g.conns, g.payload = at, wire.KindFetch, at.workers, at.conns, q.payload
	st.admit(g)
}
