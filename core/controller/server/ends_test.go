package server

import (
	"testing"

	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

// A message of many ends is taken apart, and the next one finds its memory all the same.
func TestEndsKeepTheirMemory(t *testing.T) {
	s := newSeat(t, false, false, 1, 1)
	gangs := make([]uint64, 300)
	for i := range gangs {
		gangs[i] = 1<<40 + uint64(i) // not known: the state passes over them
	}
	s.say(s.workers[0], wire.KindCompleted, (&wire.Completed{Ok: gangs, Busy: gangs}).Append(nil))
	kept := &s.workers[0].link.ends
	if len(gangs) > cap(kept.Ok) || len(gangs) > cap(kept.Busy) {
		t.Errorf("there is room for %d gangs and %d times, want %d", cap(kept.Ok), cap(kept.Busy), len(gangs))
	}
}

// A worker reports the last part of one gang and then, with nothing more at hand, a part of the next one, from which
// nothing follows: the client hears of the first gang nonetheless.
func TestAPartDoesNotHoldBackTheEndBeforeIt(t *testing.T) {
	s := newSeat(t, false, false, 2, 1)
	for op := uint64(3); op <= 4; op++ {
		s.say(s.client, wire.KindRun, encoded(t, &wire.Run{Op: op, Program: 1, FirstOutput: op, Inputs: []uint64{1}}))
	}
	first := encoded(t, &wire.Completed{Ok: []uint64{s.gang + 1}})
	s.say(s.workers[0], wire.KindCompleted, first)
	s.say(s.workers[1], wire.KindCompleted, first, encoded(t, &wire.Completed{Ok: []uint64{s.gang + 2}}))
	s.server.mu.Lock()
	waits := s.server.state.Dirty()
	s.server.mu.Unlock()
	if waits {
		t.Fatal("the end of the first gang waits for another message")
	}
	var m wire.Completed
	s.hear(s.client, wire.KindCompleted, &m)
	statustest.EqualSlices(t, m.Ok, []uint64{3}, "operations that have ended")
}
