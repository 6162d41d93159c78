// Package capture records what a thread asks of a frontend as a graph, and plays the graph with other inputs. While a
// thread captures, computations and moves on it are not run: each becomes a node, and its results are buffers without
// contents that name the node's values. All of it is C; capture.h is its contract, and this file makes it part of the
// build.
//
// A capture belongs to its thread. A program never changes; any number of threads may play it at once. Only packages of
// capi import this one.
package capture

// #cgo CFLAGS: -I${SRCDIR}/../../device/pjrt/abi -I${SRCDIR}/../base -I${SRCDIR}/../export -std=gnu11 -O2 -Wall -Wextra -Wshadow -fvisibility=hidden
// #include "capture.h"
import "C"

import _ "github.com/openpathways/pathways/capi/export" // arrays enter and leave a program as exported ones

// Count is the number of programs that are kept.
func Count() int64 { return int64(C.pp_count()) }
