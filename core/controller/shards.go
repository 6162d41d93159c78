package controller

import (
	"maps"
	"slices"

	"github.com/openpathways/pathways/core/ledger"
	"github.com/openpathways/pathways/core/wire"
)

// Operations on single shards of objects. No bytes move.

// freeRows releases single shards of objects that stay. Each worker is sent its own. The client must not name such a
// shard any more; if it does, the worker reports that the shard is not there.
func (st *State) freeRows(s *session, all []*wire.Rows) {
	by := map[int][]*wire.Rows{} // by slot
	for _, rows := range all {
		o := s.objects[rows.GetObject()]
		var fresh []uint32
		for _, d := range rows.Devices {
			slot := -1
			if o != nil && !o.absent && o.place.has.has(int(d)) {
				if o.freed.has(int(d)) {
					continue
				}
				o.freed.add(int(d))
				fresh = append(fresh, d)
				slot = o.place.in.slot(d)
			} else if slot = s.orphanOf(d); slot < 0 {
				continue
			}
			list := by[slot]
			if n := len(list) - 1; n < 0 || list[n].Object != rows.Object {
				list = append(list, &wire.Rows{Object: rows.Object})
			}
			last := list[len(list)-1]
			last.Devices = append(last.Devices, d)
			by[slot] = list
		}
		if len(fresh) > 0 {
			st.retireRows(s, o, fresh)
		}
	}
	for _, slot := range slices.Sorted(maps.Keys(by)) {
		var worker set
		worker.add(slot)
		if to := st.connsOf(worker); len(to) > 0 {
			st.gang++
			st.deliverDispatch(to, st.gang, 0, s, wire.KindFree, true, (&wire.Free{Rows: by[slot]}).Append(nil))
		}
	}
}

// orphanOf returns the slot of a device's worker if that may have arrays which the controller does not know of
// (endOrphans), otherwise -1.
func (s *session) orphanOf(d uint32) int {
	if len(s.orphans) == 0 || int(d) >= s.len() {
		return -1
	}
	if slot := s.slot(d); s.orphans.has(slot) && s.told.has(slot) { // another one may have its place
		return slot
	}
	return -1
}

// retireRows removes shards from the ledger: the object is charged again for those that it still has.
func (st *State) retireRows(s *session, o *object, rows []uint32) {
	if o.charge == 0 {
		return
	}
	left := slices.DeleteFunc(slices.Clone(o.place.rows), func(d uint32) bool { return o.freed.has(int(d)) })
	charge := func(rows []uint32) (ledger.ID, *place) {
		if len(rows) == 0 {
			return 0, nil
		}
		at, err := st.place(s, rows)
		if err != nil {
			return 0, nil // the session or a worker goes, and all its charges with it
		}
		return st.ledger.Charge(ledger.Spec{ShardBytes: o.counted, Placement: at.memory, Label: "an array"}), at
	}
	gone := object{put: o.put, counted: o.counted}
	gone.charge, gone.place = charge(rows)
	st.ledger.Free(o.charge)
	if o.charge, _ = charge(left); len(left) == 0 {
		o.counted = 0
	}
	st.retire(s, &gone)
}

// rowsIn returns how many shards a Free names.
func rowsIn(all []*wire.Rows) (n int) {
	for _, rows := range all {
		n += len(rows.GetDevices())
	}
	return n
}
