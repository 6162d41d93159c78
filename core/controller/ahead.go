package controller

import (
	"maps"
	"slices"

	"github.com/openpathways/pathways/core/ledger"
	"github.com/openpathways/pathways/core/wire"
)

// Some operations pass a gang that is held, which changes no result. Frees do, if nothing before them uses their
// arrays. Fetches do, if their array is there and nothing before them donates or frees it. Puts pass a gang that is
// held for the bytes of puts, or for its program, so that their bytes keep coming; they do so only if there is room for
// them in addition to everything that they pass.
//
// All other sessions wait while this is decided, so nothing here searches a whole queue. Each queued operation is
// counted once, and removed from the counts once.

// names says how the operations in a session's queue use each of its arrays. It exists from the time when one of the
// session's gangs is held and another operation waits behind it, until the queue is empty.
type names struct {
	of        map[uint64]usage
	rows      map[uint64][]*wire.Rows // shards that are freed
	free      map[uint64]bool         // arrays that can be freed now
	passers   []passer                // fetches and puts that are counted and could not pass yet, in order
	takes     int64                   // bytes that what is counted takes on a device at most
	unknown   int                     // operations counted whose memory is not known
	current   any                     // the operation performed last, if it is counted
	share     share                   // of the current operation
	uncounted int                     // operations at the end of the queue that are not
	stale     int                     // arrays named by frees of the queue that were freed ahead
}

// usage says how the counted operations use an array. The zero value means that none of them names it.
type usage struct {
	uses   int32  // how many read it
	shards bool   // one frees shards of it
	freed  bool   // one frees it
	taken  uint64 // number of the last that donates or frees it
}

// passer is a fetch or a put, by its number in the queue. taken is of the array's usage before it.
type passer struct {
	number, object, taken uint64
	device                uint32 // of a fetch
	put                   bool
}

// share is the memory on a device for which a queued operation was counted. It is kept, since other programs may be
// known when the operation is removed from the counts.
type share struct {
	bytes   int64
	unknown bool // its memory is not known: a play, or a run of a program that is still being compiled
}

// countsAtOnce bounds how many names of arrays one Step counts, which takes some tenths of a millisecond. Usually an
// operation is counted in the Step that receives it; many are left only if the first one of a long queue is held.
const countsAtOnce = 1 << 12

// keepCount counts the operations queued behind held gangs, and frees the arrays that can be freed.
func (st *State) keepCount() {
	left := countsAtOnce
	for _, g := range st.held {
		if !st.countQueue(g, &left) {
			st.remind(st.now + 1)
		}
		if g.s.names != nil {
			st.freeAhead(g.s)
		}
	}
}

// isCounted reports whether all that the session has queued is counted.
func (s *session) isCounted() bool {
	if s.names == nil {
		return s.head == len(s.queue)
	}
	return s.names.uncounted == 0
}

// countQueue counts operations behind a held gang, at most left names, and reports whether all are counted.
func (st *State) countQueue(g *gang, left *int) bool {
	s := g.s
	if s.isCounted() {
		return true
	}
	n := s.names
	if n == nil {
		n = &names{of: map[uint64]usage{}, rows: map[uint64][]*wire.Rows{}, free: map[uint64]bool{},
			uncounted: len(s.queue) - s.head}
		s.names = n
	}
	if n.current == nil {
		n.current, n.share = g.held.message, st.shareOf(s, g.held.message)
		n.countShare(n.share, 1)
		*left -= st.count(s, g.held.message, s.popped)
	}
	for ; n.uncounted > 0 && *left > 0; n.uncounted-- {
		q := &s.queue[len(s.queue)-n.uncounted]
		q.share = st.shareOf(s, q.message)
		n.countShare(q.share, 1)
		*left -= st.count(s, q.message, q.number)
	}
	return n.uncounted == 0
}

// count adds an operation to the usage of the session's arrays. It returns the number of names in the operation.
func (st *State) count(s *session, message any, number uint64) (looked int) {
	n := s.names
	if number > s.popped { // otherwise it is held itself
		switch m := message.(type) {
		case *wire.Fetch:
			n.passers = append(n.passers, passer{number, m.Object, n.of[m.Object].taken, m.Device, false})
			s.ahead = true
		case *wire.Put:
			n.passers = append(n.passers, passer{number, m.Object, 0, 0, true})
			s.ahead = true
		}
	}
	uses(message, func(id uint64) {
		u := n.of[id]
		u.uses++
		n.of[id] = u
		looked++
	})
	st.consumed(s, message, func(id uint64) {
		u := n.of[id]
		u.taken = number
		n.of[id] = u
		looked++
	})
	if m, ok := message.(*wire.Free); ok {
		s.countFrees(m.Objects, m.Rows)
	}
	return looked + 1
}

// countFrees counts what the operation that was counted last frees.
func (s *session) countFrees(objects []uint64, rows []*wire.Rows) {
	n := s.names
	for _, id := range objects {
		u := n.of[id]
		u.freed = true
		n.of[id] = u
		s.consider(id)
	}
	for _, r := range rows {
		id := r.GetObject()
		u := n.of[id]
		u.shards = true
		n.of[id] = u
		n.rows[id] = append(n.rows[id], r)
		s.consider(id)
	}
}

// consider determines whether an array can be freed now.
func (s *session) consider(id uint64) {
	n, o := s.names, s.objects[id]
	if u := n.of[id]; !u.freed && !u.shards || u.uses > 0 || o == nil || s.makes(id) ||
		slices.ContainsFunc(o.in, func(m membership) bool { return n.of[m.of].uses > 0 }) {
		return
	}
	n.free[id] = true
}

// makes reports whether the gang that waits, or its play if it is a node of one, makes an array.
func (s *session) makes(id uint64) bool {
	g, p := s.waiting, s.play
	return g != nil && id >= g.first && id < g.first+uint64(g.makes) ||
		p != nil && id >= p.first && id < p.first+uint64(p.g.made)
}

// next records that the next operation is taken from the queue: the ones before it have their places.
func (st *State) next(s *session) {
	if n := s.names; n != nil {
		if n.current != nil {
			st.uncount(s, n.current, n.share)
			n.current = nil
		}
		if n.uncounted < len(s.queue)-s.head {
			n.current, n.share = s.queue[s.head].message, s.queue[s.head].share
		} else {
			n.uncounted--
		}
		if len(n.passers) > 0 && n.passers[0].number == s.queue[s.head].number {
			n.passers = n.passers[1:]
		}
	}
	s.popped = s.queue[s.head].number
}

// uncount removes an operation from the usage of the session's arrays.
func (st *State) uncount(s *session, message any, takes share) {
	n := s.names
	n.countShare(takes, -1)
	uses(message, func(id uint64) {
		u := n.of[id]
		if u.uses = max(0, u.uses-1); u.uses > 0 {
			n.of[id] = u
			return
		}
		n.note(id, u)
		s.consider(id)
		for _, member := range s.membersOf(id) {
			s.consider(member)
		}
	})
	first, made := uint64(0), 0
	switch m := message.(type) {
	case *wire.Run:
		if p := s.programs[m.Program]; p != nil {
			first, made = m.FirstOutput, len(p.of.outputs)
		}
	case *wire.Play:
		if g := s.graphs[m.Graph]; g != nil {
			first, made = m.First, g.made
		}
	case *wire.Put:
		first, made = m.Object, 1
	case *wire.Transfer:
		first, made = m.Object, 1
	case *wire.Free:
		for _, id := range m.Objects {
			n.forget(id)
		}
		for _, r := range m.Rows {
			n.forget(r.GetObject())
		}
	}
	for i := range uint64(made) {
		s.consider(first + i)
	}
}

// shareOf returns the most memory that an operation takes on a device, as far as is known now.
func (st *State) shareOf(s *session, message any) share {
	bytes := int64(0)
	switch m := message.(type) {
	case *wire.Run:
		p := s.programs[m.Program]
		if p == nil {
			return share{unknown: true}
		}
		at, _ := st.placeOfRun(s, p, m.Only)
		code := (&gang{program: p, place: at}).lacksCode()
		for _, part := range []int64{p.takes, p.of.info.GetCost().GetTempBytes(), code} {
			bytes += min(max(0, part), ledger.MaxShardBytes)
		}
	case *wire.Put:
		bytes, _ = bytesOf(m.Array)
	case *wire.Transfer:
		bytes, _ = bytesOf(m.Array)
	case *wire.Play, *wire.Rebind: // puts behind it may be on what it brings
		return share{unknown: true}
	}
	return share{bytes: min(bytes, ledger.MaxShardBytes)}
}

// countShare adds an operation's memory to the counts, times sign.
func (n *names) countShare(takes share, sign int) {
	n.takes += int64(sign) * takes.bytes
	if takes.unknown {
		n.unknown += sign
	}
}

// note keeps an array's usage, or that there is none.
func (n *names) note(id uint64, u usage) {
	if u.uses > 0 || u.freed || u.shards {
		n.of[id] = u
	} else {
		delete(n.of, id)
	}
}

// forget records that an array was freed.
func (n *names) forget(id uint64) {
	u := n.of[id]
	u.freed, u.shards = false, false
	n.note(id, u)
	delete(n.rows, id)
	delete(n.free, id)
}

// freeAhead frees the arrays that are freed behind a held gang and that nothing before their frees uses.
func (st *State) freeAhead(s *session) {
	n := s.names
	if len(n.free) == 0 {
		return
	}
	m := new(wire.Free)
	for _, id := range slices.Sorted(maps.Keys(n.free)) {
		if n.of[id].freed {
			m.Objects = append(m.Objects, id)
		} else {
			m.Rows = append(m.Rows, n.rows[id]...)
		}
		n.forget(id)
	}
	named := len(m.Objects) + rowsIn(m.Rows)
	s.freeing += named // the queue still names them, and a free takes them off
	n.stale += named
	st.freeInTurn(s, m)
	st.stir()
	if n.stale > sweepsFrom && n.stale > s.freeing/2 {
		n.stale = 0
		s.sweepFrees()
	}
}

// sweepsFrom is the least number of arrays freed ahead that is worth a sweep of the queue.
const sweepsFrom = 1 << 10

// sweepFrees removes arrays that were freed ahead from the frees that are queued.
func (s *session) sweepFrees() {
	n := s.names
	for i := s.head; i < len(s.queue)-n.uncounted; i++ {
		m, ok := s.queue[i].message.(*wire.Free)
		if !ok {
			continue
		}
		s.freeing -= len(m.Objects) + rowsIn(m.Rows)
		m.Objects = slices.DeleteFunc(m.Objects, func(id uint64) bool { return !n.of[id].freed })
		m.Rows = slices.DeleteFunc(m.Rows, func(r *wire.Rows) bool { return !n.of[r.GetObject()].shards })
		s.freeing += len(m.Objects) + rowsIn(m.Rows)
	}
}

// mayPass reports whether a fetch may go past a held gang and the operations that are queued before it.
func (st *State) mayPass(s *session, f passer) bool {
	o := s.objects[f.object]
	if o == nil || o.err != nil || o.donated || o.put != 0 && st.gangs.Get(o.put) != nil || s.makes(f.object) {
		return false
	}
	at, err := st.place(s, []uint32{f.device})
	if err != nil {
		return false
	}
	g := &gang{s: s, place: at, to: at.workers}
	if g.hosts = g.hostUses(&wire.Fetch{Object: f.object, Device: f.device}); !st.roomFor(g, len(st.held)) {
		return false
	}
	waits := func(taken uint64) bool { return taken != 0 && taken >= s.popped }
	return !waits(f.taken) &&
		!slices.ContainsFunc(o.in, func(m membership) bool { return waits(s.names.of[m.of].taken) })
}

// mayPutAhead reports whether a put may go past a held gang and the operations that are queued before it.
func (st *State) mayPutAhead(s *session, m *wire.Put) bool {
	g, n := s.waiting, s.names
	if g == nil || g.held.forMemory() || n.unknown > 0 || n.uncounted > 0 {
		return false
	}
	at, err := st.place(s, m.Devices)
	if err != nil {
		return false
	}
	put := &gang{s: s, place: at, bytes: n.takes, to: at.workers} // its own bytes included
	put.hosts = put.hostUses(m)
	return st.roomFor(put, len(st.held))
}

// putsMayPass reports whether the first of the puts that are queued behind a held gang may go past it now: others may
// have made room for it.
func (st *State) putsMayPass(s *session) bool {
	if s.names == nil {
		return false
	}
	i := slices.IndexFunc(s.names.passers, func(p passer) bool { return p.put })
	if i < 0 {
		return false
	}
	at, _ := slices.BinarySearchFunc(s.queue[s.head:], s.names.passers[i].number, queued.compare)
	item := &s.queue[s.head+at]
	m, is := item.message.(*wire.Put)
	return is && item.err == nil && st.mayPutAhead(s, m)
}

// passAhead performs the fetches and puts that were queued behind a gang which is held now and that may go past it.
// When the Step has performed enough, a later one goes on.
func (st *State) passAhead(s *session) {
	n, first, puts := s.names, -1, true
	n.passers = slices.DeleteFunc(n.passers, func(p passer) bool {
		if st.isTired() {
			s.ahead = true
			st.wake(s)
			return false
		}
		i, _ := slices.BinarySearchFunc(s.queue[s.head:], p.number, queued.compare)
		i += s.head
		item := s.queue[i]
		switch m := item.message.(type) {
		case *wire.Fetch:
			if item.err != nil || !st.mayPass(s, p) {
				return false
			}
		case *wire.Put: // in their order
			if puts = puts && item.err == nil && st.mayPutAhead(s, m); !puts {
				return false
			}
		}
		s.queue[i].message = nil
		st.tire(0, len(item.payload))
		st.perform(s, &item)
		st.uncount(s, item.message, item.share)
		if first < 0 {
			first = i
		}
		return true
	})
	if first >= 0 {
		kept := slices.DeleteFunc(s.queue[first:], func(q queued) bool { return q.message == nil })
		s.queue = s.queue[:first+len(kept)]
		s.closeUp()
	}
}

// passMore continues passAhead after an earlier Step had performed enough.
func (st *State) passMore(s *session) {
	switch {
	case !s.ahead || s.names == nil || s.waiting == nil:
	case !s.isCounted(): // it is counted first
		st.stir()
	default:
		s.ahead = false
		st.passAhead(s)
	}
}

// uses calls each for the arrays that an operation reads.
func uses(message any, each func(id uint64)) {
	switch m := message.(type) {
	case *wire.Run:
		for _, id := range m.Inputs {
			if id != 0 {
				each(id)
			}
		}
		for _, x := range m.Mixed {
			for _, p := range x.GetPieces() {
				each(p.GetObject())
			}
		}
	case *wire.Assemble:
		for _, p := range m.Pieces {
			each(p.GetObject())
		}
	case *wire.Transfer:
		for _, move := range m.Moves {
			each(move.GetSource())
		}
	case *wire.Fetch:
		each(m.Object)
	case *wire.Play:
		for _, id := range m.Inputs {
			each(id)
		}
	}
}

// consumed calls each for the arrays whose contents later operations do not find: those that it donates or frees. It
// may be called more than once for one.
func (st *State) consumed(s *session, message any, each func(id uint64)) {
	switch m := message.(type) {
	case *wire.Run:
		p := s.programs[m.Program]
		if p == nil {
			return
		}
		for _, i := range p.of.info.GetDonated() {
			if int(i) < len(m.Inputs) && !slices.Contains(m.NotDonated, i) {
				each(m.Inputs[i])
				for _, x := range m.Mixed {
					for _, piece := range x.GetPieces() {
						each(piece.GetObject())
					}
				}
			}
		}
	case *wire.Assemble: // a run behind it may donate it, when it is not known yet what it is made of
		for _, p := range m.Pieces {
			each(p.GetObject())
		}
	case *wire.Free:
		for _, id := range m.Objects {
			each(id)
		}
		for _, r := range m.Rows {
			each(r.GetObject())
		}
	case *wire.Play:
		if g := s.graphs[m.Graph]; g != nil {
			g.consumes(func(local uint64) {
				if local > 0 && local <= uint64(len(m.Inputs)) {
					each(m.Inputs[local-1])
				}
			})
		}
	}
}

// consumes calls each for the inputs that nodes of a graph donate or free.
func (g *graph) consumes(each func(local uint64)) {
	for i := range g.nodes {
		for _, objects := range [][]uint64{g.nodes[i].donates, g.nodes[i].frees} {
			for _, local := range objects {
				if local <= uint64(g.inputs) {
					each(local)
				}
			}
		}
	}
}
