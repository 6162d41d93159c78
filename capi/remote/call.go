package remote

/*
#include <stdlib.h>
#include "ffi.h"
#include "remote.h"
*/
import "C"

import (
	"runtime"
	"unsafe"

	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/status"
)

// caller runs functions that jaxlib gave to an execution, for a program on the
// cluster. It keeps the functions until the run has ended.
func caller(functions unsafe.Pointer) func(*client.HostCall) {
	return func(c *client.HostCall) {
		// A goroutine a call: it waits for Python, whose functions may wait for other
		// programs. There are as many as devices that call.
		go func() {
			words := []C.int64_t{C.int64_t(len(c.Arguments)), C.int64_t(len(c.Results))}
			for _, list := range [][]client.HostValue{c.Arguments, c.Results} {
				for _, v := range list {
					words = append(words, C.int64_t(v.Type), C.int64_t(uintptr(unsafe.Pointer(unsafe.SliceData(v.Data)))), C.int64_t(len(v.Dims)))
					for _, d := range v.Dims {
						words = append(words, C.int64_t(d))
					}
				}
			}
			var message *C.char
			code := C.pw_ffi_call_python(functions, C.uint64_t(c.Index), &words[0], C.size_t(len(words)), &message)
			runtime.KeepAlive(c)
			var err error
			if code != 0 {
				err = &status.Error{Code: status.Code(code), Message: C.GoString(message)}
				C.free(unsafe.Pointer(message))
			}
			c.Done(err)
		}()
	}
}
