package server

import (
	"testing"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/wire/wiretest"
)

// More workers than one Step introduces to each other hear of those that they exchange bytes with, and then of the
// transfer.
func TestWorkersOfALongTransferAreIntroducedBeforeIt(t *testing.T) {
	const workers = 1200
	s := newSeat(t, false, true, workers, 1)
	m := &wire.Transfer{Op: 3, Object: 3, Array: &wire.Array{Dtype: uint32(shape.F32)}}
	for d := range uint32(workers) {
		m.Moves = append(m.Moves, &wire.Move{Source: 1, From: d, To: (d + 1) % workers})
	}
	s.say(s.client, wire.KindTransfer, encoded(t, m))
	for i, w := range s.workers {
		heard := map[uint64]bool{}
		for kind := wire.Kind(0); kind != wire.KindDispatch; {
			var payload []byte
			var err error
			kind, payload, err = w.Recv()
			statustest.OK(t, err)
			if kind == wire.KindPeers {
				for _, p := range wiretest.Decode[wire.Peers](t, payload).Come {
					heard[p.Number] = true
				}
			}
		}
		statustest.MustEqual(t, len(heard), 3, "worker %d: processes that it has heard of, itself included", i)
	}
}
