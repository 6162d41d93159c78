// Command lib is libpathways.so: the PJRT front door (GetPjrtApi) and the C API
// (pathways_*) in one shared library with one Go runtime. Build it with
//
//	go build -buildmode=c-shared ./capi/lib
//
// and the version script exports.map, which keeps every other symbol inside.
package main

// #cgo LDFLAGS: -Wl,--wrap=pthread_create
import "C" // monitor.c

import (
	_ "github.com/openpathways/pathways/capi/embedded"
	_ "github.com/openpathways/pathways/capi/ffi"
	_ "github.com/openpathways/pathways/capi/public"
	_ "github.com/openpathways/pathways/capi/python"
)

func main() {}
