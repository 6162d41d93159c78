package controller

import (
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/wire/wiretest"
	"slices"
	"testing"
)

// A controller ends when it has chosen other devices for a slice, and the slice's client has not heard of them: this
// asks again. If no devices can be chosen any more, it is told those that the slice has, and not that it keeps the
// first ones.
func TestClientHearsWhichDevicesItsSliceHasWhenTheControllerStartsAgain(t *testing.T) {
	b := newBed(t, Config{Keeps: true}, 2, 1)
	kept := b.facts()
	kept.Slices = []*wire.KeptSlice{{Session: 1, Request: &wire.SliceRequest{Slice: 1, Devices: 1}, Devices: []uint32{1}}}
	b.st = New(Config{Keeps: true, Starts: 2})
	if refused, _ := b.st.Restore(kept); len(refused) > 0 {
		t.Fatalf("these cannot come back: %v", refused)
	}
	b.say(b.client, wire.KindRejoin,
		&wire.Rejoin{Slices: []uint64{1}, Frames: frames(t, wire.KindSliceRequest, &wire.SliceRequest{Slice: 1})})
	var answers []*wire.SliceAnswer
	for _, w := range b.workers {
		for _, a := range b.check(b.step(Event{Kind: Lost, Conn: w, Err: errLeft})) {
			if a.Kind == Send && a.Wire == wire.KindSliceAnswer {
				m := wiretest.Decode[wire.SliceAnswer](t, sent(a))
				answers = append(answers, m)
			}
		}
	}
	if len(answers) != 1 || answers[0].Status.Err() != nil || !slices.Equal(answers[0].Devices, []uint32{1}) {
		t.Errorf("the client is told %v, want that its slice has device 1", answers)
	}
}
