//go:build !race && !invariants

package cluster_test

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// A seed repeats: the same messages arrive at the same moments, with the same in them, and the same operations end with
// the same errors. If the machine does something else meanwhile, some runs differ, so each seed has some; without what
// seen_test.go names, no two are equal.
func TestSeedsRepeat(t *testing.T) {
	const tries = 8
	for _, seed := range []uint64{1002, 1005, 1007, 1013} { // thousands of messages each, with restarts, losses and cuts
		var all [][]string
		repeats := func(lines []string) bool {
			return slices.ContainsFunc(all, func(other []string) bool { return slices.Equal(lines, other) })
		}
		for range tries {
			s := new(seen)
			t.Run(fmt.Sprint(seed), func(t *testing.T) {
				dir := t.TempDir()
				inBubble(t, seed, func(t *testing.T) {
					s.begun = time.Now()
					x := newTrial(t, seed, dir)
					x.seen = s
					x.run(0)
				})
			})
			if repeats(s.lines) {
				all = nil
				break
			}
			all = append(all, s.lines)
		}
		if len(all) == tries {
			t.Errorf("seed %d went %d ways in as many runs; %s", seed, tries, firstDifference(all[0], all[1]))
		}
	}
}

func firstDifference(a, b []string) string {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return fmt.Sprintf("line %d is %q, and then %q", i, a[i], b[i])
		}
	}
	return fmt.Sprintf("the first has %d lines, the second %d", len(a), len(b))
}
