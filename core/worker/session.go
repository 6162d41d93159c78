package worker

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/openpathways/pathways/core/observe"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// session is what this worker knows of a session.
type session struct {
	settles bool    // as in wire.Session
	devices []place // by number of a virtual device
	// Of each assembled object, the objects whose shards the devices here have of it, by local device; 0 is none.
	assembled map[uint64][]uint64
}

// place is where a virtual device is.
type place struct {
	worker uint64
	local  int
}

// session records what is behind a session's devices, also where that has changed.
func (w *Worker) session(m *wire.Session) {
	s := &session{settles: m.Settles}
	if was := w.sessions[m.Session]; was != nil {
		s.assembled = was.assembled // of devices here, which stay what they are
	}
	for _, span := range m.Devices {
		const most = 1 << 20 // devices, so that bad numbers take no memory
		for k := range min(span.Count, most) {
			s.devices = append(s.devices, place{span.Worker, int(span.Local + k)})
		}
	}
	w.sessions[m.Session] = s
	w.mu.Lock()
	w.clients[m.Session] = client{process: m.Client}
	w.mu.Unlock()
	if m.Client != nil {
		w.mu.Lock()
		w.names[m.Client.Number] = owner(m.Session, m.Client)
		w.mu.Unlock()
		w.config.Exchange.Peers([]*wire.Process{m.Client}, nil, nil)
	}
}

// where returns the place of a virtual device, and its queue where it is here.
//
// Errors: INVALID_ARGUMENT where the session has no such device.
func (w *Worker) where(session uint32, number uint32) (place, *queue, error) {
	s := w.sessions[session]
	if s == nil || uint64(number) >= uint64(len(s.devices)) {
		return place{}, nil, status.New(status.InvalidArgument, "session %d has no device %d that worker %s knows of",
			session, number, w.config.Name)
	}
	p := s.devices[number]
	if p.worker != w.self || p.local >= len(w.queues) {
		return p, nil, nil
	}
	return p, w.queues[p.local], nil
}

// drop ends a session: its operations fail, and its shards and programs go.
func (w *Worker) drop(m *wire.Drop) {
	why := m.Status.Err()
	if why == nil {
		why = status.New(status.Cancelled, "the session has ended")
	}
	w.mu.Lock()
	if c, known := w.clients[m.Session]; known {
		c.gone = time.Now()
		w.clients[m.Session] = c
	}
	under := w.under(func(g *gang) bool { return g.Session == m.Session })
	w.mu.Unlock()
	for _, g := range under {
		g.fail(why)
	}
	for _, q := range w.queues {
		q.soon(func() { q.state.Drop(m.Session) })
	}
	w.report.drop(m.Session, under)
	delete(w.sessions, m.Session)
	w.recorder.Drop(m.Session)
	maps.DeleteFunc(w.recordings, func(key recordingKey, _ *observe.Recording) bool { return key.session == m.Session })
	maps.DeleteFunc(w.graphs, func(key programKey, _ *graph) bool { return key.session == m.Session })
	var programs []programKey
	for key := range w.programs {
		if key.session == m.Session {
			programs = append(programs, key)
		}
	}
	slices.SortFunc(programs, func(a, b programKey) int { return cmp.Compare(a.program, b.program) })
	for _, key := range programs {
		w.forget(key)
	}
}
