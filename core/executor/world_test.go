package executor_test

import (
	"sync"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"

	"github.com/openpathways/pathways/core/executor"
	"github.com/openpathways/pathways/core/schedule"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newCells(n int) []*executor.Cell {
	cells := make([]*executor.Cell, n)
	for i := range cells {
		cells[i] = new(executor.Cell)
	}
	return cells
}

// span is the set of devices from, from+1 … to-1.
func span(from, to int) schedule.DeviceSet {
	var ids []int
	for d := from; d < to; d++ {
		ids = append(ids, d)
	}
	return schedule.Devices(ids...)
}

// enter submits a gang that must be taken.
func enter(t testing.TB, is *executor.Island, devices schedule.DeviceSet, after ...uint64) executor.Turn {
	t.Helper()
	turn, err := is.Enter(&schedule.Gang{Devices: devices, After: after}, false)
	statustest.OKf(t, err, "Enter")
	return turn
}

// tell says how far a gang is, as its thread does or what watches its devices.
func tell(is *executor.Island, turn executor.Turn, bits uint32) {
	switch {
	case turn.Cell != nil:
		if turn.Cell.Or(bits)&executor.CellWanted != 0 {
			is.Report(turn.Gang)
		}
	case turn.Now: // no gang waits for it
	case bits&executor.CellDone != 0:
		is.Completed(turn.Gang)
	default:
		is.Launched(turn.Gang)
	}
}

// end says that a gang is through.
func end(is *executor.Island, turn executor.Turn) { tell(is, turn, executor.CellEnded) }

// work is a Launch that counts its calls.
type work struct {
	body     func(gang uint64) // what Launch does; may be nil
	underWay bool              // what Launch returns

	mu       sync.Mutex // guards the rest
	launched []uint64
	failed   []error
}

func (w *work) Launch(gang uint64) bool {
	w.mu.Lock()
	w.launched = append(w.launched, gang)
	w.mu.Unlock()
	if w.body != nil {
		w.body(gang)
	}
	return w.underWay
}

func (w *work) Fail(_ uint64, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failed = append(w.failed, err)
}

// counts returns how often Launch and Fail were called.
func (w *work) counts() (launched, failed int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.launched), len(w.failed)
}

// waits, runs and fails assert what has become of a gang when nothing of the bubble moves any more.

func (w *work) waits(t testing.TB, what string) {
	t.Helper()
	synctest.Wait()
	if l, f := w.counts(); l != 0 || f != 0 {
		t.Errorf("%s: launched %d times and failed %d times, want it to wait", what, l, f)
	}
}

func (w *work) runs(t testing.TB, what string) {
	t.Helper()
	synctest.Wait()
	if l, f := w.counts(); l != 1 || f != 0 {
		t.Errorf("%s: launched %d times and failed %d times, want one launch", what, l, f)
	}
}

func (w *work) fails(t testing.TB, what string, code status.Code) {
	t.Helper()
	synctest.Wait()
	if l, f := w.counts(); l != 0 || f != 1 {
		t.Errorf("%s: launched %d times and failed %d times, want one failure", what, l, f)
	} else if status.CodeOf(w.failed[0]) != code {
		t.Errorf("%s: %v: %v, want %v", what, status.CodeOf(w.failed[0]), w.failed[0], code)
	}
}
