package controller

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/wire/wiretest"
)

func TestATenantLooksButSeesNoLinesAndStopsNothing(t *testing.T) {
	b := newBed(t, Config{}, 1, 1)
	b.say(b.workers[0], wire.KindHeartbeat, &wire.Heartbeat{
		Running:  []*wire.Running{{Devices: []uint32{0}, Session: 1, Program: "spin", Line: "secret.py:3"}},
		Standing: []*wire.Standing{{Devices: []uint32{0}, Session: 1, Program: "spin", Line: "secret.py:3"}}})
	b.say(b.client, wire.KindPut,
		&wire.Put{Op: 1, Object: 1, Array: &wire.Array{Dtype: uint32(shape.F32)}, Devices: []uint32{0}})
	b.say(b.workers[0], wire.KindCompleted, &wire.Completed{Failed: []*wire.Failure{{Number: 1, NoMemory: true,
		Status: &wire.Status{Code: uint32(status.ResourceExhausted), Message: "no room [called at secret.py:3]"}}}})
	const operator, tenant = 901, 902
	ask := func(conn uint64, stop bool) (report *wire.Report, err error) {
		m := &wire.Ask{Stop: stop}
		for _, a := range b.step(Event{Kind: Message, Conn: conn, Wire: wire.KindAsk, Message: m}) {
			switch {
			case a.Kind == Stop:
				t.Error("the controller stops")
			case a.Kind != Send:
			case a.Wire == wire.KindReport:
				report = new(wire.Report)
				statustest.OK(t, proto.Unmarshal(sent(a), report))
			case a.Wire == wire.KindGoodbye:
				bye := wiretest.Decode[wire.Goodbye](t, a.Payload)
				err = bye.Status.Err()
			}
		}
		return report, err
	}
	b.step(Event{Kind: Join, Conn: 900, Message: &wire.Hello{ // of which nothing was heard since
		Role: wire.Role_ROLE_WORKER, Name: "late", Worker: &wire.WorkerOffer{}}})
	for conn, lines := range map[uint64]bool{operator: true, tenant: false} {
		b.step(Event{Kind: Join, Conn: conn, Message: &wire.Hello{Role: wire.Role_ROLE_ADMIN}, Tenant: conn == tenant})
		r := statustest.Value(ask(conn, false)).OK(t)
		last := r.Islands[0].Workers[0].Last
		if got := r.Islands[0].Workers[0]; got.Refused != 1 || got.LastRefused.What != "device_put" ||
			(got.LastRefused.Why != "") != lines {
			t.Errorf("lines are to be seen: %v; the report has %v", lines, got.LastRefused)
		}
		if got := last.Running[0]; got.Program != "spin" || (got.Line != "") != lines {
			t.Errorf("lines are to be seen: %v; the report has %v", lines, got)
		}
		if got := last.Standing[0]; got.Program != "spin" || (got.Line != "") != lines {
			t.Errorf("lines are to be seen: %v; the report has %v", lines, got)
		}
	}
	statustest.Fails(t, "a tenant that stops the cluster", statustest.Of(ask(tenant, true)), status.PermissionDenied)
	if last := b.st.Report().Islands[0].Workers[0].Last; last.Standing[0].Line == "" {
		t.Error("what a tenant does not see is gone for operators, too")
	}
}

// A tenant with a name sees the lines of its own sessions, an operator those of all, and a tenant without one none.
func TestATenantSeesTheLinesOfItsOwnSessions(t *testing.T) {
	r := &wire.Report{}
	w := &wire.Report_Worker{Last: new(wire.Heartbeat), LastRefused: &wire.Report_Refusal{Session: 1, Why: "line of ada"}}
	for i, name := range []string{"ada", "bob", ""} {
		line, session := "line of "+name, uint32(i+1)
		r.Sessions = append(r.Sessions, &wire.Report_SessionReport{Session: session, Tenant: name,
			Held: &wire.Report_Held{Line: line}, Unanswered: []*wire.Report_Unanswered{{Line: line}}})
		r.Events = append(r.Events, &wire.Report_Event{Session: session, Tenant: name, Reason: line, Line: line})
		w.Last.Running = append(w.Last.Running, &wire.Running{Session: session, Line: line})
		w.Last.Standing = append(w.Last.Standing, &wire.Standing{Session: session, Line: line})
	}
	r.Islands = []*wire.Report_Island{{Workers: []*wire.Report_Worker{w}}}
	for _, c := range []struct {
		to       wire.Viewer
		ada, bob int
	}{{wire.Viewer{}, 7, 6}, {wire.Viewer{IsTenant: true, Tenant: "ada"}, 7, 0},
		{wire.Viewer{IsTenant: true, Tenant: "bob"}, 0, 6}, {wire.Viewer{IsTenant: true}, 0, 0}} {
		text := string(wire.AppendJSON(nil, For(c.to, r)))
		if ada, bob := strings.Count(text, "line of ada"), strings.Count(text, "line of bob"); ada != c.ada || bob != c.bob {
			t.Errorf("%+v sees %d lines of ada's and %d of bob's; expected %d and %d, in %s", c.to, ada, bob, c.ada, c.bob, text)
		}
		if c.to.IsTenant && strings.Contains(text, "line of \"") {
			t.Errorf("%+v sees lines of a session of no tenant", c.to)
		}
	}
}

// What processes call themselves may be shown on terminals as it is.
func TestNamesAreCleanWhereverTheyAreShown(t *testing.T) {
	const bad = "a\x1b[2Jb\nc\u202e"
	const good = "a·[2Jb·c·"
	b := newBed(t, Config{}, 1, 1)
	b.step(Event{Kind: Join, Conn: 900, Message: &wire.Hello{Role: wire.Role_ROLE_WORKER, Name: bad, Host: bad,
		Worker: &wire.WorkerOffer{Island: bad, Platform: &wire.Platform{Name: "sim"},
			Devices: []*wire.LocalDevice{{}}}}})
	b.step(Event{Kind: Join, Conn: 901, Message: &wire.Hello{Role: wire.Role_ROLE_CLIENT, Name: bad, User: bad,
		Machine: strings.Repeat("é", 1000)}})
	r := b.st.Answer(&wire.Ask{Events: 100})
	if len(r.Sessions) != 2 || len(r.Islands) != 2 {
		t.Fatal(r)
	}
	s, is := r.Sessions[1], r.Islands[1]
	w := is.Workers[0].Process
	if s.Name != good || s.User != good || w.Name != good || w.Host != good || is.Name != good {
		t.Errorf("names are %q of %q, and worker %q on %q in %q; want %q", s.Name, s.User, w.Name, w.Host, is.Name, good)
	}
	if n := len([]rune(s.Host)); n > 253 || !strings.HasPrefix(s.Host, "éé") || !strings.HasSuffix(s.Host, "…") {
		t.Errorf("a name of 1,000 characters is cut to %d", n)
	}
	for _, e := range r.Events {
		if e.Text != wire.Clean(e.Text) || len(e.Text) > 2000 {
			t.Errorf("event %q", e.Text)
		}
	}
}

// What a worker has ended is not told of as running, also if it says nothing from then on.
func TestEndedRunsAreNotRunning(t *testing.T) {
	b := newBed(t, Config{}, 1, 1)
	b.say(b.workers[0], wire.KindHeartbeat, &wire.Heartbeat{
		Running:  []*wire.Running{{Gang: 1, Session: 1}, {Gang: 2, Session: 1}},
		Standing: []*wire.Standing{{Gang: 1}, {Gang: 3}}})
	before := b.st.Report().Islands[0].Workers[0].Last
	b.say(b.workers[0], wire.KindCompleted, &wire.Completed{Ok: []uint64{1}})
	after := b.st.Report().Islands[0].Workers[0].Last
	if len(after.Running) != 1 || after.Running[0].Gang != 2 || len(after.Standing) != 1 || after.Standing[0].Gang != 3 {
		t.Errorf("when gang 1 has ended, the report has %v", after)
	}
	if len(before.Running) != 2 || len(before.Standing) != 2 {
		t.Errorf("the report before has changed, to %v", before)
	}
}

// What a tenant has of its quotas is told where it is most: a quota is of each device, and of each worker's machine.
func TestReportTellsWhereATenantHasMostOfItsQuotas(t *testing.T) {
	b := newBed(t, Config{Tenants: tableOf(t, "[tenants.default]\ndevice-memory = \"9B\"\nhost-memory = \"9B\"")}, 2, 1)
	for op, device := range []uint32{0, 1, 1} {
		b.say(b.client, wire.KindPut, &wire.Put{Op: uint64(op + 1), Object: uint64(op + 1), Array: scalar,
			Devices: []uint32{device}})
	}
	r := b.st.Report().Tenants[0]
	if r.Bytes != 12 || r.MostBytes != 8 || r.MostHostBytes != 8 {
		t.Errorf("of three arrays of 4 bytes, two of them on one device, it tells %v", r)
	}
}

// A run that came without a line shows where its session called the program first, to those who may see lines of it.
func TestARunWithoutALineShowsWhereItsProgramWasFirstCalled(t *testing.T) {
	const second = int64(1e9)
	b := newBed(t, Config{Heartbeat: second, StuckAfter: 10 * second}, 1, 1)
	b.program(1)
	run := func(op uint64, line string) uint64 {
		b.say(b.client, wire.KindRun, &wire.Run{Op: op, Program: 1, FirstOutput: op, Inputs: []uint64{1},
			Trace: []byte(line)})
		return b.st.gang
	}
	first, other, again := run(2, "train.py:3"), run(3, "train.py:4"), run(4, "")
	says := &wire.Heartbeat{}
	for _, gang := range []uint64{first, other, again} {
		line := map[uint64]string{first: "train.py:3", other: "train.py:4"}[gang] // as the worker was told
		says.Running = append(says.Running, &wire.Running{Gang: gang, Session: 1, Program: "p", Line: line})
		says.Standing = append(says.Standing, &wire.Standing{Gang: gang, Session: 1, Program: "p", Line: line})
	}
	b.say(b.workers[0], wire.KindHeartbeat, says)
	called := func(m interface {
		GetLine() string
		GetFirstCall() bool
	}) string {
		return wire.Called(m.GetLine(), m.GetFirstCall())
	}
	r := b.st.Report()
	last := r.Islands[0].Workers[0].Last
	for i, want := range []string{"called at train.py:3", "called at train.py:4", "first called at train.py:3"} {
		statustest.Equal(t, called(last.Running[i]), want, "what runs, run %d", i)
		statustest.Equal(t, called(last.Standing[i]), want, "what stands, run %d", i)
	}
	hidden := For(wire.Viewer{IsTenant: true, Tenant: "other"}, r).Islands[0].Workers[0].Last
	statustest.Equal(t, called(hidden.Running[2])+called(hidden.Standing[2]), "", "what another tenant sees")
	b.say(b.workers[0], wire.KindCompleted, &wire.Completed{Ok: []uint64{first, other}})
	for range 5 {
		b.now += second
		b.step(Event{Kind: Tick})
	}
	u := b.st.Report().Sessions[0].Unanswered
	if len(u) != 1 || called(u[0]) != "first called at train.py:3" {
		t.Errorf("a silent worker has %v", u)
	}
	statustest.Check(t, b.st.Check())
}

// What a tenant got in the last seconds is in the seconds in which it was computed, however long a computation took:
// a device's time has no more of it than there was.
func TestWhatATenantGotIsNoMoreThanThereWas(t *testing.T) {
	for _, c := range []struct {
		now, time int64
		devices   uint64
		want      []uint64 // the sums at now, and each five seconds after that
	}{
		{20e9, 1e9, 1, []uint64{1e9, 1e9, 0}},
		{20.5e9, 60e9, 2, []uint64{19e9, 9e9, 0}},
		{3.2e9, 3e9, 1, []uint64{3e9, 3e9, 0}},
		{300e6, 400e6, 2, []uint64{400e6, 400e6, 0}},
	} {
		var r lately
		r.add(c.now, uint64(c.time), c.devices)
		for i, want := range c.want {
			if got := r.sum(c.now + int64(i)*5e9); got != want {
				t.Errorf("%d ns of %d devices at %d: after %d s there are %d, want %d", c.time, c.devices, c.now, 5*i, got, want)
			}
		}
	}
}
