package executor_test

import (
	"testing"
	"testing/synctest"

	"github.com/openpathways/pathways/core/executor"
	"github.com/openpathways/pathways/core/schedule"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
)

// full asserts that Enter has to wait after so many more gangs, until room is
// made.
func full(t *testing.T, is *executor.Island, devices schedule.DeviceSet, again func(), room func(), more int) {
	t.Helper()
	var turns []executor.Turn
	for range more {
		turns = append(turns, now(t, is, devices))
		tell(is, turns[len(turns)-1], executor.CellLaunched)
	}
	done := false
	go func() { again(); done = true }()
	synctest.Wait()
	if done {
		t.Error("Enter has returned, and as many gangs are under way as may be")
	}
	room()
	synctest.Wait()
	if !done {
		t.Error("Enter waits, and there is room")
	}
	for _, turn := range turns {
		end(is, turn)
	}
}

// So many gangs may wait or be under way; the next waits until one is done.
func TestFullIslandMakesTheNextGangWait(t *testing.T) {
	island(t, 8, schedule.Config{}, func(t *testing.T, is *executor.Island) {
		is.Bound(3)
		a := now(t, is, span(0, 8))
		tell(is, a, executor.CellLaunched)
		for range 2 { // the second time with what the first has left
			b := now(t, is, span(0, 8))
			full(t, is, span(8, 16), func() { end(is, enter(t, is, span(16, 24))) }, func() { end(is, b) }, 1)
		}
		b, c := now(t, is, span(0, 8)), now(t, is, span(8, 16))
		now(t, is, span(0, 1)) // of one device
		for _, after := range [][]uint64{nil, {b.Gang}} {
			turn := statustest.Value(is.Enter(&schedule.Gang{Devices: span(0, 8), After: after}, true)).OK(t)
			statustest.Equal(t, turn.Now, after == nil, "from a callback, after %v", after)
			if !turn.Now {
				is.Arm(turn.Gang, new(work))
			}
		}
		end(is, b)
		synctest.Wait()
		end(is, c)
		end(is, a)
	})
}

// What fails makes room too.
func TestBoundAfterFailure(t *testing.T) {
	for _, await := range []bool{false, true} {
		island(t, 1, schedule.Config{}, func(t *testing.T, is *executor.Island) {
			is.Bound(1)
			bad := enter(t, is, schedule.DeviceSet{})
			full(t, is, span(0, 8), func() { end(is, enter(t, is, span(0, 8))) }, func() {
				if !await {
					is.Arm(bad.Gang, new(work))
				} else if err := is.Await(bad.Gang); status.CodeOf(err) != status.InvalidArgument {
					t.Errorf("Await of a gang without devices: %v", err)
				}
			}, 0)
		})
	}
}

func TestCloseEndsWaitForBound(t *testing.T) {
	island(t, 4, schedule.Config{}, func(t *testing.T, is *executor.Island) {
		is.Bound(1)
		a := now(t, is, span(0, 8))
		full(t, is, span(0, 8), func() {
			statustest.Fails(t, "Enter that waited for room",
				statustest.Of(is.Enter(&schedule.Gang{Devices: span(0, 8)}, false)), status.Unavailable)
		}, is.Close, 0)
		end(is, a)
	})
}

// A full queue makes Enter wait, for whatever gang, until there is room.
func TestFullQueueMakesEnterWait(t *testing.T) {
	for _, devices := range []schedule.DeviceSet{span(0, 8), span(8, 16), span(0, 1)} {
		island(t, 4, schedule.Config{MaxQueued: 2}, func(t *testing.T, is *executor.Island) {
			a := now(t, is, span(0, 8))
			_, b := arm(t, is, span(0, 8))
			_, c := arm(t, is, span(0, 8))
			entered := make(chan executor.Turn, 1)
			go func() { entered <- enter(t, is, devices) }()
			synctest.Wait()
			if len(entered) > 0 {
				t.Fatal("Enter has returned, and the queue is full")
			}
			hold := make(chan struct{})
			b.body = func(uint64) { <-hold }
			end(is, a)
			b.runs(t, "the first of the queue")
			if len(entered) != 1 {
				t.Fatal("Enter waits, and there is room")
			}
			turn := <-entered
			statustest.Equal(t, turn.Now, devices.Len() == 1 || devices.Has(8), "on devices %v: turn given", devices)
			w := new(work)
			if !turn.Now {
				is.Arm(turn.Gang, w)
			}
			close(hold)
			c.runs(t, "the second of the queue")
			if !turn.Now {
				w.runs(t, "the gang that found the queue full")
			}
			end(is, turn)
		})
	}
}

// A turn makes room in the queue as soon as it comes, although nothing is done.
func TestFullQueueSeesTurn(t *testing.T) {
	island(t, 4, schedule.Config{MaxQueued: 1}, func(t *testing.T, is *executor.Island) {
		a := now(t, is, span(0, 8))
		b := enter(t, is, span(0, 8))
		entered := false
		go func() { enter(t, is, span(0, 1)); entered = true }()
		synctest.Wait()
		if entered {
			t.Error("Enter has returned, and the queue is full")
		}
		tell(is, a, executor.CellLaunched)
		synctest.Wait()
		if !entered {
			t.Error("Enter waits, and there is room")
		}
		end(is, b)
		end(is, a)
	})
}

// A launch whose end has not been seen makes room for a submission that finds the queue full.
func TestFullQueueSeesEnd(t *testing.T) {
	island(t, 4, schedule.Config{MaxQueued: 1}, func(t *testing.T, is *executor.Island) {
		a := now(t, is, span(0, 8))
		_, b := arm(t, is, span(0, 8))
		a.Cell.Or(executor.CellEnded) // the thread has not come to report it
		turn := enter(t, is, span(0, 1))
		if !turn.Now {
			t.Error("a gang of one device has to wait")
		}
		b.runs(t, "the gang that waited")
	})
}

func TestCloseEndsWaitForRoom(t *testing.T) {
	island(t, 4, schedule.Config{MaxQueued: 1}, func(t *testing.T, is *executor.Island) {
		a := now(t, is, span(0, 8))
		b := enter(t, is, span(0, 8)) // its work comes later, so nothing of the island's runs
		errs := make(chan error, 3)
		for range cap(errs) {
			go func() {
				_, err := is.Enter(&schedule.Gang{Devices: span(0, 8)}, false)
				errs <- err
			}()
		}
		synctest.Wait()
		is.Close()
		for range cap(errs) {
			statustest.Fails(t, "Enter that waited for room", <-errs, status.Unavailable)
		}
		w := new(work)
		is.Arm(b.Gang, w)
		w.fails(t, "queued", status.Cancelled)
		end(is, a)
	})
}
