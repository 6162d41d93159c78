package controller

import (
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/wire"
)

// This file is what the caller of State does with a message before Step, so that no other session waits for it: all
// long work that reads only what does not change. It calls Decode, Split until there is no more, Arrived, Survey, and,
// when what Survey returned is done, Introduce until there is no more.

// Arrived returns the event of a message, with everything that can be decoded in parallel with other calls of State.
func Arrived(conn uint64, kind wire.Kind, m proto.Message, payload []byte) Event {
	ev := Event{Kind: Message, Conn: conn, Wire: kind, Message: m, Payload: payload}
	if len(payload) >= lateSize { // State neither copies it nor waits for it to be copied
		ev.Payload, ev.kept = slices.Clone(payload), true
	}
	if m, ok := m.(*wire.Compile); ok {
		if len(m.Code) > 0 {
			m.Text = wire.ContentOf(m.Code) // whatever the client says
		}
		ev.request = readCompile(m)
	}
	return ev
}

// Answer sets the report that answers an Ask, so that Step does not make one.
func (ev *Event) Answer(r *Late) { ev.report = r }

// Split removes the first part from a message that would take State long, and returns it, for an event of its own. It
// returns nil if the message is short, or has no parts.
func Split(kind wire.Kind, m proto.Message) proto.Message {
	switch kind {
	case wire.KindFree:
		if first := splitFree(m.(*wire.Free)); first != nil {
			return first
		}
	case wire.KindCompleted:
		if first := splitEnds(m.(*wire.Completed)); first != nil {
			return first
		}
	}
	return nil
}

// endsAtOnce bounds the ends of gangs in one Step: the report of a gang's last worker ends the gang, which takes some
// microseconds.
const endsAtOnce = 128

// How many arrays one Step frees, and of how many it frees single shards, which takes time for all shards that are
// left.
const (
	freesAtOnce  = 4 << 10
	shardsAtOnce = 8
)

// splitFree removes the first arrays from a message that frees many, and returns them; nil if it frees few.
func splitFree(m *wire.Free) *wire.Free {
	if len(m.Objects) <= freesAtOnce && len(m.Rows) <= shardsAtOnce {
		return nil
	}
	objects, rows := min(freesAtOnce, len(m.Objects)), min(shardsAtOnce, len(m.Rows))
	first := &wire.Free{Objects: m.Objects[:objects:objects], Rows: m.Rows[:rows:rows]}
	m.Objects, m.Rows = m.Objects[len(first.Objects):], m.Rows[len(first.Rows):]
	return first
}

// splitEnds removes the first ends from a message that has many, and returns them; nil if it has few.
func splitEnds(m *wire.Completed) *wire.Completed {
	if len(m.Ok) <= endsAtOnce {
		return nil
	}
	first := &wire.Completed{Ok: m.Ok[:endsAtOnce], Busy: m.Busy[:min(endsAtOnce, len(m.Busy))]}
	m.Ok, m.Busy = m.Ok[endsAtOnce:], m.Busy[len(first.Busy):]
	return first
}

// Survey returns work on a message, or on a client's hello, that may be done before Step, in parallel with other calls
// of State: long work that reads only what does not change. It is nil if there is none. Step does the work itself if it
// was not done before.
func (st *State) Survey(ev *Event) (work func()) {
	if ev.Kind == Join {
		return st.surveyJoin(ev)
	}
	c := st.conns.Get(ev.Conn)
	if c == nil || c.s == nil {
		return nil
	}
	switch m := ev.Message.(type) {
	case *wire.Compile:
		return st.surveyCompile(ev, c.s, m)
	case *wire.Graph:
		if ev.sketch = st.surveyGraph(c.s, m, len(ev.Payload)); ev.sketch != nil {
			return ev.sketch.draw
		}
	case *wire.Put:
		return st.surveyPut(ev, c.s, m)
	case *wire.Transfer:
		return surveyTransfer(ev, c.s, m)
	case *wire.Trace:
		return surveyTrace(ev, c.s, m)
	}
	return nil
}
