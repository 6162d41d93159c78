package pjrt

import (
	"runtime"
	"testing"
)

// Clients share what the largest of them needs.
func TestMakeRoom(t *testing.T) {
	t.Setenv("GOMAXPROCS", "")
	before := runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(before)
	for _, devices := range []int{3, 1, 3} {
		makeRoom(devices)
		if got := runtime.GOMAXPROCS(0); got < usual()+3 {
			t.Errorf("%d processors with clients of up to 3 devices, want %d at least", got, usual()+3)
		}
	}
	now := runtime.GOMAXPROCS(0)
	makeRoom(2)
	if got := runtime.GOMAXPROCS(0); got != now {
		t.Errorf("a smaller client changed %d processors to %d", now, got)
	}
	t.Setenv("GOMAXPROCS", "1")
	makeRoom(1 << 14)
	if got := runtime.GOMAXPROCS(0); got != now {
		t.Errorf("%d processors where the user has said how many, want %d as before", got, now)
	}
}
