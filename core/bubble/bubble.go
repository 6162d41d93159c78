// Package bubble runs tests in bubbles of testing/synctest, where time is simulated. Only tests import it.
package bubble

import (
	"testing"
	"testing/synctest"
)

// Test is synctest.Test: a sleep in f lets simulated time pass, and takes none. Under the race detector the process has
// one processor until f returns: all timers of a bubble share one thread of the detector, and goroutines that find
// tickers due at the same moment on two processors corrupt it, which ends the process (Go 1.26: a failed CHECK in
// tsan_rtl.cpp, or a fault in racecall).
func Test(t *testing.T, f func(*testing.T)) {
	t.Helper()
	defer processors()()
	synctest.Test(t, f)
}
