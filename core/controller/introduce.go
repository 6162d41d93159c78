package controller

import (
	"slices"

	"github.com/openpathways/pathways/core/wire"
)

// Workers are told of each other once, before the first message that makes them exchange bytes, and when a worker that
// they know is lost. In the same way a worker is told of a session, and so of its client: see tell.
//
// These are introduced: the workers of a program with collectives, when it is loaded; those of a program of an epoch,
// which names their devices, when it is compiled or loaded; the two ends of a move, when it is dispatched, or its graph
// is defined; and the sender and receiver of an artifact.
//
// Both ends are told before either is told to send, but over separate connections. So one may receive messages from the
// other before it knows it. Links accept that, since a process proves who it is, and a board keeps what arrives for a
// gang that has yet to begin.

// introductions says which workers have to know which others. There is one at a time.
type introductions struct {
	st      *State
	sets    []set // by slot of the one that is to know; slots. Empty between introductions
	touched []int // slots that have a set
}

func (st *State) introductions() *introductions {
	in := &st.intros
	in.st = st
	for len(in.sets) < len(st.workers) {
		in.sets = append(in.sets, nil)
	}
	return in
}

// of returns the set of a worker, to be added to.
func (in *introductions) of(slot int) *set {
	if len(in.sets[slot]) == 0 {
		in.touched = append(in.touched, slot)
	}
	return &in.sets[slot]
}

// pair has two workers know each other.
func (in *introductions) pair(a, b int) {
	if a != b && !in.st.workers[a].knows.has(b) {
		for _, slot := range []int{a, b} {
			s := in.of(slot)
			s.add(a)
			s.add(b)
		}
	}
}

// tell sends what workers do not know yet. Workers that lack the same, as all workers of a program mostly do, are sent
// one message, which contains themselves, too.
func (in *introductions) tell() {
	st := in.st
	type lesson struct {
		come [][]byte
		to   []uint64
	}
	var lessons []*lesson
	by := map[string]*lesson{}
	slices.Sort(in.touched)
	for _, slot := range in.touched {
		w, known := st.workers[slot], in.sets[slot]
		in.sets[slot] = known[:0]
		if w == nil || w.gone != nil {
			continue
		}
		known.without(w.knows)
		known.each(func(other int) {
			if o := st.workers[other]; o == nil || o.gone != nil {
				known.remove(other)
			}
		})
		key := known.key()
		l := by[key]
		if l == nil {
			l = new(lesson)
			known.each(func(other int) {
				l.come = append(l.come, st.workers[other].introduction())
			})
			by[key] = l
			lessons = append(lessons, l)
		}
		l.to = append(l.to, w.to[0])
		w.knows.union(known)
	}
	in.touched = in.touched[:0]
	for _, l := range lessons {
		for left := l.come; len(left) > 0; {
			n, size := 0, 0
			for n < len(left) && (n == 0 || size+len(left[n]) <= lessonSize) {
				size += len(left[n])
				n++
			}
			st.teach(l.to, left[:n], size)
			left = left[n:]
		}
	}
}

// lessonSize is the most bytes of introductions in one message: far fewer than fit into a frame, and enough for most
// clusters.
const lessonSize = 8 << 20

// teach sends introductions, of size bytes in all, as one message.
func (st *State) teach(to []uint64, come [][]byte, size int) {
	if size >= lateSize {
		st.deliverLate(to, wire.KindPeers, &Late{Size: size, Encode: func() []byte { return slices.Concat(come...) }})
		return
	}
	from := len(st.buffer)
	for _, one := range come {
		st.buffer = append(st.buffer, one...)
	}
	st.deliver(to, wire.KindPeers, st.buffer[from:])
}

// introduction returns what others are told of a worker: a Peers of it alone, which is also a part of a longer one.
func (w *worker) introduction() []byte {
	if w.intro == nil {
		w.intro = encoded(&wire.Peers{Come: []*wire.Process{w.process}})
	}
	return w.intro
}

// introduce introduces some workers to each other.
func (st *State) introduce(workers set) {
	in := st.introductions()
	workers.each(func(slot int) {
		if !st.workers[slot].knows.covers(workers) {
			in.of(slot).copyOf(workers)
		}
	})
	in.tell()
}

// introducePairs introduces the two workers of each pair of slots to each other.
func (st *State) introducePairs(pairs [][2]int) {
	in := st.introductions()
	for _, p := range pairs {
		in.pair(p[0], p[1])
	}
	in.tell()
}

// introduceTo introduces a worker and the workers of some devices to each other.
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
