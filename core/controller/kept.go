package controller

import (
	"slices"

	"github.com/openpathways/pathways/core/wire"
)

// Traces that clients have recorded are kept for the web page, where there is one: the newest, so that a client which
// records often takes the place of its own first. They outlive their sessions.

// Bounds of what is kept.
const (
	maxTrace       = 8 << 20  // bytes of one, which is compressed: some ten million computations
	maxTraces      = 64 << 20 // bytes of all
	tracesOfClient = 4
)

// keptTrace is a trace that a client has recorded.
type keptTrace struct {
	about  *wire.Report_Trace // without its age
	client uint64             // process
	at     int64
	data   []byte
}

type keptTraces struct {
	all  []keptTrace // oldest first
	last uint64      // number
}

// keepTrace keeps a trace of a session. It is not kept where there is no page, or if it is longer than the session was
// told: clients send no such traces, but for those that were told so by a controller of before.
func (st *State) keepTrace(s *session, m *wire.Trace) {
	if !st.config.KeepTraces || len(m.Data) > maxTrace {
		return
	}
	st.traces.last++
	k := &st.traces
	k.all = append(k.all, keptTrace{client: s.process.Number, at: st.now, data: m.Data, about: &wire.Report_Trace{
		Number: st.traces.last, Session: s.id, Client: s.name, User: s.user, Host: s.host, Tenant: s.tenant.terms.Name,
		Name: wire.Clean(m.Name), TookMs: m.TookMs, Bytes: uint64(len(m.Data))}})
	own, bytes := 0, 0
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
