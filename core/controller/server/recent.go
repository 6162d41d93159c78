package server

import (
	"sync"
	"time"

	"github.com/openpathways/pathways/core/controller"
	"github.com/openpathways/pathways/core/wire"
)

// Continuous viewers of a cluster (its page, its history, scrapers, `pathways top`) ask for a report that may be a
// second old, and so share one: the cost does not grow with their number. A shared report does not change.

// recent is the newest report, for callers that accept one from before their call.
type recent struct {
	mu      sync.Mutex // locked while a report is made, which callers that come meanwhile share
	at      time.Time  // when it was begun
	report  *wire.Report
	tenants map[wire.Viewer]*wire.Report // what tenants are told of it that have asked
}

// Report says who is in the cluster, and what they have.
func (s *Server) Report() *wire.Report { return s.Answer(new(wire.Ask), wire.Viewer{}) }

// Answer answers a question as a viewer may see it. It never stops the cluster. The caller must not change the report.
func (s *Server) Answer(ask *wire.Ask, to wire.Viewer) *wire.Report {
	if ask.MaxAgeMs > 0 && ask.Events == 0 && !ask.OnlyEvents {
		return s.recently(time.Duration(ask.MaxAgeMs)*time.Millisecond, to)
	}
	return controller.For(to, s.look(ask))
}

// recently returns a report of at most that age.
func (s *Server) recently(age time.Duration, to wire.Viewer) *wire.Report {
	k := &s.recent
	k.mu.Lock()
	defer k.mu.Unlock()
	if now := time.Now(); k.report == nil || now.Sub(k.at) >= age {
		k.at, k.report, k.tenants = now, s.look(new(wire.Ask)), map[wire.Viewer]*wire.Report{}
	}
	if !to.IsTenant {
		return k.report
	}
	if k.tenants[to] == nil {
		k.tenants[to] = controller.For(to, k.report)
	}
	return k.tenants[to]
}

// look makes a report.
func (s *Server) look(ask *wire.Ask) *wire.Report {
	s.mu.Lock()
	a := s.state.Begin(ask)
	for a.Look() { // others come in between
		s.mu.Unlock()
		s.mu.Lock()
	}
	s.mu.Unlock()
	return a.Report()
}

// Traces lists the traces that are kept for the web page.
func (s *Server) Traces() []*wire.Report_Trace {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.Traces()
}

// Trace returns a trace, compressed by gzip, nil if it is not kept any more.
func (s *Server) Trace(number uint64) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.Trace(number)
}

// Timeline returns what some devices did in the last seconds, and asks their workers to report more. The first call
// finds nothing yet.
func (s *Server) Timeline(look *wire.Look) *wire.Timeline {
	s.mu.Lock()
	choose := s.state.Choose(look)
	s.mu.Unlock()
	rows, devices := choose()
	s.step(nil, &controller.Event{Kind: controller.Look, Rows: rows}, true)
	s.mu.Lock()
	t := s.state.Timeline(rows, look.After)
	s.mu.Unlock()
	t.Devices = uint64(devices)
	return t
}
