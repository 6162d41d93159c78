package controller

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/openpathways/pathways/core/ledger"
	"github.com/openpathways/pathways/core/wire"
)

// When the controller starts again, only workers know of some memory: of arrays that were freed while gangs under way
// use them, and, if a session has ended meanwhile, of its gangs. These gangs end by themselves, and their workers
// report that. Until then the memory counts, as memory that will be freed.
//
// It has an owner of its own in the ledger, one for each session of each worker, so that it is freed with these gangs,
// whatever becomes of the session. That owner counts in no tenant's quota.

// remains are the arrays of a session that a worker still has.
type remains struct {
	owner ledger.Owner
	gangs map[uint64]bool // that are under way
	at    []ledger.Placement
}

// remains counts the memory that will be freed with the gangs under way on a worker.
func (r *rebuilding) remains(w *worker) {
	of := map[uint32][]*wire.Holding{}
	for _, m := range r.of[w.to[0]] {
		for _, h := range m.Holdings {
			of[h.Session] = append(of[h.Session], h)
		}
	}
	for _, session := range slices.Sorted(maps.Keys(of)) {
		gangs, bytes := map[uint64]bool{}, make([]int64, len(w.offer.Devices))
		for _, h := range of[session] {
			for _, g := range h.Gangs {
				if !g.Ended {
					gangs[g.Gang] = true
				}
			}
			for local, n := range h.Leaving {
				if local < len(bytes) {
					bytes[local] += n
				}
			}
			for _, a := range h.Arrays {
				for _, local := range a.Devices {
					if r.st.sessions[session] == nil && int(local) < len(bytes) && w.isCounted(int(local), a.Memory) {
						bytes[local] += a.Bytes // it is told to drop them
					}
				}
			}
		}
		if len(gangs) > 0 {
			r.st.remains(w, session, gangs, bytes)
		}
	}
}

// remains counts bytes, by local device of a worker, until some gangs of a session have ended there.
func (st *State) remains(w *worker, session uint32, gangs map[uint64]bool, bytes []int64) {
	st.remaining++
	r := &remains{owner: ledger.Owner(math.MaxUint32 - st.remaining), gangs: gangs}
	if st.ledger.AddOwner(r.owner, fmt.Sprintf("what is left of session %d", session)) != nil {
		return // there are as many sessions
	}
	for local, n := range bytes {
		if n <= 0 {
			continue
		}
		if at, err := st.ledger.Place(r.owner, []int{w.base + local}); err == nil {
			st.ledger.Charge(ledger.Spec{ShardBytes: n, Placement: at, Label: "a freed array"})
			r.at = append(r.at, at)
		}
	}
	st.ledger.Leave(r.owner)
	w.remains = append(w.remains, r)
}

// endsThere records that a gang has ended on a worker.
func (st *State) endsThere(w *worker, gang uint64) {
	w.remains = slices.DeleteFunc(w.remains, func(r *remains) bool {
		if delete(r.gangs, gang); len(r.gangs) > 0 {
			return false
		}
		st.forgetRemains(r)
		return true
	})
}

// letRemains removes all that remains on a worker, which has gone, from the ledger.
func (st *State) letRemains(w *worker) {
	for _, r := range w.remains {
		st.forgetRemains(r)
	}
	w.remains = nil
}

func (st *State) forgetRemains(r *remains) {
	st.ledger.DropOwner(r.owner)
	st.left++
	st.stir()
}
