package controller

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/ledger"
	"github.com/openpathways/pathways/core/placement"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// fromAdmin answers questions of the command line.
func (st *State) fromAdmin(c *conn, ev *Event) error {
	switch m := ev.Message.(type) {
	case *wire.Heartbeat:
	case *wire.Ask:
		if c.tenant && m.Stop {
			return status.New(status.PermissionDenied,
				"a tenant cannot stop the cluster; name the cluster's own token by --token-file or PATHWAYS_TOKEN_FILE, or an "+
					"operator's certificate by --tls-cert and --tls-key")
		}
		r := st.Answer(m)
		if c.tenant {
			hideLines(r)
		}
		st.send([]uint64{c.number}, wire.KindReport, r)
		if m.Stop {
			st.stop(status.New(status.Unavailable, "the cluster was told to stop"))
			st.out = append(st.out, Action{Kind: Stop})
		}
	default:
		return invalid("a message of kind %d came, expected a question", ev.Wire)
	}
	return nil
}

// Answer returns what a question asks for: what Report tells, events, or both.
func (st *State) Answer(ask *wire.Ask) *wire.Report {
	r := st.summary()
	if !ask.OnlyEvents {
		r = st.Report()
	}
	r.Events = st.eventsAfter(ask.After, int(ask.Events))
	return r
}

func (st *State) summary() *wire.Report {
	return &wire.Report{Cluster: st.config.Cluster, Gangs: st.gang, UptimeMs: (st.now - st.begun) / 1e6,
		NewestEvent: st.happened, DeviceNs: int64(st.spent)}
}

// Report tells who is there and what they have. It takes time in proportion to devices, sessions, programs and the
// operations under way, not to arrays.
func (st *State) Report() *wire.Report {
	r := st.summary()
	for _, c := range st.compiled {
		if c.ready {
			r.Compiled++
			r.CompiledBytes += c.bytes
			if c.artifact != nil {
				r.ArtifactBytes += c.artifact.bytes
				r.CompiledBytes -= c.artifact.bytes
			}
		}
	}
	host := map[uint32]int64{} // by session
	for _, w := range st.workers {
		if w != nil && w.gone == nil {
			for _, share := range w.last.GetHost().GetSessions() {
				host[share.Session] += share.Bytes
			}
		}
	}
	busy := map[int]uint64{}
	for _, g := range st.gangs {
		g.waits.each(func(slot int) { busy[slot]++ })
	}
	by := map[uint64]*worker{}
	for _, w := range st.workers {
		if w != nil && w.gone == nil {
			by[w.process.Number] = w
		}
	}
	for _, is := range st.layout.Islands() {
		if len(is.Workers()) == 0 {
			continue
		}
		ri := &wire.Report_Island{Name: is.Name, Platform: is.Workers()[0].Platform}
		for _, placed := range is.Workers() {
			w := by[placed.Offer.Worker]
			ri.Workers = append(ri.Workers, &wire.Report_Worker{Process: w.process, Devices: w.offer.Devices, Last: st.said(w),
				SilentMs: (st.now - w.heard) / 1e6, Gangs: busy[w.slot],
				Refused: w.refused, LastRefused: w.lastRefusal(st.now)})
		}
		r.Islands = append(r.Islands, ri)
	}
	for _, id := range slices.Sorted(maps.Keys(st.sessions)) {
		s := st.sessions[id]
		rs := &wire.Report_SessionReport{
			Session: id, Name: s.name, User: s.user, Host: s.host, Objects: uint64(len(s.objects)),
			Programs: uint64(len(s.programs)),
			UnderWay: uint64(s.underWay), AgeMs: (st.now - s.begun) / 1e6, DeviceNs: int64(s.spent),
			HostBytes: host[id], Held: st.heldOf(s), Bytes: st.bytesOf(s)}
		for _, slice := range st.layout.Slices(id) {
			rs.Slices = append(rs.Slices, &wire.Report_Slice{
				Slice: slice.Number, Devices: spans(placement.Spans(slice.Behind()))})
		}
		r.Sessions = append(r.Sessions, rs)
	}
	return r
}

// bytesOf returns the device memory of a session's arrays, by virtual device. It takes no time for each of them.
func (st *State) bytesOf(s *session) []int64 {
	bytes, virtual := make([]int64, len(s.slots)), make(map[int]int, len(s.slots)) // by number in the ledger
	for d, slot := range s.slots {
		if w := st.workers[slot]; w.gone == nil {
			virtual[w.base+int(s.view.Device(d).Local)] = d
		}
	}
	st.ledger.Spread(ledger.Owner(s.id), func(number int, n int64) {
		if d, ok := virtual[number]; ok {
			bytes[d] += n
		}
	})
	return bytes
}

// said is what a worker said last, with what the controller knows of it: how long such a computation usually
// takes; and that a session whose client is not connected has gone as far as people are concerned, which the worker
// learns only when its lease ends.
func (st *State) said(w *worker) *wire.Heartbeat {
	if len(w.last.GetRunning()) == 0 {
		return w.last
	}
	last := proto.CloneOf(w.last)
	for _, r := range last.Running {
		if s := st.sessions[r.Session]; s == nil || s.conn == 0 {
			r.Gone = true
		}
		if g := st.gangs[r.Gang]; g != nil && g.ran != nil {
			r.UsualMs = g.ran.usual / 1e6
		}
	}
	return last
}

// hideLines takes from a report what is for operators: the lines of users' code, where something runs, waits or failed.
func hideLines(r *wire.Report) {
	for _, e := range r.Events {
		if e.Session != 0 || e.Kind == wire.EventLost { // a worker that restarts names the computation that did not end
			e.Reason = ""
		}
	}
	for _, w := range r.EachWorker() {
		if w.Last != nil { // otherwise it has only just joined
			w.Last = proto.CloneOf(w.Last)
			w.Last.Waits = nil
		}
		for _, c := range w.Last.GetRunning() {
			c.Line = ""
		}
		if w.LastRefused != nil {
			w.LastRefused.Why = ""
		}
	}
	for _, s := range r.Sessions {
		if s.Held != nil {
			s.Held.Line = ""
		}
	}
}
