package executor_test

import (
	"testing"
	"testing/synctest"

	"github.com/openpathways/pathways/core/bubble"
	"github.com/openpathways/pathways/core/executor"
	"github.com/openpathways/pathways/core/schedule"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
)

// island runs f in a bubble in which synctest.Wait returns when nothing moves,
// with an island of so many cells, closed at the end.
func island(t *testing.T, cells int, c schedule.Config, f func(t *testing.T, is *executor.Island)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
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

// While the word of ShowPass is 1, a gang of one device that comes after no other would have its turn at once.
func TestShownPassMeansATurnAtOnce(t *testing.T) {
	island(t, 4, schedule.Config{MaxQueued: 2}, func(t *testing.T, is *executor.Island) {
		var pass executor.Pass
		is.ShowPass(1, &pass)
		shows := func(want uint32, when string) {
			t.Helper()
			statustest.Equal(t, pass.Load(), want, "the word %s", when)
		}
		shows(1, "before the first gang")
		first := now(t, is, span(0, 8))
		shows(1, "beside a gang of all devices")
		_, second := arm(t, is, span(0, 8))
		shows(1, "with one gang in a queue for two")
		_, third := arm(t, is, span(0, 8))
		shows(0, "with a full queue")
		end(is, first)
		second.runs(t, "the first gang has ended")
		third.runs(t, "the second gang has been launched")
		shows(1, "after the queue was full")
		is.Close()
		shows(0, "after Close")
	})
}

func TestGangsWaitForThoseBeforeThemOnTheirDevices(t *testing.T) {
	island(t, 4, schedule.Config{}, func(t *testing.T, is *executor.Island) {
		left, right := now(t, is, span(0, 4)), now(t, is, span(4, 8))
		mid, middle := arm(t, is, span(2, 6))
		_, last := arm(t, is, span(0, 8))
		if n, ever := is.Queued(); n != 2 || ever != 2 {
			t.Errorf("%d gangs wait and %d had to, want 2 and 2", n, ever)
		}
		end(is, left)
		middle.waits(t, "half of its lanes are taken")
		hold := make(chan struct{})
		middle.body = func(uint64) { <-hold }
		end(is, right)
		middle.runs(t, "its lanes are free")
		last.waits(t, "the gang before it is being launched")
		statustest.Equal(t, middle.launched[0], mid, "Launch was given gang")
		close(hold)
		last.runs(t, "the last gang")
		now(t, is, span(0, 8))
	})
}

// The next gang sees the end of a launch that no gang waited for.
func TestEndIsSeenLater(t *testing.T) {
	island(t, 1, schedule.Config{}, func(t *testing.T, is *executor.Island) {
		for range 3 {
			turn := now(t, is, span(0, 8))
			statustest.MustEqual(t, turn.Cell.Or(executor.CellEnded), 0, "the cell")
		}
	})
}

// The end of a launch that a gang waits for is reported.
func TestEndThatAGangWaitsForIsReported(t *testing.T) {
	island(t, 2, schedule.Config{}, func(t *testing.T, is *executor.Island) {
		a := now(t, is, span(0, 8))
		_, b := arm(t, is, span(0, 8))
		statustest.MustEqual(t, a.Cell.Or(executor.CellEnded), executor.CellWanted, "the cell")
		b.waits(t, "the end was not reported yet")
		is.Report(a.Gang)
		b.runs(t, "the end was reported")
		for _, gang := range []uint64{a.Gang, 12345} { // a second time, and of no gang
			is.Report(gang)
			is.Launched(gang)
			is.Completed(gang)
		}
		now(t, is, span(0, 8))
	})
}

// A caller that returns its turn may use Completed, whether there is a cell or not.
func TestCompletedWithCell(t *testing.T) {
	island(t, 1, schedule.Config{}, func(t *testing.T, is *executor.Island) {
		for range 3 {
			a := now(t, is, span(0, 8))
			is.Completed(a.Gang) // its cell does not say so
			_, b := arm(t, is, span(0, 8))
			b.waits(t, "behind a gang whose cell says nothing")
			a.Cell.Or(executor.CellEnded)
			is.Completed(a.Gang)
			b.runs(t, "behind a gang that is done")
		}
	})
}

// The island may see the end before the thread reports it, and give the cell to
// another gang: the late report is not about that one.
func TestLateReportIsNotAboutTheNextGang(t *testing.T) {
	island(t, 1, schedule.Config{}, func(t *testing.T, is *executor.Island) {
		a := now(t, is, span(0, 4))
		_, b := arm(t, is, span(0, 4))
		a.Cell.Or(executor.CellEnded)
		c := now(t, is, span(4, 8)) // sees it
		b.runs(t, "the end was seen")
		if c.Cell != a.Cell {
			t.Fatal("the cell is not used again")
		}
		_, d := arm(t, is, span(4, 8))
		is.Report(a.Gang)
		d.waits(t, "the gang before it has not ended")
		end(is, c)
		d.runs(t, "the gang before it has ended")
	})
}

// A gang gives up its lanes when it has been launched, before it is done.
func TestLaunchReleasesLanes(t *testing.T) {
	island(t, 4, schedule.Config{}, func(t *testing.T, is *executor.Island) {
		unseen := now(t, is, span(0, 8))
		tell(is, unseen, executor.CellLaunched)
		a := now(t, is, span(0, 8), unseen.Gang)
		_, b := arm(t, is, span(0, 8), a.Gang)
		tell(is, a, executor.CellLaunched)
		b.runs(t, "behind a gang that has been launched")
		c := now(t, is, span(0, 8))
		if c.Cell == a.Cell || c.Cell == unseen.Cell {
			t.Error("a gang was given the cell of one that is not done")
		}
		if turn, err := is.Enter(&schedule.Gang{Devices: span(0, 8), After: []uint64{a.Gang}}, true); err != nil ||
			!turn.Now {
			t.Errorf("from a callback, reading from what has been launched: %+v, %v; want its turn", turn, err)
		}
		for _, turn := range []executor.Turn{c, a, unseen} {
			end(is, turn)
		}
	})
}

// A gang that the island launches gives up its lanes when Launch returns; its end
// may come before that.
func TestLaunchByIslandReleasesLanes(t *testing.T) {
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

// Gangs for which there is no cell are launched by the island.
func TestGangsWithoutACellAreLaunchedByTheIsland(t *testing.T) {
	island(t, 1, schedule.Config{}, func(t *testing.T, is *executor.Island) {
		a := now(t, is, span(0, 4))
		b := enter(t, is, span(4, 8))
		if b.Now || b.Cell != nil {
			t.Fatal("a second gang was given the one cell")
		}
		_, c := arm(t, is, span(4, 8)) // behind b, which has its turn and no work yet
		w := new(work)
		c.waits(t, "the gang before it is not armed")
		is.Arm(b.Gang, w)
		w.runs(t, "a gang with free lanes and no cell")
		c.runs(t, "the gang behind it")
		end(is, a)
		end(is, now(t, is, span(4, 8)))
	})
	island(t, 0, schedule.Config{}, func(t *testing.T, is *executor.Island) {
		_, w := arm(t, is, span(0, 8))
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
		c.waits(t, "the gang before it is not armed")
		w := new(work)
		is.Arm(b.Gang, w)
		w.runs(t, "armed after its turn had come")
		c.runs(t, "behind it")
	})
}

func TestArmOfAGangThatDoesNotWait(t *testing.T) {
	island(t, 1, schedule.Config{}, func(t *testing.T, is *executor.Island) {
		w := new(work)
		is.Arm(12345, w)
		w.fails(t, "a gang that was never submitted", status.Internal)
		statustest.Fails(t, "Await of a gang that was never submitted", is.Await(12345), status.Internal)
	})
}

// A gang starts when the gangs that it reads from have been launched, on any devices and
// by any thread.
func TestGangStartsAfterItsInputs(t *testing.T) {
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
		wb.runs(t, "the first of the chain")
		wc.waits(t, "reads from a gang that is being launched")
		close(hold)
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
			w.waits(t, "reads from a gang that its thread launches")
			end(is, a)
			w.runs(t, "reads from a gang that its thread has launched")
		})
	}
}

// A gang without devices fails, and what reads from it is told by its results.
func TestGangWithoutDevicesFails(t *testing.T) {
	island(t, 4, schedule.Config{}, func(t *testing.T, is *executor.Island) {
		bad, w := arm(t, is, schedule.DeviceSet{})
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
func TestGangInCallbackSharesTheTurn(t *testing.T) {
	island(t, 4, schedule.Config{MaxQueued: 1}, func(t *testing.T, is *executor.Island) {
		nested := func(after ...uint64) executor.Turn {
			turn, err := is.Enter(&schedule.Gang{Devices: span(0, 8), After: after}, true)
			statustest.OKf(t, err, "Enter")
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
			statustest.Check(t, is.Await(turn.Gang))
		}
		w.runs(t, "what it reads from")
		end(is, turn)
	})
}

// Under a policy with a window a gang waits for gangs that share no device with
// it.
func TestWindowBoundsDisjointGangs(t *testing.T) {
	island(t, 4, schedule.Config{Policy: &schedule.FIFO{Window: 1}}, func(t *testing.T, is *executor.Island) {
		a := now(t, is, span(0, 4))
		_, b := arm(t, is, span(4, 8))
		_, c := arm(t, is, span(4, 5))
		_, d := arm(t, is, span(8, 16))
		b.waits(t, "outside the window")
		c.waits(t, "outside the window, of one device")
		end(is, a)
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
			a.waits(t, "held back")
			p.open = true
			c := now(t, is, devices)
			end(is, c)
			a.runs(t, "let go")
			b.runs(t, "let go")
		})
	}
}
