package pjrt

// #include "driver.h"
import "C"

import (
	"context"
	"runtime/cgo"
	"time"
	"unsafe"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/device"
)

// store provides a plugin with a rendezvous store. Its context ends with the client,
// so that no thread of the plugin waits for a key after that.
type store struct {
	values device.KeyValues
	ctx    context.Context
	cancel context.CancelFunc
	handle cgo.Handle
}

func newStore(values device.KeyValues) *store {
	s := &store{values: values}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.handle = cgo.NewHandle(s)
	return s
}

// close ends the calls that wait. It is called when the plugin's client is gone, and does nothing on nil.
func (s *store) close() {
	if s != nil {
		s.cancel()
		s.handle.Delete()
	}
}

// tryTime bounds the look-up of a key that need not exist: long enough for a store over a network to answer.
const tryTime = 500 * time.Millisecond

// tries is implemented by stores that can look up a key without waiting.
type tries interface {
	TryGet(ctx context.Context, key string) (value []byte, ok bool, err error)
}

// get looks up key, waiting for timeout at most, or not at all if timeout is negative.
func (s *store) get(key string, timeout time.Duration) ([]byte, error) {
	if timeout >= 0 {
		ctx, cancel := context.WithTimeoutCause(s.ctx, timeout, status.New(status.DeadlineExceeded,
			"no value for key %q after %v: a member of the island did not arrive", key, timeout))
		defer cancel()
		return s.answer(ctx, key)
	}
	missing := status.New(status.NotFound, "no value for key %q", key)
	if t, ok := s.values.(tries); ok {
		value, there, err := t.TryGet(s.ctx, key)
		if err == nil && !there {
			err = missing
		}
		return value, err
	}
	ctx, cancel := context.WithTimeoutCause(s.ctx, tryTime, missing)
	defer cancel()
	return s.answer(ctx, key)
}

func (s *store) answer(ctx context.Context, key string) ([]byte, error) {
	value, err := s.values.Get(ctx, key)
	if err != nil && ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return value, err
}

//export pathwaysDriverStoreGet
func pathwaysDriverStoreGet(handle C.uintptr_t, key *C.char, keySize C.size_t, milliseconds C.int,
	failed *C.PJRT_CallbackError, value **C.char, size *C.size_t) (e *C.PJRT_Error) {
	defer recoverInto(failed, &e)
	s := cgo.Handle(handle).Value().(*store)
	b, err := s.get(C.GoStringN(key, C.int(keySize)), time.Duration(milliseconds)*time.Millisecond)
	if err != nil {
		return makeError(failed, err)
	}
	*value, *size = (*C.char)(C.CBytes(b)), C.size_t(len(b))
	return nil
}

//export pathwaysDriverStorePut
func pathwaysDriverStorePut(handle C.uintptr_t, key *C.char, keySize C.size_t, value *C.char, size C.size_t,
	failed *C.PJRT_CallbackError) (e *C.PJRT_Error) {
	defer recoverInto(failed, &e)
	s := cgo.Handle(handle).Value().(*store)
	b := C.GoBytes(unsafe.Pointer(value), C.int(size))
	if err := s.values.Put(s.ctx, C.GoStringN(key, C.int(keySize)), b); err != nil {
		return makeError(failed, err)
	}
	return nil
}

// makeError makes an error of the plugin's API.
func makeError(failed *C.PJRT_CallbackError, err error) *C.PJRT_Error {
	text, size := chars(err.Error())
	return C.pwdrv_make_error(failed, C.int(status.CodeOf(err)), text, size)
}

func recoverInto(failed *C.PJRT_CallbackError, e **C.PJRT_Error) {
	if r := recover(); r != nil {
		*e = makeError(failed, status.New(status.Internal, "the rendezvous store panicked: %v", r))
	}
}
