//go:build invariants

package base

// #cgo CFLAGS: -DPW_INVARIANTS
// #include "base.h"
import "C"

// FailAllocation has an allocation of C's by the calling thread fail: the one that comes
// after n others. With a negative n none fails. It returns how many were still to come
// before that of the call before: negative where it has failed.
func FailAllocation(n int) (left int) {
	left = int(C.pw_alloc_left())
	C.pw_alloc_fails_after(C.int64_t(n))
	return left
}
