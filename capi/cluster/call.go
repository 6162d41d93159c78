package cluster

/*
#include <stdlib.h>
#include "ffi.h"
#include "cluster.h"
*/
import "C"

import (
	"runtime"
	"runtime/cgo"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/openpathways/pathways/capi/base"
	"github.com/openpathways/pathways/core/client"
)

// caller runs the functions that jaxlib passed to an execution. The thread that executes serves its calls. A call that
// comes while that thread is busy gets a goroutine of its own, since a function may wait for the function of another
// device. There are never more of them than devices that call.
type caller struct {
	functions unsafe.Pointer // jaxlib keeps them until the run has ended
	handle    cgo.Handle     // of the caller, for the thread
	busy      atomic.Bool
	next      chan *client.HostCall // has one call, which made it busy
	over      chan struct{}
}

// callers are the callers of a session's runs under way, by token.
type callers struct {
	count atomic.Int64
	mu    sync.Mutex
	all   map[uint64]*caller // guarded by mu
}

func (s *callers) add(functions unsafe.Pointer, token uint64) *caller {
	c := &caller{functions: functions, next: make(chan *client.HostCall, 1), over: make(chan struct{})}
	c.handle = cgo.NewHandle(c)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[uint64]*caller{}
	}
	s.all[token] = c
	s.count.Add(1)
	return c
}

// end tells the caller of a run, if there is one, that the run has ended.
func (s *callers) end(token uint64) {
	if s.count.Load() == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.all[token]; c != nil {
		delete(s.all, token)
		s.count.Add(-1)
		close(c.over)
	}
}

// call is called by the cluster.
func (c *caller) call(h *client.HostCall) {
	if c.busy.CompareAndSwap(false, true) {
		c.next <- h
	} else {
		go c.run(h)
	}
}

//export prGoServe
func prGoServe(handle C.uint64_t) {
	h := cgo.Handle(handle)
	defer h.Delete()
	c := h.Value().(*caller)
	for {
		select {
		case call := <-c.next:
			c.run(call)
			c.busy.Store(false)
		case <-c.over: // nothing is in next: the run cannot end while a call has not
			return
		}
	}
}

// run runs a function, on the calling thread.
func (c *caller) run(h *client.HostCall) {
	words := []C.int64_t{C.int64_t(len(h.Arguments)), C.int64_t(len(h.Results))}
	for _, list := range [][]client.HostValue{h.Arguments, h.Results} {
		for _, v := range list {
			words = append(words, C.int64_t(v.Type), C.int64_t(uintptr(unsafe.Pointer(unsafe.SliceData(v.Data)))),
				C.int64_t(len(v.Dims)))
			for _, d := range v.Dims {
				words = append(words, C.int64_t(d))
			}
		}
	}
	var message *C.char
	code := C.pw_ffi_call_python(c.functions, C.uint64_t(h.Index), &words[0], C.size_t(len(words)), &message)
	runtime.KeepAlive(h)
	h.Done(base.Failure(code, message))
}
