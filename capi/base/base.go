// Package base is what every room of capi stands on where it meets C: reading a peer's structs, errors, shapes, what is
// wrong with an argument, data that clients attach to memories, the refusal to run in the child of a fork, the line of
// the user's program, numbers for objects, what a compiled program costs, and Python's Ctrl-C. base.h, numbers.h and
// interpreter.h are its contract for C.
//
// Every function may be called from any goroutine. It imports no other package of capi, and only packages of capi
// import it.
package base

// #cgo CFLAGS: -I${SRCDIR}/../../device/pjrt/abi -std=gnu11 -O2 -Wall -Wextra -Wshadow -fvisibility=hidden
// #include <stdlib.h>
// #include "base.h"
import "C"

import (
	"runtime/debug"
	"unsafe"

	"github.com/openpathways/pathways/core/status"
)

// Version is the version of Open Pathways, the same as that of the Python package.
const Version = "0.1.0"

// Bug returns the error that a panic becomes; panics never cross into C.
func Bug(panicked any) error {
	return status.New(status.Internal, "this is a bug of Open Pathways, please report it: %v\n%s", panicked, debug.Stack())
}

// Refusal returns an error as the functions of the C API return it: its code, a colon and its text; "" for nil.
func Refusal(err error) string {
	if err == nil {
		return ""
	}
	return code(err).String() + ": " + err.Error()
}

// Fail stores an error's text, which the caller frees, where C looks for it, and returns its code, or 0 if there is no
// error. Char is the importing package's C.char.
func Fail[Char ~int8 | ~uint8](err error, message **Char) int32 {
	if err == nil {
		return 0
	}
	*message = (*Char)(unsafe.Pointer(C.CString(err.Error())))
	return int32(code(err))
}

// Failure returns the error of a code and a text that C returned, and frees the text: nil if the code is 0. Without a
// text there was no memory for it, which is then the error.
func Failure[Code ~int32, Char ~int8 | ~uint8](code Code, message *Char) error {
	switch {
	case code == 0:
		return nil
	case message == nil:
		return status.New(status.ResourceExhausted, "this process has no memory left, not even for the text of an error")
	}
	text := (*C.char)(unsafe.Pointer(message))
	defer C.free(unsafe.Pointer(text))
	return &status.Error{Code: status.Code(code), Message: C.GoString(text)}
}

// Guard turns a panic into an error. Every function that C calls defers it.
func Guard[Code ~int32, Char ~int8 | ~uint8](to *Code, message **Char) {
	if p := recover(); p != nil {
		*to = Code(Fail(Bug(p), message))
	}
}

// Refuse turns an error, or a panic of its caller, into what the C API returns: a text that C's caller frees, or nil.
// Every function that returns such a text defers it.
func Refuse[Char ~int8 | ~uint8](err *error, refusal **Char) {
	if p := recover(); p != nil {
		*err = Bug(p)
	}
	if *err != nil {
		*refusal = (*Char)(unsafe.Pointer(C.CString(Refusal(*err))))
	}
}

// Library returns the path of the file that this code was loaded from, such as libpathways.so, or "".
func Library() string { return C.GoString(C.pw_library()) }

// code returns the code of an error, which is never OK.
func code(err error) status.Code {
	if c := status.CodeOf(err); c != status.OK {
		return c
	}
	return status.Unknown
}
