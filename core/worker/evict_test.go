package worker_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/openpathways/pathways/core/bubble"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/worker"
)

// A worker that cannot get through with the computation of a session that has gone
// tells the controller why its arrays are lost, and restarts. It leaves alone what
// lives, and what only waits behind the computation of a session that lives.
func TestWorkerRestartsWhenAnAbandonedRunDoesNotEnd(t *testing.T) {
	const after = time.Minute
	for _, c := range []struct {
		name    string
		runs    []uint32 // sessions, in order
		goes    uint32   // the session that ends ten seconds later, and the other one
		ends    int      // of runs: this one ends 30 s after that; -1: none
		after   time.Duration
		evicted time.Duration // after the session ended; 0: never
	}{
		{name: "its session goes", runs: []uint32{1}, goes: 1, ends: -1, after: after, evicted: after},
		{name: "its session lives", runs: []uint32{1}, goes: 2, ends: -1, after: after},
		{name: "behind one that lives", runs: []uint32{2, 1}, goes: 1, ends: -1, after: after},
		{name: "behind one that ended", runs: []uint32{2, 1}, goes: 1, ends: 0, after: after,
			evicted: 30*time.Second + after},
		{name: "before one that lives", runs: []uint32{1, 2}, goes: 1, ends: -1, after: after, evicted: after},
		{name: "another of the same session", runs: []uint32{1, 1}, goes: 1, ends: 0, after: after,
			evicted: 30*time.Second + after},
		{name: "it ends", runs: []uint32{1}, goes: 1, ends: 0, after: after},
		{name: "never", runs: []uint32{1}, goes: 1, ends: -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				evicted := make(chan error, 1)
				s, d := newInlineWith(t, func(w *worker.Config) {
					w.EvictAfter, w.Evict = c.after, func(why error) { evicted <- why }
				})
				for session, name := range []string{1: "notebook", 2: "trainer"} {
					if session > 0 {
						s.begin(&wire.Session{Session: uint32(session), Client: &wire.Process{Number: uint64(session), Name: name,
							User: "ada", Machine: "node1"}})
					}
				}
				s.tellOne(0, wire.KindLoad,
					&wire.Load{Session: 2, Program: slowProgram, Name: "slow", Devices: []*wire.Devices{{Count: 1}},
						Outputs: []*wire.Array{{}}, Loadable: &wire.Loadable{Form: wire.Loadable_PORTABLE, Serialized: []byte("slow")}})
				var gangs []uint64
				for i, session := range c.runs {
					gangs = append(gangs,
						s.dispatch(session, wire.KindRun,
							&wire.Run{Op: uint64(i + 1), Program: slowProgram, FirstOutput: 1, Trace: []byte("train.py:3")}, 0))
				}
				time.Sleep(10 * time.Second)
				s.tell(wire.KindDrop,
					&wire.Drop{Session: c.goes, Status: wire.Of(status.New(status.Unavailable, "the client was killed"))})
				gone := time.Now()
				if c.ends >= 0 {
					time.Sleep(30 * time.Second)
					d[0].slow.end(gangs[c.ends], nil)
				}
				select {
				case why := <-evicted:
					// Workers look once a second.
					if took := time.Since(gone); c.evicted == 0 || took < c.evicted || took > c.evicted+2*time.Second {
						t.Errorf("the worker restarts after %v, want %v", took, c.evicted)
					}
					for _, part := range []string{"worker w0", "slow (operation", "called at train.py:3",
						"session 1, notebook of ada on node1", "device 0", "--evict-after is 1m0s", "pathways.events()"} {
						statustest.Fails(t, "the error", why, status.DataLoss, part)
					}
					s.until("the goodbye", func() bool { return s.goodbye[0] != nil })
					statustest.Fails(t, "what the controller is told", s.goodbye[0], status.DataLoss, why.Error())
				case <-time.After(10 * after):
					if c.evicted > 0 {
						t.Error("the worker does not restart")
					}
				}
				for i, g := range gangs {
					if i != c.ends {
						d[0].slow.end(g, nil)
					}
				}
				synctest.Wait()
				s.mu.Lock()
				defer s.mu.Unlock()
				if c.evicted == 0 && !slices.Equal(s.goodbye, make([]error, 2)) {
					t.Errorf("a worker said goodbye: %v", s.goodbye)
				}
			})
		})
	}
}
