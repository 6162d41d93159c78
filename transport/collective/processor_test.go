package collective

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/openpathways/pathways/core/status/statustest"
)

// A member leaves the processor on which another works, and may run on all of them as before.
func TestMemberLeavesATakenProcessor(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Skip("this host has one processor")
	}
	board := statustest.Value(NewInprocBoard(2)).OK(t)
	defer board.Close()
	b := statustest.Value(board.Open(1)).OK(t)
	defer b.Close()
	const other = 7
	b.Meet(other, 0)

	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all, one unix.CPUSet
	statustest.OK(t, unix.SchedGetaffinity(0, &all))
	here := currentProcessor()
	one.Set(int(here))
	statustest.OK(t, unix.SchedSetaffinity(0, &one)) // the thread is where the other is said to be
	b.bell(0, processorLine).Store(1 + here)
	statustest.OK(t, unix.SchedSetaffinity(0, &all))

	b.spread([]uint64{other})
	now := b.bell(1, processorLine).Load()
	statustest.Equal(t, now != 0 && now != 1+here, true, "whether it works on another processor")
	var after unix.CPUSet
	statustest.OK(t, unix.SchedGetaffinity(0, &after))
	statustest.Equal(t, after, all, "the processors that it may run on")

	b.rest()
	statustest.Equal(t, b.bell(1, processorLine).Load(), 0, "the processor of a member that is done")
}
