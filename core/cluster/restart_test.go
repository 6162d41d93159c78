package cluster_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/cluster"
	"github.com/openpathways/pathways/core/controller"
	"github.com/openpathways/pathways/core/controller/durable"
	"github.com/openpathways/pathways/device/sim"
	"github.com/openpathways/pathways/transport/inproc"
)

// The controller dies and starts again, again and again under load, and each operation ends well, once.
func TestOperationsEndOnceWhileTheControllerStartsAgain(t *testing.T) {
	dir := t.TempDir()
	store := func() *durable.Store {
		s, err := durable.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	synctest.Test(t, func(t *testing.T) {
		drivers := simulatedOn(t, 2, sim.Options{Devices: 1, Island: sim.NewIsland(sim.Real, 1)})
		last := store()
		l, err := cluster.InProcess{Drivers: drivers, Heartbeat: silence / 4, Lease: 10 * time.Second, Store: last,
			Network: &inproc.Conditions{Delay: func(string, string) time.Duration { return time.Millisecond },
				Silence: silence}}.Start(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		const (
			restarts = 8
			kept     = 10 // rounds whose arrays are there; all of them would make each start, and each check, longer
		)
		ended := make(chan client.Ended, 1<<20)
		s, err := l.Connect(t.Context(), "c", func(batch []client.Ended) {
			for _, e := range batch {
				ended <- e
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second) // all have heard of one another
		var dead []*controller.Server
		restarted := make(chan error)
		go func() {
			for range restarts {
				time.Sleep(300 * time.Millisecond)
				server, err := l.Restart(func() *durable.Store { last = store(); return last })
				if err != nil {
					restarted <- err
					return
				}
				dead = append(dead, server)
			}
			restarted <- nil
		}()
		rounds, longest := uint64(0), time.Duration(0)
		for over := false; !over; rounds++ {
			i := rounds
			select {
			case err := <-restarted:
				if err != nil {
					t.Fatal(err)
				}
				over = true
			default:
			}
			object := carry(t, s, i)
			if i >= kept {
				s.Free([]uint64{object - 2*kept, object - 2*kept + 1})
			}
			if i%10 != 0 {
				continue
			}
			begun := time.Now()
			checkCarried(t, s, i, object)
			longest = max(longest, time.Since(begun))
		}
		t.Logf("%d rounds, the longest wait for a result %v", rounds, longest)
		seen := map[uint64]bool{}
		for range 2 * rounds {
			e := <-ended
			if e.Err != nil || seen[e.Token] {
				t.Fatalf("operation %d ended with %v, before: %v", e.Token, e.Err, seen[e.Token])
			}
			seen[e.Token] = true
		}
		if err := l.Check(); err != nil {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		l.Close()
		for _, server := range dead {
			server.Close()
		}
		last.Close()
	})
}
