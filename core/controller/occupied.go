package controller

import (
	"cmp"
	"maps"
	"slices"

	"github.com/openpathways/pathways/core/ledger"
	"github.com/openpathways/pathways/core/placement"
	"github.com/openpathways/pathways/core/wire"
)

// A session occupies a device while it has arrays there that it has not freed, or an operation that uses the device
// has been performed and has not ended. An exclusive slice is granted on devices that no other session occupies.

// eachUse calls f with the devices that sessions occupy, by their numbers in the ledger; a device may come several
// times. It takes time in proportion to operations under way and to the sessions' placements, not to their arrays.
func (st *State) eachUse(f func(session uint32, number int)) {
	of := func(g *gang) {
		if g != nil && g.place != nil {
			for _, number := range g.place.numbers {
				f(g.s.id, number)
			}
		}
	}
	for id, s := range st.sessions {
		st.ledger.Each(ledger.Owner(id), func(on ledger.Devices, _ int64) {
			for _, number := range on {
				f(id, int(number))
			}
		})
		of(s.waiting)
	}
	for _, g := range st.gangs {
		of(g)
	}
	for _, g := range st.leaving {
		of(g)
	}
}

// numberOf returns a function that returns a device's number in the ledger, or -1 if its worker has gone.
func (st *State) numberOf() func(d placement.Device) int {
	base := make(map[uint64]int, len(st.present))
	for _, w := range st.workers {
		if w != nil && w.gone == nil {
			base[w.process.Number] = w.base
		}
	}
	return func(d placement.Device) int {
		if first, ok := base[d.Worker]; ok {
			return first + d.Local
		}
		return -1
	}
}

// occupied returns a function that says whether a device is occupied by other sessions. It looks when it is first
// called, and holds until something changes.
func (st *State) occupied() placement.Occupied {
	const several = ^uint32(0)
	var by []uint32 // the session that occupies a device, or several
	var number func(placement.Device) int
	return func(session uint32, d placement.Device) bool {
		if by == nil {
			by, number = make([]uint32, st.numbered), st.numberOf()
			st.eachUse(func(session uint32, n int) {
				if by[n] != 0 && by[n] != session {
					session = several
				}
				by[n] = session
			})
		}
		n := number(d)
		return n >= 0 && by[n] != 0 && by[n] != session
	}
}

// lacking returns who has the devices that a request has reserved and lacks, those with most of them first.
func (st *State) lacking(r *placement.Request) (holders []*wire.Report_Holder) {
	if len(r.Lacks()) == 0 {
		return nil
	}
	lacks := make(map[placement.Device]bool, len(r.Lacks()))
	numbers := make(map[int]placement.Device, len(r.Lacks()))
	number := st.numberOf()
	for _, d := range r.Lacks() {
		lacks[d], numbers[number(d)] = true, d
	}
	has := map[uint32]map[placement.Device]bool{} // by session
	how := map[uint32]string{}
	take := func(session uint32, d placement.Device, as string) {
		if !lacks[d] {
			return
		}
		if has[session] == nil {
			has[session] = map[placement.Device]bool{}
			how[session] = as
		}
		has[session][d] = true
	}
	for _, as := range []string{wire.HasExclusive, wire.HasSlice} {
		for _, session := range st.layout.Holders() {
			for _, slice := range st.layout.Slices(session) {
				for _, d := range slice.Behind() {
					if slice.Want.Exclusive == (as == wire.HasExclusive) {
						take(session, d, as)
					}
				}
			}
		}
	}
	if r.Want.Exclusive {
		for id, s := range st.sessions {
			if id != r.Session && s.view.Sized() {
				for row := range s.view.Len() {
					take(id, s.view.Device(row), wire.HasView)
				}
			}
		}
		st.eachUse(func(session uint32, n int) {
			if d, ok := numbers[n]; ok && session != r.Session {
				take(session, d, wire.HasUse)
			}
		})
	}
	for _, id := range slices.Sorted(maps.Keys(has)) {
		h := &wire.Report_Holder{Session: id, Devices: uint32(len(has[id])), How: how[id]}
		if s := st.sessions[id]; s != nil {
			h.Client, h.User, h.Host = s.name, s.user, s.host
		}
		holders = append(holders, h)
	}
	slices.SortStableFunc(holders, func(a, b *wire.Report_Holder) int { return cmp.Compare(b.Devices, a.Devices) })
	return holders
}

// sliceWaits returns the requests for slices that wait, for a report.
func (st *State) sliceWaits() (all []*wire.Report_SliceWait) {
	for _, r := range st.layout.Requests() {
		w := &wire.Report_SliceWait{Session: r.Session, Slice: r.Number, Devices: uint32(r.Want.Devices),
			Island: r.Want.Island, Kind: r.Want.Kind, Exclusive: r.Want.Exclusive, Priority: int32(r.Priority),
			SinceMs: (st.now - r.Asked) / 1e6, LeftMs: (r.Until - st.now) / 1e6, Lacks: uint32(len(r.Lacks())),
			Holders: st.asked[r].holders}
		if w.LeftMs > wire.LongestWait/2 {
			w.LeftMs = -1
		}
		all = append(all, w)
	}
	return all
}
