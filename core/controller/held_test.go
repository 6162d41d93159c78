package controller

import (
	"testing"

	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

// What waits for a put's bytes may wait for the computation of another session that its device has.
func TestHeldRunNamesWhoComputesWhereItsBytesGo(t *testing.T) {
	b, _ := narrowBed(t, Limits{}, 1<<20, 1)
	b.say(b.client, wire.KindPut, &wire.Put{Op: 2, Object: 2, Array: scalar, Devices: []uint32{0}})
	b.say(b.client, wire.KindRun, &wire.Run{Op: 3, Program: 1, FirstOutput: 3, Inputs: []uint64{2}})
	for _, c := range []struct{ session, device, holders uint32 }{{2, 0, 1}, {2, 1, 0}, {9, 0, 0}} {
		b.say(b.workers[0], wire.KindHeartbeat, &wire.Heartbeat{Running: []*wire.Running{
			{Session: c.session, Gang: 1, Devices: []uint32{c.device}}}})
		h := b.st.Report().Sessions[0].Held
		statustest.Equal(t, h.GetWaitsFor(), waitsForClient, "what the run waits for")
		if n := len(h.GetHolders()); n != int(c.holders) || n > 0 && h.Holders[0].Session != c.session {
			t.Errorf("while device %d computes for session %d, these are named: %v", c.device, c.session, h.GetHolders())
		}
	}
}
