package worker_test

import (
	"slices"
	"testing"
	"testing/synctest"

	"github.com/openpathways/pathways/core/bubble"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
)

// A worker whose device stands in a collective tells the controller for whom, until
// that one has come or gone.
func TestWaitInACollectiveIsReported(t *testing.T) {
	for _, comes := range []bool{true, false} {
		bubble.Test(t, func(t *testing.T) {
			s, d := newInline(t)
			s.tell(wire.KindPeers,
				&wire.Peers{Come: []*wire.Process{{Number: firstWorker, Name: "w0"}, {Number: firstWorker + 1, Name: "w1"}}})
			sum := &wire.Run{Op: 1, Program: sumProgram, FirstOutput: 1, Trace: []byte("train.py:3")}
			one := s.dispatch(1, wire.KindRun, sum, 0)
			d[0].enters(t, one)
			says := func(want ...string) {
				t.Helper()
				s.until("the wait in a heartbeat", func() bool { return slices.Equal(s.waits[0], want) })
			}
			says("device 0 has waited for 6s in collective 0 (all-reduce) of sum " +
				"(operation 1, called at train.py:3) for w1 (process 11)")
			says("device 0 has waited for 15s in collective 0 (all-reduce) of sum " +
				"(operation 1, called at train.py:3) for w1 (process 11)")
			s.mu.Lock()
			if len(s.waits[1]) > 0 {
				t.Errorf("who is waited for says %q", s.waits[1])
			}
			s.mu.Unlock()
			if comes {
				s.dispatchAs(one, 1, wire.KindRun, sum, 1)
				statustest.Check(t, s.wait(one, 0, 1))
			} else {
				s.tell(wire.KindPeers,
					&wire.Peers{Gone: []uint64{firstWorker + 1}, Why: wire.Of(status.New(status.Unavailable, "no word"))})
				statustest.Fails(t, "the run", s.wait(one, 0), status.Unavailable)
			}
			says()
		})
	}
}

// A device that has called a function of its client says so, until that returns.
func TestWaitForAClientsFunctionIsReported(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, _ := newInline(t)
		s.begin(&wire.Session{Session: 1,
			Client: &wire.Process{Number: clientProcess, Name: "notebook", User: "ada", Machine: "node1"}})
		one := s.dispatch(1, wire.KindRun,
			&wire.Run{Op: 1, Program: callsProgram, FirstOutput: 1, Trace: []byte("train.py:3")}, 0)
		s.until("the call in a heartbeat", func() bool {
			return slices.Equal(s.waits[0], []string{
				"device 0 has waited for 6s in calls (operation 1, called at train.py:3) for a function of its client, " +
					"session 1, notebook of ada on node1 (process 1)"})
		})
		key := transport.Key{Space: transport.Transfers(1), ID: 1, Part: 2}
		s.client.Expect(firstWorker, key, 0, nil, func(b transport.Block, err error) {
			if err != nil {
				t.Error(err)
			} else {
				b.Release()
			}
		})
		key.Part++
		s.client.PushBytes(firstWorker, key, nil, nil)
		statustest.Check(t, s.wait(one, 0))
		s.until("a heartbeat without it", func() bool { return len(s.waits[0]) == 0 })
	})
}

// Devices that have met for a launch wait for each other no more, also where nothing comes
// after it.
func TestDevicesThatHaveMetDoNotWait(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 3, addOne())
		w.must(w.put(1, 1, 1, w.devices, ramp), w.run(1, 2, 1, 2, 1))
		synctest.Wait()
		if all := w.workers[0].Waits(); len(all) > 0 {
			t.Errorf("all that was dispatched has ended, and the worker waits: %+v", all)
		}
		w.free(1, 2)
	})
}
