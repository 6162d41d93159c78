//go:build invariants

package pjrt

// #cgo CFLAGS: -DPWDRV_INVARIANTS
// #include "driver.h"
import "C"

import "unsafe"

// failAllocation makes an allocation of this package's C by the calling thread fail: the one after the next n. With a
// negative n none fails. It returns how many were left before the one that the previous call chose; negative if that
// one has failed.
func failAllocation(n int) (left int) { return int(C.pwdrv_alloc_fails_after(C.int64_t(n))) }

// keptBlock returns memory as plugins get it, moved from a block that it replaces; nil for none.
func keptBlock(replaced []byte, size int) []byte {
	var p unsafe.Pointer
	if replaced == nil {
		p = C.pwdrv_keep_aligned_alloc(64, C.size_t(size))
	} else {
		p = C.pwdrv_keep_realloc(unsafe.Pointer(&replaced[0]), C.size_t(size))
	}
	return unsafe.Slice((*byte)(p), size)
}

func freeKept(block []byte) { C.pwdrv_keep_free(unsafe.Pointer(&block[0])) }

// keptMemory returns the bytes of large blocks that plugins have, those that are kept for them, and the bound of both.
func keptMemory() (used, kept, most int) {
	m := C.pwdrv_keep_read()
	return int(m.used), int(m.kept), int(m.most)
}

// tidyKeptNow returns all kept memory to the system, and offerKeptNow offers it.
func tidyKeptNow()  { C.pwdrv_keep_tidy(0, 0) }
func offerKeptNow() { C.pwdrv_keep_tidy(0, C.uint32_t(keptFor.Milliseconds())) }
