package controller

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/wire/wiretest"
)

// facts returns what the controller has kept.
func (b *bed) facts() *Kept {
	st := b.st
	k := &Kept{Sessions: map[uint32]*wire.KeptSession{}, Compiled: map[string]*wire.KeptCompiled{}}
	for number, c := range st.conns.All() {
		l := KeptLink{Conn: number, KeptLink: &wire.KeptLink{Hello: &wire.Hello{Role: wire.Role_ROLE_CLIENT}}}
		if c.w != nil {
			l.Hello, l.Process = c.w.hello, c.w.process.Number
			if w := c.w.process; w.Board != 0 {
				l.Board = &wire.Board{Number: w.Board, Slot: w.Slot}
			}
		} else {
			l.Hello.Name, l.Process, l.Session = c.s.name, c.s.process.Number, c.s.id
		}
		k.Links = append(k.Links, l)
	}
	st.out = nil
	st.keepNumbers()
	for _, is := range st.islands {
		st.keepIsland(is)
	}
	for host := range st.boards {
		st.keepBoard(host)
	}
	for _, w := range st.workers {
		if w != nil && w.gone != nil {
			st.keepLoss(w)
		}
	}
	for _, s := range st.sessions {
		st.keepSession(s)
		for _, p := range s.programs {
			st.keepProgram(s, p)
		}
	}
	for _, c := range st.made {
		st.keepCompiled(c)
	}
	for _, a := range st.out {
		switch m := a.Fact.(type) {
		case *wire.KeptLink:
			k.Numbers = m
		case *wire.KeptIsland:
			k.Islands = append(k.Islands, m)
		case *wire.KeptBoard:
			k.Boards = append(k.Boards, m)
		case *wire.KeptLoss:
			k.Losses = append(k.Losses, m)
		case *wire.KeptSession:
			k.Sessions[m.Session] = m
		case *wire.KeptProgram:
			k.Programs = append(k.Programs, m)
		case *wire.KeptCompiled:
			k.Compiled[m.Key] = m
		}
	}
	return k
}

// startAgain has the controller end, start again with what it has kept, and hear what its two workers have of session
// 1, which has program 1 on both and array 1 there, and what its client remembers.
func (b *bed) startAgain(gangs [2][]*wire.HeldGang, client *wire.Rejoin) []Action {
	b.t.Helper()
	kept := b.facts()
	b.st = New(Config{Keeps: true, Starts: 2, Limits: b.st.config.Limits, Tenants: b.st.config.Tenants})
	if refused, _ := b.st.Restore(kept); len(refused) > 0 {
		b.t.Fatalf("these cannot come back: %v", refused)
	}
	var all []Action
	client.Programs = []uint64{1}
	all = append(all, b.say(b.client, wire.KindRejoin, client)...)
	for i, w := range b.workers {
		if !b.st.IsComingBack() {
			b.t.Fatal("the controller did not wait for all")
		}
		m := &wire.Rejoin{Holdings: []*wire.Holding{{Session: 1, Programs: []uint64{1},
			Arrays: []*wire.HeldArray{{Object: 1, Devices: []uint32{0}, Bytes: 4}}, Gangs: gangs[i]}}}
		for _, g := range gangs[i] {
			m.Last = max(m.Last, g.Gang)
		}
		all = append(all, b.say(w, wire.KindRejoin, m)...)
	}
	if b.st.IsComingBack() {
		b.t.Fatal("the controller waits although all have come back")
	}
	return b.check(all)
}

func (b *bed) check(actions []Action) []Action {
	b.t.Helper()
	statustest.Check(b.t, b.st.Check())
	return actions
}

// work returns what some actions have workers do, and end: of the first worker, then of the second.
func (b *bed) work(actions []Action) (of [2][]string) {
	b.t.Helper()
	add := func(a Action, what string) {
		for i, w := range b.workers {
			if slices.Contains(a.To, w) {
				of[i] = append(of[i], what)
			}
		}
	}
	for _, a := range actions {
		switch {
		case a.Kind != Send:
		case a.Wire == wire.KindDispatch:
			m := new(wire.Dispatch)
			statustest.OK(b.t, m.Parse(sent(a)))
			add(a, fmt.Sprintf("%d", m.Gang))
		case a.Wire == wire.KindPlayed:
			m := new(wire.Played)
			statustest.OK(b.t, m.Parse(sent(a)))
			for i := range uint64(m.Count) {
				add(a, fmt.Sprintf("%d: node %d", m.Gang+i, uint64(m.From)+i))
			}
		case a.Wire == wire.KindAbort:
			m := wiretest.Decode[wire.Abort](b.t, sent(a))
			add(a, fmt.Sprintf("%d ends", m.Gang))
		}
	}
	return of
}

// told returns the operations whose end the client is told now, those that failed as negative numbers.
func (b *bed) told() (ends []int) {
	b.t.Helper()
	for _, a := range b.check(b.step(Event{Kind: Flush})) {
		if a.Kind != Send || a.Wire != wire.KindCompleted {
			continue
		}
		m := new(wire.Completed)
		statustest.OK(b.t, m.Parse(sent(a)))
		for _, op := range m.Ok {
			ends = append(ends, int(op))
		}
		for _, f := range m.Failed {
			ends = append(ends, -int(f.Number))
		}
	}
	return ends
}

// done has a worker report gangs.
func (b *bed) done(worker int, gangs ...uint64) {
	b.check(b.say(b.workers[worker], wire.KindCompleted, &wire.Completed{Ok: gangs}))
}

func newBedThatKeeps(t *testing.T) *bed {
	b := newBed(t, Config{Keeps: true}, 2, 1)
	b.program(2)
	return b
}

// While a controller that has started again waits, its report and its events say for whom, and for how long. A client
// that does not come back is gone for all workers, since it is not known which of them knew it.
func TestWhoIsAwaitedIsSaid(t *testing.T) {
	const second = int64(1e9)
	b := newBedThatKeeps(t)
	kept := b.facts()
	for i := range kept.Links {
		kept.Links[i].Lease = 30 * second
	}
	b.now, b.st = 0, New(Config{Keeps: true, Starts: 2})
	refused, actions := b.st.Restore(kept)
	if len(refused) > 0 {
		t.Fatalf("these cannot come back: %v", refused)
	}
	const all = "the controller has started again, and waits for those that were there to come back, for 30 s more " +
		"at most: worker w0, worker w1, session 1, client"
	said := actions[len(actions)-1]
	if said.Kind != Log || !said.Event.Warn || said.Event.Text != all || b.st.Report().Waits != all {
		t.Errorf("its event is %v, and its report says %q; want %q", said.Event, b.st.Report().Waits, all)
	}
	statustest.Equal(t, b.st.Answer(&wire.Ask{Events: 9}).NewestEvent, 1,
		"events have happened, and nothing but the start has")
	b.check(b.step(Event{Kind: Cut, Conn: b.client, Err: errLeft}))
	for _, w := range b.workers {
		b.check(b.say(w, wire.KindRejoin, &wire.Rejoin{}))
	}
	b.now += 10 * second
	b.check(b.step(Event{Kind: Tick}))
	if said := b.st.Report().Waits; !strings.HasSuffix(said, "for 20 s more at most: session 1, client") {
		t.Errorf("when its workers are there, it says %q", said)
	}
	told := 0
	for _, a := range b.check(b.step(Event{Kind: Lost, Conn: b.client, Err: errLeft})) {
		if a.Kind == Send && a.Wire == wire.KindPeers {
			told += len(a.To)
		}
	}
	if said := b.st.Report().Waits; told != 2 || said != "" {
		t.Errorf("%d workers are told that the client is gone, want 2; the controller still says %q", told, said)
	}
}

func frames(t *testing.T, kind wire.Kind, messages ...proto.Message) (all []byte) {
	for _, m := range messages {
		all = wire.AppendFrame(all, kind, mustMarshal(t, m))
	}
	return all
}

// An operation that a client remembers is sent to those of its workers that do not have it, under the number that it
// has on the others, and ends once.
func TestOperationsGoOnWhenTheControllerStartsAgain(t *testing.T) {
	burnt := wire.Of(status.New(status.Internal, "burnt"))
	has := &wire.HeldGang{Gang: 70, Op: 2}
	ended := &wire.HeldGang{Gang: 70, Op: 2, Ended: true}
	later := &wire.HeldGang{Gang: 80, Op: 1, Ended: true}
	same := &wire.HeldGang{Gang: 70, Op: 1, Ended: true}
	failed := &wire.HeldGang{Gang: 70, Op: 2, Ended: true, Failed: burnt}
	for _, c := range []struct {
		name    string
		gangs   [2]*wire.HeldGang
		forgot  bool      // the client has heard its end
		want    [2]string // what the workers are sent
		reports [2]uint64 // gangs
		before  int       // the end that is told before they report
		after   int       // and behind that
	}{
		{name: "no worker has it", want: [2]string{"1", "1"}, reports: [2]uint64{1, 1}, after: 2},
		{name: "all have it", gangs: [2]*wire.HeldGang{has, has}, reports: [2]uint64{70, 70}, after: 2},
		{name: "all have ended it", gangs: [2]*wire.HeldGang{ended, ended}, before: 2},
		{name: "one has ended it", gangs: [2]*wire.HeldGang{ended, has}, reports: [2]uint64{0, 70}, after: 2},
		{name: "one has it", gangs: [2]*wire.HeldGang{nil, has}, want: [2]string{"70", ""}, reports: [2]uint64{70, 70},
			after: 2},
		{name: "one has ended it, and the other does not have it", gangs: [2]*wire.HeldGang{ended, nil},
			want: [2]string{"", "70"}, reports: [2]uint64{0, 70}, after: 2},
		{name: "it has failed on one", gangs: [2]*wire.HeldGang{failed, has}, want: [2]string{"", "70 ends"}, before: -2,
			reports: [2]uint64{0, 70}},
		{name: "it has failed on the only one that has it", gangs: [2]*wire.HeldGang{nil, failed},
			want: [2]string{"70 70 ends", ""}, before: -2, reports: [2]uint64{70, 0}},
		{name: "one has it, and in the other's place another worker has come", gangs: [2]*wire.HeldGang{later, has},
			want: [2]string{"", "70 ends"}, before: -2, reports: [2]uint64{0, 70}},
		{name: "one has it, and the other was sent something else under its number", gangs: [2]*wire.HeldGang{same, has},
			want: [2]string{"", "70 ends"}, before: -2, reports: [2]uint64{0, 70}},
		{name: "its client has heard its end", gangs: [2]*wire.HeldGang{failed, has}, forgot: true,
			want: [2]string{"", "70 ends"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBedThatKeeps(t)
			client := &wire.Rejoin{Last: 2}
			if !c.forgot {
				client.Frames = frames(t, wire.KindRun, &wire.Run{Op: 2, Program: 1, Inputs: []uint64{1}, FirstOutput: 2})
			}
			var gangs [2][]*wire.HeldGang
			for i, g := range c.gangs {
				if g != nil {
					gangs[i] = append(gangs[i], g)
				}
			}
			told := func(when string, want int) {
				t.Helper()
				if got := b.told(); len(got) > 1 || want != 0 && len(got) == 0 || len(got) == 1 && got[0] != want {
					t.Errorf("%s the client is told that %v have ended, want %d", when, got, want)
				}
			}
			for i, got := range b.work(b.startAgain(gangs, client)) {
				statustest.Equal(t, fmt.Sprint(got), "["+c.want[i]+"]", "worker %d is told", i)
			}
			told("first", c.before)
			for i, gang := range c.reports {
				if gang != 0 {
					b.done(i, gang)
				}
			}
			told("then", c.after)
			if n := b.st.gangs.Len(); n > 0 {
				t.Errorf("%d gangs are under way", n)
			}
			newest := b.st.gang
			for i, got := range b.work(b.say(b.client, wire.KindRun, &wire.Run{Op: 3, Program: 1, Inputs: []uint64{1},
				FirstOutput: 3})) {
				if want := fmt.Sprintf("[%d]", newest+1); fmt.Sprint(got) != want {
					t.Errorf("worker %d is sent %v of the next operation, want %s", i, got, want)
				}
			}
		})
	}
}

// A run that came without a line shows where its session called the program first, also to a controller that has
// started again since.
func TestFirstCallsAreKnownWhenTheControllerStartsAgain(t *testing.T) {
	b := newBedThatKeeps(t)
	b.startAgain([2][]*wire.HeldGang{}, &wire.Rejoin{Last: 2, FirstCalls: [][]byte{[]byte("train.py:3")}})
	b.say(b.client, wire.KindRun, &wire.Run{Op: 3, Program: 1, Inputs: []uint64{1}, FirstOutput: 3})
	g := b.st.gangs.Get(b.st.gang)
	statustest.Equal(t, wire.Called(wire.Line(g.line), g.firstCall), "first called at train.py:3", "a run was")
	b.st.note(g.about(wire.EventStuck), "it stands", nil)
	e := b.st.eventsAfter(0, keepsEvents)
	last := e[len(e)-1].event
	statustest.Equal(t, wire.Called(last.Line, last.FirstCall), "first called at train.py:3", "an event says that it was")
}

// Quotas hold when the controller starts again: what a session had before counts, its device memory, and itself.
func TestQuotasHoldWhenTheControllerStartsAgain(t *testing.T) {
	b := newBed(t, Config{Keeps: true,
		Tenants: tableOf(t, "[tenants.default]\ndevice-memory = \"8B\"\nsessions = 1")}, 2, 1)
	b.program(2)
	b.startAgain([2][]*wire.HeldGang{}, &wire.Rejoin{Last: 2})
	put := func(op uint64) *gang {
		b.say(b.client, wire.KindPut, &wire.Put{Op: op, Object: op, Array: scalar, Devices: []uint32{0}})
		return b.st.sessions[1].waiting
	}
	if put(3) != nil || put(4) == nil {
		t.Error("of two arrays of 4 bytes beside one the first was held, or the second was not")
	}
	join := func() int {
		b.conns++
		b.step(Event{Kind: Join, Conn: b.conns, Message: &wire.Hello{Role: wire.Role_ROLE_CLIENT, Name: "other"}})
		return len(b.st.sessions)
	}
	statustest.Equal(t, join(), 1, "sessions, of which one is the quota")
	b.st.apply(tableOf(t, "[tenants.default]\nsessions = 2"))
	statustest.Equal(t, join(), 2, "sessions, of which two are the quota")
	again := New(b.st.config) // whose file says one
	refused, _ := again.Restore(b.facts())
	statustest.Equal(t, len(refused), 0, "sessions that do not come back since the quota is less now")
}

// A session that cannot come back has ended, and an event says why.
func TestSessionThatCannotComeBackHasEnded(t *testing.T) {
	b := newBed(t, Config{Keeps: true, Tenants: tableOf(t, "[tenants.default]")}, 2, 1)
	st := New(Config{Keeps: true, Starts: 2, Tenants: tableOf(t, "[tenants.another]")})
	refused, actions := st.Restore(b.facts())
	if why := refused[b.client]; status.CodeOf(why) != status.PermissionDenied {
		t.Errorf("the session of a tenant that was removed cannot come back since %v", why)
	}
	last := actions[len(actions)-1].Event
	if last.Kind != wire.EventEnded || last.Session != 1 || last.Text != "session 1, client ended" ||
		!strings.HasPrefix(last.Reason, "PERMISSION_DENIED") {
		t.Errorf("the last event is %v", last)
	}
}

// What a client sends again was within its credit: nodes of a play behind it, which count as one, may be under way.
func TestWhatIsSentAgainNeedsNoCredit(t *testing.T) {
	b := newBedThatKeeps(t)
	b.st.config.Limits.Credit = 1
	has := []*wire.HeldGang{{Gang: 70, Op: 3}}
	b.startAgain([2][]*wire.HeldGang{has, has}, &wire.Rejoin{Last: 3, Frames: frames(t, wire.KindRun,
		&wire.Run{Op: 2, Program: 1, Inputs: []uint64{1}, FirstOutput: 2},
		&wire.Run{Op: 3, Program: 1, Inputs: []uint64{1}, FirstOutput: 3})})
	if b.st.sessions[1] == nil {
		t.Error("the session has ended")
	}
}

// A worker may make an array all the same of whose operation the client has heard that it failed elsewhere: it hears
// that the array is freed, or a shard of it.
func TestWhatFailedElsewhereIsFreedBehindAStart(t *testing.T) {
	b := newBedThatKeeps(t)
	b.startAgain([2][]*wire.HeldGang{{{Gang: 70, Op: 2}}, {}}, &wire.Rejoin{Last: 2})
	b.done(0, 70)
	for _, free := range []*wire.Free{{Rows: []*wire.Rows{{Object: 2, Devices: []uint32{0, 1, 9}}}},
		{Objects: []uint64{2}}} {
		got := b.work(b.check(b.say(b.client, wire.KindFree, free)))
		if len(got[0]) != 1 || len(got[1]) > 0 {
			t.Errorf("workers are sent %v of %v, want one free to the first", got, free)
		}
	}
}

// A worker that lacks a run, and what is assembled of its arguments, is sent both in their order, whatever became of
// the members on a worker that has begun the run.
func TestRunsOfAssembledArraysGoOnWhenTheControllerStartsAgain(t *testing.T) {
	for _, second := range []uint64{1, 5} { // the other member is there, or was freed behind the run
		b := newBedThatKeeps(t)
		assemble := &wire.Assemble{Object: 9, Program: 1, Pieces: []*wire.Piece{{Object: 1, Rows: 1},
			{Object: second, Rows: 1}}}
		client := &wire.Rejoin{Last: 2, Frames: append(frames(t, wire.KindAssemble, assemble),
			frames(t, wire.KindRun, &wire.Run{Op: 2, Program: 1, Inputs: []uint64{9}, FirstOutput: 2})...)}
		if second != 1 {
			client.Frames = append(client.Frames, frames(t, wire.KindFree, &wire.Free{Objects: []uint64{second, 9}})...)
		}
		got := b.work(b.startAgain([2][]*wire.HeldGang{{}, {{Gang: 70, Op: 2}}}, client))
		want := [2][]string{{"71", "70"}, {"71"}}
		if second != 1 {
			want = [2][]string{{"71", "70", "72"}, {"71", "72"}}
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("with a member %d the workers are sent %v, want %v", second, got, want)
		}
		b.done(0, 70)
		b.done(1, 70)
		if got := b.told(); !slices.Equal(got, []int{2}) {
			t.Errorf("the client is told that %v have ended, want 2", got)
		}
		statustest.Equal(t, b.st.sessions[1].objects[9] != nil, second == 1,
			"with a member %d, what was assembled", second)
	}
}

// Workers forget a graph that was forgotten just before the controller ended.
func TestGraphsAreForgottenWhenTheControllerStartsAgain(t *testing.T) {
	b := newBedThatKeeps(t)
	told := 0
	for _, a := range b.startAgain([2][]*wire.HeldGang{}, &wire.Rejoin{Frames: frames(t, wire.KindForget,
		&wire.Forget{Graphs: []uint64{7}})}) {
		if m := new(wire.Forget); a.Wire == wire.KindForget && proto.Unmarshal(sent(a), m) == nil &&
			slices.Equal(m.Graphs, []uint64{7}) {
			told += len(a.To)
		}
	}
	statustest.Equal(t, told, 2, "workers are told to forget the graph")
}

// A play of which workers have some nodes goes on: each worker gets what it lacks of these under the number that it has
// on the others, and then the rest.
func TestPlaysGoOnWhenTheControllerStartsAgain(t *testing.T) {
	b := newBedThatKeeps(t)
	graph := &wire.Graph{Graph: 1, Inputs: 1, Outputs: []uint64{4}}
	for i := range uint64(3) {
		graph.Nodes = append(graph.Nodes, &wire.Node{Run: &wire.Run{Program: 1, Inputs: []uint64{i + 1}}, Makes: 1})
	}
	play := &wire.Play{Op: 2, Graph: 1, Nodes: 3, First: 2, Inputs: []uint64{1}}
	client := &wire.Rejoin{Last: 4, Pending: []uint64{2, 3, 4}, Frames: append(frames(t, wire.KindGraph, graph),
		frames(t, wire.KindPlay, play)...)}
	held := func(gang, op uint64, ended bool) *wire.HeldGang {
		return &wire.HeldGang{Gang: gang, Op: op, Ended: ended}
	}
	actions := b.startAgain([2][]*wire.HeldGang{{held(70, 2, true), held(71, 3, false)}, {held(70, 2, false)}}, client)
	want := [2][]string{{"72: node 2"}, {"71: node 1", "72: node 2"}}
	if got := b.work(actions); !slices.Equal(got[0], want[0]) || !slices.Equal(got[1], want[1]) {
		t.Errorf("the workers are sent %v, want %v", got, want)
	}
	if got := b.told(); len(got) > 0 {
		t.Errorf("the client is told that %v have ended", got)
	}
	b.done(0, 71, 72)
	b.done(1, 70, 71, 72)
	got := b.told()
	slices.Sort(got)
	if !slices.Equal(got, []int{2, 3, 4}) || b.st.gangs.Len() > 0 {
		t.Errorf("the client is told that %v have ended, want all three; %d gangs are under way", got, b.st.gangs.Len())
	}
	if objects := b.st.sessions[1].objects; len(objects) != 2 || objects[4] == nil { // what the play keeps
		t.Errorf("the session has %d arrays, want the one that was there and the play's last", len(objects))
	}
}

// A put that is sent again without the rows that were lost on their way makes the others, whether its worker has it or
// not, and to read a lost one is DATA_LOSS.
func TestPutWithoutLostRowsGoesOnWhenTheControllerStartsAgain(t *testing.T) {
	for name, has := range map[string]bool{"its worker has it": true, "no worker has it": false} {
		t.Run(name, func(t *testing.T) {
			b := newBedThatKeeps(t)
			put := &wire.Put{Op: 2, Object: 2, Array: floats(1), Devices: []uint32{0},
				Lost: wire.Of(status.New(status.Unavailable, "worker w9 is gone"))}
			gangs, gang := [2][]*wire.HeldGang{}, uint64(1)
			if has {
				gang = 70
				gangs[0] = []*wire.HeldGang{{Gang: gang, Op: 2}}
			}
			b.startAgain(gangs, &wire.Rejoin{Last: 2, Frames: frames(t, wire.KindPut, put)})
			b.done(0, gang)
			if got := b.told(); !slices.Equal(got, []int{2}) {
				t.Errorf("the client is told that %v have ended, want 2", got)
			}
			b.say(b.client, wire.KindFetch, &wire.Fetch{Op: 3, Object: 2, Device: 1})
			var ends wire.Completed
			for _, a := range b.check(b.step(Event{Kind: Flush})) {
				if a.Kind == Send && a.Wire == wire.KindCompleted {
					statustest.OK(t, ends.Parse(sent(a)))
				}
			}
			if len(ends.Failed) != 1 || status.CodeOf(ends.Failed[0].Status.Err()) != status.DataLoss ||
				!strings.Contains(ends.Failed[0].Status.Message, "w9") {
				t.Errorf("a read of the lost row ends with %v, want DATA_LOSS that names w9", &ends)
			}
		})
	}
}

// A session that has lost a worker goes on when the controller starts again: with what it has on others, and with the
// worker that takes the place of the lost one, whether that comes later, was offered, or was taken already.
func TestSessionsThatLostAWorkerOutliveTheirController(t *testing.T) {
	for _, c := range []struct {
		name    string
		offered bool
		epoch   uint64 // of the client's devices
		offers  int    // that the client hears of from the controller that has started again
	}{
		{name: "no other has come", epoch: 1, offers: 0},
		{name: "another was offered", offered: true, epoch: 1, offers: 1},
		{name: "the client has taken the offer", offered: true, epoch: 2, offers: 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBedThatKeeps(t)
			hello := b.st.conns.Get(b.workers[1]).w.hello
			b.check(b.step(Event{Kind: Lost, Conn: b.workers[1], Err: errors.New("it burnt")}))
			come := func() []Action {
				b.conns++
				b.workers[1] = b.conns
				return b.check(b.step(Event{Kind: Join, Conn: b.conns, Message: hello}))
			}
			if c.offered {
				if n := b.offers(come()); n != 1 {
					t.Fatalf("the client is offered %d workers, want 1", n)
				}
			}
			kept := b.facts()
			b.st = New(Config{Keeps: true, Starts: 2})
			if refused, _ := b.st.Restore(kept); len(refused) > 0 {
				t.Fatalf("these cannot come back: %v", refused)
			}
			actions := slices.Clone(b.say(b.client, wire.KindRejoin,
				&wire.Rejoin{Last: 1, Epoch: c.epoch, Programs: []uint64{1}}))
			actions = append(actions, b.say(b.workers[0], wire.KindRejoin, &wire.Rejoin{Holdings: []*wire.Holding{{
				Session: 1, Programs: []uint64{1}, Arrays: []*wire.HeldArray{{Object: 1, Devices: []uint32{0}, Bytes: 4}}}}})...)
			if c.offered {
				actions = append(actions, b.say(b.workers[1], wire.KindRejoin, &wire.Rejoin{})...)
			}
			if n := b.offers(b.check(actions)); n != c.offers || b.st.IsComingBack() {
				t.Fatalf("the client is offered %d workers, want %d; the controller waits: %v", n, c.offers, b.st.IsComingBack())
			}
			const want = "on worker w1, which was lost (it burnt), or it was freed"
			if why := b.st.sessions[1].lost[1]; !strings.Contains(why.Error(), want) {
				t.Errorf("a shard on the lost device is lost because of %v, want its worker and why that was lost", why)
			}
			for op, device := range []uint32{0, 1} { // of array 1
				sent := b.work(b.say(b.client, wire.KindFetch, &wire.Fetch{Op: uint64(2 + op), Object: 1, Device: device}))
				if there := len(sent[0]) > 0; there != (device == 0) || len(sent[1]) > 0 {
					t.Errorf("a fetch from device %d is sent to %v", device, sent)
				}
			}
			if got := b.told(); !slices.Equal(got, []int{-3}) {
				t.Errorf("the client is told that %v have ended, want that the fetch from the lost device has failed", got)
			}
			b.done(0, b.st.gang)
			b.told()
			if !c.offered {
				if n := b.offers(come()); n != 1 {
					t.Fatalf("the client is offered %d workers when one comes, want 1", n)
				}
			}
			if c.epoch == 1 {
				b.check(b.say(b.client, wire.KindRebind, &wire.Rebind{Epoch: 2}))
			}
			b.say(b.client, wire.KindPut, &wire.Put{Op: 4, Object: 2, Array: floats(1), Devices: []uint32{0, 1}})
			ran := b.say(b.client, wire.KindRun, &wire.Run{Op: 5, Program: 1, Inputs: []uint64{2}, FirstOutput: 3})
			for i, loads := range b.loadsOf(ran) {
				statustest.Equal(t, loads, 1, "how often worker %d is to load the program", i)
			}
			if sent := b.work(b.check(ran)); len(sent[0]) != 1 || len(sent[1]) != 1 {
				t.Errorf("a run on both devices is sent to %v", sent)
			}
		})
	}
}

// offers returns how many workers the client is offered in the place of lost ones.
func (b *bed) offers(actions []Action) (n int) {
	for _, a := range actions {
		if a.Kind == Send && a.Wire == wire.KindRebind && slices.Contains(a.To, b.client) {
			n++
		}
	}
	return n
}

// loadsOf returns how many programs each worker is to load.
func (b *bed) loadsOf(actions []Action) (of [2]int) {
	for _, a := range actions {
		for i, w := range b.workers {
			if a.Kind == Send && a.Wire == wire.KindLoad && slices.Contains(a.To, w) {
				of[i]++
			}
		}
	}
	return of
}
