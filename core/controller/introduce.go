package controller

import "github.com/openpathways/pathways/core/wire"

// Workers learn of each other when they first exchange bytes: before the message that has them do so, and once. Two
// that know each other are told when one of them is lost. In the same way a worker learns of a session, and with it of
// the client, see tell.
//
// Who exchanges bytes: the workers of a collective program, when it is loaded; those of a program of an epoch, whose
// devices have names there, when it is compiled or loaded; the two ends of a move, when it is dispatched, or its graph
// is defined; and the two ends of an artifact's way.
//
// Both ends are told before either is told to send, each on its own connection. So one may hear from the other before
// it has heard of it. Links take that, since a process shows who it is by a proof, and a board keeps what has come for
// a gang that has yet to begin.

// introductions says which workers are to know of which.
type introductions struct {
	st    *State
	alive set
	sets  []set // by slot of the one that is to know; slots
}

func (st *State) introductions() *introductions {
	in := &introductions{st: st, sets: make([]set, len(st.workers))}
	for slot, w := range st.workers {
		if w != nil && w.gone == nil {
			in.alive.add(slot)
		}
	}
	return in
}

// pair has two workers know each other.
func (in *introductions) pair(a, b int) {
	if a != b && !in.st.workers[a].knows.has(b) {
		for _, slot := range []int{a, b} {
			in.sets[slot].add(a)
			in.sets[slot].add(b)
		}
	}
}

// tell sends what workers do not know yet. Those that have the same to learn, as all workers of a program mostly have,
// are sent one message, in which is also what they are themselves.
func (in *introductions) tell() {
	st := in.st
	type lesson struct {
		come *wire.Peers
		to   []uint64
	}
	var lessons []*lesson
	by := map[string]*lesson{}
	for slot, known := range in.sets {
		w := st.workers[slot]
		if len(known) == 0 || !in.alive.has(slot) {
			continue
		}
		known.keep(in.alive)
		known.without(w.knows)
		key := known.key()
		l := by[key]
		if l == nil {
			l = &lesson{come: new(wire.Peers)}
			known.each(func(other int) {
				l.come.Come = append(l.come.Come, st.workers[other].process)
			})
			by[key] = l
			lessons = append(lessons, l)
		}
		l.to = append(l.to, w.to[0])
		w.knows.union(known)
	}
	for _, l := range lessons {
		if len(l.come.Come) > 0 {
			st.send(l.to, wire.KindPeers, l.come)
		}
	}
}

// introduce has all of some workers know each other.
func (st *State) introduce(workers set) {
	in := st.introductions()
	workers.each(func(slot int) {
		if !st.workers[slot].knows.covers(workers) {
			in.sets[slot] = append(set(nil), workers...)
		}
	})
	in.tell()
}

// introduceEnds has the workers at the ends of moves know each other.
func (st *State) introduceEnds(s *session, moves []*wire.Move) {
	in := st.introductions()
	for _, m := range moves {
		for k := range max(1, m.Count) {
			in.pair(s.slots[m.From+k], s.slots[m.To+k])
		}
	}
	in.tell()
}

// introduceTo has a worker and those of some devices know each other.
func (st *State) introduceTo(w *worker, at []*wire.Place) {
	of := map[uint64]bool{}
	for _, p := range at {
		of[p.Worker] = true
	}
	in := st.introductions()
	for _, o := range st.workers {
		if o != nil && of[o.process.Number] {
			in.pair(w.slot, o.slot)
		}
	}
	in.tell()
}
