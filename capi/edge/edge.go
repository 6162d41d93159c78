// Package edge is what the doors of this library share where they meet C: how a
// peer's structs are read, errors, shapes, arguments, data that clients hang on memories,
// the refusal to run in the child of a fork, numbers of what is kept, and Python's Ctrl-C.
// All of it is C; edge.h, numbers.h and python.h are its contract, and this file makes it
// part of the build.
//
// Every function may be called from any thread. Only packages of capi import it.
package edge

// #cgo CFLAGS: -I${SRCDIR}/../../device/pjrt/abi -std=gnu11 -O2 -Wall -Wextra -fvisibility=hidden
// #include "edge.h"
import "C"
