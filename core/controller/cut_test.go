package controller

import (
	"testing"

	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

// A transfer that was taken apart beside Step is taken apart again where its session has other workers when its turn
// comes.
func TestTransfersAreTakenApartAgain(t *testing.T) {
	b := newBed(t, Config{}, 2, 2)
	m := &wire.Transfer{Op: 1, Object: 1, Array: scalar}
	for d := range uint32(4) {
		m.Moves = append(m.Moves, &wire.Move{Source: 1, From: d, To: (d + 1) % 4})
	}
	of := b.st.sessions[1].binding
	first := cutMoves(of, m)
	statustest.OK(t, first.err)
	again := cutMoves(of, m)
	statustest.OK(t, again.err)
	for i, l := range first.own {
		for k, moves := range l.parts {
			statustest.EqualSlices(t, again.own[i].parts[k], moves, "moves of worker %d", l.slots[k])
		}
	}
}
