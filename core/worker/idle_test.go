package worker

import (
	"testing"
	"time"

	"github.com/openpathways/pathways/core/status/statustest"
)

// A process is idle from the last look on before which it used more than a little processor time.
func TestProcessIsIdleWhileItUsesHardlyAnyProcessorTime(t *testing.T) {
	const some, hardly = time.Second / idleShare * 2, time.Second / idleShare / 2
	begun := time.Unix(1000, 0)
	i := idleness{looked: begun, since: begun}
	used := time.Duration(0)
	for n, c := range []struct{ uses, idle time.Duration }{
		{hardly, 1}, {hardly, 2}, {some, 0}, {hardly, 1}, {0, 2}, {hardly, 3}, {time.Second, 0}, {2 * time.Second, 0},
	} {
		used += c.uses
		got := i.look(begun.Add(time.Duration(n+1)*time.Second), used)
		statustest.Equal(t, got, c.idle*time.Second, "idle after %d s", n+1)
	}
}
