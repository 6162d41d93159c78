package controller

import (
	"testing"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

// What is under way on a worker that is lost fails some at a time, so that others come in between, such as a worker
// that can take its place. It takes that only when all has failed, and the session's arrays are lost.
func TestGangsOfALostWorkerFailSomeAtATime(t *testing.T) {
	const gangs, atOnce = 1000, int(StepWeight)/weightOfFailure + 1
	b := newBed(t, Config{}, 2, 1)
	s := b.st.sessions[1]
	b.putsOn(b.client, 1, true)
	b.putsOn(b.client, gangs, false)
	b.st.Weigh(StepWeight)
	after := func(ev Event) {
		t.Helper()
		before := len(s.failed)
		b.step(ev)
		if n := len(s.failed) - before; n > atOnce {
			t.Errorf("%d gangs failed in one step, expected %d at most", n, atOnce)
		}
		statustest.Check(t, b.st.Check())
	}
	after(Event{Kind: Lost, Conn: b.workers[0], Err: errLeft})
	b.joinWorker("w0", 1)
	after(Event{Kind: Tick})
	if n := len(s.failed); n == gangs || s.offered != nil {
		t.Fatalf("after three steps %d gangs of %d have failed, and the session is offered %v", n, gangs, s.offered)
	}
	for b.st.More() {
		after(Event{Kind: Continue})
	}
	statustest.Equal(t, len(s.failed), gangs, "gangs have failed")
	if s.offered == nil {
		t.Error("the session is not offered the worker that has come")
	}
	b.say(b.client, wire.KindFetch, &wire.Fetch{Op: b.next(), Object: 1})
	if last := s.failed[len(s.failed)-1]; status.CodeOf(last.Status.Err()) != status.DataLoss {
		t.Errorf("what reads an array that was there ends with %v", last)
	}
}
