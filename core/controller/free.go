package controller

import (
	"slices"

	"github.com/openpathways/pathways/core/wire"
)

// free releases objects. No client waits for its end.
func (st *State) free(s *session, m *wire.Free) {
	var workers set
	kept := m.Objects[:0]
	for _, id := range m.Objects {
		switch o, was := st.remove(s, id); {
		case was && !o.absent:
			kept = append(kept, id)
			workers.union(o.place.workers)
		case !was && len(s.orphans) > 0:
			kept = append(kept, id)
		}
	}
	s.orphans.each(func(slot int) {
		if s.told.has(slot) { // another one may have its place
			workers.add(slot)
		}
	})
	st.letGo(s, kept, workers)
	if len(m.Rows) > 0 {
		st.freeRows(s, m.Rows)
	}
}

// remove takes an object out of its session.
func (st *State) remove(s *session, id uint64) (was object, found bool) {
	o := s.objects[id]
	if o == nil {
		return object{}, false
	}
	st.retire(s, o)
	s.apart(id, o)
	was = *o
	for _, l := range st.losing {
		if l.array == o {
			l.array = o.behind
		}
	}
	s.unlist(o)
	delete(s.lost, id)
	*o = object{}
	st.freeObj = append(st.freeObj, o)
	return was, true
}

// add registers a new array with the session, under its number.
func (s *session) add(id uint64, o *object) {
	s.objects[id] = o
	o.id = id
	s.made.add(o)
}

// unlist is the end of add.
func (s *session) unlist(o *object) {
	delete(s.objects, o.id)
	s.made.remove(o)
}

// maxFreed is how many objects are in one Free: a number takes up to ten bytes, and a frame is six times as long.
const maxFreed = 1 << 20

// letGo tells workers that objects have gone.
func (st *State) letGo(s *session, kept []uint64, workers set) {
	to := st.connsOf(workers)
	if len(kept) == 0 || len(to) == 0 {
		return
	}
	for some := range slices.Chunk(kept, maxFreed) {
		st.gang++
		st.deliverDispatch(to, st.gang, 0, s, wire.KindFree, true, (&wire.Free{Objects: some}).Append(nil))
	}
}
