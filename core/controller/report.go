package controller

import (
	"cmp"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

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
		if c.viewer.IsTenant && m.Stop {
			return status.New(status.PermissionDenied,
				"a tenant cannot stop the cluster; name the cluster's own token by --token-file or PATHWAYS_TOKEN_FILE, or an "+
					"operator's certificate by --tls-cert and --tls-key")
		}
		if m.ApplyTenants {
			return st.reload(c)
		}
		r := ev.report
		if r == nil {
			r = EncodedReport(st.Answer(m), c.viewer)
		}
		st.deliverLate([]uint64{c.number}, wire.KindReport, r)
		if m.Stop {
			st.stop(status.New(status.Unavailable, "the cluster was told to stop"))
			st.out = append(st.out, Action{Kind: Stop})
		}
	default:
		return invalid("a message of kind %v came, expected a question", ev.Wire)
	}
	return nil
}

// reload requests that the file of tenants be read again for an operator, who is answered when that is done.
func (st *State) reload(c *conn) error {
	switch {
	case c.viewer.IsTenant:
		return status.New(status.PermissionDenied,
			"a tenant cannot have the file of tenants read again; name the cluster's own token by --token-file or "+
				"PATHWAYS_TOKEN_FILE, or an operator's certificate by --tls-cert and --tls-key")
	case st.table == nil:
		return errNoTable
	}
	st.out = append(st.out, Action{Kind: Reload, To: []uint64{c.number}})
	return nil
}

// EncodedReport returns a report as a viewer is sent it.
func EncodedReport(r *wire.Report, to wire.Viewer) *Late {
	r = For(to, r)
	return LateMessage(r, proto.Size(r))
}

// Answer returns what a question asks for: what Report tells, events, or both.
func (st *State) Answer(ask *wire.Ask) *wire.Report {
	a := st.Begin(ask)
	for a.Look() {
	}
	return a.Report()
}

// Report says who is in the cluster, and what they have.
func (st *State) Report() *wire.Report { return st.Answer(new(wire.Ask)) }

// Answer is a report under construction. A State's owner calls Begin, and then Look until it returns false, serialized
// with Step; each call takes a bounded time. Report, which takes time in proportion to devices, sessions and programs,
// may be called in parallel with Step: everything that it reads is a copy or does not change.
//
// So a report does not show one moment; each of its sessions, workers and programs does.
type Answer struct {
	st       *State
	now      int64
	report   *wire.Report
	events   []occurrence
	workers  []*worker // those that are yet to be looked at; nil if a slot is free
	sessions []*session
	programs []*compiled
	requests []*placement.Request // for slices
	// What was collected. Each Look has lists of its own, since long ones take long to grow.
	facts []facts
}

type facts struct {
	workers  []workerFacts
	sessions []sessionFacts
	programs []programFacts
}

// glance bounds one Look, in units that take some tens of nanoseconds.
const glance = 2 << 10

// How many of these units one of each takes.
const (
	workerGlance  = 4
	requestGlance = 8
	sessionGlance = 64
	heldGlance    = 1 << 10 // looks at memory of all devices that it is on, and at what others have there
)

// workerFacts is what a report says about a worker.
type workerFacts struct {
	w      *worker // whose process, offer, name and island do not change
	island string
	report *wire.Report_Worker
	usual  []int64   // by report.Last.Running, in nanoseconds; 0 is not known
	gone   []bool    // by report.Last.Running: its client is
	lacked *shortage // nil if it lacked nothing yet
}

// sessionFacts is what a report says about a session.
type sessionFacts struct {
	s      *session // of which only what does not change is read
	in     *binding // then; it does not change, and the session may get another
	report *wire.Report_SessionReport
	memory []memoryFacts
	slices []sliceFacts
}

type sliceFacts struct {
	number    uint64
	view      *placement.View
	devices   []int
	exclusive bool
}

type memoryFacts struct {
	on    ledger.Devices
	bytes int64
}

// programFacts is what a report says about a compiled program.
type programFacts struct {
	c           *compiled // of which its description and key do not change
	runs, spent uint64
	usual       int64
}

// Begin begins an answer.
func (st *State) Begin(ask *wire.Ask) *Answer {
	a := &Answer{st: st, now: st.now, events: st.eventsAfter(ask.After, int(ask.Events)),
		report: &wire.Report{Cluster: st.config.Cluster, Gangs: st.gang, UptimeMs: (st.now - st.begun) / 1e6,
			Term: st.config.Term, NewestEvent: st.happened, DeviceNs: int64(st.spent), Devices: uint64(st.devices),
			HeartbeatMs: st.config.Heartbeat / 1e6, StuckAfterMs: st.config.StuckAfter / 1e6}}
	if ask.OnlyEvents {
		return a
	}
	a.report.Waits = st.AwayText()
	a.report.Tenants = st.tenantReports()
	a.report.Compiled = uint64(len(st.made))
	a.report.CompiledBytes, a.report.ArtifactBytes = st.kept-st.keptAway, st.keptAway
	a.workers, a.programs = slices.Clone(st.workers), slices.Clone(st.made)
	a.requests = slices.Clone(st.layout.Requests())
	for _, id := range slices.Sorted(maps.Keys(st.sessions)) {
		a.sessions = append(a.sessions, st.sessions[id])
	}
	return a
}

// Look collects some of what the answer says, and reports whether there is more.
func (a *Answer) Look() (more bool) {
	var found facts
	left := glance
	for ; left > 0 && len(a.workers) > 0; a.workers = a.workers[1:] {
		left -= a.worker(&found, a.workers[0])
	}
	for ; left > 0 && len(a.sessions) > 0; a.sessions = a.sessions[1:] {
		left -= a.session(&found, a.sessions[0])
	}
	for ; left > 0 && len(a.requests) > 0; a.requests = a.requests[1:] {
		if r := a.requests[0]; a.st.asked[r] != nil { // else it has ended meanwhile
			a.report.SliceWaits = append(a.report.SliceWaits, a.st.sliceWait(r))
		}
		left -= requestGlance
	}
	n := min(max(left, 0), len(a.programs))
	for _, c := range a.programs[:n] {
		found.programs = append(found.programs, programFacts{c: c, runs: c.runs, spent: c.spent, usual: c.usual})
	}
	a.programs = a.programs[n:]
	a.facts = append(a.facts, found)
	return len(a.workers)+len(a.sessions)+len(a.requests)+len(a.programs) > 0
}

func (a *Answer) worker(found *facts, w *worker) (cost int) {
	if w == nil || w.gone != nil {
		return 1
	}
	st, devices := a.st, len(w.offer.Devices)
	bytes := make([]int64, 3*devices)
	arrays, programs, temps := bytes[:devices:devices], bytes[devices:2*devices:2*devices], bytes[2*devices:]
	f := workerFacts{w: w, island: w.island.name, report: &wire.Report_Worker{Process: w.process, Pid: w.hello.Pid,
		Devices: w.offer.Devices, Last: w.last, SilentMs: (st.now - w.heard) / 1e6, LostInMs: st.lostIn(w) / 1e6,
		Gangs: uint64(st.busy[w.slot]), Refused: w.refused, ArrayBytes: arrays, ProgramBytes: programs, TempBytes: temps}}
	if w.lacked.why != nil {
		lacked := w.lacked
		f.lacked = &lacked
	}
	if c := st.conns.Get(w.to[0]); c != nil {
		f.report.Link = c.cuts.report(st.now)
	}
	for _, r := range w.last.GetRunning() {
		s, g := st.sessions[r.Session], st.gangs.Get(r.Gang)
		usual := int64(0)
		if g != nil && g.ran != nil {
			usual = g.ran.usual
		}
		f.usual, f.gone = append(f.usual, usual), append(f.gone, s == nil)
	}
	for i := range devices {
		use, code := st.ledger.Device(w.base+i), st.codeOn(w.base+i)
		arrays[i], programs[i], temps[i] = use.InUse-use.Temp-code, code, use.Temp
	}
	cost = workerGlance * (1 + len(f.usual) + devices)
	if found.workers == nil { // most are alike
		found.workers = make([]workerFacts, 0, min(len(a.workers), 1+glance/cost))
	}
	found.workers = append(found.workers, f)
	return cost
}

func (a *Answer) session(found *facts, s *session) (cost int) {
	st := a.st
	if st.sessions[s.id] != s { // it ended meanwhile
		return 1
	}
	f := sessionFacts{s: s, in: s.binding, report: &wire.Report_SessionReport{
		Session: s.id, Name: s.name, User: s.user, Host: s.host, Objects: uint64(len(s.objects)),
		Programs: uint64(len(s.programs)), UnderWay: uint64(s.underWay), AgeMs: (st.now - s.begun) / 1e6,
		DeviceNs: int64(s.spent), Held: st.heldOf(s), Tenant: s.tenant.terms.Name,
		Platforms: s.platforms, Unanswered: st.unanswered(s)}}
	if c := st.conns.Get(s.conn); c != nil {
		f.report.Link = c.cuts.report(st.now)
	}
	if s.missing > 0 && s.offered == nil {
		f.report.Lacks = st.layout.Lacks(s.id, s.view, st.occupied())
	}
	st.ledger.Each(ledger.Owner(s.id), func(on ledger.Devices, bytes int64) {
		f.memory = append(f.memory, memoryFacts{on, bytes})
	})
	for _, slice := range st.layout.Slices(s.id) {
		f.slices = append(f.slices, sliceFacts{slice.Number, slice.View, slice.Devices, slice.Want.Exclusive})
	}
	cost = sessionGlance + len(f.memory) + len(f.slices)
	if f.report.Lacks != "" {
		cost += len(st.present) // which it has looked at
	}
	if f.report.Held != nil {
		cost += heldGlance
	}
	if f.report.Unanswered != nil {
		cost += s.underWay
	}
	found.sessions = append(found.sessions, f)
	return cost
}

// Report makes the report from what Look has collected.
func (a *Answer) Report() *wire.Report {
	r := a.report
	for _, happened := range a.events {
		e := proto.CloneOf(happened.event)
		e.AgeMs = (a.now - happened.at) / 1e6
		r.Events = append(r.Events, e)
	}
	var workers []*workerFacts
	var sessions []*sessionFacts
	var programs []programFacts
	for _, found := range a.facts {
		workers, sessions = slices.Grow(workers, len(found.workers)), slices.Grow(sessions, len(found.sessions))
		for i := range found.workers {
			workers = append(workers, &found.workers[i])
		}
		for i := range found.sessions {
			sessions = append(sessions, &found.sessions[i])
		}
		programs = append(programs, found.programs...)
	}
	slices.SortFunc(workers, func(x, y *workerFacts) int { return compareWorkers(x.w, y.w) })
	slices.SortFunc(sessions, func(x, y *sessionFacts) int { return cmp.Compare(x.s.id, y.s.id) })
	host := map[uint32]int64{} // by session
	var there set              // slots; the arrays of other workers are lost
	var island *wire.Report_Island
	for i, f := range workers {
		there.add(f.w.slot)
		for _, share := range f.report.Last.GetHost().GetSessions() {
			host[share.Session] += share.Bytes
		}
		if i == 0 || workers[i-1].w.island != f.w.island {
			island = &wire.Report_Island{Name: f.island, Platform: f.w.platform}
			r.Islands = append(r.Islands, island)
		}
		island.Workers = append(island.Workers, f.complete(a.now))
	}
	var virtual []int32 // 1 + the session's virtual device, by number in the ledger
	for _, f := range sessions {
		f.report.HostBytes = host[f.s.id]
		f.report.Bytes, virtual = f.bytes(there, virtual)
		for _, slice := range f.slices {
			f.report.Slices = append(f.report.Slices, &wire.Report_Slice{
				Slice: slice.number, Devices: spans(slice.view.SpansOf(slice.devices)), Exclusive: slice.exclusive})
		}
		r.Sessions = append(r.Sessions, f.report)
	}
	sumTenants(r)
	r.Programs = a.busiest(programs)
	return r
}

// maxPrograms bounds the programs of a report.
const maxPrograms = 64

// busiest returns the programs that have taken most device time, in descending order. The report counts the others.
func (a *Answer) busiest(all []programFacts) (out []*wire.Report_Program) {
	ran := slices.DeleteFunc(all, func(f programFacts) bool { return f.runs == 0 })
	slices.SortFunc(ran, func(x, y programFacts) int {
		return cmp.Or(cmp.Compare(y.spent, x.spent), cmp.Compare(y.runs, x.runs), cmp.Compare(x.c.key, y.c.key))
	})
	a.report.MorePrograms = uint32(max(0, len(ran)-maxPrograms))
	for _, f := range ran[:min(len(ran), maxPrograms)] {
		out = append(out, &wire.Report_Program{Name: f.c.info.Name, Devices: uint64(len(f.c.madeFor)), Runs: f.runs,
			UsualNs: f.usual, DeviceNs: int64(f.spent)})
	}
	return out
}

// bytes returns the device memory of a session's arrays, by virtual device. Virtual is scratch, zero between calls.
func (f *sessionFacts) bytes(there set, virtual []int32) (bytes []int64, scratch []int32) {
	bytes = make([]int64, f.in.len())
	for d := range bytes {
		number := f.in.number(uint32(d))
		for len(virtual) <= number {
			virtual = append(virtual, 0)
		}
		if there.has(f.in.slot(uint32(d))) {
			virtual[number] = int32(d + 1)
		}
	}
	for _, m := range f.memory {
		for _, number := range m.on {
			if int(number) < len(virtual) && virtual[number] > 0 {
				bytes[virtual[number]-1] += m.bytes
			}
		}
	}
	for d := range bytes {
		virtual[f.in.number(uint32(d))] = 0
	}
	return bytes, virtual
}

// complete returns the report of a worker with what takes time to make. Its last heartbeat says how long each
// computation usually takes, and that a session is gone whose client is not connected: people count it as gone, though
// the worker learns it only when the lease ends.
func (f *workerFacts) complete(now int64) *wire.Report_Worker {
	w := f.report
	if f.lacked != nil {
		w.LastRefused = f.lacked.report(now)
	}
	if len(f.usual) > 0 {
		w.Last = proto.CloneOf(w.Last)
	}
	for i, usual := range f.usual {
		r := w.Last.Running[i]
		r.Gone = r.Gone || f.gone[i]
		if usual > 0 {
			r.UsualMs = usual / 1e6
		}
	}
	return w
}

// For returns a report as a viewer may see it: for a tenant, without the lines of others' code where something runs,
// waits or failed. It shares the rest with the report, which does not change.
func For(to wire.Viewer, r *wire.Report) *wire.Report {
	if !to.IsTenant {
		return r
	}
	own := map[uint32]bool{} // sessions
	for _, s := range r.Sessions {
		own[s.Session] = to.Is(s.Tenant)
	}
	hidden := func(session uint32, line string) bool { return line != "" && !own[session] }
	r = shallow(r)
	// The reason for a worker's restart names the computation that did not end, and an error in the file of tenants names
	// the files of their tokens.
	r.Events = copies(r.Events, func(e *wire.Report_Event) bool {
		return e.Session != 0 && !to.Is(e.Tenant) || e.Kind == wire.EventLost || e.Kind == wire.EventTenants
	}, func(e *wire.Report_Event) { e.Reason, e.Line, e.FirstCall = "", "", false })
	stands := func(s *wire.Standing) bool { return hidden(s.Session, s.Line) }
	runs := func(c *wire.Running) bool { return hidden(c.Session, c.Line) }
	r.Islands = copies(r.Islands, always, func(is *wire.Report_Island) {
		is.Workers = copies(is.Workers, func(w *wire.Report_Worker) bool { // false of most
			return hidden(w.LastRefused.GetSession(), w.LastRefused.GetWhy()) ||
				slices.ContainsFunc(w.Last.GetStanding(), stands) || slices.ContainsFunc(w.Last.GetRunning(), runs)
		}, func(w *wire.Report_Worker) {
			if hidden(w.LastRefused.GetSession(), w.LastRefused.GetWhy()) {
				w.LastRefused = shallow(w.LastRefused)
				w.LastRefused.Why = ""
			}
			if w.Last != nil {
				w.Last = shallow(w.Last)
				w.Last.Standing = copies(w.Last.Standing, stands, func(s *wire.Standing) { s.Line = "" })
				w.Last.Running = copies(w.Last.Running, runs, func(c *wire.Running) { c.Line = "" })
			}
		})
	})
	r.Sessions = copies(r.Sessions, func(s *wire.Report_SessionReport) bool { return !own[s.Session] },
		func(s *wire.Report_SessionReport) {
			if s.Held.GetLine() != "" {
				s.Held = shallow(s.Held)
				s.Held.Line = ""
			}
			s.Unanswered = copies(s.Unanswered, always, func(u *wire.Report_Unanswered) { u.Line = "" })
		})
	return r
}

// shallow returns a copy of a message, which shares the values of its fields.
func shallow[M proto.Message](m M) M {
	to := m.ProtoReflect().New()
	m.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		to.Set(f, v)
		return true
	})
	return to.Interface().(M)
}

// copies returns messages, with copies in the place of those that hide something from a viewer, changed by hide.
func copies[M proto.Message](all []M, hides func(M) bool, hide func(M)) []M {
	out := slices.Clone(all)
	for i, m := range all {
		if hides(m) {
			out[i] = shallow(m)
			hide(out[i])
		}
	}
	return out
}

func always[M any](M) bool { return true }
