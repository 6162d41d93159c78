package host

import (
	"os"
	"runtime"
	"slices"
	"sync"
	"time"
)

const (
	// maxSpare is the largest number of spare processors.
	maxSpare = 64
	// followEvery is how often the process's share of the machine is read while there are
	// spare processors. Go reads it every second, and stops the world if it has changed;
	// here that happens three times, for about 20 µs each.
	followEvery = 30 * time.Second
)

var spare struct {
	mu    sync.Mutex // guards what follows
	held  []int      // one entry per call of Spare that was not undone
	timer *time.Timer
}

// Spare raises GOMAXPROCS above the process's share of the machine by the given number,
// until giveBack is called; a second call of giveBack does nothing. The numbers of several
// calls do not add up: the largest one counts. If the user has set GOMAXPROCS in the
// environment, Spare does not change it.
//
// A goroutine that waits in C keeps its processor until the runtime's monitor takes it
// away, after 70 µs at best. On a small machine, other goroutines would wait for that.
//
// Go follows the limits of control groups only until a program sets GOMAXPROCS. While there
// are spare processors, this package follows them, and after that Go does again.
func Spare(processors int) (giveBack func()) {
	if os.Getenv("GOMAXPROCS") != "" || processors <= 0 {
		return func() {}
	}
	n := min(processors, maxSpare)
	spare.mu.Lock()
	defer spare.mu.Unlock()
	before := largest()
	spare.held = append(spare.held, n)
	if n > before {
		follow()
	}
	return sync.OnceFunc(func() {
		spare.mu.Lock()
		defer spare.mu.Unlock()
		before := largest()
		i := slices.Index(spare.held, n)
		spare.held = slices.Delete(spare.held, i, i+1)
		if largest() < before {
			follow()
		}
	})
}

// Second is Spare(1) where the process's share of the machine is one processor, and else does nothing.
func Second() (giveBack func()) {
	spare.mu.Lock()
	share := runtime.GOMAXPROCS(0) - largest()
	spare.mu.Unlock()
	if share > 1 {
		return func() {}
	}
	return Spare(1)
}

// largest returns the largest number in held. The caller holds spare.mu.
func largest() int {
	if len(spare.held) == 0 {
		return 0
	}
	return slices.Max(spare.held)
}

// follow sets GOMAXPROCS to the process's current share of the machine plus the spare
// processors. The caller holds spare.mu.
func follow() {
	runtime.SetDefaultGOMAXPROCS()
	n := largest()
	if n == 0 {
		if spare.timer != nil {
			spare.timer.Stop()
		}
		return
	}
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + n)
	if spare.timer != nil {
		spare.timer.Reset(followEvery)
		return
	}
	spare.timer = time.AfterFunc(followEvery, func() {
		spare.mu.Lock()
		defer spare.mu.Unlock()
		if len(spare.held) > 0 {
			follow()
		}
	})
}
