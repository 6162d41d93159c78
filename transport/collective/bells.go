package collective

import (
	"math"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// bells have the members of a board sleep and wake each other. All else that a member does with a board is reading and
// writing memory.
type bells interface {
	// sleep waits on a word of the board until it is not n, wake is called for it, or the time is over; with a time of 0
	// there is no end. It may return for no reason.
	sleep(word *atomic.Uint32, n uint32, most time.Duration)
	// wake never blocks.
	wake(word *atomic.Uint32)
}

// futexes are the bells of members in processes of their own.
type futexes struct{}

func (futexes) sleep(word *atomic.Uint32, n uint32, most time.Duration) {
	var end *unix.Timespec
	if most > 0 {
		t := unix.NsecToTimespec(most.Nanoseconds())
		end = &t
	}
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), 0, uintptr(n), uintptr(unsafe.Pointer(end)), 0,
		0)
}

func (futexes) wake(word *atomic.Uint32) { // never blocks, so the scheduler is not told
	_, _, _ = unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), 1, math.MaxInt32, 0, 0, 0)
}
