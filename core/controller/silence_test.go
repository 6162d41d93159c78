package controller

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// A worker that hangs, with its connection alive, is lost in bounded time, and so
// is what it has a part in, by its name; nothing else is.
func TestSilentWorkerIsLostInBoundedTime(t *testing.T) {
	const second = int64(1e9)
	b := newBed(t, Config{Heartbeat: second, Silence: 4 * second}, 2, 1)
	b.program(2)
	b.say(b.client, wire.KindRun, &wire.Run{Op: 2, Program: 1, FirstOutput: 2, Inputs: []uint64{1}})
	speak := func() { b.say(b.workers[0], wire.KindHeartbeat, &wire.Heartbeat{}) }
	tick := func() []Action {
		b.now += second
		return b.step(Event{Kind: Tick})
	}
	closed := func(actions []Action) []uint64 {
		var all []uint64
		for _, a := range actions {
			if a.Kind == Close {
				all = append(all, a.To...)
			}
		}
		return all
	}
	for i := range 3 {
		speak()
		if got := closed(tick()); got != nil {
			t.Fatalf("%d s of silence close %v", i+1, got)
		}
	}
	// The controller did not run for a while: it cannot know who was silent.
	b.now += 60 * second
	if got := closed(tick()); got != nil {
		t.Fatalf("a pause of the controller closes %v", got)
	}
	for range 3 {
		speak()
		if got := closed(tick()); got != nil {
			t.Fatalf("the controller closes %v before its time", got)
		}
	}
	speak()
	if got := closed(tick()); !slices.Equal(got, []uint64{b.workers[1]}) {
		t.Fatalf("the controller closes %v, want %v, which is silent", got, b.workers[1])
	}
	var failed *wire.Failure
	for _, a := range b.step(Event{Kind: Flush}) {
		if a.Kind == Send && a.Wire == wire.KindCompleted {
			m := new(wire.Completed)
			if err := proto.Unmarshal(a.Payload, m); err != nil {
				t.Fatal(err)
			}
			if len(m.Failed) == 1 {
				failed = m.Failed[0]
			}
		}
	}
	if err := failed.GetStatus().Err(); failed.GetNumber() != 2 || status.CodeOf(err) != status.Unavailable ||
		!strings.Contains(err.Error(), "w1") || !strings.Contains(err.Error(), "said nothing for 4.0 s") {
		t.Errorf("the run ended with %v", failed)
	}
	for range 10 {
		speak()
		if got := closed(tick()); got != nil {
			t.Fatalf("the controller closes %v, which speaks", got)
		}
	}
	if err := b.st.Check(); err != nil {
		t.Error(err)
	}
}
