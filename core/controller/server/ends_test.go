package server

import (
	"testing"

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
