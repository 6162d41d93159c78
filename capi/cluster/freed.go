package cluster

/*
#include "cluster.h"
*/
import "C"

import (
	"sync"
	"time"
	"unsafe"
)

// What is freed waits in lists of slab.c, and goes to the cluster with the next operation, or when there is much of it.
// If neither comes, a timer sends it. The timer runs only while something waits: C arms it with the first that is freed
// since it fired, so a process that does nothing is not woken.
//
// Nothing is left behind: sweep disarms before it drains, and C frees before it looks whether the timer is armed. So
// what a sweep does not find has seen the timer disarmed, and arms it.

// idle is how long freed objects wait to be sent together with others if nothing else goes to the cluster.
const idle = 100 * time.Millisecond

var sweeper struct {
	mu    sync.Mutex
	timer *time.Timer
}

// prGoArm has what is freed from now on swept soon.
//
//export prGoArm
func prGoArm() {
	sweeper.mu.Lock()
	defer sweeper.mu.Unlock()
	if sweeper.timer == nil {
		sweeper.timer = time.AfterFunc(idle, sweep)
	} else {
		sweeper.timer.Reset(idle)
	}
}

func sweep() {
	C.pr_armed(false)
	drain()
}

//export prGoFlush
func prGoFlush() { drain() }

// free frees objects of clients on their clusters.
func free(names *C.pw_name, n C.size_t) {
	list := unsafe.Slice(names, n)
	for len(list) > 0 {
		id, numbers := list[0].session, make([]uint64, 0, len(list))
		rest := list[:0]
		for _, o := range list {
			if o.session == id {
				numbers = append(numbers, uint64(o.number))
			} else {
				rest = append(rest, o)
			}
		}
		if s := get(id); s != nil && !s.closed.Load() {
			s.cluster.Free(numbers)
		}
		list = rest
	}
}

// drain frees all objects whose last shard has gone, and single shards.
func drain() {
	var rows [C.PW_FREED]C.pr_row_name
	for n := C.size_t(C.PW_FREED); n == C.PW_FREED; {
		n = C.pr_rows_gone(&rows[0], C.PW_FREED)
		for _, r := range rows[:n] {
			if s := get(r.object.session); s != nil && !s.closed.Load() {
				s.cluster.FreeRow(uint64(r.object.number), uint32(r.device))
			}
		}
	}
	var names [C.PW_FREED]C.pw_name
	for {
		n := C.pr_freed(&names[0], C.PW_FREED, true)
		if n == 0 {
			return
		}
		free(&names[0], n)
	}
}
