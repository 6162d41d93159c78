//go:build invariants

// Package shortage has tests walk through the allocations of C that a call makes, and each
// of them fail once.
//
// Only tests import it.
package shortage

import (
	"runtime"
	"testing"

	"github.com/openpathways/pathways/capi/base"
	"github.com/openpathways/pathways/core/status"
)

// most is how many allocations a call may make; a walk that goes on has no end.
const most = 10000

// Walk calls a function with its first allocation failing, then with its second, and so on
// until none fails. Every call but the last has to fail with RESOURCE_EXHAUSTED. The
// function undoes what it has made; what it calls on other threads does not fail. Walk
// returns how many allocations there were.
func Walk(t *testing.T, what string, call func() error) int {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for n := range most {
		base.FailAllocation(n)
		err := call()
		if left := base.FailAllocation(-1); left >= 0 {
			if err != nil {
				t.Errorf("%s with all the memory that it asks for: %v", what, err)
			}
			t.Logf("%s: %d allocations", what, n)
			return n
		}
		if status.CodeOf(err) != status.ResourceExhausted {
			t.Errorf("%s, allocation %d failed: %v, want %v", what, n, err, status.ResourceExhausted)
		}
	}
	t.Fatalf("%s: after %d allocations that failed there are more", what, most)
	return most
}
