//go:build invariants

package pjrt

// #cgo CFLAGS: -DPWDRV_INVARIANTS
// #include "driver.h"
import "C"

// failAllocation makes an allocation of this package's C by the calling thread fail: the one after the next n. With a
// negative n none fails. It returns how many were left before the one that the previous call chose; negative if that
// one has failed.
func failAllocation(n int) (left int) { return int(C.pwdrv_alloc_fails_after(C.int64_t(n))) }
