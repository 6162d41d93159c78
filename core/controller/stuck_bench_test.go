package controller

import (
	"testing"

	"github.com/openpathways/pathways/core/wire"
)

// What a Tick costs while a worker is silent and 10,000 operations are under way: on all workers, of which one was
// silent for a short time; on others than the one that was silent for long; and on that one alone, which may compute.
func BenchmarkTickWhileAWorkerIsSilent(b *testing.B) {
	const gangs, workers = 10_000, 8
	for _, c := range []struct {
		name   string
		on     uint32 // 1 + the device that they are on; 0 is all
		silent int64  // seconds
	}{{"on all, not for long", 0, 30}, {"on others", 1, 600}, {"on it alone", workers, 600}} {
		b.Run(c.name, func(b *testing.B) {
			bed := newBed(b, Config{Heartbeat: 1e9, StuckAfter: 60e9, FirstCome: true,
				Limits: Limits{Credit: 2 * gangs, Window: 4 * gangs, Objects: 4 * gangs}}, workers, 1)
			bed.loads(1, false)
			bed.puts(onAll(bed))
			for range gangs {
				if op := bed.next(); c.on == 0 {
					bed.say(bed.client, wire.KindRun, &wire.Run{Op: op, Program: 1, FirstOutput: op, Inputs: []uint64{1}})
				} else {
					bed.say(bed.client, wire.KindPut, &wire.Put{Op: op, Object: op, Array: scalar, Devices: []uint32{c.on - 1}})
				}
			}
			if n := len(bed.st.gangs); n != gangs {
				b.Fatalf("%d gangs are under way, want %d", n, gangs)
			}
			tick := func() { // all but the last are heard of
				bed.now += 1e9
				for _, w := range bed.workers[:workers-1] {
					bed.frame(w, wire.KindHeartbeat, nil)
				}
				bed.step(Event{Kind: Tick})
			}
			for range c.silent {
				tick()
			}
			b.ResetTimer()
			for range b.N {
				bed.step(Event{Kind: Tick})
			}
			b.StopTimer()
			if n := len(bed.st.gangs); n != gangs {
				b.Fatalf("%d gangs are under way after the ticks, want %d", n, gangs)
			}
		})
	}
}
