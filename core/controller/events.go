package controller

import (
	"fmt"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// keepsEvents is how many events a controller remembers, so that an operator who looks later learns what happened.
const keepsEvents = 1024

// occurrence is an event, with when it happened on State's clock.
type occurrence struct {
	at    int64
	event *wire.Report_Event
}

// about is the subject of an event: its kind, one of those in wire/events.go, and the session, worker or gang if there
// is one.
type about struct {
	kind    string
	session uint32
	tenant  string // the session's
	worker  uint64
	gang    uint64
	line    []byte // of the gang
	first   bool   // line is that of the first call of its program
}

func (s *session) about(kind string) about {
	return about{kind: kind, session: s.id, tenant: s.tenant.terms.Name}
}
func (g *gang) about(kind string) about {
	a := g.s.about(kind)
	a.gang, a.line, a.first = g.number, g.line, g.firstCall
	return a
}
func (w *worker) about(kind string) about { return about{kind: kind, worker: w.process.Number} }

// note records an event. Err, which may be nil, says why it happened.
func (st *State) note(a about, text string, err error) { st.record(a, text, err, false) }

// warn records an event that may need attention: a controller logs it as a warning.
func (st *State) warn(a about, text string, err error) { st.record(a, text, err, true) }

func (st *State) record(a about, text string, err error, warn bool) {
	st.happened++
	e := &wire.Report_Event{Number: st.happened, Kind: a.kind, Warn: warn, Session: a.session, Tenant: a.tenant,
		Worker: a.worker, Gang: a.gang, Line: wire.Line(a.line),
		FirstCall: a.first && len(a.line) > 0, Text: text}
	if err != nil {
		err = wire.Of(err).Err() // shortens a long text
		e.Reason = fmt.Sprintf("%v: %v", status.CodeOf(err), err)
	}
	if len(st.events) < keepsEvents {
		st.events = append(st.events, occurrence{st.now, e})
	} else {
		st.events[(st.happened-1)%keepsEvents] = occurrence{st.now, e}
	}
	st.out = append(st.out, Action{Kind: Log, Event: e, Err: err})
}

// eventsAfter returns the newest events whose numbers are above number, at most n of those it remembers, oldest first.
func (st *State) eventsAfter(number uint64, n int) []occurrence {
	number = min(number, st.happened)
	count := min(st.happened-number, uint64(len(st.events)), uint64(n))
	out := make([]occurrence, 0, count)
	for i := st.happened - count; i < st.happened; i++ {
		out = append(out, st.events[i%keepsEvents])
	}
	return out
}
