//go:build invariants

package base

// #cgo CFLAGS: -DPW_INVARIANTS
// #include "base.h"
import "C"

// FailAllocation makes an allocation in C by the calling thread fail: the one after the next n. With a negative n none
// fails. It returns how many were left before the one that the previous call chose; negative if that one has failed.
func FailAllocation(n int) (left int) {
	left = int(C.pw_alloc_left())
	C.pw_alloc_fails_after(C.int64_t(n))
	return left
}
