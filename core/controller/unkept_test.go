package controller

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

// removed returns the tables of which facts are removed when the client says something.
func (b *bed) removed(kind wire.Kind, m proto.Message) (tables []string) {
	b.t.Helper()
	for _, a := range b.check(b.say(b.client, kind, m)) {
		if a.Kind == Keep && a.Fact == nil {
			tables = append(tables, a.Table)
		}
	}
	return tables
}

// forget has the client forget a program.
func (b *bed) forget(program uint64) (removed []string) {
	b.t.Helper()
	return b.removed(wire.KindForget, &wire.Forget{Programs: []uint64{program}})
}

// runs has the client run a program.
func (b *bed) runs(program uint64) {
	b.t.Helper()
	op := b.next()
	b.check(b.say(b.client, wire.KindRun, &wire.Run{Op: op, Program: program, FirstOutput: op, Inputs: []uint64{1}}))
}

// ofOneProgram are the facts of a program that no session has any more, in the order in which they are removed.
var ofOneProgram = []string{tablePrograms, tableCompiled}

// A program that was forgotten stays on disk with what it was compiled to, whatever room there is for what no session
// has, until its client has heard the end of its runs: it sends them again to the next start.
func TestForgottenProgramsStayOnDiskForTheirRuns(t *testing.T) {
	b := newBed(t, Config{Keeps: true, Limits: Limits{Store: 1}}, 2, 1)
	b.program(2) // behind which operation 1 comes
	b.install(2, 2, false)
	want := func(when string, got, want []string) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("%s facts of %q are removed, want %q", when, got, want)
		}
	}
	b.runs(2)
	want("while a run is under way", b.forget(2), nil)
	b.reportAll()
	want("before the client has heard the end", b.removed(wire.KindSettled, &wire.Settled{Next: 3, Pending: []uint64{2}}),
		nil)
	want("when it has, and not of an operation before the program",
		b.removed(wire.KindSettled, &wire.Settled{Next: 3, Pending: []uint64{1}}), ofOneProgram)
	b.install(3, 2, false)
	want("of a program that never ran", b.forget(3), ofOneProgram)
}

// Of programs that were forgotten behind their runs the first ones go when there is no room for all.
func TestForgottenProgramsAreBounded(t *testing.T) {
	b := newBed(t, Config{Keeps: true, Limits: Limits{Store: 1}}, 2, 1)
	b.program(2)
	b.st.limits.Forgotten = 2 * b.st.sessions[1].programs[1].of.bytes
	for program := uint64(2); program <= 5; program++ {
		b.install(program, 2, false)
		b.runs(program)
		b.reportAll()
		var want []string
		if program > 3 {
			want = ofOneProgram
		}
		if got := b.forget(program); !slices.Equal(got, want) {
			t.Errorf("when program %d is forgotten, facts of %q are removed, want %q", program, got, want)
		}
	}
	statustest.EqualSlices(t, b.unkept(), []string{programKey(1, 4), programKey(1, 5)}, "these stay")
}

// Those go first that were forgotten first, whichever session forgets one more.
func TestForgottenProgramsGoByTheirAgeInAllSessions(t *testing.T) {
	b := newBed(t, Config{Keeps: true, Limits: Limits{Store: 1}}, 2, 1)
	b.program(2)
	b.st.limits.Forgotten = 2 * b.st.sessions[1].programs[1].of.bytes
	one, other := b.client, b.joinClient()
	b.check(b.say(other, wire.KindPut, &wire.Put{Op: 1, Object: 1, Array: scalar, Devices: []uint32{0, 1}}))
	b.reportAll()
	for i, client := range []uint64{one, other, other} {
		b.client = client
		op, program := b.st.conns.Get(client).s.last+1, uint64(i)+2
		b.install(program, 2, false)
		b.check(b.say(client, wire.KindRun, &wire.Run{Op: op, Program: program, FirstOutput: op, Inputs: []uint64{1}}))
		b.reportAll()
		b.forget(program)
	}
	statustest.EqualSlices(t, b.unkept(), []string{programKey(2, 3), programKey(2, 4)}, "these stay")
}

// unkept returns the keys of the programs that are gone and stay on disk.
func (b *bed) unkept() (keys []string) {
	for e := b.st.unkept.all.Front(); e != nil; e = e.Next() {
		u := e.Value.(*unkept)
		keys = append(keys, programKey(u.s.id, u.program))
	}
	return keys
}

// What a client has forgotten, and forgets again behind a start of the controller, stays for all runs that are under
// way: also for those behind the last operation that comes again.
func TestForgottenProgramsStayOnDiskBehindAStart(t *testing.T) {
	b := newBedThatKeeps(t)
	has := []*wire.HeldGang{{Gang: 70, Op: 3}}
	put := &wire.Put{Op: 2, Object: 2, Array: &wire.Array{Dtype: uint32(shape.F32)}, Devices: []uint32{0}}
	run := &wire.Run{Op: 3, Program: 1, FirstOutput: 3, Inputs: []uint64{1}}
	b.startAgain([2][]*wire.HeldGang{has, has}, &wire.Rejoin{Last: 3, Frames: slices.Concat(frames(t, wire.KindPut, put),
		frames(t, wire.KindRun, run), frames(t, wire.KindForget, &wire.Forget{Programs: []uint64{1}}))})
	if got := b.removed(wire.KindSettled, &wire.Settled{Next: 4, Pending: []uint64{3}}); len(got) > 0 {
		t.Errorf("while a run is under way, facts of %q are removed", got)
	}
	if got := b.removed(wire.KindSettled, &wire.Settled{Next: 4}); !slices.Equal(got, []string{tablePrograms}) {
		t.Errorf("then facts of %q are removed, want those of the program", got)
	}
}

// A client sends its last Forgets again to the next start, and not all. What it does not name any more goes all the
// same, once it has heard the end of the runs.
func TestProgramsGoThatTheirClientHasForgottenBeforeAStart(t *testing.T) {
	b := newBedThatKeeps(t)
	kept := b.facts()
	b.st = New(Config{Keeps: true, Starts: 2, Limits: b.st.config.Limits})
	b.st.Restore(kept)
	b.say(b.client, wire.KindRejoin, &wire.Rejoin{Last: 2, Frames: frames(t, wire.KindRun,
		&wire.Run{Op: 2, Program: 1, FirstOutput: 2, Inputs: []uint64{1}})})
	for _, w := range b.workers {
		b.check(b.say(w, wire.KindRejoin, &wire.Rejoin{Holdings: []*wire.Holding{{Session: 1,
			Arrays: []*wire.HeldArray{{Object: 1, Devices: []uint32{0}, Bytes: 4}}}}}))
	}
	statustest.MustEqual(t, b.st.sessions[1].underWay, 1, "runs are under way")
	statustest.EqualSlices(t, b.unkept(), []string{programKey(1, 1)}, "these stay")
	if got := b.removed(wire.KindSettled, &wire.Settled{Next: 3}); !slices.Equal(got, []string{tablePrograms}) {
		t.Errorf("then facts of %q are removed, want that of the program", got)
	}
}
