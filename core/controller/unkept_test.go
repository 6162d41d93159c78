package controller

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/shape"
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
	left := b.st.sessions[1].unkept
	if len(left) != 2 || left[0].program != 4 || left[1].program != 5 {
		t.Errorf("%v stay, want programs 4 and 5", left)
	}
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
