package executor_test

import (
	"testing"
	"testing/synctest"

	"github.com/openpathways/pathways/core/executor"
	"github.com/openpathways/pathways/core/schedule"
	"github.com/openpathways/pathways/core/status"
)

// island runs f in a bubble in which synctest.Wait returns when nothing moves,
// with an island of so many cells, closed at the end.
func island(t *testing.T, cells int, c schedule.Config, f func(t *testing.T, is *executor.Island)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		is := executor.NewIsland(newCells(cells), c)
		defer is.Close()
		f(t, is)
	})
}

// arm submits a gang that must have to wait and hands over its work.
func arm(t *testing.T, is *executor.Island, devices schedule.DeviceSet, after ...uint64) (uint64, *work) {
	t.Helper()
	turn := enter(t, is, devices, after...)
	if turn.Now || turn.Cell != nil {
		t.Fatalf("a gang on devices %v was given its turn, want it to wait", devices)
	}
	w := new(work)
	is.Arm(turn.Gang, w)
	return turn.Gang, w
}

// now submits a gang that must be given its turn at once.
func now(t *testing.T, is *executor.Island, devices schedule.DeviceSet, after ...uint64) executor.Turn {
	t.Helper()
	turn := enter(t, is, devices, after...)
	if !turn.Now {
		t.Fatalf("a gang on devices %v has to wait, want its turn at once", devices)
	}
	if many := devices.Len() > 1; many != (turn.Cell != nil) {
		t.Fatalf("a gang on devices %v has cell %v", devices, turn.Cell)
	}
	return turn
}

func TestOneDevicePassesAtOnce(t *testing.T) {
	island(t, 4, schedule.Config{}, func(t *testing.T, is *executor.Island) {
		all := now(t, is, span(0, 8))
		seen := map[uint64]bool{all.Gang: true}
		for d := range 8 {
			one := now(t, is, span(d, d+1))
			if seen[one.Gang] || one.Gang == 0 {
				t.Errorf("gang number %d was given before", one.Gang)
			}
			seen[one.Gang] = true
		}
		if n, ever := is.Queued(); n != 0 || ever != 0 {
			t.Errorf("%d gangs wait and %d had to, want none", n, ever)
		}
		end(is, all)
	})
}

func TestLanes(t *testing.T) {
	island(t, 4, schedule.Config{}, func(t *testing.T, is *executor.Island) {
		left, right := now(t, is, span(0, 4)), now(t, is, span(4, 8))
		mid, middle := arm(t, is, span(2, 6))
		_, last := arm(t, is, span(0, 8))
		if n, ever := is.Queued(); n != 2 || ever != 2 {
			t.Errorf("%d gangs wait and %d had to, want 2 and 2", n, ever)
		}
		end(is, left)
		synctest.Wait()
		middle.waits(t, "half of its lanes are taken")
		hold := make(chan struct{})
		middle.body = func(uint64) { <-hold }
		end(is, right)
		synctest.Wait()
		middle.runs(t, "its lanes are free")
		last.waits(t, "the gang before it is being launched")
		if middle.launched[0] != mid {
			t.Errorf("Launch was given gang %d, want %d", middle.launched[0], mid)
		}
		close(hold)
		synctest.Wait()
		last.runs(t, "the last gang")
		now(t, is, span(0, 8))
	})
}

// The end of a launch that nobody waits for is seen by the next gang.
func TestEndIsSeenLater(t *testing.T) {
	island(t, 1, schedule.Config{}, func(t *testing.T, is *executor.Island) {
		for range 3 {
			turn := now(t, is, span(0, 8))
			if was := turn.Cell.Or(executor.CellEnded); was != 0 {
				t.Fatalf("the cell was %d, want 0", was)
			}
		}
	})
}

// The end of a launch that a gang waits for is reported.
func TestEndIsWanted(t *testing.T) {
	island(t, 2, schedule.Config{}, func(t *testing.T, is *executor.Island) {
		a := now(t, is, span(0, 8))
		_, b := arm(t, is, span(0, 8))
		if was := a.Cell.Or(executor.CellEnded); was != executor.CellWanted {
			t.Fatalf("the cell was %d, want %d", was, executor.CellWanted)
		}
		synctest.Wait()
		b.waits(t, "the end was not reported yet")
		is.Report(a.Gang)
		synctest.Wait()
		b.runs(t, "the end was reported")
		for _, gang := range []uint64{a.Gang, 12345} { // a second time, and of no gang
			is.Report(gang)
			is.Launched(gang)
			is.Completed(gang)
		}
		now(t, is, span(0, 8))
	})
}

// Who gives a turn back may use Completed, whether there is a cell or not.
func TestCompletedWithCell(t *testing.T) {
	island(t, 1, schedule.Config{}, func(t *testing.T, is *executor.Island) {
		for range 3 {
			a := now(t, is, span(0, 8))
			is.Completed(a.Gang) // its cell does not say so
			_, b := arm(t, is, span(0, 8))
			synctest.Wait()
			b.waits(t, "behind a gang whose cell says nothing")
			a.Cell.Or(executor.CellEnded)
			is.Completed(a.Gang)
			synctest.Wait()
			b.runs(t, "behind a gang that is done")
		}
	})
}

// The island may see the end before the thread reports it, and give the cell to
// another gang: the late report is not about that one.
func TestLateReport(t *testing.T) {
	island(t, 1, schedule.Config{}, func(t *testing.T, is *executor.Island) {
		a := now(t, is, span(0, 4))
		_, b := arm(t, is, span(0, 4))
		a.Cell.Or(executor.CellEnded)
		c := now(t, is, span(4, 8)) // sees it
		synctest.Wait()
		b.runs(t, "the end was seen")
		if c.Cell != a.Cell {
			t.Fatal("the cell is not used again")
		}
		_, d := arm(t, is, span(4, 8))
		is.Report(a.Gang)
		synctest.Wait()
		d.waits(t, "the gang before it has not ended")
		end(is, c)
		synctest.Wait()
		d.runs(t, "the gang before it has ended")
	})
}

// A gang gives up its lanes when it has been launched, before it is done.
func TestLaunchedGivesUpLanes(t *testing.T) {
	island(t, 4, schedule.Config{}, func(t *testing.T, is *executor.Island) {
		unseen := now(t, is, span(0, 8))
		tell(is, unseen, executor.CellLaunched)
		a := now(t, is, span(0, 8), unseen.Gang)
		_, b := arm(t, is, span(0, 8), a.Gang)
		tell(is, a, executor.CellLaunched)
		synctest.Wait()
		b.runs(t, "behind a gang that has been launched")
		c := now(t, is, span(0, 8))
		if c.Cell == a.Cell || c.Cell == unseen.Cell {
			t.Error("a gang was given the cell of one that is not done")
		}
		if turn, err := is.Enter(&schedule.Gang{Devices: span(0, 8), After: []uint64{a.Gang}}, true); err != nil || !turn.Now {
			t.Errorf("from a callback, reading from what has been launched: %+v, %v; want its turn", turn, err)
		}
		for _, turn := range []executor.Turn{c, a, unseen} {
			end(is, turn)
		}
	})
}

// A gang that the island launches gives up its lanes when Launch returns; its end
// may come before that.
func TestUnderWay(t *testing.T) {
	for _, early := range []bool{false, true} {
		island(t, 4, schedule.Config{}, func(t *testing.T, is *executor.Island) {
			is.Bound(3)
			a := now(t, is, span(0, 8))
			b := enter(t, is, span(0, 8))
			_, c := arm(t, is, span(0, 8))
			w := &work{underWay: true, body: func(gang uint64) {
				if early {
					is.Completed(gang)
				}
			}}
			is.Arm(b.Gang, w)
			end(is, a)
			synctest.Wait()
			w.runs(t, "in its turn")
			c.runs(t, "behind what has been launched")
			if !early {
				full(t, is, span(0, 8), func() { end(is, enter(t, is, span(0, 8))) }, func() { is.Completed(b.Gang) }, 2)
			}
			for range 4 {
				end(is, now(t, is, span(0, 8)))
			}
		})
	}
}

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
func TestBound(t *testing.T) {
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
			turn, err := is.Enter(&schedule.Gang{Devices: span(0, 8), After: after}, true)
			if err != nil || turn.Now != (after == nil) {
				t.Errorf("from a callback, after %v: %+v, %v", after, turn, err)
			}
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
			if _, err := is.Enter(&schedule.Gang{Devices: span(0, 8)}, false); status.CodeOf(err) != status.Unavailable {
				t.Errorf("Enter that waited for room: %v", err)
			}
		}, is.Close, 0)
		end(is, a)
	})
}

// Gangs for which there is no cell are launched by the island.
func TestCellsExhausted(t *testing.T) {
	island(t, 1, schedule.Config{}, func(t *testing.T, is *executor.Island) {
		a := now(t, is, span(0, 4))
		b := enter(t, is, span(4, 8))
		if b.Now || b.Cell != nil {
			t.Fatal("a second gang was given the one cell")
		}
		_, c := arm(t, is, span(4, 8)) // behind b, which has its turn and no work yet
		w := new(work)
		synctest.Wait()
		c.waits(t, "the gang before it is not armed")
		is.Arm(b.Gang, w)
		synctest.Wait()
		w.runs(t, "a gang with free lanes and no cell")
		c.runs(t, "the gang behind it")
		end(is, a)
		end(is, now(t, is, span(4, 8)))
	})
	island(t, 0, schedule.Config{}, func(t *testing.T, is *executor.Island) {
		_, w := arm(t, is, span(0, 8))
		synctest.Wait()
		w.runs(t, "on an island without cells")
		now(t, is, span(0, 1))
	})
}

func TestArmAfterTheTurnHasCome(t *testing.T) {
	island(t, 2, schedule.Config{}, func(t *testing.T, is *executor.Island) {
		a := now(t, is, span(0, 8))
		b := enter(t, is, span(0, 8))
		_, c := arm(t, is, span(0, 8))
		end(is, a)
		synctest.Wait()
		c.waits(t, "the gang before it is not armed")
		w := new(work)
		is.Arm(b.Gang, w)
		synctest.Wait()
		w.runs(t, "armed after its turn had come")
		c.runs(t, "behind it")
	})
}

func TestArmOfAGangThatDoesNotWait(t *testing.T) {
	island(t, 1, schedule.Config{}, func(t *testing.T, is *executor.Island) {
		w := new(work)
		is.Arm(12345, w)
		synctest.Wait()
		w.fails(t, "a gang that was never submitted", status.Internal)
		if err := is.Await(12345); status.CodeOf(err) != status.Internal {
			t.Errorf("Await of a gang that was never submitted: %v", err)
		}
	})
}

func TestAwait(t *testing.T) {
	for _, late := range []bool{false, true} {
		island(t, 2, schedule.Config{}, func(t *testing.T, is *executor.Island) {
			a := now(t, is, span(0, 8))
			b := enter(t, is, span(0, 8))
			_, c := arm(t, is, span(0, 8))
			if late { // the turn comes first
				end(is, a)
			}
			done := false
			go func() {
				if err := is.Await(b.Gang); err != nil {
					t.Errorf("Await: %v", err)
				}
				done = true
			}()
			synctest.Wait()
			if done != late {
				t.Errorf("Await has returned: %v, want %v", done, late)
			}
			if !late {
				end(is, a)
				synctest.Wait()
			}
			if !done {
				t.Error("the turn has come and Await waits")
			}
			c.waits(t, "behind a launch that has not ended")
			end(is, b)
			synctest.Wait()
			c.runs(t, "behind a launch that has ended")
		})
	}
}

// Close fails what waits, waits for what the island launches, and nothing is
// launched from then on.
func TestClose(t *testing.T) {
	island(t, 1, schedule.Config{}, func(t *testing.T, is *executor.Island) {
		hold := make(chan struct{})
		running := &work{body: func(uint64) { <-hold }}
		own := now(t, is, span(0, 2))
		is.Arm(enter(t, is, span(2, 8)).Gang, running) // there is no cell for it
		turned := enter(t, is, span(8, 16))            // has its turn, is armed late
		p, queued := arm(t, is, span(0, 8))
		_, reads := arm(t, is, span(0, 1), p)
		_, behind := arm(t, is, span(0, 8))
		late, awaited := enter(t, is, span(0, 8)), enter(t, is, span(0, 8))
		var verdict error
		go func() { verdict = is.Await(awaited.Gang) }()
		synctest.Wait()
		running.runs(t, "a gang with free lanes")

		closed := false
		go func() { is.Close(); closed = true }()
		synctest.Wait()
		if closed {
			t.Error("Close has returned while the island launches")
		}
		for what, w := range map[string]*work{"queued": queued, "reads what is queued": reads, "behind": behind} {
			w.fails(t, what, status.Cancelled)
		}
		if status.CodeOf(verdict) != status.Cancelled {
			t.Errorf("Await of a queued gang: %v", verdict)
		}
		if _, err := is.Enter(&schedule.Gang{Devices: span(0, 1)}, false); status.CodeOf(err) != status.Unavailable {
			t.Errorf("Enter after Close: %v", err)
		}
		if _, err := is.Enter(&schedule.Gang{Devices: span(0, 1)}, true); status.CodeOf(err) != status.Unavailable {
			t.Errorf("Enter from a callback after Close: %v", err)
		}
		close(hold)
		synctest.Wait()
		if !closed {
			t.Error("Close waits although nothing is launched")
		}
		running.runs(t, "the launch that Close has waited for")
		for what, turn := range map[string]executor.Turn{"queued": late, "with its turn": turned} {
			w := new(work)
			is.Arm(turn.Gang, w)
			synctest.Wait()
			w.fails(t, "armed after Close, "+what, status.Cancelled)
		}
		end(is, own)
		if n, _ := is.Queued(); n != 0 {
			t.Errorf("%d gangs wait after Close", n)
		}
		is.Close()
	})
	island(t, 0, schedule.Config{}, func(t *testing.T, is *executor.Island) {
		turn := enter(t, is, span(0, 8))
		is.Close()
		if err := is.Await(turn.Gang); status.CodeOf(err) != status.Cancelled {
			t.Errorf("Await after Close of a gang whose turn had come: %v", err)
		}
	})
}

// Close starts nothing, although what it fails sets lanes free.
func TestCloseStartsNothing(t *testing.T) {
	for range 50 { // whatever the order in which Close comes to them
		island(t, 1, schedule.Config{}, func(t *testing.T, is *executor.Island) {
			a := now(t, is, span(0, 2))
			p, _ := arm(t, is, span(0, 2))
			_, reads := arm(t, is, span(2, 4), p) // has its lanes, waits for p
			_, behind := arm(t, is, span(2, 4))   // waits for its lanes
			is.Close()
			synctest.Wait()
			reads.fails(t, "reads what waits", status.Cancelled)
			behind.fails(t, "behind it", status.Cancelled)
			end(is, a)
		})
	}
}

// A full queue makes Enter wait, for whatever gang, until there is room.
func TestFullQueue(t *testing.T) {
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
			synctest.Wait()
			b.runs(t, "the first of the queue")
			if len(entered) != 1 {
				t.Fatal("Enter waits, and there is room")
			}
			turn := <-entered
			if want := devices.Len() == 1 || devices.Has(8); turn.Now != want {
				t.Errorf("on devices %v: turn given %v, want %v", devices, turn.Now, want)
			}
			w := new(work)
			if !turn.Now {
				is.Arm(turn.Gang, w)
			}
			close(hold)
			synctest.Wait()
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

// A launch that has ended unseen makes room for whoever finds the queue full.
func TestFullQueueSeesEnd(t *testing.T) {
	island(t, 4, schedule.Config{MaxQueued: 1}, func(t *testing.T, is *executor.Island) {
		a := now(t, is, span(0, 8))
		_, b := arm(t, is, span(0, 8))
		a.Cell.Or(executor.CellEnded) // the thread has not come to report it
		turn := enter(t, is, span(0, 1))
		if !turn.Now {
			t.Error("a gang of one device has to wait")
		}
		synctest.Wait()
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
			if err := <-errs; status.CodeOf(err) != status.Unavailable {
				t.Errorf("Enter that waited for room: %v", err)
			}
		}
		w := new(work)
		is.Arm(b.Gang, w)
		synctest.Wait()
		w.fails(t, "queued", status.Cancelled)
		end(is, a)
	})
}

// A gang starts when those that it reads from have been launched, wherever they
// are and whoever launches them.
func TestAfter(t *testing.T) {
	island(t, 4, schedule.Config{}, func(t *testing.T, is *executor.Island) {
		a := now(t, is, span(0, 2))
		b, wb := arm(t, is, span(0, 2))
		c, wc := arm(t, is, span(4, 6), b)
		_, wd := arm(t, is, span(7, 8), c, b)
		other := now(t, is, span(6, 8)) // not in their way
		end(is, other)
		hold := make(chan struct{})
		wb.body = func(uint64) { <-hold }
		end(is, a)
		synctest.Wait()
		wb.runs(t, "the first of the chain")
		wc.waits(t, "reads from a gang that is being launched")
		close(hold)
		synctest.Wait()
		wc.runs(t, "the second of the chain")
		wd.runs(t, "the end of the chain, of one device")
		end(is, now(t, is, span(0, 8), a.Gang, b, c, 12345)) // all have been launched
	})
}

func TestAfterOwnLaunch(t *testing.T) {
	for _, devices := range []schedule.DeviceSet{span(0, 4), span(4, 8), span(5, 6)} {
		island(t, 4, schedule.Config{}, func(t *testing.T, is *executor.Island) {
			a := now(t, is, span(0, 4))
			_, w := arm(t, is, devices, a.Gang)
			synctest.Wait()
			w.waits(t, "reads from a gang that its thread launches")
			end(is, a)
			synctest.Wait()
			w.runs(t, "reads from a gang that its thread has launched")
		})
	}
}

// A gang without devices fails, and what reads from it is told by its results.
func TestNoDevices(t *testing.T) {
	island(t, 4, schedule.Config{}, func(t *testing.T, is *executor.Island) {
		bad, w := arm(t, is, schedule.DeviceSet{})
		synctest.Wait()
		w.fails(t, "a gang without devices", status.InvalidArgument)
		a := now(t, is, span(0, 8), bad)
		if turn, err := is.Enter(&schedule.Gang{Devices: span(0, 8), After: []uint64{bad}}, true); err != nil || !turn.Now {
			t.Errorf("from a callback, reading from what has failed: %+v, %v; want its turn", turn, err)
		}
		end(is, a)
		if n, _ := is.Queued(); n != 0 {
			t.Errorf("%d gangs wait", n)
		}
	})
}

// A gang from inside a callback is part of the turn which that callback's gang
// holds.
func TestNested(t *testing.T) {
	island(t, 4, schedule.Config{MaxQueued: 1}, func(t *testing.T, is *executor.Island) {
		nested := func(after ...uint64) executor.Turn {
			turn, err := is.Enter(&schedule.Gang{Devices: span(0, 8), After: after}, true)
			if err != nil {
				t.Fatalf("Enter: %v", err)
			}
			return turn
		}
		early := now(t, is, span(8, 16))
		a := now(t, is, span(0, 8))
		end(is, early) // unseen
		if turn := nested(); !turn.Now || turn.Cell != nil {
			t.Errorf("from a callback: %+v, want its turn and no cell", turn)
		}
		if turn := nested(early.Gang, 12345); !turn.Now || turn.Cell != nil {
			t.Errorf("from a callback, reading from what has been launched: %+v, want its turn and no cell", turn)
		}
		b, w := arm(t, is, span(16, 32), a.Gang)
		if turn := nested(); !turn.Now {
			t.Error("from a callback with a full queue: has to wait")
		}
		end(is, a)
		synctest.Wait()
		w.runs(t, "after the gang with the callbacks")

		a = now(t, is, span(0, 4))
		b, w = arm(t, is, span(0, 4))
		done := make(chan executor.Turn, 1)
		go func() { done <- nested(b) }() // the queue is full
		synctest.Wait()
		if len(done) > 0 {
			t.Error("from a callback, reading from what waits: has its turn")
		}
		end(is, a)
		turn := <-done
		if !turn.Now {
			if err := is.Await(turn.Gang); err != nil {
				t.Error(err)
			}
		}
		w.runs(t, "what it reads from")
		end(is, turn)
	})
}

// Under a policy with a window a gang waits for gangs that share no device with
// it.
func TestWindow(t *testing.T) {
	island(t, 4, schedule.Config{Policy: &schedule.FIFO{Window: 1}}, func(t *testing.T, is *executor.Island) {
		a := now(t, is, span(0, 4))
		_, b := arm(t, is, span(4, 8))
		_, c := arm(t, is, span(4, 5))
		_, d := arm(t, is, span(8, 16))
		synctest.Wait()
		b.waits(t, "outside the window")
		c.waits(t, "outside the window, of one device")
		end(is, a)
		synctest.Wait()
		b.runs(t, "inside the window")
		c.runs(t, "inside the window, of one device")
		d.runs(t, "inside the window")
		now(t, is, span(0, 1))
	})
}

// lifo lets the newest gang go first and holds gangs back until it is opened.
type lifo struct {
	open bool
	held []*schedule.Gang
}

func (l *lifo) Push(g *schedule.Gang) { l.held = append(l.held, g) }

func (l *lifo) Pop() *schedule.Gang {
	n := len(l.held) - 1
	if !l.open || n < 0 {
		return nil
	}
	g := l.held[n]
	l.held = l.held[:n]
	return g
}

func (l *lifo) Remove(g *schedule.Gang) {}

func (l *lifo) Done(*schedule.Gang, int64) {}

// A policy may let others go when a gang comes, in the order that it wants.
func TestPolicyLetsOthersGo(t *testing.T) {
	for _, devices := range []schedule.DeviceSet{span(0, 1), span(0, 8)} {
		p := new(lifo)
		island(t, 4, schedule.Config{Policy: p}, func(t *testing.T, is *executor.Island) {
			_, a := arm(t, is, span(0, 8))
			_, b := arm(t, is, span(0, 8))
			synctest.Wait()
			a.waits(t, "held back")
			p.open = true
			c := now(t, is, devices)
			end(is, c)
			synctest.Wait()
			a.runs(t, "let go")
			b.runs(t, "let go")
		})
	}
}
