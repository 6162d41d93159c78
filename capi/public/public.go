// Package public is the stable C API for programs that are not JAX: sessions,
// programs, arrays, runs, futures and slices, as openpathways.h describes them. All of it
// is C; this file makes it part of the build.
//
// It stands on the two function tables of this library, which it calls as a PJRT client does: capi/embedded for this
// process's devices, capi/cluster for a cluster's. So a session of either kind has the order, the promises and the
// errors that JAX has, several may be open at once, and a call enters Go only where the frontend does.
//
// # Guarantees
//
// No handle, whatever its bits, ends the process. A call that fails leaves nothing behind. No lock is held while a
// frontend or a callback runs.
package public

//go:generate go run ./gen

/*
#cgo CFLAGS: -I${SRCDIR}/../../python/pathways/include -I${SRCDIR}/../../device/pjrt/abi -I${SRCDIR}/../base -I${SRCDIR}/../export -I${SRCDIR}/../capture -I${SRCDIR}/../slices -std=gnu11 -O2 -Wall -Wextra -Wshadow
#include "public.h"
*/
import "C"

import (
	_ "github.com/openpathways/pathways/capi/base"    // what base.h declares
	_ "github.com/openpathways/pathways/capi/capture" // what capture.h declares
	_ "github.com/openpathways/pathways/capi/slices"  // what slices.h declares
)
