package host

import (
	"os"
	"runtime"
	"slices"
	"sync"
	"time"
)

const (
	// maxSpare is how many processors there are more at most.
	maxSpare = 64
	// followEvery is how often the process's share of the machine is looked at while it is
	// exceeded. Go looks every second, and stops the world where it has changed; here that
	// is three times for about 20 µs each time.
	followEvery = 30 * time.Second
)

var spare struct {
	mu    sync.Mutex // guards what follows
	held  []int      // by those who have not given them back
	timer *time.Timer
}

// Spare gives Go so many processors (GOMAXPROCS) more than the process's share of the
// machine has, until giveBack is called; a second call of that does nothing. What several
// ask for is not added up: there are as many as the largest of them wants. Where the user
// has said how many there are, by the environment, it stays at that.
//
// A goroutine that waits in C keeps its processor until the runtime's monitor takes it,
// after 70 µs at best. What others have to do would wait for that where the processors are
// no more than those of a small machine.
//
// Go follows the limits of control groups by itself only until a program says how many
// processors there are. While some are spare they are followed here, and after that by Go
// again.
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

// largest returns what is held. The caller holds spare.mu.
func largest() int {
	if len(spare.held) == 0 {
		return 0
	}
	return slices.Max(spare.held)
}

// follow sets the processors: those of the process's share of the machine as it is now, and
// what is held. The caller holds spare.mu.
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
