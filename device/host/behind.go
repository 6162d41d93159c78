package host

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// longSlice is the longest slice that Linux lets a thread ask for, in nanoseconds.
const longSlice = 100_000_000

// Behind has the calling goroutine stand behind the others of the machine for its remaining life, which it spends in
// long work that is not urgent. A goroutine calls it once, at its beginning: it stays on a thread of its own,
// which ends with it.
//
// The thread asks for long slices of its processor, in exchange for which each of them begins later. So a thread that
// wakes for a moment, as those that run computations do, need not wait until several usual slices of this one are
// over. The thread still gets its fair share of the processor: unlike a lower priority, this cannot starve it. Threads
// that it makes are as usual, so a library's pools that are made on first use are not affected.
//
// Nothing changes with a Linux before 6.12, in a sandbox that forbids it, and where the user has chosen another policy
// than the usual one for the process: then it has only cost a thread.
func Behind() {
	runtime.LockOSThread()
	a, err := unix.SchedGetAttr(0, 0)
	if err != nil || a.Policy != unix.SCHED_NORMAL {
		return
	}
	a.Runtime = longSlice
	a.Flags |= unix.SCHED_FLAG_RESET_ON_FORK
	_ = unix.SchedSetAttr(0, a, 0)
}
