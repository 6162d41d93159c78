package pjrt

// #include "driver.h"
import "C"

import (
	"sync/atomic"
	"time"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/device"
)

// stirrer makes sure that no work of a CPU client is overlooked.
//
// XLA's thread pool can miss a wake-up, and leave a computation in its queue while a thread sleeps. A submission wakes
// no thread if one is looking for work. But that thread may just have taken another computation, and does not look
// again until it has ended; and the thread that was woken for the other one found nothing and sleeps again. Eigen's
// pool, which this is, relies on tasks that end by themselves. A computation with a collective does not: it may wait
// for the very computation in the queue.
//
// Any further submission wakes the sleeper. So if nothing has ended for a while, the stirrer submits a small copy.
type stirrer struct {
	armed atomic.Bool
	ended atomic.Uint64 // events of work that have fired
	times atomic.Uint64 // how often something was submitted
	timer *time.Timer   // nil if nothing needs stirring

	// Used by the timer's calls, and by the code that arms it.
	seen  uint64
	pause time.Duration
}

// The first pause is several times as long as a thread takes to wake on a busy machine. Work that takes long by itself
// is stirred less and less often.
const (
	firstStir = 2 * time.Millisecond
	lastStir  = 250 * time.Millisecond
)

// stirBytes is more than the 100 KiB that the client copies without its threads.
const stirBytes = C.PWDRV_ZEROS

// guard has work watched until none is under way.
func (c *Client) guard() {
	s := &c.stirs
	if s.timer == nil || s.armed.Load() || s.armed.Swap(true) {
		return
	}
	s.pause = firstStir
	s.timer.Reset(s.pause)
}

// look is called by the timer.
func (c *Client) look() {
	s := &c.stirs
	if c.work.Load() == 0 {
		s.armed.Store(false)
		if c.work.Load() > 0 {
			c.guard()
		}
		return
	}
	if n := s.ended.Load(); n != s.seen {
		s.seen, s.pause = n, firstStir
	} else {
		c.Stir()
		s.pause = min(2*s.pause, lastStir)
	}
	s.timer.Reset(s.pause)
}

// Stir has the threads of a CPU client look for work that they may have overlooked. Execute and the copies of this
// package do that themselves; Stir is for callers that launch by the plugin's own table.
func (c *Client) Stir() {
	if !c.keep() {
		return
	}
	defer c.drop()
	p, at := c.plugin, &c.handles[0]
	dims := [1]C.int64_t{stirBytes}
	var done *C.PJRT_Event
	var raw *C.PJRT_Buffer
	if err := p.check(C.pwdrv_from_host(p.api, c.raw, C.pwdrv_zeros(), C.int(shape.U8), &dims[0], 1,
		C.int(device.UntilDone),
		at.raw, at.memories[c.devices[0].Default], &done, &raw)); err != nil {
		return // its error reaches those that wait for the buffer
	}
	c.stirs.times.Add(1)
	c.event(done, lent, nil)
	_ = p.check(C.pwdrv_buffer_destroy(p.api, raw))
}

// keep keeps the plugin's client alive until drop, even while it is being closed.
func (c *Client) keep() bool {
	for {
		n := c.refs.Load()
		if n == 0 {
			return false
		}
		if c.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}
