package controller

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/openpathways/pathways/core/wire"
)

// Workers are told of each other before the first message that makes them exchange bytes, and when a worker that they
// know is lost. They are told once, or again in a message with at least as many others. In the same way a worker is
// told of a session, and so of its client: see tell.
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
	fresh   [][]int // by slot of the one that is to know: slots, also its own. Empty between introductions
	touched []int   // slots that have some
}

func (st *State) introductions() *introductions {
	in := &st.intros
	in.st = st
	if more := len(st.workers) - len(in.fresh); more > 0 { // in one piece, for a first transfer among all
		few := make([]int, fewFresh*more)
		in.fresh = slices.Grow(in.fresh, more)
		for ; len(few) > 0; few = few[fewFresh:] {
			in.fresh = append(in.fresh, few[:0:fewFresh])
		}
	}
	return in
}

// fewFresh is how many workers one mostly learns of at a time, itself included: two neighbors.
const fewFresh = 4

// pair has two workers know each other.
func (in *introductions) pair(a, b int) {
	if a == b || in.st.peers[a].knows.has(b) {
		return
	}
	for _, slot := range [2]int{a, b} {
		if len(in.fresh[slot]) == 0 {
			in.touched = append(in.touched, slot)
			in.fresh[slot] = append(in.fresh[slot], slot)
		}
		in.fresh[slot] = append(in.fresh[slot], a+b-slot)
	}
}

// tell sends what workers do not know yet.
func (in *introductions) tell() {
	st := in.st
	var all lessons
	slices.Sort(in.touched)
	for _, slot := range in.touched {
		w, fresh := &st.peers[slot], in.fresh[slot]
		in.fresh[slot] = fresh[:0]
		if w.conn == 0 {
			continue
		}
		slices.Sort(fresh)
		fresh = slices.DeleteFunc(slices.Compact(fresh), func(other int) bool {
			return st.peers[other].conn == 0 || w.knows.has(other)
		})
		if len(fresh) <= fewFresh {
			st.teachFew(st.workers[slot], fresh)
		} else {
			l := all.of(st, setOf(fresh...))
			l.to = append(l.to, w.conn)
		}
		w.knows.add(fresh)
	}
	in.touched = in.touched[:0]
	st.sendLessons(all)
}

// peer is what a worker is to others. Those of all workers are in one list, so that a loop over ten thousand of them
// takes a fifth of the time that it takes to find each worker.
type peer struct {
	conn  uint64    // 0: it is not there any more
	come  []byte    // what others are told of it: a Peers of it alone, which is also a part of a longer one
	knows knowledge // of workers that it was told of, and that were told of it
}

// makePeer makes a worker that has come known to State as a peer of others.
func (st *State) makePeer(w *worker) {
	st.peers[w.slot] = peer{conn: w.to[0], come: encoded(&wire.Peers{Come: []*wire.Process{w.process}})}
}

// knowledge is which workers one knows, by slot. Most of them know the same, which they share.
type knowledge struct {
	shared *set  // nil: none
	own    []int // others, few, ascending
}

func (k *knowledge) has(slot int) bool {
	if k.shared != nil && k.shared.has(slot) {
		return true
	}
	_, found := slices.BinarySearch(k.own, slot)
	return found
}

// maxOwn bounds knowledge.own: more are a set of one's own.
const maxOwn = 64

// add adds slots that were not there.
func (k *knowledge) add(slots []int) {
	k.own = append(k.own, slots...)
	if slices.Sort(k.own); len(k.own) > maxOwn {
		all := k.all()
		k.shared, k.own = &all, nil
	}
}

// remove removes a slot whose worker has gone, also for those that share it.
func (k *knowledge) remove(slot int) {
	if k.shared != nil {
		k.shared.remove(slot)
	}
	if i, found := slices.BinarySearch(k.own, slot); found {
		k.own = slices.Delete(k.own, i, i+1)
	}
}

// all returns the slots, which the caller may change.
func (k *knowledge) all() (all set) {
	if k.shared != nil {
		all.union(*k.shared)
	}
	for _, slot := range k.own {
		all.add(slot)
	}
	return all
}

// lesson is what some workers learn of more than a few others. Those that have the same to learn, as all workers of a
// program mostly have, are sent one message, in which is also what they are themselves.
type lesson struct {
	come [][]byte
	to   []uint64
}

type lessons struct {
	all []*lesson
	by  map[string]*lesson
}

// of returns the lesson on workers of these slots.
func (ls *lessons) of(st *State, fresh set) *lesson {
	key := make([]byte, 0, 8*len(fresh))
	for _, word := range fresh {
		key = binary.LittleEndian.AppendUint64(key, word)
	}
	key = bytes.TrimRight(key, "\x00")
	l := ls.by[string(key)]
	if l == nil {
		l = &lesson{come: make([][]byte, 0, fresh.count())}
		fresh.each(func(slot int) { l.come = append(l.come, st.peers[slot].come) })
		if ls.by == nil {
			ls.by = map[string]*lesson{}
		}
		ls.by[string(key)] = l
		ls.all = append(ls.all, l)
	}
	return l
}

// sendLessons sends workers what they learn.
func (st *State) sendLessons(ls lessons) {
	for _, l := range ls.all {
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

// teachFew tells one worker about a few.
func (st *State) teachFew(w *worker, few []int) {
	size := 0
	for _, slot := range few {
		size += len(st.peers[slot].come)
	}
	st.room(size)
	from := len(st.buffer)
	for _, slot := range few {
		st.buffer = append(st.buffer, st.peers[slot].come...)
	}
	st.deliver(w.to[:], wire.KindPeers, st.buffer[from:])
}

// haveMet has all workers of a place know each other.
func (st *State) haveMet(at *place) {
	if !at.met {
		at.met = true // a worker that replaces a lost one is in new places only, see rebind.go
		st.introduce(at.workers)
	}
}

// introduce has all of some workers know each other. All gangs wait meanwhile, and of ten thousand workers each learns
// of ten thousand: so it looks once at what many of them know, and mostly all are told all, in one message.
func (st *State) introduce(workers set) {
	here := slices.Clone(workers)
	st.onlyHere(here)
	var all lessons
	var whole *lesson
	few := here.count() / 2
	type look struct {
		covers bool // what workers share covers all of them
		others bool // it has others
		count  int
	}
	looks := map[*set]*look{}
	var known *look
	var last *set // that known is of
	here.each(func(slot int) {
		w := &st.peers[slot]
		if known == nil || w.knows.shared != last {
			if last = w.knows.shared; looks[last] == nil {
				var shared set
				if last != nil {
					shared = *last
				}
				looks[last] = &look{shared.covers(here), !here.covers(shared), shared.count()}
			}
			known = looks[last]
		}
		if known.covers {
			return
		}
		isOther := func(slot int) bool { return !here.has(slot) }
		if known.count+len(w.knows.own) <= few && !known.others && !slices.ContainsFunc(w.knows.own, isOther) {
			// What it knows is told again, so that it is one message for all.
			if whole == nil {
				whole = all.of(st, here)
				whole.to = slices.Grow(whole.to, here.count())
			}
			whole.to = append(whole.to, w.conn)
			w.knows = knowledge{shared: &here}
			return
		}
		before := w.knows.all()
		fresh := slices.Clone(here)
		fresh.without(before)
		if slots := fresh.all(); len(slots) > 0 {
			l := all.of(st, fresh)
			l.to = append(l.to, w.conn)
			w.knows.add(slots)
		}
	})
	st.sendLessons(all)
}

// introducePairs introduces the two workers of each pair of slots to each other.
func (st *State) introducePairs(pairs [][2]int) {
	in := st.introductions()
	for _, p := range pairs {
		in.pair(p[0], p[1])
	}
	in.tell()
}

// pairsAtOnce bounds the pairs of workers that one Step introduces to each other for a transfer or a graph. It takes
// some 0.3 µs for each.
const pairsAtOnce = 1 << 10

// Introduce returns an event that introduces some of the workers which exchange bytes for a long Transfer or Graph that
// was surveyed, or tells some workers of a Put or a program of the session, so that fewer are left to the message's own
// Step. It returns nil if these are few.
func (ev *Event) Introduce() *Event {
	var in *binding
	var left *[][2]int
	switch {
	case ev.cut != nil:
		in, left = ev.cut.in, &ev.cut.pairs
	case ev.sketch != nil:
		in, left = ev.sketch.in, &ev.sketch.pairs
	case ev.meet != nil:
		in, left = ev.meet.in, &ev.meet.pairs
	}
	if left == nil || len(*left) <= pairsAtOnce {
		return nil
	}
	first := &Event{Kind: Meet, Conn: ev.Conn, meet: &meeting{in, (*left)[:pairsAtOnce]}}
	*left = (*left)[pairsAtOnce:]
	return first
}

// meeting is pairs of workers of a binding, by slot, that are to be introduced to each other. One that is paired with
// itself is only told of the session.
type meeting struct {
	in    *binding
	pairs [][2]int
}

// tells has Introduce tell the workers of a place of the session.
func (ev *Event) tells(p *place) {
	ev.meet = &meeting{in: p.in}
	p.workers.each(func(slot int) { ev.meet.pairs = append(ev.meet.pairs, [2]int{slot, slot}) })
}

// meet introduces workers to each other, and tells them of the session that needs them. If another worker is behind one
// of the session's devices by now, it does nothing: the message is then surveyed again.
func (st *State) meet(c *conn, m *meeting) {
	if c == nil || c.s == nil || c.s.binding != m.in {
		return
	}
	var workers set
	pairs := slices.DeleteFunc(m.pairs, func(p [2]int) bool { // the operation will fail if one of them has gone
		return st.workers[p[0]].gone != nil || st.workers[p[1]].gone != nil
	})
	for _, p := range pairs {
		workers.add(p[0])
		workers.add(p[1])
	}
	st.tell(c.s, workers)
	st.introducePairs(pairs)
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
