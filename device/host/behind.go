package host

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// behind is how much nicer than its process the thread of such a goroutine is: it weighs a third.
const behind = 5

// Behind lowers the priority of the calling goroutine below that of others in its process, until it ends. It is
// for long work that is not urgent. A goroutine calls it once, at its beginning: it stays on a thread of its own, which
// ends with it.
//
// The thread has a lower priority, so one that wakes for a moment, as those that run computations do, need not wait
// until several slices of this one are over. It is not so low that computations which take all processors starve it.
// Threads that it makes inherit the priority. Of XLA's these are its compiler's: those that compute are made with the
// client. Those on which SciPy's LAPACK computes are kept out of it by pathways_command/_handlers.py.
//
// A long slice instead, which leaves the thread its fair share, does harm: Linux schedules the threads of a container,
// a service or a login in groups, and a group as if all of it had the slice of the thread that runs. Computations of
// the same process then wait for as long.
func Behind() {
	runtime.LockOSThread()
	if n, err := nice(); err == nil {
		_ = unix.Setpriority(unix.PRIO_PROCESS, 0, n+behind) // of the thread alone; Linux cuts it to 19
	}
}

// nice returns how nice the calling thread is.
func nice() (int, error) {
	n, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	return 20 - n, err // as the system call has it
}
