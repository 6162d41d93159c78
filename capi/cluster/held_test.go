package cluster

import (
	"fmt"
	"testing"

	"github.com/openpathways/pathways/core/status/statustest"
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
		statustest.Equal(t, heldLine(m), want, "got")
	}
}

func TestLinesAreSaidInTheirOrder(t *testing.T) {
	said := make(chan string)
	l := lines{say: func(line string) { said <- line }} // as slow as a Python that is busy
	var want, got []string
	for i := range 20 {
		want = append(want, fmt.Sprint(i))
		l.add(want[i])
	}
	for range want {
		got = append(got, <-said)
	}
	statustest.EqualSlices(t, got, want, "said")
	l.add("again")
	statustest.Equal(t, <-said, "again", "said")
	// The first is on its way when the others come; of these the newest are kept.
	for i := range maxLines + 10 {
		l.add(fmt.Sprint(i))
	}
	got = nil
	for len(got) == 0 || got[len(got)-1] != fmt.Sprint(maxLines+9) {
		got = append(got, <-said)
	}
	if len(got) > maxLines+1 {
		t.Errorf("%d lines waited, at most %d may", len(got), maxLines+1)
	}
}
