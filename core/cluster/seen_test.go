package cluster_test

import (
	"crypto/sha256"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"testing/cryptotest"
	"time"

	"github.com/openpathways/pathways/core/bubble"
	"github.com/openpathways/pathways/core/wire"
)

// What makes a trial of the simulation repeat. Its goroutines run on one processor, so in the order in which they
// become ready, and no collection of garbage comes between. Each message and block arrives at a moment of its own, and
// where one moment has several, the code takes them in an order of its own, and not in a map's. Secrets and the pauses
// between attempts are drawn from the seed.
//
// The rest is the operating system's. If it runs something else for 10 ms where this process was about to go on, Go has
// the goroutine at hand wait behind the others that are ready, and if there are any, the trial goes another way. And
// under the race detector Go draws by itself which goroutine is next: so tests with it look for what any order shows.

// most is how much memory a trial may have before garbage is collected all the same.
const most = 2 << 30

// inBubble runs a trial so that it repeats, as far as can be.
func inBubble(t *testing.T, seed uint64, f func(t *testing.T)) {
	cryptotest.SetGlobalRandom(t, seed)
	runtime.GC()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(most))
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	bubble.Test(t, f)
}

// chance draws for some purpose. Each has draws of its own: where one comes earlier or later than in another run, the
// others are the same.
func (x *trial) chance(of ...string) *rand.Rand {
	key := strings.Join(of, " ")
	if x.chances[key] == nil {
		x.chances[key] = rand.New(rand.NewPCG(x.seed, hashOf(key)))
	}
	return x.chances[key]
}

func hashOf(text string) uint64 {
	h := fnv.New64()
	h.Write([]byte(text))
	return h.Sum64()
}

// seen is what can be seen of a trial: each message and block that arrives, with what is in it, and each end of an
// operation that a client hears of.
type seen struct {
	mu    sync.Mutex
	begun time.Time
	lines []string
}

func (s *seen) add(format string, args ...any) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, fmt.Sprintf("%v: ", time.Since(s.begun))+fmt.Sprintf(format, args...))
}

// arrived implements inproc.Conditions.Arrived.
func (s *seen) arrived(from, to string, kind wire.Kind, payload []byte) {
	if s != nil {
		s.add("from %s to %s: kind %d, %d bytes, %x", from, to, kind, len(payload), sha256.Sum256(payload))
	}
}
