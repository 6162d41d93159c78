package controller

import (
	"slices"

	"github.com/openpathways/pathways/core/wire"
)

// freeAhead lets go of what the client has freed behind a gang that is held, where nothing before the free uses it. It
// reports whether there was any. It changes no result, since no operation in between could name these objects.
func (st *State) freeAhead(g *gang) (freed bool) {
	s := g.s
	used := map[uint64]bool{}
	s.useOf(g.held.message, used)
	first, end := g.first, g.first+uint64(g.makes) // what is made where the client has its name already
	if p := s.play; p != nil {
		first, end = p.first, p.first+uint64(p.g.made)
		for _, id := range p.inputs {
			used[id] = true
		}
	}
	stays := func(id uint64) bool { return s.objects[id] == nil || used[id] || id >= first && id < end }
	for i := s.head; i < len(s.queue); i++ {
		m, ok := s.queue[i].message.(*wire.Free)
		if !ok {
			s.useOf(s.queue[i].message, used)
			continue
		}
		var now wire.Free
		now.Objects, m.Objects = split(m.Objects, stays)
		now.Rows, m.Rows = split(m.Rows, func(r *wire.Rows) bool { return stays(r.GetObject()) })
		if len(now.Objects)+len(now.Rows) > 0 {
			freed = true
			st.free(s, &now)
			st.stir()
		}
	}
	return freed
}

// split divides a list into what goes and what stays.
func split[T any](all []T, stays func(T) bool) (goes, rest []T) {
	for _, x := range all {
		if stays(x) {
			rest = append(rest, x)
		} else {
			goes = append(goes, x)
		}
	}
	return goes, rest
}

// useOf adds the objects that an operation reads, and those that these are assembled of.
func (s *session) useOf(message any, used map[uint64]bool) {
	switch m := message.(type) {
	case *wire.Run:
		for _, id := range m.Inputs {
			used[id] = true
			for _, member := range s.membersOf(id) {
				used[member] = true
			}
		}
		for _, x := range m.Mixed {
			for _, p := range x.GetPieces() {
				used[p.GetObject()] = true
			}
		}
	case *wire.Assemble:
		for _, p := range m.Pieces {
			used[p.GetObject()] = true
		}
	case *wire.Transfer:
		for _, move := range m.Moves {
			used[move.GetSource()] = true
		}
	case *wire.Fetch:
		used[m.Object] = true
	case *wire.Play:
		for _, id := range m.Inputs {
			used[id] = true
		}
	}
}

// consumed calls each for the objects whose contents are not there for what comes after an operation: those that it
// donates or frees. It may be called more than once for one.
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
				for _, member := range s.membersOf(m.Inputs[i]) {
					each(member)
				}
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
			g.consumes(0, func(local uint64) {
				if local > 0 && local <= uint64(len(m.Inputs)) {
					each(m.Inputs[local-1])
				}
			})
		}
	}
}

// consumes calls each for the inputs that nodes of a graph donate or free, from one of them on.
func (g *graph) consumes(from int, each func(local uint64)) {
	for i := range g.nodes[from:] {
		for _, objects := range [][]uint64{g.nodes[from+i].donates, g.nodes[from+i].frees} {
			for _, local := range objects {
				if local <= uint64(g.inputs) {
					each(local)
				}
			}
		}
	}
}

// isThere reports whether a fetch may go past a gang of its session that is held, as far as that and the play that it
// may be of are concerned: the array was there before, and they leave it there.
func (st *State) isThere(s *session, m *wire.Fetch) bool {
	g := s.waiting
	if g == nil || g.held == nil || m.Object >= g.first && m.Object < g.first+uint64(g.makes) {
		return false
	}
	o := s.objects[m.Object]
	if o == nil || o.err != nil || o.donated || o.put != 0 && st.gangs[o.put] != nil {
		return false
	}
	stays := true
	goes := func(id uint64) { stays = stays && id != m.Object }
	st.consumed(s, g.held.message, goes)
	if p := s.play; p != nil {
		stays = stays && (m.Object < p.first || m.Object >= p.first+uint64(p.g.made))
		p.g.consumes(max(0, p.next-1), func(local uint64) { goes(p.object(local)) })
	}
	return stays
}

// passes reports whether a fetch that comes now goes past what its session has queued.
func (st *State) passes(s *session, m *wire.Fetch) bool {
	stays := st.isThere(s, m)
	for i := s.head; i < len(s.queue) && stays; i++ {
		st.consumed(s, s.queue[i].message, func(id uint64) { stays = stays && id != m.Object })
	}
	return stays
}

// fetchAhead performs the fetches that were queued behind a gang which is held now and that may go past it.
func (st *State) fetchAhead(s *session) {
	var ready []queued
	gone := map[uint64]bool{}
	kept := s.queue[s.head:s.head]
	for i := s.head; i < len(s.queue); i++ {
		item := s.queue[i]
		if m, ok := item.message.(*wire.Fetch); ok && item.err == nil && !gone[m.Object] && st.isThere(s, m) {
			ready = append(ready, item)
			continue
		}
		st.consumed(s, item.message, func(id uint64) { gone[id] = true })
		kept = append(kept, item)
	}
	if len(ready) == 0 {
		return
	}
	clear(s.queue[s.head+len(kept):])
	s.queue = s.queue[:s.head+len(kept)]
	s.fetches -= len(ready)
	for i := range ready {
		st.perform(s, &ready[i])
	}
}
