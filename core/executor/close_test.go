package executor_test

import (
	"testing"
	"testing/synctest"

	"github.com/openpathways/pathways/core/executor"
	"github.com/openpathways/pathways/core/schedule"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
)

func TestAwaitReturnsWhenTheTurnComes(t *testing.T) {
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
				statustest.Checkf(t, is.Await(b.Gang), "Await")
				done = true
			}()
			synctest.Wait()
			statustest.Equal(t, done, late, "Await has returned")
			if !late {
				end(is, a)
				synctest.Wait()
			}
			if !done {
				t.Error("the turn has come and Await waits")
			}
			c.waits(t, "behind a launch that has not ended")
			end(is, b)
			c.runs(t, "behind a launch that has ended")
		})
	}
}

// Close fails what waits, waits for what the island launches, and nothing is
// launched from then on.
func TestCloseFailsWaitingGangs(t *testing.T) {
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
		statustest.Fails(t, "Await of a queued gang", verdict, status.Cancelled)
		statustest.Fails(t, "Enter after Close",
			statustest.Of(is.Enter(&schedule.Gang{Devices: span(0, 1)}, false)), status.Unavailable)
		statustest.Fails(t, "Enter from a callback after Close",
			statustest.Of(is.Enter(&schedule.Gang{Devices: span(0, 1)}, true)), status.Unavailable)
		close(hold)
		synctest.Wait()
		if !closed {
			t.Error("Close waits although nothing is launched")
		}
		running.runs(t, "the launch that Close has waited for")
		for what, turn := range map[string]executor.Turn{"queued": late, "with its turn": turned} {
			w := new(work)
			is.Arm(turn.Gang, w)
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
		statustest.Fails(t, "Await after Close of a gang whose turn had come", is.Await(turn.Gang), status.Cancelled)
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
			reads.fails(t, "reads what waits", status.Cancelled)
			behind.fails(t, "behind it", status.Cancelled)
			end(is, a)
		})
	}
}
