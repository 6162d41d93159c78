package pjrt

// #include "driver.h"
import "C"

import (
	"runtime/cgo"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/xla/spmd"
	"github.com/openpathways/pathways/device"
	_ "github.com/openpathways/pathways/device/pjrt/ffi" // its C
)

// service answers the calls of a client's programs.
type service struct {
	collective func(*device.CollectiveCall)
	host       atomic.Pointer[func(*device.HostCall)] // nil until ServeHostCalls
	self       cgo.Handle                             // of the service
	context    *executeContext

	specs texts
}

// ServeCollectives has handle called for each call of spmd.Target that a program of this client makes, on a thread of
// the plugin. It may be called once.
//
// Clients are distinguished by the context of their execution, which Execute sets.
func (c *Client) ServeCollectives(handle func(*device.CollectiveCall)) error {
	if err := c.plugin.registerCollectives(); err != nil {
		return status.Wrap(err, "plugin %s cannot have its collectives carried", c.plugin.path)
	}
	if err := c.hold(); err != nil {
		return err
	}
	defer c.drop()
	served, err := c.serve(&c.service, handle)
	if err == nil && !served {
		err = status.New(status.FailedPrecondition, "the collectives of this %s client are served already", c.platform)
	}
	return err
}

// serve makes the service if there is none yet. The caller holds the client.
func (c *Client) serve(at *atomic.Pointer[service], handle func(*device.CollectiveCall)) (bool, error) {
	s := &service{collective: handle}
	s.self = cgo.NewHandle(s)
	in, err := c.newContext(s)
	if err != nil {
		s.self.Delete()
		return false, err
	}
	s.context = in
	if !at.CompareAndSwap(nil, s) {
		in.close()
		s.self.Delete()
		return false, nil
	}
	c.closedOne() // the context is freed with the client, and does not keep it open
	return true, nil
}

// serving returns the service of an execution that has no context of its own. A program with collectives must have one,
// or some plugins crash: if this client has none, but the plugin knows the target, it is one that returns an error. The
// caller holds the client, which may have been closed.
func (c *Client) serving() (*service, error) {
	if s := c.service.Load(); s != nil || !c.plugin.collectives.made.Load() {
		return s, nil
	}
	if c.refusing.Load() == nil {
		if _, err := c.serve(&c.refusing, refuse); err != nil {
			return nil, err
		}
	}
	return c.refusing.Load(), nil
}

func refuse(call *device.CollectiveCall) { call.Done(notServed()) }

func notServed() error {
	return status.New(status.FailedPrecondition,
		"the execution of a program with collectives names no client that carries them: run it by a client that serves "+
			"collectives")
}

// close frees a client's service; nil does nothing. No program runs any more.
func (s *service) close() {
	if s != nil {
		p := s.context.client.plugin
		_ = p.check(C.pwdrv_context_destroy(p.api, s.context.raw))
		s.self.Delete()
	}
}

// registration registers the handler, once for each plugin.
type registration struct {
	once sync.Once
	err  error
	made atomic.Bool
}

// do registers once; register returns the plugin's own refusal as code and message.
func (r *registration) do(register func(code *C.int, message **C.char) error) error {
	r.once.Do(func() {
		var code C.int
		var message *C.char
		if r.err = register(&code, &message); r.err != nil {
			return
		}
		if code != 0 {
			r.err = &status.Error{Code: status.Code(code), Message: C.GoString(message)}
		}
		C.free(unsafe.Pointer(message))
		r.made.Store(r.err == nil)
	})
	return r.err
}

func (p *Plugin) registerCollectives() error {
	target := C.CString(spmd.Target)
	defer C.free(unsafe.Pointer(target))
	return p.collectives.do(func(code *C.int, message **C.char) error {
		return p.check(C.pwdrv_collectives_register(p.api, target, code, message))
	})
}

// answer is how a call under way ends: before its handler returns, or later.
type answer struct {
	api    unsafe.Pointer // the plugin's XLA_FFI_Api
	future unsafe.Pointer // set before state is waiting
	state  atomic.Int32
	err    error // set before state is ended
}

// arrival is a device's call of a collective.
type arrival struct {
	device.CollectiveCall
	answer
	parts [4][]byte
}

// States of an answer.
const (
	entering = iota // the handler has not returned
	waiting         // it has returned: done continues the program
	ended
)

//export pathwaysDriverCollective
func pathwaysDriverCollective(call *C.pwdrv_collective) (e unsafe.Pointer) {
	defer func() {
		if p := recover(); p != nil {
			e = collectiveError(unsafe.Pointer(call.api), status.New(status.Internal, "panic in a collective: %v", p))
		}
	}()
	if call.client == 0 {
		return collectiveError(unsafe.Pointer(call.api), notServed())
	}
	s := cgo.Handle(call.client).Value().(*service)
	a := &arrival{answer: answer{api: unsafe.Pointer(call.api)}}
	a.Launch, a.Local = int32(call.launch), int(call.local)
	a.Spec = s.specs.get(unsafe.Slice((*byte)(unsafe.Pointer(call.spec.data)), call.spec.size))
	parts := a.parts[:0]
	for _, p := range unsafe.Slice(call.parts, call.operands+call.results) {
		parts = append(parts, unsafe.Slice((*byte)(p.data), p.size))
	}
	n := int(call.operands)
	a.Operands, a.Results = parts[:n:n], parts[n:]
	a.Done = a.done
	s.collective(&a.CollectiveCall)
	return a.leave(&call.future)
}

// leave returns what the handler returns: an error, or nothing and, if the call has not ended, a future.
func (a *answer) leave(future *unsafe.Pointer) (e unsafe.Pointer) {
	if a.state.Load() == ended {
		return collectiveError(a.api, a.err)
	}
	if a.future = C.pwdrv_future_create(a.api, &e); e != nil {
		return e
	}
	*future = a.future
	if !a.state.CompareAndSwap(entering, waiting) {
		a.finish(a.err)
	}
	return nil
}

// done ends the call. A second call of done does nothing.
func (a *answer) done(err error) {
	switch a.state.Load() {
	case entering:
		a.err = err
		if a.state.CompareAndSwap(entering, ended) {
			return
		}
		fallthrough
	case waiting:
		if a.state.CompareAndSwap(waiting, ended) {
			a.finish(err)
		}
	}
}

func (a *answer) finish(err error) {
	if err == nil {
		C.pwdrv_future_finish(a.api, a.future, 0, nil)
		return
	}
	message := C.CString(textOf(err))
	C.pwdrv_future_finish(a.api, a.future, codeOf(err), message)
	C.free(unsafe.Pointer(message))
}

// textOf is an error's text with its code, which XLA does not always pass on: coded takes it out again.
func textOf(err error) string { return status.CodeOf(err).String() + ": " + err.Error() }

func codeOf(err error) C.int { return C.int(status.CodeOf(err)) }

// collectiveError makes an error for the plugin; nil stays nil.
func collectiveError(api unsafe.Pointer, err error) unsafe.Pointer {
	if err == nil {
		return nil
	}
	message := C.CString(textOf(err))
	defer C.free(unsafe.Pointer(message))
	return C.pwdrv_collective_error(api, codeOf(err), message)
}

// texts keeps one string for bytes that come again and again.
type texts struct {
	mu  sync.RWMutex
	all map[string]string
}

// The most texts that are kept; beyond that all are dropped.
const maxTexts = 4096

func (t *texts) get(b []byte) string {
	t.mu.RLock()
	s, found := t.all[string(b)]
	t.mu.RUnlock()
	if found {
		return s
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all == nil || len(t.all) >= maxTexts {
		t.all = map[string]string{}
	}
	s = strings.Clone(string(b))
	t.all[s] = s
	return s
}
