package controller

import "github.com/openpathways/pathways/core/wire"

// freeAhead lets go of what the client has freed behind a gang that is held, where nothing before the free uses it. It
// reports whether there was any. It changes no result, since no operation in between could name these objects.
func (st *State) freeAhead(g *gang) (freed bool) {
	s := g.s
	used := map[uint64]bool{}
	useOf(g.held.message, used)
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
			useOf(s.queue[i].message, used)
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

// useOf adds the objects that an operation reads.
func useOf(message any, used map[uint64]bool) {
	switch m := message.(type) {
	case *wire.Run:
		for _, id := range m.Inputs {
			used[id] = true
		}
		for _, x := range m.Mixed {
			for _, p := range x.GetPieces() {
				used[p.GetObject()] = true
			}
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

// passes reports whether a fetch goes past a gang of its session that is held: the array was there before.
func (st *State) passes(s *session, m *wire.Fetch) bool {
	g := s.waiting
	if g == nil || g.held == nil || m.Object >= g.first && m.Object < g.first+uint64(g.makes) {
		return false
	}
	o := s.objects[m.Object]
	if o == nil || o.err != nil || o.donated || o.put != 0 && st.gangs[o.put] != nil {
		return false
	}
	return s.play == nil || m.Object < s.play.first || m.Object >= s.play.first+uint64(s.play.g.made)
}
