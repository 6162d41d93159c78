package controller

import (
	"testing"

	"github.com/openpathways/pathways/core/ledger"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

// What a run under way reads takes its memory until the run ends, also where its client has freed it since.
func TestFreedArraysCountUntilTheirReadersEndWhenTheControllerStartsAgain(t *testing.T) {
	b := newBedThatKeeps(t)
	info := b.st.made[0].info
	info.Parameters = info.Outputs // a scalar
	client := &wire.Rejoin{Last: 3, Frames: frames(t, wire.KindRun,
		&wire.Run{Op: 2, Program: 1, Inputs: []uint64{5}, FirstOutput: 2},
		&wire.Run{Op: 3, Program: 1, Inputs: []uint64{5}, FirstOutput: 3})}
	under := []*wire.HeldGang{{Gang: 70, Op: 2}, {Gang: 71, Op: 3}}
	b.startAgain([2][]*wire.HeldGang{under, under}, client)
	const limit = 4 * 4 // array 1, what the runs make, and what they read
	for d := range b.workers {
		statustest.OK(t, b.st.ledger.SetLimit(d, limit))
	}
	left := func(when string, want bool) {
		t.Helper()
		one := ledger.Spec{ShardBytes: 4, Placement: b.st.sessions[1].programs[1].place.memory}
		if got := b.st.ledger.Fits([]ledger.Spec{one}, 0); got != want {
			t.Errorf("%s there is room: %v, want %v", when, got, want)
		}
	}
	left("while both are under way", false)
	b.done(0, 70)
	b.done(1, 70)
	left("while one is under way", false)
	b.done(0, 71)
	b.done(1, 71)
	left("when both have ended", true)
}

// What operations under way make is not on a worker that was lost before its controller had its cluster back.
func TestWorkersLostBeforeAllHaveComeBackHaveNothing(t *testing.T) {
	b := newBedThatKeeps(t)
	assemble := &wire.Assemble{Object: 9, Program: 1, Pieces: []*wire.Piece{{Object: 1, Rows: 2}}}
	client := &wire.Rejoin{Last: 2, Programs: []uint64{1}, Frames: append(frames(t, wire.KindAssemble, assemble),
		frames(t, wire.KindRun, &wire.Run{Op: 2, Program: 1, Inputs: []uint64{9}, FirstOutput: 2})...)}
	kept := b.facts()
	b.st = New(Config{Keeps: true, Starts: 2})
	b.st.Restore(kept)
	b.say(b.client, wire.KindRejoin, client)
	b.step(Event{Kind: Lost, Conn: b.workers[1], Err: errLeft})
	b.check(b.say(b.workers[0], wire.KindRejoin, &wire.Rejoin{Last: 70, Holdings: []*wire.Holding{{Session: 1,
		Programs: []uint64{1}, Gangs: []*wire.HeldGang{{Gang: 70, Op: 2}},
		Arrays: []*wire.HeldArray{{Object: 1, Devices: []uint32{0}, Bytes: 4}}}}}))
	if n := len(b.st.sessions[1].objects); n != 3 {
		t.Errorf("the session has %d arrays, want 3", n)
	}
}
