package pjrt

// #include "driver.h"
import "C"

import (
	"sync/atomic"
	"time"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/device"
)

// stirrer sees to it that no work of a CPU client is overlooked.
//
// The threads of XLA's CPU client may leave a computation lying while one of them
// sleeps. Who submits it wakes nobody where a thread is looking for work; but that
// thread may have just taken another computation, and look no more until it has
// ended, and the one that was woken for the other found nothing and sleeps again.
// So it is in Eigen's pool, which counts on tasks that end by themselves. A
// computation with a collective does not: it may wait for the very one that lies.
//
// Whatever is submitted next wakes the sleeper. So where nothing has ended for a
// while, something is submitted.
type stirrer struct {
	armed atomic.Bool
	ended atomic.Uint64 // events of work that have fired
	times atomic.Uint64 // how often something was submitted
	timer *time.Timer   // nil where nothing needs stirring

	// Of the timer's calls, and of who arms it.
	seen  uint64
	pause time.Duration
}

// The first pause is some times what a thread takes to wake on a busy machine.
// What takes long by itself is stirred less and less often.
const (
	firstStir = 2 * time.Millisecond
	lastStir  = 250 * time.Millisecond
)

// stirBytes is more than the client copies without its threads, which is 100 KiB.
const stirBytes = C.PWDRV_ZEROS

// guard has work looked after until no more is under way.
func (c *Client) guard() {
	s := &c.stirs
	if s.timer == nil || s.armed.Load() || s.armed.Swap(true) {
		return
	}
	s.pause = firstStir
	s.timer.Reset(s.pause)
}

// look is the timer's call.
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

// Stir has the threads of a CPU client look for work that they may have
// overlooked. Execute and the copies of this package need no such help; it is for
// those who launch by the plugin's own table.
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
		return // it tells of its own state; who waits hears that from what he waits for
	}
	c.stirs.times.Add(1)
	c.event(done, lent, nil)
	_ = p.check(C.pwdrv_buffer_destroy(p.api, raw))
}

// keep keeps the plugin's client until drop, also while it is being closed.
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
