//go:build race

package bubble

import (
	"runtime"
	"sync"
)

var (
	mu      sync.Mutex
	bubbles int // that run, of tests that run in parallel
	before  int // processors before the first of them
)

// processors leaves the process one processor, until the function that it returns is called.
func processors() (restore func()) {
	mu.Lock()
	defer mu.Unlock()
	if bubbles == 0 {
		before = runtime.GOMAXPROCS(1)
	}
	bubbles++
	return func() {
		mu.Lock()
		defer mu.Unlock()
		if bubbles--; bubbles == 0 {
			runtime.GOMAXPROCS(before)
		}
	}
}
