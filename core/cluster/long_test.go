//go:build !race && !invariants

package cluster_test

import (
	"flag"
	"math/rand/v2"
	"testing"
)

// Programs that are longer than a frame, and than what is under way to a worker at one time.
func TestProgramThatNoFrameHolds(t *testing.T) {
	programsOf(t, 65<<20, 200<<20)
}

var sizesTo = flag.Int("sizes-to", usually(65, 200), "how many MiB the largest of all things has")

// Whatever a session sends, of any size, arrives, or fails with a sentence; the session goes on. All messages that a
// controller gets are tried by TestMessagesThatFillAFrame in core/controller.
func TestThingsOfAllSizes(t *testing.T) {
	l, _ := countedCluster(t, 2, nil)
	s := newSender(t, l, "a")
	s.r = rand.New(rand.NewPCG(1, 0))
	for _, thing := range things {
		for _, size := range []int{0, 63, 64, 65, 200} {
			if size > *sizesTo {
				break
			}
			if err := thing.send(s, size<<20); err != nil {
				t.Errorf("%s of %d MiB: %.300v", thing.name, size, err)
			}
		}
	}
	s.Free(numbers(65 << 20)) // none of them is there
	s.adds(s.run, 0)
}
