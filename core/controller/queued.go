package controller

import (
	"cmp"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// queued is an operation that has not been performed yet.
type queued struct {
	kind    wire.Kind
	op      uint64 // 0 of those that have no end
	number  uint64 // rises in the queue, from 1
	message proto.Message
	payload []byte
	kept    bool   // payload does not change
	cut     *cut   // of a transfer, or nil
	at      *place // of a put, or nil, where it was made beforehand
	err     error  // why the client has cancelled it
	share   share  // what it was counted to take, see names
	// Of a play:
	nodes     int
	cancelled cancelled
	resumed   *play // one of which nodes were performed before the controller started again
}

func (q queued) compare(number uint64) int { return cmp.Compare(q.number, number) }

// operation receives operation op of a session, or a play whose first node is op. One that has come before is ignored:
// clients repeat operations that may have been lost.
func (st *State) operation(s *session, ev *Event, op uint64, nodes int) error {
	switch {
	case op == 0:
		return status.New(status.InvalidArgument, "operations are numbered from 1, got 0")
	case op <= s.last:
		return nil
	case op != s.last+1:
		return status.New(status.InvalidArgument, "operation %d came after operation %d; they are numbered one by one", op,
			s.last)
	case s.underWay >= st.limits.Credit && !ev.again: // a play that came behind it may be under way by now
		return status.New(status.ResourceExhausted,
			"operation %d came while %d are under way, which is the session's credit", op, s.underWay)
	}
	n := max(1, nodes) // a play may go beyond the credit
	s.last = op + uint64(n) - 1
	s.underWay += n
	item := &queued{kind: ev.Wire, op: op, nodes: nodes, message: ev.Message, kept: ev.kept, cut: ev.cut, at: ev.at}
	most := wire.MaxMessage
	if ev.Wire == wire.KindRun {
		most = maxRun
	}
	if nodes == 0 && len(ev.Payload) > most {
		item.err = status.New(status.InvalidArgument,
			"the operation is a message of %d bytes, of at most %d; use fewer arguments or shards at a time", len(ev.Payload),
			most)
	}
	st.enqueue(s, item, ev.Payload)
	return nil
}

// maxRun bounds a run's message, to some hundred thousand inputs: it is checked and copied while all sessions wait.
const maxRun = 1 << 20

// freeLater frees objects after the operations that came before. Free and Forget have no number and are not counted as
// under way; a bound on the queue takes the place of the credit.
func (st *State) freeLater(s *session, ev *Event, m *wire.Free) error {
	if s.freeing += len(m.Objects) + rowsIn(m.Rows); s.freeing > 2*st.limits.Objects {
		return status.New(status.ResourceExhausted, "more than %d objects wait to be freed", 2*st.limits.Objects)
	}
	i := s.queuedLast(wire.KindFree)
	if i < 0 {
		return st.enqueueUnnumbered(s, ev)
	}
	st.stir()
	tail := s.queue[i].message.(*wire.Free)
	tail.Objects, tail.Rows = append(tail.Objects, m.Objects...), append(tail.Rows, m.Rows...)
	if s.names != nil && i < len(s.queue)-s.names.uncounted {
		st.count(s, m, s.queue[i].number)
	}
	return nil
}

// forgetLater forgets programs and graphs after the operations that came before.
func (st *State) forgetLater(s *session, ev *Event, m *wire.Forget) error {
	i := s.queuedLast(wire.KindForget)
	if i < 0 {
		return st.enqueueUnnumbered(s, ev)
	}
	tail := s.queue[i].message.(*wire.Forget)
	tail.Programs, tail.Graphs = append(tail.Programs, m.Programs...), append(tail.Graphs, m.Graphs...)
	if len(tail.Programs)+len(tail.Graphs) > 2*st.limits.Programs {
		return status.New(status.ResourceExhausted, "more than %d programs and graphs wait to be forgotten",
			2*st.limits.Programs)
	}
	return nil
}

// queuedLast returns the index in the session's queue of the last Free or Forget, if only these follow it, and -1
// otherwise. So a queue has at most one of each between two operations, in whatever order they come.
func (s *session) queuedLast(kind wire.Kind) int {
	for i := len(s.queue) - 1; i >= s.head; i-- {
		switch s.queue[i].kind {
		case kind:
			return i
		case wire.KindFree, wire.KindForget:
		default:
			return -1
		}
	}
	return -1
}

func (st *State) enqueueUnnumbered(s *session, ev *Event) error {
	if len(s.queue)-s.head-s.unmade > 3*st.limits.Credit+3 {
		return status.New(status.ResourceExhausted, "the session's queue of operations is full")
	}
	st.enqueue(s, &queued{kind: ev.Wire, message: ev.Message, kept: ev.kept}, ev.Payload)
	return nil
}

// enqueue performs an operation at once, or keeps it, with a copy of its payload, until those before it are performed.
func (st *State) enqueue(s *session, item *queued, payload []byte) {
	s.numbered++
	item.number = s.numbered
	if s.head == len(s.queue) && s.play == nil && st.may(s) {
		item.payload = payload
		s.popped, s.names = item.number, nil
		st.perform(s, item)
		return
	}
	if s.waiting != nil {
		switch item.kind {
		case wire.KindFree, wire.KindFetch, wire.KindPut:
			st.stir() // it may go past that
		}
	}
	item.payload = payload
	if !item.kept {
		item.payload, item.kept = slices.Clone(payload), true
	}
	s.queue = append(s.queue, *item)
	if s.names != nil {
		s.names.uncounted++
	}
}

// may reports whether the session's next operation, or node of a play, can be performed now.
func (st *State) may(s *session) bool {
	if st.config.Sequential && s.out+s.line.length > 0 {
		return false
	}
	return s.waiting == nil && s.line.length < st.lineUpTo()
}

// lineUpTo is how many operations of a session are performed ahead of their turn: as many as it may have under way with
// a first-come order.
func (st *State) lineUpTo() int { return max(1, st.limits.Window/2) }

// wake continues with the session's queue at the end of this Step.
func (st *State) wake(s *session) {
	if !s.ready && (s.head < len(s.queue) || s.play != nil) {
		s.ready = true
		st.ready = append(st.ready, s)
	}
}

// pump performs queued operations, as many as may be performed now.
func (st *State) pump(s *session) {
	if st.sessions[s.id] != s {
		return
	}
	st.passMore(s)
	st.proceed(s)
	for s.play == nil && s.head < len(s.queue) && st.may(s) {
		if st.isTired() {
			st.wake(s)
			break
		}
		st.next(s)
		item := s.queue[s.head]
		s.queue[s.head] = queued{}
		s.head++
		st.tire(0, len(item.payload))
		st.perform(s, &item)
	}
	if s.closeUp(); len(s.queue) == 0 {
		s.names = nil
	}
}

// closeUp removes performed operations from the front of the queue, once nothing else is queued, or when they are most
// of a long queue.
func (s *session) closeUp() {
	switch n := len(s.queue) - s.head; {
	case n == 0:
		s.queue, s.head = s.queue[:0], 0
	case s.head > 64 && s.head > n:
		copy(s.queue, s.queue[s.head:])
		clear(s.queue[n:])
		s.queue, s.head = s.queue[:n], 0
	}
}
