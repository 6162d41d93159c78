package worker

import (
	"time"

	"github.com/openpathways/pathways/core/observe"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
)

// This file records what devices do for the sessions that ask for it: each run of a session's, from its launch to the
// end that the driver tells. If no session records, a run costs one load more.

// maxSpans bounds what a session's recording keeps, of spans and of events: some 20 MB each.
const maxSpans = 1 << 18

// recordingKey is a profile of a session.
type recordingKey struct {
	session uint32
	id      uint64
}

// maxRecordings bounds a session's profiles under way.
const maxRecordings = 4

// record keeps what a device has computed, if the session records. The queue's owner calls it.
func (w *Worker) record(q *queue, l *launch) {
	if !w.recorder.On() {
		return
	}
	g, r, came := l.g, l.r, int64(0)
	if at, _ := l.came(); at > 0 {
		came = w.unix(at)
	}
	w.recorder.Ended(g.Session, &observe.Span{Program: r.program.Name, ProgramID: r.name, Gang: g.ID,
		Device: int32(q.local), Submitted: w.unix(l.given), Launched: w.unix(l.taken), Came: came, End: w.unix(l.through)})
}

// profile begins or ends a recording.
func (w *Worker) profile(m *wire.Profile) {
	now := time.Now()
	answer := &wire.Profiled{Id: m.Id, Stop: m.Stop, Session: m.Session, Worker: w.self, NowNs: now.UnixNano()}
	key := recordingKey{m.Session, m.Id}
	rec, others := w.recordings[key], 0
	for k := range w.recordings {
		if k.session == m.Session {
			others++
		}
	}
	switch {
	case !m.Stop && rec != nil: // a client asks again when the controller has started again
	case !m.Stop && others < maxRecordings:
		// Of one reading: between two, this thread may stand still, and all that is recorded would seem that much earlier.
		w.epoch.Store(now.UnixNano() - int64(now.Sub(w.since)))
		w.recordings[key] = w.recorder.Start(m.Session, maxSpans)
	case !m.Stop:
		answer.Status = wire.Of(status.New(status.ResourceExhausted,
			"profile %d of session %d cannot begin on worker %s: too many others run", m.Id, m.Session, w.config.Name))
	case rec == nil:
		answer.Status = wire.Of(status.New(status.NotFound,
			"profile %d of session %d did not begin on worker %s", m.Id, m.Session, w.config.Name))
	default:
		delete(w.recordings, key)
		// The client has waited for its operations: one that has not ended by now has no span.
		w.beside.Go(func() { w.tellRecorded(answer, m.Client, rec.Stop(0)) })
		return
	}
	w.answer(answer)
}

// tellRecorded pushes what was recorded to the client, and answers.
func (w *Worker) tellRecorded(answer *wire.Profiled, client uint64, r observe.Recorded) {
	block := wire.Encode(nil, pack(r))
	answer.Bytes = int64(len(block))
	if len(block) > 0 {
		key := transport.Key{Space: transport.Transfers(answer.Session), ID: wire.ProfileKey(answer.Id), Part: w.self}
		w.config.Exchange.PushBytes(client, key, block, func(error) {}) // the client learns why
	}
	w.answer(answer)
}

func (w *Worker) answer(m *wire.Profiled) {
	_ = w.conn.Send(wire.KindProfiled, wire.Encode(nil, m)) // the reader learns why
}

// pack makes the message with a recording.
func pack(r observe.Recorded) *wire.Recorded {
	m := &wire.Recorded{Dropped: r.Dropped, Spans: make([]*wire.Executed, len(r.Spans))}
	var names observe.Names
	all := make([]wire.Executed, len(r.Spans))
	for i, s := range r.Spans {
		e := &all[i]
		e.Program, e.Number, e.Gang, e.Local = names.Of(s.Program), s.ProgramID, s.Gang, uint32(s.Device)
		e.Submitted, e.Launched, e.End = uint64(s.Submitted), uint64(max(0, s.Launched-s.Submitted)),
			uint64(s.End-s.Submitted)
		if s.Came > s.Submitted {
			e.Came = uint64(s.Came - s.Submitted)
		}
		m.Spans[i] = e
	}
	for _, e := range r.Events {
		way := uint32(0)
		if e.Way != "" {
			way = 1 + names.Of(e.Way)
		}
		m.Events = append(m.Events, &wire.Happened{Kind: uint32(e.Kind), Name: names.Of(e.Name), Op: e.Op, Gang: e.Gang,
			Local: uint32(e.Device), Bytes: uint64(e.Bytes), Way: way, Waited: uint64(e.Waited), Begin: uint64(e.Begin),
			End: uint64(e.End - e.Begin)})
	}
	m.Programs = names.Texts
	return m
}
