// Command lib is libpathways.so: the PJRT function table (GetPjrtApi) and the C API (pathways_*) in one shared library
// with one Go runtime. Build it with
//
//	go build -buildmode=c-shared ./capi/lib
//
// and the version script exports.map, which hides every other symbol.
package main

// #cgo CFLAGS: -std=gnu11 -O2 -Wall -Wextra -Wshadow
// #cgo LDFLAGS: -Wl,--wrap=pthread_create
import "C" // monitor.c

import (
	_ "github.com/openpathways/pathways/capi/embedded"
	_ "github.com/openpathways/pathways/capi/ffi"
	_ "github.com/openpathways/pathways/capi/public"
	_ "github.com/openpathways/pathways/capi/python"
)

func main() {}
