package controller

import (
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/wire/wiretest"
	"testing"
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
	statustest.MustEqualSlices(t, closed(tick()), []uint64{b.workers[1]}, "the controller closes")
	var failed *wire.Failure
	for _, a := range b.step(Event{Kind: Flush}) {
		if a.Kind == Send && a.Wire == wire.KindCompleted {
			m := wiretest.Decode[wire.Completed](t, a.Payload)
			if len(m.Failed) == 1 {
				failed = m.Failed[0]
			}
		}
	}
	statustest.Equal(t, failed.GetNumber(), 2, "the operation that fails")
	statustest.Fails(t, "the run", failed.GetStatus().Err(), status.Unavailable, "w1", "said nothing for 4.0 s")
	for range 10 {
		speak()
		if got := closed(tick()); got != nil {
			t.Fatalf("the controller closes %v, which speaks", got)
		}
	}
	statustest.Check(t, b.st.Check())
}

// What waits for a worker that says nothing is told of from a few heartbeats on, with the time at which it ends, and to
// operators with its line. What does not need that worker is not.
func TestReportSaysWhatWaitsForASilentWorker(t *testing.T) {
	const second = int64(1e9)
	b := newBed(t, Config{Heartbeat: second, Silence: 10 * second, StuckAfter: 60 * second}, 2, 1)
	b.program(2)
	for conn, lease := range map[uint64]int64{b.workers[0]: 0, b.workers[1]: 20 * second} {
		b.st.conns.Get(conn).cuts.lease = lease
	}
	b.say(b.client, wire.KindPut, &wire.Put{Op: 2, Object: 2, Array: scalar, Devices: []uint32{0}})
	b.say(b.client, wire.KindRun, &wire.Run{Op: 3, Program: 1, FirstOutput: 3, Inputs: []uint64{1},
		Trace: []byte("secret.py:3")})
	b.say(b.client, wire.KindFetch, &wire.Fetch{Op: 4, Object: 1, Device: 1})
	pass := func(seconds int) (*wire.Report_SessionReport, *wire.Report_Worker) {
		for range seconds {
			b.now += second
			b.say(b.workers[0], wire.KindHeartbeat, &wire.Heartbeat{})
			b.step(Event{Kind: Tick})
		}
		r := b.st.Report()
		statustest.Equal(t, r.StuckAfterMs, 60_000, "ms after which what stands still is aborted")
		return r.Sessions[0], r.Islands[0].Workers[1]
	}
	if s, w := pass(2); s.Unanswered != nil || w.LostInMs/1000 != 25 {
		t.Errorf("after two heartbeats %v waits, and %s is lost in %d ms", s.Unanswered, w.Process.Name, w.LostInMs)
	}
	s, w := pass(2)
	if u := s.Unanswered; len(u) != 1 || u[0].Worker != w.Process.Number || u[0].Operations != 2 || u[0].What != "p" ||
		u[0].Line != "secret.py:3" || w.LostInMs/1000 != 23 {
		t.Errorf("%v waits, and %s is lost in %d ms; expected two operations for it, and 24 s", u, w.Process.Name, w.LostInMs)
	}
	if u := For(wire.Viewer{IsTenant: true}, b.st.Report()).Sessions[0].Unanswered; len(u) != 1 || u[0].Line != "" {
		t.Errorf("a tenant sees %v", u)
	}
	b.step(Event{Kind: Cut, Conn: b.workers[1], Err: errLeft})
	if s, w = pass(5); len(s.Unanswered) != 1 || w.LostInMs/1000 != 14 {
		t.Errorf("5 s after its connection broke %v waits, and the worker is lost in %d ms, expected 15 s", s.Unanswered,
			w.LostInMs)
	}
	b.step(Event{Kind: Lost, Conn: b.workers[1], Err: errLeft})
	if s := b.st.Report().Sessions[0]; s.Unanswered != nil {
		t.Errorf("when it is lost, %v waits", s.Unanswered)
	}
	statustest.Check(t, b.st.Check())
}

// While a controller that has started again waits for one of those that were there, it takes no messages of the others,
// so that it cannot know who is silent.
func TestNobodyIsSilentWhileTheControllerWaitsForItsCluster(t *testing.T) {
	const second = int64(1e9)
	b := newBedThatKeeps(t)
	kept := b.facts()
	b.now, b.st = 0, New(Config{Keeps: true, Starts: 2, Heartbeat: second, Silence: 4 * second})
	if refused, _ := b.st.Restore(kept); len(refused) > 0 {
		t.Fatalf("these cannot come back: %v", refused)
	}
	for _, w := range b.workers {
		b.check(b.say(w, wire.KindRejoin, &wire.Rejoin{}))
	}
	for range 20 {
		b.now += second
		b.check(b.step(Event{Kind: Tick}))
	}
	b.check(b.say(b.client, wire.KindRejoin, &wire.Rejoin{Last: 1, Epoch: 1, Programs: []uint64{1}}))
	for _, w := range b.workers { // and what they have said meanwhile
		b.check(b.say(w, wire.KindHeartbeat, &wire.Heartbeat{}))
	}
	b.now += second
	b.check(b.step(Event{Kind: Tick}))
	if n := len(b.st.present); n != 2 || b.st.IsComingBack() {
		t.Errorf("%d workers are there, want 2; the controller waits: %v", n, b.st.IsComingBack())
	}
}
