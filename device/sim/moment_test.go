package sim

import (
	"testing"
	"time"
)

// What follows from an end follows at the time of that end, however late a goroutine
// gets to it; all else now.
func TestConsequencesHappenAtTheTimeOfTheirCause(t *testing.T) {
	is := NewIsland(Real, 1)
	is.start = is.start.Add(-time.Hour)
	is.mu.Lock()
	defer is.mu.Unlock()
	var follows, last *entry
	is.set(time.Minute, nil, func() {
		follows = is.after(time.Second, nil, func() { last = is.after(time.Second, nil, func() {}) })
	})
	is.turn(is.time())
	if follows == nil || last == nil || follows.at != time.Minute+time.Second || last.at != time.Minute+2*time.Second {
		t.Errorf("behind an end after a minute stand %v and %v, want a second and two later", follows, last)
	}
	if e := is.after(0, nil, func() {}); e.at < time.Hour {
		t.Errorf("what begins after an hour is due after %v", e.at)
	}
}
