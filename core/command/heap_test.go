package command

import (
	"os"
	"runtime"
	"runtime/metrics"
	"strconv"
	"strings"
	"testing"

	"github.com/openpathways/pathways/core/status/statustest"
)

func TestGarbageIsCollectedSeldomAndTheBallastTakesNoMemory(t *testing.T) {
	resident := func() int {
		for line := range strings.Lines(string(statustest.Value(os.ReadFile("/proc/self/smaps_rollup")).OK(t))) {
			if f := strings.Fields(line); f[0] == "Rss:" {
				return statustest.Value(strconv.Atoi(f[1])).OK(t) << 10
			}
		}
		t.Fatal("the system does not say how much memory is resident")
		return 0
	}
	before := resident()
	collectSeldom()
	if took := resident() - before; took > leastHeap/4 {
		t.Errorf("the ballast of %d bytes takes %d bytes of memory", len(ballast), took)
	}
	runtime.GC()
	goal := []metrics.Sample{{Name: "/gc/heap/goal:bytes"}}
	metrics.Read(goal)
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	if room := goal[0].Value.Uint64() - live[0].Value.Uint64(); room < leastHeap {
		t.Errorf("the next collection comes after %d bytes, want %d", room, leastHeap)
	}
}
