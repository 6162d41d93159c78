package command

import (
	"slices"
	"testing"
)

// A process that dies is started again after a pause that doubles up to a bound; one
// that dies at once again and again is given up; one that has run for a while begins
// again with the shortest pause.
func TestRestartPausesDoubleAndEnd(t *testing.T) {
	const ms = second / 1000
	var now int64 = 5 * second
	r := new(restarts)
	for _, name := range []string{"controller", "a", "b"} {
		r.add(name, now)
	}
	// dies has a process die, checks when it is started again, and starts it then.
	dies := func(name string, want int64) {
		t.Helper()
		v, in := r.died(name, now)
		if v != startsAgain || in != want {
			t.Fatalf("%s is started again after %d ms, %v, want %d ms", name, in/ms, v, want/ms)
		}
		if !r.isDown(name) || r.due(now+in-1) != nil || !slices.Equal(r.due(now+in), []string{name}) {
			t.Fatalf("%s, which is started again in %d ms: due before %v, then %v", name, in/ms, r.due(now+in-1), r.due(now+in))
		}
		now += in
		r.started(name, now)
		if r.isDown(name) || r.due(now) != nil {
			t.Fatalf("%s was started, and %v are due", name, r.due(now))
		}
	}
	pauses := []int64{100, 200, 400, 800, 1600, 3200, 6400, 10000, 10000, 10000}
	for _, pause := range pauses {
		now += steadyAfter - 1
		dies("a", pause*ms)
	}
	now += steadyAfter
	for _, pause := range pauses {
		dies("a", pause*ms) // it was steady: everything from the start
	}
	if v, _ := r.died("a", now); v != givenUp || r.due(now+steadyAfter) != nil {
		t.Errorf("a process that dies every time: %v, then %v are due", v, r.due(now+steadyAfter))
	}
	dies("b", 100*ms) // another one's deaths are its own
	for range 2 * mostRestarts {
		now += controllerSteadyAfter
		dies("controller", 100*ms) // it is steady sooner
	}
}
