package cluster

import (
	"testing"

	"github.com/openpathways/pathways/core/wire"
)

func TestUserIsToldWhatAnOperationWaitsFor(t *testing.T) {
	h := &wire.Report_Held{What: "jit_f", Need: 3 << 30, Local: 1, WorkerName: "worker-0", SinceMs: 2400,
		WaitsFor: "memory", Holders: []*wire.Report_Holder{{Session: 1, Client: "node1:99", User: "ada", Bytes: 5 << 30}}}
	for want, m := range map[string]*wire.Held{
		"jit_f has waited 2 s: it needs 3.0 GiB on device 1 of worker-0, and waits for memory of session 1, " +
			"node1:99 of ada (5.0 GiB); it fails in 58 s if there is never enough": {Held: h, FailsInMs: 57600},
		"jit_f goes on after 2 s": {Held: &wire.Report_Held{What: "jit_f", SinceMs: 2400}, GoesOn: true},
	} {
		if got := heldLine(m); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
