package pjrt

// #include "driver.h"
import "C"

import (
	"context"
	"runtime/cgo"
	"sync"
	"sync/atomic"

	"github.com/openpathways/pathways/core/status"
)

// event is a device.Event. Its plugin event is watched from the moment the driver has it, and destroyed after it has
// fired, so that an event needs no Close and none is lost.
type event struct {
	client *Client
	kind   eventKind
	raw    *C.PJRT_Event
	handle cgo.Handle
	// The thread that registers the callback and the callback itself both use raw;
	// the last of the two destroys it.
	users atomic.Int32

	fired atomic.Bool // set last, after err
	err   error

	mu   sync.Mutex // guards the rest
	done chan struct{}
	then []func(error)
}

// eventKind says how Client.Close treats an event.
type eventKind int

const (
	// work is waited for.
	work eventKind = iota
	// lent fires when a buffer no longer uses host memory; Close waits for it only if no buffer is open.
	lent
)

// succeeded has fired without an error. It is shared.
var succeeded = func() *event { e := &event{}; e.fired.Store(true); return e }()

// failed makes an event that has fired with err, or without an error if err is nil.
func failed(err error) *event {
	if err == nil {
		return succeeded
	}
	e := &event{err: err}
	e.fired.Store(true)
	return e
}

// event takes a plugin's event. then, if not nil, is called before the functions passed to Then. The caller holds the
// client.
func (c *Client) event(raw *C.PJRT_Event, kind eventKind, then func(error)) *event {
	if raw == nil {
		if then != nil {
			then(nil)
		}
		return succeeded
	}
	var fired C.bool
	var e *C.PJRT_Error
	if err := c.plugin.check(C.pwdrv_event_settle(c.plugin.api, raw, &fired, &e)); err != nil {
		C.pwdrv_event_destroy(c.plugin.api, raw)
		if then != nil {
			then(err)
		}
		return failed(err)
	}
	if bool(fired) {
		err := c.plugin.take(e)
		if then != nil {
			then(err)
		}
		return failed(err)
	}
	return c.watch(raw, kind, then)
}

// watch takes a plugin's event that need not have fired.
func (c *Client) watch(raw *C.PJRT_Event, kind eventKind, then func(error)) *event {
	e := &event{client: c, kind: kind, raw: raw}
	if then != nil {
		e.then = append(e.then, then)
	}
	e.users.Store(2)
	c.refs.Add(1)
	if kind == work {
		c.work.Add(1)
		c.guard()
	}
	e.handle = cgo.NewHandle(e)
	if err := c.plugin.check(C.pwdrv_event_watch(c.plugin.api, raw, C.uintptr_t(e.handle))); err != nil {
		// The plugin did not accept the callback, so it will not be called.
		e.fire(err)
	}
	e.letGo()
	return e
}

func (e *event) letGo() {
	if e.users.Add(-1) == 0 {
		C.pwdrv_event_destroy(e.client.plugin.api, e.raw)
		e.client.drop()
	}
}

//export pathwaysDriverFired
func pathwaysDriverFired(handle C.uintptr_t, raw *C.PJRT_Error) {
	e := cgo.Handle(handle).Value().(*event)
	e.fire(e.client.plugin.take(raw))
}

// fire is called once, and ends the callback's use of raw.
func (e *event) fire(err error) {
	e.handle.Delete()
	e.err = err
	e.mu.Lock()
	e.fired.Store(true)
	done, then := e.done, e.then
	e.then = nil
	e.mu.Unlock()
	if done != nil {
		close(done)
	}
	for _, f := range then {
		f(err)
	}
	client := e.client
	if e.kind == work {
		client.stirs.ended.Add(1)
		if client.work.Add(-1) == 0 {
			client.wake()
		}
	}
	e.letGo()
}

func (e *event) Ready() bool { return e.fired.Load() }

// Wait blocks until the event fires or ctx ends. It holds no thread.
func (e *event) Wait(ctx context.Context) error {
	if e.fired.Load() {
		return e.err
	}
	e.mu.Lock()
	if e.fired.Load() {
		e.mu.Unlock()
		return e.err
	}
	if e.done == nil {
		e.done = make(chan struct{})
	}
	done := e.done
	e.mu.Unlock()
	select {
	case <-done:
		return e.err
	case <-ctx.Done():
		return waitEnded(ctx)
	}
}

func waitEnded(ctx context.Context) error {
	code := status.Cancelled
	if ctx.Err() == context.DeadlineExceeded {
		code = status.DeadlineExceeded
	}
	cause := context.Cause(ctx)
	if status.CodeOf(cause) != status.Unknown {
		code = status.CodeOf(cause)
	}
	return status.New(code, "the wait ended before the event: %w", cause)
}

// Then calls f on a thread of the plugin, or here if the event has fired.
func (e *event) Then(f func(error)) {
	if !e.fired.Load() {
		e.mu.Lock()
		if !e.fired.Load() {
			e.then = append(e.then, f)
			e.mu.Unlock()
			return
		}
		e.mu.Unlock()
	}
	f(e.err)
}
