package controller

import (
	"slices"
	"testing"

	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

// The programs of a session that ends go some at a time, so that others come in between, such as the loss of a worker
// that has loaded them. It keeps its slot until the last of them has gone.
func TestProgramsOfASessionThatEndsGoSomeAtATime(t *testing.T) {
	const programs, atOnce = 1000, int(StepWeight)/weightOfProgram + 1
	b := newBed(t, Config{Keeps: true}, 2, 1)
	for i := range uint64(programs) {
		b.install(i+1, 2, false)
	}
	b.st.Weigh(StepWeight)
	gone := 0
	after := func(actions []Action) {
		t.Helper()
		before := gone
		for _, a := range actions {
			if a.Kind == Keep && a.Table == tablePrograms && a.Fact == nil {
				gone++
			}
		}
		if gone-before > atOnce {
			t.Errorf("%d programs went in one step, expected %d at most", gone-before, atOnce)
		}
		statustest.Check(t, b.st.Check())
	}
	after(b.say(b.client, wire.KindGoodbye, &wire.Goodbye{}))
	after(b.step(Event{Kind: Lost, Conn: b.workers[0], Err: errLeft}))
	if gone == programs || b.st.workers[0] == nil {
		t.Fatalf("%d programs of %d went in two steps, and the worker's slot is free: %v", gone, programs,
			b.st.workers[0] == nil)
	}
	for b.st.More() {
		after(b.step(Event{Kind: Continue}))
	}
	statustest.Equal(t, gone, programs, "programs have gone")
	if b.st.workers[0] != nil {
		t.Error("the worker keeps its slot")
	}
}

// A session's gangs are ended in their order, puts and others among them, without a look at those of other sessions.
func TestGangsUnderWayComeByNumber(t *testing.T) {
	b := newBed(t, Config{}, 1, 1)
	b.putsOn(b.client, 1, true)
	var want, got []uint64
	for i := range 12 {
		if i%3 == 1 {
			b.say(b.client, wire.KindFetch, &wire.Fetch{Op: b.next(), Object: 1})
		} else {
			b.putsOn(b.client, 1, false)
		}
		want = append(want, b.st.gang)
		b.putsOn(b.joinClient(), 1, false)
	}
	for _, n := range []uint64{want[3], want[4], want[11]} {
		b.say(b.workers[0], wire.KindCompleted, &wire.Completed{Ok: []uint64{n}})
		want = slices.DeleteFunc(want, func(o uint64) bool { return o == n })
	}
	for g := range b.st.sessions[1].dispatched {
		got = append(got, g.number)
	}
	statustest.MustEqualSlices(t, got, want, "gangs under way")
}
