package worker

import (
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/worker/devicequeue"
)

// A wait for a block whose bytes come is no standstill, however long it lasts.
func TestBytesThatComeAreNoStandstill(t *testing.T) {
	var bytes int64
	w := &Worker{config: Config{Moved: func(uint64) int64 { return bytes }}}
	begun := time.Now()
	moved := moves{}
	for _, step := range []struct {
		after time.Duration // since the wait began
		bytes int64
		want  time.Duration
	}{
		{3 * time.Second, 0, 3 * time.Second},
		{5 * time.Second, 0, 5 * time.Second},
		{6 * time.Second, 100, 0},
		{7 * time.Second, 200, 0},
		{9 * time.Second, 200, 2 * time.Second},
		{10 * time.Second, 50, 0}, // a block is there, and counts no more
		{14 * time.Second, 50, 4 * time.Second},
	} {
		bytes = step.bytes
		told, _ := w.tellWaits([]Wait{
			{Gang: 7, At: "collective 0 (all-reduce)", Processes: []uint64{2}, Since: step.after},
			{Gang: 8, At: wire.AtFunction, Processes: []uint64{3}, Since: step.after},
			{Gang: 9, Behind: true, Since: step.after},
		}, moved, begun.Add(step.after))
		statustest.Equal(t, told[0].StillMs, step.want.Milliseconds(),
			"after %v, at %d bytes: ms in which nothing has come", step.after, step.bytes)
		for _, other := range told[1:] {
			statustest.Equal(t, other.StillMs, step.after.Milliseconds(),
				"ms in which gang %d stands still, which waits for no bytes", other.Gang)
		}
	}
	if _, _ = w.tellWaits(nil, moved, begun); len(moved) > 0 {
		t.Errorf("of gangs that do not wait, %v is remembered", moved)
	}
}

// A part that waits for a compiler, for bytes or for readers waits for others than its worker's gangs: it may go on at
// any time, so it is not among those that stand still with these.
func TestWaitsForOthersThanGangs(t *testing.T) {
	for reason, want := range map[devicequeue.Reason]bool{
		devicequeue.Loading: false, devicequeue.Bytes: false, devicequeue.Readers: false, devicequeue.Window: true,
		devicequeue.Before: true,
	} {
		q := &queue{}
		q.stands.Store(&standing{gang: 1, reason: reason, since: time.Now()})
		w := &Worker{queues: []*queue{q}}
		if all := w.Waits(); len(all) != 1 || all[0].Behind != want {
			t.Errorf("reason %d: %+v; expected that it is behind gangs: %v", reason, all, want)
		}
	}
}

// Devices that wait for the same thing are told as one wait, for as long as all of them have waited.
func TestDevicesThatWaitForTheSameAreToldTogether(t *testing.T) {
	w := &Worker{}
	for local, what := range []string{"what began before f to end", "array 1", "what began before f to end"} {
		q := &queue{local: local}
		q.stands.Store(&standing{1, devicequeue.Before, what, time.Now().Add(-time.Duration(local+1) * time.Hour)})
		w.queues = append(w.queues, q)
	}
	all := w.Waits()
	if len(all) != 2 || !slices.Equal(all[0].Devices, []int{0, 2}) || all[0].Since.Round(time.Minute) != time.Hour {
		t.Errorf("it tells %+v", all)
	}
}

// What is too much for a heartbeat is counted.
func TestHeartbeatCountsWhatItDoesNotTell(t *testing.T) {
	var waits []Wait
	var running []Running
	for i := range mostWaits + 6 {
		waits = append(waits, Wait{Devices: []int{i}, Gang: uint64(i + 1), Since: time.Minute})
		running = append(running, Running{Gang: uint64(i + 1), Since: time.Minute})
	}
	for range mostWaits + 5 {
		waits[0].Processes = append(waits[0].Processes, 1)
	}
	w := &Worker{log: slog.New(slog.DiscardHandler)}
	told, more := w.tellWaits(waits, moves{}, time.Now())
	if len(told) != mostWaits || more != 6 || len(told[0].Processes) != mostWaits || told[0].MoreProcesses != 5 {
		t.Errorf("it tells of %d waits and %d more, the first for %d processes and %d more", len(told), more,
			len(told[0].Processes), told[0].MoreProcesses)
	}
	logged := journal{}
	if w.logLong(waits, logged); len(logged) != mostWaits {
		t.Errorf("it logs %d waits", len(logged))
	}
	if told, more := tell(running); len(told) != mostRunning || more != 6 {
		t.Errorf("it tells of %d computations and %d more", len(told), more)
	}
}
