package pjrt

// #include "driver.h"
import "C"

import (
	"runtime/cgo"
	"unsafe"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/device"
)

// ServeHostCalls has handle called for each host callback of a program that this client runs without an execute context
// of jaxlib's, on a thread of the plugin. It may be called once, after ServeCollectives.
func (c *Client) ServeHostCalls(handle func(*device.HostCall)) error {
	s := c.service.Load()
	if s == nil {
		return status.New(status.FailedPrecondition, "the host calls of a %s client are served where its collectives are",
			c.platform)
	}
	p := c.plugin
	err := p.hostCalls.do(func(code *C.int, message **C.char) error {
		return p.check(C.pwdrv_host_calls_register(p.api, code, message))
	})
	if err != nil {
		return status.Wrap(err, "plugin %s cannot have its host calls answered", p.path)
	}
	if !s.host.CompareAndSwap(nil, &handle) {
		return status.New(status.FailedPrecondition, "the host calls of this %s client are served already", c.platform)
	}
	return nil
}

// hostCall is a call under way.
type hostCall struct {
	device.HostCall
	answer
}

//export pathwaysDriverHostCall
func pathwaysDriverHostCall(call *C.pwdrv_host_call) (e unsafe.Pointer) {
	defer func() {
		if p := recover(); p != nil {
			e = collectiveError(unsafe.Pointer(call.api), status.New(status.Internal, "panic in a host call: %v", p))
		}
	}()
	s := cgo.Handle(call.client).Value().(*service)
	handle := s.host.Load()
	if handle == nil {
		return collectiveError(unsafe.Pointer(call.api),
			status.New(status.FailedPrecondition, "nothing answers the host callbacks of this client's programs"))
	}
	h := &hostCall{answer: answer{api: unsafe.Pointer(call.api)}}
	h.Launch, h.Local, h.Index = int32(call.launch), int(call.local), uint64(call.index)
	values := make([]device.HostValue, 0, call.arguments+call.results)
	for _, v := range unsafe.Slice(call.values, cap(values)) {
		values = append(values, device.HostValue{
			Type: uint32(v._type),
			Dims: append([]int64(nil), unsafe.Slice((*int64)(v.dims), v.rank)...),
			Data: unsafe.Slice((*byte)(v.data), v.size),
		})
	}
	n := int(call.arguments)
	h.Arguments, h.Results = values[:n:n], values[n:]
	h.Done = h.done
	(*handle)(&h.HostCall)
	return h.leave(&call.future)
}
