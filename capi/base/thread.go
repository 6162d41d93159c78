package base

import (
	"bytes"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// #include "base.h"
import "C"

// Thread returns the system's number of the calling thread, as Python's threading.get_native_id does, at the price of a
// call of C: the system is asked once a thread.
func Thread() int32 { return int32(C.pw_thread()) }

// Processor returns for how long a thread of this process has had a processor, and whether it has one, or waits for
// one: false if it waits for something else, has ended, or cannot be seen.
func Processor(thread int32) (took time.Duration, runs bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/stat", thread))
	if err != nil {
		return 0, false
	}
	name := bytes.LastIndexByte(stat, ')') // may have spaces and brackets itself
	if name < 0 || name+2 >= len(stat) || stat[name+2] != 'R' {
		return 0, false
	}
	var t unix.Timespec
	// The clock of a thread's processor time, as pthread_getcpuclockid makes it.
	const ofThread, scheduled = 4, 2
	if unix.ClockGettime(^thread<<3|ofThread|scheduled, &t) != nil {
		return 0, false
	}
	return time.Duration(t.Nano()), true
}
