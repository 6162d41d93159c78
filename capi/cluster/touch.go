package cluster

import (
	"os"
	"runtime"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// touchLong is how long a read is whose memory is touched: NumPy asks the system for each array of that size.
const touchLong = 8 << 20

// touch has pages of memory there before bytes come. What a client reads an array into is new in most cases, and the
// goroutine that copies would fault on each page: that takes longer than the copy, and here all processors share it.
// The caller calls wait before it gives the memory back.
func touch(memory []byte) (wait func()) {
	if len(memory) < touchLong {
		return func() {}
	}
	page := os.Getpagesize()
	begin := -int(uintptr(unsafe.Pointer(&memory[0]))) & (page - 1)
	memory = memory[begin : begin+(len(memory)-begin)&^(page-1)]
	n := max(1, min(runtime.GOMAXPROCS(0), len(memory)/touchLong))
	part := (len(memory)/n + page - 1) &^ (page - 1)
	var all sync.WaitGroup
	for len(memory) > 0 {
		piece := memory[:min(part, len(memory))]
		memory = memory[len(piece):]
		all.Go(func() { _ = unix.Madvise(piece, unix.MADV_POPULATE_WRITE) }) // a hint; Linux has it from 5.14 on
	}
	return all.Wait
}
