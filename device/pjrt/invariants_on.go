//go:build invariants

package pjrt

// #cgo CFLAGS: -DPWDRV_INVARIANTS
// #include "driver.h"
import "C"

// failAllocation has an allocation of this package's C by the calling thread fail: the one
// that comes after n others. With a negative n none fails. It returns how many were still
// to come before that of the call before: negative where it has failed.
func failAllocation(n int) (left int) { return int(C.pwdrv_alloc_fails_after(C.int64_t(n))) }
