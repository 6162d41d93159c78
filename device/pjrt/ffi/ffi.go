// Package ffi speaks XLA FFI with a plugin: it registers handlers of custom calls,
// answers the plugin's probes of them, and makes and reads the errors that pass
// between them. All of it is C; this file only makes the C part of the build, and
// xla_ffi.h is the contract.
//
// Concurrency: every function may be called from any thread. The package has no
// state but of the calling thread.
//
// Importers: device/pjrt and capi packages.
package ffi

// #cgo CFLAGS: -I${SRCDIR}/../abi -std=gnu11 -O2 -Wall -Wextra -Wshadow
// #include "xla_ffi.h"
import "C"
