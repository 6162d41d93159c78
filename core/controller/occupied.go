package controller

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/openpathways/pathways/core/ledger"
	"github.com/openpathways/pathways/core/placement"
	"github.com/openpathways/pathways/core/wire"
)

// A session occupies a device while it has arrays there that it has not freed, in the device's memory or in host memory
// of the device, or while an operation that uses the device has been performed and has not ended. An exclusive slice is
// granted only on devices that no other session occupies.
//
// What sessions occupy is computed only when it is needed. Operations only count the uses of placements, and a session
// is examined again only if one of its placements has come into use or gone out of use. Sets of devices are bits by
// their numbers in the ledger, 64 in a word.

// occupancy is the devices that sessions occupy, as computed last.
type occupancy struct {
	once   placement.Numbers // the devices of any session
	twice  placement.Numbers // those of several, and of sessions that have ended
	others placement.Numbers // scratch
	used   placement.Numbers // scratch
	left   uint64            // State.left of then
	found  uint64            // how often it has changed
}

// use is the devices that one session occupies, as computed last.
type use struct {
	devices placement.Numbers
	objects uint64 // ledger.Uses of then
	gangs   uint64 // session.uses of then
}

// occupy counts a gang that was performed as one that uses its place's devices.
func (g *gang) occupy() {
	s, p := g.s, g.place
	if g.uses = p != nil; !g.uses {
		return
	}
	if p.gangs++; p.gangs == 1 {
		p.listed = len(s.busy)
		s.busy = append(s.busy, p)
		s.uses++
	}
}

// vacate is the end of occupy.
func (g *gang) vacate() {
	if !g.uses {
		return
	}
	s, p := g.s, g.place
	if p.gangs--; p.gangs == 0 {
		last := len(s.busy) - 1
		s.busy[p.listed] = s.busy[last]
		s.busy[p.listed].listed = p.listed
		s.busy[last] = nil
		s.busy = s.busy[:last]
		s.uses++
	}
}

// findUse updates what sessions occupy.
func (st *State) findUse() {
	o := &st.occupancy
	changed := o.left != st.left
	for id, s := range st.sessions {
		objects := st.ledger.Uses(ledger.Owner(id))
		if s.use.objects == objects && s.use.gangs == s.uses {
			continue
		}
		clear(o.used)
		o.used = st.ledger.Used(ledger.Owner(id), o.used)
		for _, p := range s.busy {
			o.used = p.memory.AddTo(o.used)
		}
		s.use.objects, s.use.gangs = objects, s.uses
		if !slices.Equal(o.used, s.use.devices) {
			o.used, s.use.devices = s.use.devices, o.used
			changed = true
		}
	}
	if !changed {
		return
	}
	o.left = st.left
	o.found++
	clear(o.once)
	clear(o.twice)
	for _, s := range st.sessions {
		for len(o.once) < len(s.use.devices) {
			o.once, o.twice = append(o.once, 0), append(o.twice, 0)
		}
		for i, word := range s.use.devices {
			o.twice[i] |= o.once[i] & word
			o.once[i] |= word
		}
	}
	for _, g := range st.leaving.All() {
		if g.place != nil {
			o.twice = g.place.memory.AddTo(o.twice)
		}
	}
	for _, w := range st.present {
		for _, r := range w.remains {
			for _, at := range r.at {
				o.twice = at.AddTo(o.twice)
			}
		}
	}
	o.once.Union(make(placement.Numbers, len(o.twice)))
}

// occupied returns a function that returns what other sessions occupy. The function computes that when it is first
// called, and is valid until something changes.
func (st *State) occupied() placement.Occupied {
	found := false
	return func(session uint32) placement.Numbers {
		o := &st.occupancy
		if !found {
			st.findUse()
			found = true
		}
		o.others = append(o.others[:0], o.once...)
		if s := st.sessions[session]; s != nil {
			for i, word := range s.use.devices {
				o.others[i] &^= word
			}
		}
		o.others.Union(o.twice)
		return o.others
	}
}

// holds describes a session that has devices which a request waits for.
func (s *session) holds(devices int, how string) *wire.Report_Holder {
	return &wire.Report_Holder{Session: s.id, Devices: uint32(devices), How: how, Client: s.name, User: s.user,
		Host: s.host}
}

// byDevices sorts sessions that have devices which a request waits for, by their number, largest first.
func byDevices(holders []*wire.Report_Holder) {
	slices.SortFunc(holders, func(a, b *wire.Report_Holder) int {
		return cmp.Or(cmp.Compare(b.Devices, a.Devices), cmp.Compare(a.Session, b.Session))
	})
}

// ahead returns the sessions for which devices that a request would have otherwise are reserved, in the order of their
// turns.
func (st *State) ahead(r *placement.Request) (holders []*wire.Report_Holder) {
	for _, a := range r.Ahead() {
		if s := st.sessions[a.By.Session]; s != nil { // it may have ended since the last look
			holders = append(holders, s.holds(a.Devices, wire.HasTurn))
		}
	}
	return holders
}

// lacking returns the sessions that have the devices which a request lacks, by their number, largest first.
func (st *State) lacking(r *placement.Request) (holders []*wire.Report_Holder) {
	lacks := r.Lacks()
	if lacks.Count() == 0 {
		return nil
	}
	add := func(s *session, has ...placement.Numbers) {
		longest := 0 // most sessions have nothing
		for _, set := range has {
			longest = max(longest, len(set))
		}
		devices, how := 0, -1
		for i, word := range lacks[:min(len(lacks), longest)] {
			had := uint64(0)
			for k, set := range has {
				if i < len(set) && word&set[i] != 0 {
					had |= word & set[i]
					if how < 0 || k < how {
						how = k
					}
				}
			}
			devices += bits.OnesCount64(had)
		}
		if devices > 0 {
			how := []string{wire.HasExclusive, wire.HasSlice, wire.HasView, wire.HasUse}[how]
			holders = append(holders, s.holds(devices, how))
		}
	}
	if r.Want.Exclusive {
		st.findUse()
	}
	for id, s := range st.sessions {
		var view, used placement.Numbers
		if r.Want.Exclusive && id != r.Session {
			used = s.use.devices
			if s.view.Sized() {
				if s.seen == nil {
					s.seen = s.view.Numbers()
				}
				view = s.seen
			}
		}
		alone, shared := st.layout.Held(id)
		add(s, alone, shared, view, used)
	}
	if r.Want.Exclusive {
		ended := map[*session]placement.Numbers{}
		for _, g := range st.leaving.All() {
			if g.place != nil {
				ended[g.s] = g.place.memory.AddTo(ended[g.s])
			}
		}
		for s, used := range ended {
			add(s, nil, nil, nil, used)
		}
	}
	byDevices(holders)
	return holders
}
