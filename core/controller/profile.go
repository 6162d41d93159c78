package controller

import (
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// profile passes a client's request on to the workers of its devices, and answers for those that are gone, so that the
// client gets one answer for each worker. The client hears from Peers of a worker that is lost meanwhile.
func (st *State) profile(s *session, m *wire.Profile) {
	var here, all set
	for _, w := range s.at {
		if all.has(w.slot) {
			continue
		}
		if all.add(w.slot); w.gone == nil {
			here.add(w.slot)
			continue
		}
		st.send(s.to(), wire.KindProfiled, &wire.Profiled{Id: m.Id, Stop: m.Stop, Session: s.id, Worker: w.process.Number,
			Status: wire.Of(w.gone)})
	}
	if !m.Stop {
		s.profiles++
	} else if s.profiles > 0 {
		s.profiles--
	}
	st.tell(s, here)
	st.send(st.connsOf(here), wire.KindProfile,
		&wire.Profile{Id: m.Id, Stop: m.Stop, Session: s.id, Client: s.process.Number})
}

// profiled passes a worker's answer on to the client, and drops it if the client is gone.
func (st *State) profiled(w *worker, m *wire.Profiled, ev *Event) error {
	if m.Worker != w.process.Number {
		return status.New(status.InvalidArgument, "worker %s answers for process %d", w.name, m.Worker)
	}
	if s := st.sessions[m.Session]; s != nil {
		st.forward(s.to(), ev)
	}
	return nil
}
