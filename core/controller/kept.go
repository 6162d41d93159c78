package controller

import (
	"bytes"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// If there is a web page, the newest traces that clients have recorded are kept for it, and outlive their sessions. A
// new trace of a client replaces older ones of that client first.
//
// A controller has no connections for bulk, since it receives no arrays and no long programs. So a trace arrives in
// parts on the client's own connection, between its other messages. Outside of Step, the parts together are compared
// with the hash that the client has sent, and with the last part the whole trace is kept.

// Bounds of the traces that are kept. As many bytes again may be arriving.
const (
	maxTrace       = 64 << 20  // bytes of one, which is compressed: some eighty million computations
	maxTraces      = 128 << 20 // bytes of all
	tracesOfClient = 4
	tracesOfAll    = 256 // which one look lists
)

// keptTrace is a trace that a client has recorded.
type keptTrace struct {
	about  *wire.Report_Trace // without its age
	client uint64             // process
	at     int64
	data   []byte
}

type keptTraces struct {
	all    []keptTrace // oldest first
	last   uint64      // number
	coming int         // bytes of those that have yet to come as a whole
}

// comingTrace is a trace that is being received.
type comingTrace struct {
	parts   [][]byte
	came    uint64
	content *wire.Content
}

// isNext reports whether a message is the next part of it.
func (t *comingTrace) isNext(m *wire.Trace) bool {
	return t.came == m.At && proto.Equal(t.content, m.Content)
}

// wholeTrace is a trace that has arrived completely.
type wholeTrace struct {
	data    []byte
	isRight bool // it has the client's hash
}

// whole returns the trace of which m is the last part. It reads only what does not change before m is taken.
func (t *comingTrace) whole(m *wire.Trace) *wholeTrace {
	all := bytes.Join(append(slices.Clip(t.parts), m.Data), nil)
	return &wholeTrace{all, proto.Equal(wire.ContentOf(all), m.Content)}
}

// endsTrace reports whether a message is the last part of a trace.
func endsTrace(m *wire.Trace) bool { return m.At+uint64(len(m.Data)) == m.Content.GetSize() }

// surveyTrace returns work on the last part of a trace.
func surveyTrace(ev *Event, s *session, m *wire.Trace) (work func()) {
	if t := s.trace; t != nil && t.isNext(m) && endsTrace(m) {
		return func() { ev.trace = t.whole(m) }
	}
	return nil
}

// traceComes handles a part of a session's trace. Clients send none if traces are not kept, and none longer than the
// bound that they were told. For the last part, whole is what surveyTrace has found, if it was called.
func (st *State) traceComes(s *session, m *wire.Trace, whole *wholeTrace) {
	if m.At == 0 {
		st.dropTrace(s)
		s.trace = &comingTrace{content: m.Content}
	}
	size := m.Content.GetSize()
	switch t := s.trace; {
	case t == nil: // its first part came to an earlier start of the controller, or it was given up
	case !st.config.KeepTraces || size == 0 || size > maxTrace || st.traces.coming+len(m.Data) > maxTraces, !t.isNext(m),
		uint64(len(m.Data)) != min(wire.TracePart, size-t.came):
		st.dropTrace(s)
	case !endsTrace(m):
		t.parts, t.came = append(t.parts, m.Data), t.came+uint64(len(m.Data))
		st.traces.coming += len(m.Data)
	default:
		if whole == nil {
			whole = t.whole(m)
		}
		st.dropTrace(s)
		if !whole.isRight {
			st.warn(s.about(wire.EventDropped), "dropped a trace of "+s.owner(), status.New(status.DataLoss,
				"its bytes are not those that the client hashed; the client's own file has them"))
			return
		}
		st.keepTrace(s, m, whole.data)
	}
}

// dropTrace drops the received part of a session's trace.
func (st *State) dropTrace(s *session) {
	if s.trace != nil {
		st.traces.coming -= int(s.trace.came)
		s.trace = nil
	}
}

// keepTrace keeps a trace of a session, and drops old ones if there are too many.
func (st *State) keepTrace(s *session, m *wire.Trace, data []byte) {
	st.traces.last++
	k := &st.traces
	k.all = append(k.all, keptTrace{client: s.process.Number, at: st.now, data: data, about: &wire.Report_Trace{
		Number: st.traces.last, Session: s.id, Client: s.name, User: s.user, Host: s.host, Tenant: s.tenant.terms.Name,
		Name: wire.Clean(m.Name), TookMs: m.TookMs, Bytes: uint64(len(data))}})
	own, bytes := 0, 0
	k.all = k.all[max(0, len(k.all)-tracesOfAll):]
	for i := len(k.all) - 1; i >= 0; i-- {
		t := &k.all[i]
		if t.client == s.process.Number {
			own++
		}
		if bytes += len(t.data); bytes > maxTraces || t.client == s.process.Number && own > tracesOfClient {
			bytes -= len(t.data)
			k.all = slices.Delete(k.all, i, i+1)
		}
	}
}

// Traces lists the traces that are kept, the oldest first.
func (st *State) Traces() (all []*wire.Report_Trace) {
	for _, t := range st.traces.all {
		about := shallow(t.about)
		about.AgeMs = (st.now - t.at) / 1e6
		all = append(all, about)
	}
	return all
}

// Trace returns a trace, compressed by gzip, nil if it is not kept any more.
func (st *State) Trace(number uint64) []byte {
	for _, t := range st.traces.all {
		if t.about.Number == number {
			return t.data
		}
	}
	return nil
}
