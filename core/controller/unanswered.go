package controller

import (
	"github.com/openpathways/pathways/core/chain"
	"github.com/openpathways/pathways/core/wire"
)

// Operations that wait for a silent worker wait until it sends something, or is lost: then all operations that it has a
// part in end. Gangs that stand still on other workers may end earlier, see stuck.go. `pathways why` shows both.
//
// A worker that is stopped, or cannot be reached, is lost after the silence that its connection allows, and the lease.
// One that hangs with an open connection is lost after Config.Silence, which is a little longer, without a lease. The
// two cannot be told apart before the connection breaks, and the first is the usual one.

// SilentBeats is by how many heartbeats Config.Silence is longer than the silence that connections allow. A connection
// should notice first that a worker cannot be reached, since a lease survives that.
const SilentBeats = 2

// isSilent reports whether a worker has sent nothing for some heartbeats.
func (st *State) isSilent(w *worker) bool {
	return w != nil && w.gone == nil && st.now-w.heard >= chain.Quiet(st.config.Heartbeat/1e6)*1e6
}

// lostIn returns after how long a worker is lost if it stays silent; 0 if it is not lost.
func (st *State) lostIn(w *worker) int64 {
	c := st.conns.Get(w.to[0])
	switch {
	case c == nil || st.config.Silence <= 0:
		return 0
	case c.cuts.isCut():
		return max(1e6, c.cuts.left(st.now))
	}
	return max(1e6, st.config.Silence-SilentBeats*st.config.Heartbeat-(st.now-w.heard)+c.cuts.lease)
}

// unanswered lists the operations of a session that wait for silent workers. It takes time in proportion to the
// session's workers and, if there is such a worker, to the session's operations under way.
func (st *State) unanswered(s *session) (all []*wire.Report_Unanswered) {
	var seen set
	for _, w := range s.at {
		if !seen.has(w.slot) && st.isSilent(w) {
			seen.add(w.slot)
			if u := st.unansweredBy(s, w); u != nil {
				all = append(all, u)
			}
		}
	}
	return all
}

func (st *State) unansweredBy(s *session, w *worker) *wire.Report_Unanswered {
	u := &wire.Report_Unanswered{Worker: w.process.Number}
	adds := func(what string, g *gang) {
		if u.Operations++; u.Operations == 1 {
			if u.What = what; g != nil {
				u.Line, u.FirstCall = wire.Line(g.line), g.firstCall
			}
		}
	}
	for _, under := range []gangs{s.readers, s.putters} {
		for g := under.first; g != nil; g = g.behind {
			if g.waits.has(w.slot) {
				adds(g.name(), g)
				u.Elsewhere = u.Elsewhere || g.left > 1
			}
		}
	}
	for e := s.line.first; e != nil; e = e.behind {
		if e.g != nil && e.g.to.has(w.slot) {
			adds(e.g.name(), e.g)
		}
	}
	if g := s.waiting; g != nil && g.held.loading && g.program.loading.has(w.slot) {
		adds("loading "+g.name(), g)
	}
	for _, c := range s.compiling {
		if c.by == w && !c.ready {
			adds("compiling a program", nil)
		}
	}
	if u.Operations == 0 {
		return nil
	}
	return u
}
