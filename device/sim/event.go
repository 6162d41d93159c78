package sim

import (
	"context"
	"sync/atomic"
)

// event implements device.Event. The island's lock guards its fields except fired and err;
// err is written before fired is set, and never after that.
type event struct {
	is    *Island
	fired atomic.Bool
	err   error
	wait  chan struct{} // made by the first waiter
	then  []func(error)
	inner []func() // called with the lock, before then
	owner *gang    // the gang whose work fires it, until it has fired
}

// Ready implements device.Event.
func (e *event) Ready() bool { return e.fired.Load() }

// Wait implements device.Event.
func (e *event) Wait(ctx context.Context) error {
	if e.fired.Load() {
		return e.err
	}
	e.is.mu.Lock()
	if e.fired.Load() {
		e.is.mu.Unlock()
		return e.err
	}
	if e.wait == nil {
		e.wait = make(chan struct{})
	}
	wait := e.wait
	e.is.mu.Unlock()
	select {
	case <-wait:
		return e.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Then implements device.Event.
func (e *event) Then(f func(error)) {
	if !e.fired.Load() {
		e.is.mu.Lock()
		if !e.fired.Load() {
			e.then = append(e.then, f)
			e.is.mu.Unlock()
			return
		}
		e.is.mu.Unlock()
	}
	f(e.err)
}

// fire fires the event. The caller holds the island's lock.
func (e *event) fire(err error) {
	e.err = err
	e.fired.Store(true)
	if e.wait != nil {
		close(e.wait)
	}
	inner, then := e.inner, e.then
	e.inner, e.then, e.owner = nil, nil, nil
	for _, f := range inner {
		f()
	}
	for _, f := range then {
		e.is.calls = append(e.is.calls, func() { f(err) })
	}
}

// when calls f, with the island's lock, once the event has fired.
func (e *event) when(f func()) {
	if e.fired.Load() {
		f()
		return
	}
	e.inner = append(e.inner, f)
}
