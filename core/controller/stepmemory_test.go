//go:build !race && !invariants

package controller

import (
	"runtime"
	"testing"
)

// Work that grows with shards, sessions or bytes is done beside Step. Memory that is taken stands for it: what is
// hashed, encoded, or copied to be looked at later takes some.
func TestStepsTakeLittleMemory(t *testing.T) {
	const smaller = 4          // times, than what is measured
	most := map[string]uint64{ // bytes
		"report":                             400 << 10, // whatever the size
		"report, sessions":                   400 << 10,
		"compile":                            400 << 10,
		"collective program, 10,000 workers": 2 << 20,   // which all learn of each other
		"transfer of regions":                400 << 10, // most of it is 128 workers' messages
		"graph":                              400 << 10, // the same
		"slice":                              400 << 10, // of 1,024 devices: their list, and messages
		"slice, 8 requests wait":             400 << 10,
	}
	for _, c := range stepCases {
		if most[c.name] == 0 {
			continue
		}
		b := newBed(t, c.config(t), c.workers/smaller, c.devices)
		b.st.room(maxScratch) // which is used again
		for range c.sessions / smaller {
			b.joinClient()
		}
		if c.begin != nil {
			c.begin(b)
		}
		var before, after runtime.MemStats
		var taken uint64
		b.around = func(step func()) {
			runtime.ReadMemStats(&before)
			step()
			runtime.ReadMemStats(&after)
			taken = max(taken, after.TotalAlloc-before.TotalAlloc)
		}
		c.again(b, 0)
		c.again(b, 1)
		t.Logf("%s: %d KiB", c.name, taken>>10)
		if taken > most[c.name] {
			t.Errorf("%s: a step takes %d KiB of memory, want at most %d", c.name, taken>>10, most[c.name]>>10)
		}
	}
}
