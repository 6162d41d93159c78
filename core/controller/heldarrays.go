package controller

import (
	"cmp"
	"maps"
	"slices"

	"github.com/openpathways/pathways/core/ledger"
	"github.com/openpathways/pathways/core/wire"
)

// The arrays that a controller knows after it has started again (comeback.go): those that its workers have, and those
// that operations under way make. remains.go counts the memory of arrays that were freed but are still in use.

// heldArray says which shards of an array workers have.
type heldArray struct {
	rows    []uint32
	bytes   int64
	memory  string
	donated bool
	err     error
}

// shards handles a worker's report of its shards of a session's arrays.
func (r *rebuilding) shards(s *session, w *worker, arrays []*wire.HeldArray) {
	if len(arrays) == 0 {
		return
	}
	virtual := map[uint32]uint32{} // by local device
	for i, span := range s.spans {
		for k := uint32(0); s.at[i] == w && k < span.Count; k++ {
			virtual[span.Local+k] = s.first(i) + k
		}
	}
	all := r.arrays[s.id]
	if all == nil {
		all = map[uint64]*heldArray{}
		r.arrays[s.id] = all
	}
	for _, m := range arrays {
		a := all[m.Object]
		if a == nil {
			a = &heldArray{}
			all[m.Object] = a
		}
		for _, local := range m.Devices {
			if d, ok := virtual[local]; ok {
				a.rows = append(a.rows, d)
			}
		}
		a.bytes, a.donated = max(a.bytes, m.Bytes), a.donated || m.Donated
		a.memory, a.err = cmp.Or(a.memory, m.Memory), cmp.Or(a.err, m.Failed.Err())
	}
}

// makeArrays makes the objects of which workers have shards, and that no operation under way makes.
func (r *rebuilding) makeArrays() {
	st := r.st
	for _, id := range slices.Sorted(maps.Keys(r.arrays)) {
		s := st.sessions[id]
		if s == nil {
			continue // it could not go on
		}
		for _, number := range slices.Sorted(maps.Keys(r.arrays[id])) {
			a := r.arrays[id][number]
			if r.made[opName{id, number}] || len(a.rows) == 0 {
				continue
			}
			slices.Sort(a.rows)
			at, err := st.place(s, slices.Compact(a.rows))
			if err != nil {
				continue // there are no numbers for places: the array is not there
			}
			o := &object{place: at, bytes: a.bytes, err: a.err, donated: a.donated}
			if st.isCounted(at, a.memory) && !a.donated && a.bytes > 0 { // also of one that failed elsewhere
				o.counted = a.bytes
				o.charge = st.ledger.Charge(ledger.Spec{ShardBytes: o.counted, Placement: at.memory, Label: "an array"})
			}
			s.add(number, o)
			s.loses(number, s.forgottenShard(number)) // one that is not among these
		}
	}
}

// loseMade removes shards of the results of a session's operations under way, if they would be on lost workers.
func (r *rebuilding) loseMade(s *session) {
	s.workers.each(func(slot int) {
		if w := r.st.workers[slot]; w.gone != nil {
			r.st.loseWorker(s, w)
		}
	})
}
