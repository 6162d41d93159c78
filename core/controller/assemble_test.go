package controller

import (
	"testing"

	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

// While a session's operations wait, any number of arrays may be assembled behind them, of so many pieces in all.
func TestAssemblesThatWait(t *testing.T) {
	for pieces, ends := range map[int]bool{10: false, 30: true} {
		b := newBed(t, Config{Limits: Limits{Credit: 4, Window: 1, Objects: 200}}, 1, 1)
		b.program(1)
		for op := uint64(2); op < 5; op++ { // of which the second waits for the first
			b.say(b.client, wire.KindRun, &wire.Run{Op: op, Program: 1, FirstOutput: op, Inputs: []uint64{1}})
		}
		closed := false
		for i := range uint64(20) {
			m := &wire.Assemble{Object: 10 + i, Program: 1}
			for range pieces {
				m.Pieces = append(m.Pieces, &wire.Piece{Object: 1, Rows: 1})
			}
			for _, a := range b.say(b.client, wire.KindAssemble, m) {
				closed = closed || a.Kind == Close
			}
		}
		statustest.Equal(t, closed, ends, "with 20 of %d pieces the session is closed", pieces)
		statustest.Check(t, b.st.Check())
	}
}

// Arrays that are assembled of the same members go in any order, and each is taken out of its members' lists.
func TestArraysAssembledOfTheSame(t *testing.T) {
	b := newBed(t, Config{}, 2, 1)
	b.program(2)
	const n = 20
	for id := uint64(10); id < 10+n; id++ {
		b.say(b.client, wire.KindAssemble, &wire.Assemble{Object: id, Program: 1,
			Pieces: []*wire.Piece{{Object: 1, Rows: 2}}})
	}
	statustest.MustEqual(t, len(b.st.sessions[1].objects[1].in), n, "arrays that array 1 is a member of")
	for i := range uint64(n) {
		b.say(b.client, wire.KindFree, &wire.Free{Objects: []uint64{10 + i*7%n}})
		statustest.OK(t, b.st.Check())
	}
	statustest.EqualSlices(t, b.st.sessions[1].objects[1].in, nil, "array 1 is left a member of")
}
