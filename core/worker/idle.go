package worker

import (
	"time"

	"golang.org/x/sys/unix"
)

// idleness remembers since when this process has used hardly any processor time. Devices that are CPUs use a lot of it
// while they compute, and none while they wait for each other in a collective of the plugin's own, of which nothing
// else is known. One goroutine owns it: that of the heartbeats.
type idleness struct {
	looked time.Time
	used   time.Duration // until then
	since  time.Time
}

// idleShare is the part of one processor, 1/idleShare, that an idle process does not use. Heartbeats take less, and
// even a busy machine leaves more to a process that computes.
const idleShare = 50

// look takes the processor time that the process has used until now, and returns for how long it has been idle.
func (i *idleness) look(now time.Time, used time.Duration) time.Duration {
	if used-i.used > now.Sub(i.looked)/idleShare {
		i.since = now
	}
	i.looked, i.used = now, used
	return now.Sub(i.since)
}

// processorTime returns the processor time that this process has used.
func processorTime() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u) // it does not fail
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
