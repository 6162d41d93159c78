package controller

import (
	"maps"
	"slices"

	"github.com/openpathways/pathways/core/schedule"
)

// When a worker is lost, thousands of gangs may fail, and as many arrays lose shards. State does that in parts, and
// takes other events in between. It goes session by session: first it fails the runs that wait for a place on the
// worker, then the gangs that are under way there, then it takes the session's shards there out of its arrays
// (loss.go), and then the worker out of those that have loaded the session's programs. At the end it takes the worker
// out of those that have artifacts.
//
// Nothing new begins on the worker meanwhile, since it counts as gone from the beginning. It keeps its slot until all
// parts are done. Until then no session gets an offer: the offer's devices must not be taken for lost ones.

// losing is a worker that has gone, with the gangs that have yet to fail and the arrays that have yet to lose shards.
type losing struct {
	w        *worker
	sessions []uint32          // that had it; the first one is under way
	next     loss              // of that one
	tickets  []uint64          // of its runs that wait for their places
	gangs    []uint64          // of it, or, if no sessions are left, of those that have ended
	array    *object           // of it, the next to be looked at; nil: none is left
	program  *program          // the same of its programs
	artifact *artifact         // the same of all artifacts
	left     map[*place]*place // its places without the worker's devices; nil if there are no others
	why      error             // why its arrays are lost
}

// loss is a part of a session's loss.
type loss uint8

const (
	lostGangs loss = iota
	lostArrays
	lostPrograms
	lostAll
)

// The time to fail a gang, to look whether an array has lost shards, to take them out of it, and to record that a
// program is no longer loaded there, in nanoseconds: measured by BenchmarkSteps.
const (
	weightOfFailure = 2500
	weightOfArray   = 30
	weightOfLoss    = 700
	weightOfUnload  = 100
	// To look whether the worker has an artifact, and to take it out of those that have it, of which there may be a
	// thousand.
	weightOfLookup   = 500
	weightOfArtifact = 5000
)

// lose begins the loss of a worker.
func (st *State) lose(w *worker) {
	l := &losing{w: w, why: st.errShards(w), artifact: st.away.first}
	for _, id := range slices.Sorted(maps.Keys(st.sessions)) {
		if s := st.sessions[id]; s.workers.has(w.slot) {
			s.missing++
			l.sessions = append(l.sessions, id)
		}
	}
	w.views++
	st.losing = append(st.losing, l)
	if st.weight == 0 {
		st.failLost()
	}
}

// failLost continues with the losses of workers, for about the time that Weigh says.
func (st *State) failLost() {
	for spent := int64(0); len(st.losing) > 0 && (st.weight == 0 || spent < st.weight); {
		switch l := st.losing[0]; {
		case len(l.tickets) > 0:
			spent += weightOfFailure
			st.failPlacing(l)
		case len(l.gangs) > 0:
			spent += weightOfFailure
			st.failUnderWay(l)
		case len(l.sessions) > 0:
			spent += st.loseNext(l, st.sessions[l.sessions[0]])
		case l.artifact != nil:
			a := l.artifact
			l.artifact = a.behind
			if spent += weightOfLookup; st.loseArtifact(l.w, a) {
				spent += weightOfArtifact
			}
		default:
			if l.gangs = st.leavingOn(l.w); len(l.gangs) == 0 {
				st.losing = slices.Delete(st.losing, 0, 1)
				l.w.views--
				st.release(l.w)
				st.offerAll()
				st.stir()
			}
		}
	}
}

// loseNext does the next part for a session, nil if it has ended. It returns about how many nanoseconds that takes.
func (st *State) loseNext(l *losing, s *session) (weight int64) {
	switch {
	case s == nil:
		l.nextSession()
	case l.next == lostGangs:
		l.tickets, l.gangs, l.next = placingOn(s, l.w), underWayOn(s, l.w), lostArrays
		return weightOfArray * int64(s.line.length+s.out)
	case l.next == lostArrays:
		l.array, l.next = s.made.first, lostPrograms
	case l.array != nil:
		if st.loseArray(l, s) {
			return weightOfLoss
		}
	case l.next == lostPrograms:
		l.program, l.next = s.allPrograms.first, lostAll
	case l.program != nil:
		st.unloaded(l.program, l.w.slot)
		l.program = l.program.behind
		return weightOfUnload
	default:
		l.nextSession()
	}
	return weightOfArray
}

func (l *losing) nextSession() {
	l.sessions, l.next, l.array, l.program, l.left = l.sessions[1:], lostGangs, nil, nil, nil
}

// failPlacing fails a run that waits for its place, before the places of runs on the worker become free.
func (st *State) failPlacing(l *losing) {
	ticket := l.tickets[0]
	l.tickets = l.tickets[1:]
	if g := l.w.island.held[ticket]; g != nil {
		st.feed(l.w.island, schedule.Event{Kind: schedule.Cancel, ID: ticket, Err: g.located(l.w.gone)})
	}
}

// failUnderWay ends the worker's part of a gang.
func (st *State) failUnderWay(l *losing) {
	number := l.gangs[0]
	l.gangs = l.gangs[1:]
	if g := st.gangs.Get(number); g != nil {
		st.losePart(g, l.w)
	} else {
		st.outlived(st.leaving.Get(number), l.w, 0, l.w.gone)
	}
}

// placingOn returns the tickets of a session's runs that wait for their places on a worker, among others, in their
// order.
func placingOn(s *session, w *worker) (tickets []uint64) {
	for e := s.line.first; e != nil; e = e.behind {
		if g := e.g; g != nil && g.isPlacing() && g.place.workers.has(w.slot) {
			tickets = append(tickets, g.ticket)
		}
	}
	slices.Sort(tickets)
	return tickets
}

// underWayOn returns the numbers of a session's gangs that have yet to end on a worker, ascending.
func underWayOn(s *session, w *worker) (numbers []uint64) {
	for g := range s.dispatched {
		if g.waits.has(w.slot) {
			numbers = append(numbers, g.number)
		}
	}
	return numbers
}

// leavingOn is underWayOn for the sessions that have ended.
func (st *State) leavingOn(w *worker) (numbers []uint64) {
	for n, g := range st.leaving.All() {
		if g.waits.has(w.slot) {
			numbers = append(numbers, n)
		}
	}
	return numbers
}

// isLosing reports whether the loss of a worker is not done yet.
func (st *State) isLosing(w *worker) bool {
	return slices.ContainsFunc(st.losing, func(l *losing) bool { return l.w == w })
}
