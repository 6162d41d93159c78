package controller

import (
	"fmt"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/wire/wiretest"
	"testing"
)

// A worker that says it restarts is lost for the reason that it says: what other
// sessions have there is DATA_LOSS, in its words.
func TestRestartingWorkerIsLostForItsReason(t *testing.T) {
	b := newBed(t, Config{}, 2, 1)
	b.program(2)
	b.say(b.client, wire.KindRun, &wire.Run{Op: 2, Program: 1, FirstOutput: 2, Inputs: []uint64{1}})
	why := status.New(status.DataLoss, "worker w1 restarted, and the arrays on it are lost: somebody's loop")
	b.say(b.workers[1], wire.KindGoodbye, &wire.Goodbye{Status: wire.Of(why)})
	b.say(b.client, wire.KindFetch, &wire.Fetch{Op: 3, Object: 1, Device: 1}) // what lay there
	failed := map[uint64]error{}
	for _, a := range b.step(Event{Kind: Flush}) {
		if a.Kind == Send && a.Wire == wire.KindCompleted {
			m := wiretest.Decode[wire.Completed](t, a.Payload)
			for _, f := range m.Failed {
				failed[f.Number] = f.Status.Err()
			}
		}
	}
	for op := uint64(2); op <= 3; op++ {
		statustest.Fails(t, fmt.Sprint("operation ", op), failed[op], status.DataLoss, why.Error())
	}
	statustest.Check(t, b.st.Check())
}

// A report says of each computation whether its session has gone, of which the worker may know nothing yet.
func TestReportSaysWhoseComputationHasNoClient(t *testing.T) {
	b := newBed(t, Config{}, 1, 1)
	gone := func() bool {
		b.say(b.workers[0], wire.KindHeartbeat,
			&wire.Heartbeat{Running: []*wire.Running{{Devices: []uint32{0}, Session: 1, Program: "spin"}}})
		return b.st.Report().Islands[0].Workers[0].Last.Running[0].Gone
	}
	if gone() {
		t.Error("a session whose client is connected has gone")
	}
	b.step(Event{Kind: Lost, Conn: b.client, Err: status.New(status.Unavailable, "it was killed")})
	if !gone() {
		t.Error("a session whose client was lost lives on")
	}
}
