package controller

import (
	"testing"

	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

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
	statustest.Equal(t, len(b.st.sessions[1].objects), 3, "arrays of the session")
}
