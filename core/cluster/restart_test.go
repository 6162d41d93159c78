package cluster_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/bubble"
	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/cluster"
	"github.com/openpathways/pathways/core/controller/durable"
	"github.com/openpathways/pathways/core/controller/server"
	"github.com/openpathways/pathways/core/grant"
	"github.com/openpathways/pathways/core/placement"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/device/sim"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/inproc"
)

// lasting is a cluster of two workers whose controller dies and starts again on the same directory.
type lasting struct {
	*cluster.Local
	t    *testing.T
	dir  string
	last *durable.Store
	dead []*server.Server
}

// inLasting runs body beside one, on simulated time. Its processes wait for the controller for the time of the lease,
// and messages are so long on their way.
func inLasting(t *testing.T, lease, way time.Duration, body func(t *testing.T, l *lasting)) {
	dir := t.TempDir()
	bubble.Test(t, func(t *testing.T) {
		l := &lasting{t: t, dir: dir}
		var err error
		l.Local, err = cluster.InProcess{Heartbeat: silence / 4, Lease: lease, Store: l.store(),
			Drivers: simulatedOn(t, 2, sim.Options{Devices: 1, Island: sim.NewIsland(sim.Real, 1)}),
			Network: &inproc.Conditions{Delay: func(string, string) time.Duration { return way },
				Silence: silence}}.Start(t.Context())
		statustest.OK(t, err)
		body(t, l)
	})
}

func (l *lasting) store() *durable.Store {
	s, err := durable.Open(l.dir)
	statustest.Check(l.t, err)
	l.last = s
	return s
}

// restart ends the controller as if its process had died, and starts it again.
func (l *lasting) restart() {
	dead, err := l.Restart(l.store)
	statustest.Check(l.t, err)
	l.dead = append(l.dead, dead)
}

// end closes sessions, the cluster, and what has died.
func (l *lasting) end(sessions ...client.Cluster) {
	for _, s := range sessions {
		statustest.Check(l.t, s.Close())
	}
	l.Close()
	for _, server := range l.dead {
		server.Close()
	}
	l.last.Close()
}

// The controller dies and starts again, again and again under load, and each operation ends well, once.
func TestOperationsEndOnceWhileTheControllerStartsAgain(t *testing.T) {
	inLasting(t, 10*time.Second, time.Millisecond, func(t *testing.T, l *lasting) {
		const (
			restarts = 8
			kept     = 10 // rounds whose arrays are there; all of them would make each start, and each check, longer
		)
		s, ended := connectCollecting(t, l.Local, 1<<20)
		restarted := make(chan struct{})
		go func() {
			for range restarts {
				time.Sleep(300 * time.Millisecond)
				l.restart()
			}
			close(restarted)
		}()
		rounds, longest := uint64(0), time.Duration(0)
		for over := false; !over; rounds++ {
			i := rounds
			select {
			case <-restarted:
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
		checkEnds(t, ended, int(2*rounds))
		statustest.Check(t, l.Check())
		l.end(s)
	})
}

// Sessions keep their slices while the controller dies and starts again, and requests that wait keep their places: the
// one that asked first gets the devices when they are released, also where the other one comes back before it.
func TestSlicesOutliveTheirController(t *testing.T) {
	inLasting(t, 10*time.Second, time.Millisecond, func(t *testing.T, l *lasting) {
		var sessions []client.Cluster
		var requests []*grant.Request
		ask := func(name string) {
			s := statustest.Value(l.Connect(t.Context(), name, nil)).OK(t)
			r, err := s.Ask(placement.Want{Devices: 2, Exclusive: true}, grant.Terms{Wait: grant.Forever})
			statustest.OK(t, err)
			sessions, requests = append(sessions, s), append(requests, r)
			time.Sleep(time.Second)
		}
		for _, name := range []string{"owner", "first", "second"} {
			ask(name)
		}
		restart := func() {
			l.restart()
			time.Sleep(5 * time.Second) // all are back
		}
		places := func(when string, want ...int) {
			t.Helper()
			for i, r := range requests {
				if got, _ := r.Position(); got != want[i] {
					t.Errorf("%s request %d is the %d-th that waits, want %d", when, i, got, want[i])
				}
			}
		}
		places("at first", 0, 1, 2)
		restart()
		places("when the controller has started again", 0, 1, 2)
		statustest.Check(t, statustest.Of(sessions[2].Ask(placement.Want{Devices: 1}, grant.Terms{})))
		sessions[0].Release(requests[0].Number)
		if devices, err := requests[1].Wait(t.Context()); len(devices) != 2 {
			t.Errorf("the first that waited has %v, %v", devices, err)
		}
		restart()
		places("when it has started again once more", 0, 0, 1)
		sessions[1].Release(requests[1].Number)
		if devices, err := requests[2].Wait(t.Context()); len(devices) != 2 {
			t.Errorf("the second that waited has %v, %v", devices, err)
		}
		statustest.Check(t, l.Check())
		l.end(sessions...)
	})
}

// A session's profile goes on while the controller dies and starts again, also when it is just being begun or ended. It
// lacks a worker's part only if that worker had sent it, and its answer was on its way; then it says so.
func TestProfilesOutliveTheirController(t *testing.T) {
	const way = 100 * time.Millisecond // from process to process
	for _, c := range []struct {
		when  time.Duration // the controller dies, since the question was asked
		stop  bool          // to end the profile
		lacks int           // workers whose part is lost
	}{
		{when: way / 2}, {when: 3 * way / 2}, {when: 5 * way / 2}, {when: 7 * way / 2}, {when: 10 * way},
		{when: way / 2, stop: true}, {when: 5 * way / 2, stop: true}, {when: 9 * way / 2, stop: true, lacks: 2},
	} {
		t.Run(fmt.Sprint(c.when, c.stop), func(t *testing.T) {
			inLasting(t, 10*time.Second, way, func(t *testing.T, l *lasting) {
				s := statustest.Value(l.Connect(t.Context(), "c", func([]client.Ended) {})).OK(t)
				time.Sleep(10 * time.Second) // all have heard of one another
				restart := func() {
					time.Sleep(c.when)
					l.restart()
				}
				var restarted sync.WaitGroup
				if !c.stop {
					restarted.Go(restart)
				}
				stop := statustest.Value(s.StartProfile(t.Context())).OK(t)
				checkCarried(t, s, 0, carry(t, s, 0))
				restarted.Wait()
				checkCarried(t, s, 1, carry(t, s, 1))
				if c.stop {
					restarted.Go(restart)
				}
				p := stop(t.Context())
				restarted.Wait()
				lacks := 0
				for _, why := range p.Missing {
					if strings.Contains(why, "the controller was started again") {
						lacks++
					}
				}
				if lacks != c.lacks || len(p.Missing) != lacks {
					t.Errorf("the profile lacks %q, want %d workers", p.Missing, c.lacks)
				}
				ops := map[uint64]bool{} // of which workers have recorded something
				for _, e := range p.Events {
					if e.Worker != "" {
						ops[e.Op] = true
					}
				}
				if c.lacks == 0 && len(ops) < 6 {
					t.Errorf("workers have recorded operations %v, want all six", slices.Sorted(maps.Keys(ops)))
				}
				statustest.Check(t, s.Lost())
				l.end(s)
			})
		})
	}
}

// A client that connects while a controller that has started again waits for its cluster waits as well, even for longer
// than it usually waits for an answer.
func TestNewcomersWaitWhileOthersComeBack(t *testing.T) {
	const lease = 3 * transport.HelloTime
	inLasting(t, lease, time.Millisecond, func(t *testing.T, l *lasting) {
		l.Cut("worker-1")
		l.restart()
		begun := time.Now()
		s, err := l.Connect(t.Context(), "new", nil)
		statustest.OKf(t, err, "after %v", time.Since(begun))
		if took := time.Since(begun); took < lease/2 || len(s.Devices()) != 1 {
			t.Errorf("it was let in after %v, and has %d devices; the lost worker had until %v", took, len(s.Devices()), lease)
		}
		l.end(s)
	})
}

// A worker that has come back to a controller that has started again gets another connection in the place of one that
// breaks while the others are awaited.
func TestConnectionsAreMendedWhileOthersComeBack(t *testing.T) {
	const lease = 3 * transport.HelloTime
	inLasting(t, lease, time.Millisecond, func(t *testing.T, l *lasting) {
		l.Cut("worker-1")
		l.restart()
		for cuts := range uint64(2) { // by the start, and by Break
			time.Sleep(lease / 4)
			for _, w := range l.Report().Islands[0].Workers {
				if w.Process.Name == "worker-0" && (w.Link.Cuts != 1+cuts || w.Link.CutMs > 0) {
					t.Errorf("it is %+v; want a connection, cut %d times before", w.Link, 1+cuts)
				}
			}
			l.Break("worker-0")
		}
		l.end()
	})
}

// The controller dies just after it has let a worker in, before the worker hears of it. The worker then joins again at
// once: the controller does not wait for the one that it had let in.
func TestWorkerWhoseWelcomeWasLostJoinsAgainAtOnce(t *testing.T) {
	const lease = 3 * transport.HelloTime
	inLasting(t, lease, time.Millisecond, func(t *testing.T, l *lasting) {
		never := statustest.Value(l.Enter(t.Context(), "first try", []byte("me"))).OK(t)
		l.Cut("first try") // so it does not come back
		l.restart()
		begun := time.Now()
		conn := statustest.Value(l.Enter(t.Context(), "second try", []byte("me"))).OK(t)
		if took := time.Since(begun); took > lease/3 {
			t.Errorf("it was let in after %v, of a lease of %v", took, lease)
		}
		conn.Close()
		never.Close()
		l.end()
	})
}

// A controller that has started again gives no gang a number that its workers have had before, though they have
// forgotten what ended: blocks of collectives that came for it would be taken for late ones of the earlier gang.
func TestGangNumbersRiseOverStartsOfTheController(t *testing.T) {
	inLasting(t, 10*time.Second, time.Millisecond, func(t *testing.T, l *lasting) {
		s, _ := connectCollecting(t, l.Local, 2)
		checkCarried(t, s, 0, carry(t, s, 0))
		statustest.Check(t, s.Close())
		time.Sleep(time.Second) // the workers have dropped the session
		given := l.Report().Gangs
		l.restart()
		time.Sleep(5 * time.Second) // all are back
		if got := l.Report().Gangs; given == 0 || got < given {
			t.Errorf("%d gangs were given numbers, and the next one gets %d", given, got+1)
		}
		l.end()
	})
}

// A run whose program is forgotten behind it ends well, also where the controller dies when the run has ended, and its
// client has yet to hear so.
func TestRunsOfForgottenProgramsOutliveTheirController(t *testing.T) {
	const way = 100 * time.Millisecond // from process to process
	for _, when := range []time.Duration{way / 2, 3 * way / 2, 5 * way / 2, 7 * way / 2} {
		t.Run(fmt.Sprint(when), func(t *testing.T) {
			inLasting(t, 10*time.Second, way, func(t *testing.T, l *lasting) {
				s, ended := connectCollecting(t, l.Local, 3)
				object := carry(t, s, 0)
				p := statustest.Value(s.Compile(t.Context(), client.CompileSpec{Format: sim.Format,
					Code: addOne.Source().Code, Options: sim.CompileOptions([]int{1})})).OK(t)
				checkCarried(t, s, 0, object)
				statustest.OK(t, s.Run(&client.RunSpec{Program: p.ID, FirstOutput: s.Objects(1), Inputs: []uint64{object + 1},
					Only: -1, Token: 3}))
				s.Forget(p.ID)
				time.Sleep(when)
				l.restart()
				checkEnds(t, ended, 3)
				statustest.Check(t, l.Check())
				l.end(s)
			})
		})
	}
}
