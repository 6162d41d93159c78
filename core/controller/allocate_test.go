package controller

import (
	"testing"

	"github.com/openpathways/pathways/core/invariants"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

// A gang and the arrays that it makes are used again, so that a run allocates nothing once the state has grown.
func TestARunAllocatesNothing(t *testing.T) {
	if invariants.Checked {
		t.Skip("the checks of the build tag invariants allocate")
	}
	b := newBed(t, Config{}, 2, 1)
	b.program(2)
	op, run := uint64(1), &wire.Run{Program: 1, Inputs: []uint64{1}}
	payload, ends := run.Append(nil), &wire.Completed{Ok: []uint64{0}}
	var ev Event
	step := func(next Event) {
		b.now += 1000
		ev, ev.Now = next, b.now
		b.actions = b.st.Step(&ev, b.actions[:0])
	}
	round := func() {
		op++
		run.Op, run.FirstOutput = op, op
		step(Event{Kind: Message, Conn: b.client, Wire: wire.KindRun, Message: run, Payload: payload})
		ends.Ok[0] = b.st.gang
		for _, w := range b.workers {
			step(Event{Kind: Message, Conn: w, Wire: wire.KindCompleted, Message: ends})
		}
		b.st.remove(b.st.sessions[1], op)
		step(Event{Kind: Flush})
	}
	for range 1000 {
		round()
	}
	statustest.Equal(t, testing.AllocsPerRun(1000, round), 0, "allocations of a run")
}
