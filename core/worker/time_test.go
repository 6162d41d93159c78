package worker_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/openpathways/pathways/core/bubble"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

// took checks the device time that a worker reported of a gang.
func (s *script) took(worker int, gang uint64, want time.Duration) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if got := s.spent[worker][gang]; got != want {
		s.t.Errorf("worker %d reported %v of device time for gang %d, want %v", worker, got, gang, want)
	}
}

func TestTheTimeOfComputationsThatQueueOnADeviceIsCountedOnce(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, d := newInline(t)
		slow := func(op uint64) uint64 {
			return s.dispatch(1, wire.KindRun, &wire.Run{Op: op, Program: slowProgram, FirstOutput: op}, 0)
		}
		one, two := slow(1), slow(2)
		synctest.Wait()
		for i, gang := range []uint64{one, two} {
			time.Sleep(time.Duration(3-i) * time.Second)
			d[0].slow.end(gang, nil)
			statustest.Check(t, s.wait(gang, 0))
		}
		s.took(0, one, 3*time.Second)
		s.took(0, two, 2*time.Second)
		time.Sleep(time.Second) // while the device idles
		three := slow(3)
		synctest.Wait()
		time.Sleep(time.Second)
		d[0].slow.end(three, nil)
		statustest.Check(t, s.wait(three, 0))
		s.took(0, three, time.Second)
	})
}

func TestTheTimeInWhichADeviceWaitsInACollectiveIsDeviceTime(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, d := newInline(t)
		sum := s.dispatch(1, wire.KindRun, &wire.Run{Op: 1, Program: sumProgram, FirstOutput: 1}, 0)
		d[0].enters(t, sum)
		time.Sleep(4 * time.Second)
		s.dispatchAs(sum, 1, wire.KindRun, &wire.Run{Op: 1, Program: sumProgram, FirstOutput: 1}, 1)
		statustest.Check(t, s.wait(sum, 0, 1))
		s.took(0, sum, 4*time.Second)
		s.took(1, sum, 0)
	})
}
