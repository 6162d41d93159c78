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
	mu   sync.Mutex // locked while a report is made, which callers that come meanwhile share
	at   time.Time  // when it was begun
	told map[wire.Viewer]*told
}

// told is what those are told of a report who may see the same of it.
type told struct {
	report  *wire.Report
	encoded *controller.Late // nil until it is first sent
}

// Report says who is in the cluster, and what they have.
func (s *Server) Report() *wire.Report { return s.Answer(new(wire.Ask), wire.Viewer{}) }

// Answer answers a question as a viewer may see it. It never stops the cluster. The caller must not change the report.
func (s *Server) Answer(ask *wire.Ask, to wire.Viewer) *wire.Report {
	if !takesRecent(ask) {
		return controller.For(to, s.look(ask))
	}
	s.recent.mu.Lock()
	defer s.recent.mu.Unlock()
	return s.recently(ask, to).report
}

// encoded returns the same answer as a message, which those share who are sent the same.
func (s *Server) encoded(ask *wire.Ask, to wire.Viewer) *controller.Late {
	if !takesRecent(ask) {
		return controller.EncodedReport(s.look(ask), to)
	}
	s.recent.mu.Lock()
	defer s.recent.mu.Unlock()
	t := s.recently(ask, to)
	if t.encoded == nil {
		t.encoded = encodedOnce(controller.EncodedReport(t.report, wire.Viewer{}))
	}
	return t.encoded
}

// takesRecent reports whether a question accepts an answer from before.
func takesRecent(ask *wire.Ask) bool { return ask.MaxAgeMs > 0 && ask.Events == 0 && !ask.OnlyEvents }

// recently returns what a viewer is told of a report of at most the age that a question accepts. Called with
// recent.mu.
func (s *Server) recently(ask *wire.Ask, to wire.Viewer) *told {
	k, all := &s.recent, wire.Viewer{}
	age := time.Duration(ask.MaxAgeMs) * time.Millisecond
	if now := time.Now(); k.told == nil || now.Sub(k.at) >= age {
		k.at, k.told = now, map[wire.Viewer]*told{all: {report: s.look(new(wire.Ask))}}
	}
	if !to.IsTenant {
		to = all
	}
	if k.told[to] == nil {
		k.told[to] = &told{report: controller.For(to, k.told[all].report)}
	}
	return k.told[to]
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
