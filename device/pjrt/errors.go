package pjrt

// #include "driver.h"
import "C"

import (
	"strings"
	"unsafe"

	"github.com/openpathways/pathways/core/status"
)

// check converts the outcome of a call to an error with the plugin's code and text. It destroys the plugin's error.
func (p *Plugin) check(s C.pwdrv_status) error {
	if s.error == nil && s.missing == nil && s.lacks == 0 {
		return nil
	}
	if s.lacks != 0 {
		return short(int64(s.lacks))
	}
	if s.missing != nil {
		return status.New(status.Unimplemented, "plugin %s (PJRT %d.%d) has no %s", p.path, p.major, p.minor,
			C.GoString(s.missing))
	}
	return p.take(s.error)
}

// short returns the error of an allocation in C that failed.
func short(bytes int64) error {
	return status.New(status.ResourceExhausted,
		"this process has no memory left for a call of the plugin (%d bytes); drop arrays and programs that are not "+
			"needed, or give the process more memory", bytes)
}

// take converts a plugin's error, which it destroys. nil stays nil.
func (p *Plugin) take(e *C.PJRT_Error) error {
	if e == nil {
		return nil
	}
	var code C.int
	var message C.pwdrv_bytes
	C.pwdrv_error_read(p.api, e, &code, &message)
	text := goString(message)
	C.pwdrv_error_destroy(p.api, e)
	if code == 0 {
		code = C.PJRT_Error_Code_UNKNOWN
	}
	return coded(status.Code(code), text)
}

// dispatching is what XLA writes before the text of an error that ends a computation after its call has returned. It
// passes on all of these as INTERNAL.
const dispatching = "Error dispatching computation: "

// coded returns a plugin's error. An answer of one of this package's handlers has its code in its text (textOf): then
// that is the error, without XLA's text before it.
func coded(code status.Code, text string) error {
	own := text
	if i := strings.LastIndex(text, dispatching); i >= 0 {
		own = text[i+len(dispatching):]
	}
	if err := status.Parse(own); status.CodeOf(err) != status.Unknown {
		return err
	}
	return &status.Error{Code: code, Message: text}
}

func goString(b C.pwdrv_bytes) string { return C.GoStringN(b.data, C.int(b.size)) }

// chars passes the bytes of s to a C function for the length of the call.
func chars(s string) (*C.char, C.size_t) {
	return (*C.char)(unsafe.Pointer(unsafe.StringData(s))), C.size_t(len(s))
}
