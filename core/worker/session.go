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

// session is what this worker knows about a session.
type session struct {
	settles bool               // as in wire.Session
	devices []*wire.OwnDevices // those of its virtual devices that are here, mostly in one row
	// Of each assembled object, the objects whose shards the devices here have of it, by local device; 0 is none.
	assembled map[uint64][]uint64
}

// session records which of a session's devices are here, also where there are more of them.
func (w *Worker) session(m *wire.Session) {
	s := &session{settles: m.Settles, devices: m.Devices}
	if was := w.sessions[m.Session]; was != nil {
		s.assembled = was.assembled // of devices here, which stay what they are
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

// device returns the queue of a virtual device, nil if it is not here.
func (w *Worker) device(session uint32, number uint32) *queue {
	s := w.sessions[session]
	if s == nil {
		return nil
	}
	for _, own := range s.devices {
		if number < own.First || number-own.First >= own.Count {
			continue
		}
		if local := uint64(own.Local) + uint64(number-own.First); local < uint64(len(w.queues)) {
			return w.queues[local]
		}
	}
	return nil
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
