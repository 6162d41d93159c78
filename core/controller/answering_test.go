package controller

import (
	"reflect"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/wire/wiretest"
	"github.com/openpathways/pathways/device/sim"
)

// The sessions that wait for a program get it some at a time, so that others come in between, such as the end of one of
// them.
func TestManySessionsThatWaitForAProgramGetItSomeAtATime(t *testing.T) {
	const others = 40
	b := newBed(t, Config{}, 2, 1)
	for range others {
		b.joinClient()
	}
	op := b.compile(1, 2)
	all := b.sessions()
	for _, s := range all[1:] {
		b.say(s.conn, wire.KindCompile, compileOf(1, 2))
	}
	b.st.Weigh(3 * weightOfInstall)
	answered := 0
	after := func(ev Event) {
		t.Helper()
		before := answered
		b.actions = b.st.Step(&ev, b.actions[:0])
		for _, a := range b.actions {
			if a.Kind == Send && a.Wire == wire.KindCompiled {
				statustest.OK(t, wiretest.Decode[wire.Compiled](t, sent(a)).Status.Err())
				answered++
			}
		}
		if answered-before > 3 {
			t.Errorf("%d sessions were answered in one step, expected 3 at most", answered-before)
		}
		statustest.Check(t, b.st.Check())
	}
	say := func(conn uint64, kind wire.Kind, m proto.Message) {
		t.Helper()
		after(Event{Kind: Message, Conn: conn, Wire: kind, Message: m})
	}
	say(b.workers[0], wire.KindCompiled, &wire.Compiled{Op: op,
		Info:     &wire.ProgramInfo{Name: "p", Outputs: []*wire.Array{scalar}},
		Loadable: &wire.Loadable{Serialized: []byte("x")}})
	say(all[others].conn, wire.KindGoodbye, &wire.Goodbye{})
	if answered == 0 || !b.st.More() {
		t.Fatalf("%d sessions of %d were answered in two steps", answered, others)
	}
	say(all[others-1].conn, wire.KindForget, &wire.Forget{Programs: []uint64{1}})
	for b.st.More() {
		after(Event{Kind: Continue})
	}
	statustest.Equal(t, answered, others-1, "sessions have the program") // without those that do not want it any more
}

// Workers are told of the session, and of each other, in Steps before the one in which they are told to load a program.
// If the session ends, forgets the program or loses a worker in between, none loads it.
func TestWorkersHearOfTheSessionAndOfEachOtherBeforeTheyLoad(t *testing.T) {
	type kinds map[wire.Kind]int
	for _, c := range []struct {
		name  string
		event func(b *bed) Event
		want  []kinds // what is sent from then on, by Step
	}{
		{"nothing", nil, []kinds{{wire.KindLoad: 3, wire.KindCompiled: 1}}},
		{"the session ends", func(b *bed) Event {
			return Event{Kind: Message, Conn: b.client, Wire: wire.KindGoodbye, Message: &wire.Goodbye{}}
		}, []kinds{{wire.KindDrop: 3, wire.KindPeers: 3}}}, // and that its client has left
		{"the program is forgotten", func(b *bed) Event {
			return Event{Kind: Message, Conn: b.client, Wire: wire.KindForget, Message: &wire.Forget{Programs: []uint64{1}}}
		}, nil},
		{"a worker is lost", func(b *bed) Event { return Event{Kind: Lost, Conn: b.workers[2], Err: errLeft} },
			[]kinds{{wire.KindPeers: 3, wire.KindCompiled: 1}}}, // the client hears of the loss, too
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBed(t, Config{}, 3, 1)
			op := b.compile(1, 3)
			b.st.Weigh(1)
			var got []kinds
			step := func(ev Event) {
				t.Helper()
				sends := kinds{}
				for _, a := range b.st.Step(&ev, nil) {
					if a.Kind == Send {
						sends[a.Wire] += len(a.To)
					}
				}
				if len(sends) > 0 {
					got = append(got, sends)
				}
				statustest.Check(t, b.st.Check())
			}
			step(Event{Kind: Message, Conn: b.workers[0], Wire: wire.KindCompiled, Message: &wire.Compiled{Op: op,
				Info:     &wire.ProgramInfo{Name: "p", Collective: true, Outputs: []*wire.Array{scalar}},
				Loadable: &wire.Loadable{Serialized: []byte("x")}}})
			step(Event{Kind: Continue})
			want := append([]kinds{{wire.KindSession: 3}, {wire.KindPeers: 3}}, c.want...)
			if c.event != nil {
				step(c.event(b))
			}
			for b.st.More() {
				step(Event{Kind: Continue})
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("what is sent, by Step, is %v, want %v", got, want)
			}
		})
	}
}

// While a program is compiled again for a worker that lacks it, sessions may still wait for their answers to the first
// compilation. If the last of these is not wanted any more, the worker gets the program nonetheless.
func TestAProgramIsCompiledAgainThoughNoSessionWaitsForAnAnswer(t *testing.T) {
	b := newBed(t, Config{}, 2, 1)
	compile := func(program uint64, device int) {
		b.say(b.client, wire.KindCompile, &wire.Compile{Op: program, Program: program, Format: "sim",
			Text: wire.ContentOf([]byte("p")), Options: sim.CompileOptions([]int{device})})
	}
	compile(1, 0)
	op := b.st.compile
	var rest []uint64
	for program := uint64(2); program <= 60; program++ {
		compile(program, 1)
		rest = append(rest, program)
	}
	b.st.Weigh(1)
	b.say(b.workers[0], wire.KindCompiled, &wire.Compiled{Op: op, Info: &wire.ProgramInfo{Name: "p"},
		Loadable: &wire.Loadable{Kept: true}})
	s := b.st.sessions[1]
	for steps := 0; s.programs[2] == nil; steps++ {
		if steps == 100 {
			t.Fatal("the session has no second program after 100 steps")
		}
		b.step(Event{Kind: Continue})
	}
	b.st.Weigh(weightOfInstall) // to lose the worker takes as long as two answers
	b.step(Event{Kind: Lost, Conn: b.workers[0], Err: errLeft})
	b.say(b.workers[1], wire.KindWant, &wire.Want{Artifact: op})
	c := b.st.artifacts[op]
	if c.by == nil || len(s.compiling) == 0 {
		t.Fatalf("the program is compiled again: %v, and %d answers are outstanding", c.by != nil, len(s.compiling))
	}
	b.say(b.client, wire.KindForget, &wire.Forget{Programs: rest[1:]})
	if c.unwanted {
		t.Error("the worker was told that no session waits for the program")
	}
	statustest.Equal(t, len(s.compiling), 0, "answers are outstanding")
	statustest.Check(t, b.st.Check())
}

func TestASetIsCutToItsLowestMembers(t *testing.T) {
	all := setOf(0, 3, 63, 64, 65, 200)
	for n := range 8 {
		cut := slices.Clone(all)
		cut.cutTo(n)
		statustest.EqualSlices(t, cut.all(), all.all()[:min(n, 6)], "the lowest %d", n)
	}
}
