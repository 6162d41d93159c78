package cluster

import (
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// touchLong is how long a read is whose memory is touched: NumPy asks the system for each array of that size.
const touchLong = 8 << 20

// touch has pages of memory there before bytes come. What a client reads an array into is new in most cases, and the
// goroutine that copies would fault on each page: that takes longer than the copy, and here all processors share it.
// The caller calls stop before it gives the memory back; pages that were not touched by then stay untouched.
func touch(memory []byte) (stop func()) {
	if len(memory) < touchLong {
		return func() {}
	}
	page := os.Getpagesize()
	begin := -int(uintptr(unsafe.Pointer(&memory[0]))) & (page - 1)
	memory = memory[begin : begin+(len(memory)-begin)&^(page-1)]
	n := max(1, min(runtime.GOMAXPROCS(0), len(memory)/touchLong))
	part := (len(memory)/n + page - 1) &^ (page - 1)
	var all sync.WaitGroup
	var stopped atomic.Bool
	for piece := range slices.Chunk(memory, part) {
		all.Go(func() {
			for some := range slices.Chunk(piece, touchLong) {
				if stopped.Load() {
					return
				}
				_ = unix.Madvise(some, unix.MADV_POPULATE_WRITE) // a hint; Linux has it from 5.14 on
			}
		})
	}
	return func() {
		stopped.Store(true)
		all.Wait()
	}
}

// fetch has a shard's contents copied into dst, whose pages it touches meanwhile. Once done is called, or fetch fails,
// nothing here touches dst any more.
func (s *session) fetch(object uint64, device uint32, dst []byte, done func(error)) error {
	stop := touch(dst)
	err := s.cluster.Fetch(object, device, dst, func(err error) {
		stop()
		done(err)
	})
	if err != nil {
		stop()
	}
	return err
}
