package cluster

import (
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// All whole pages of memory are there, wherever it begins and ends, and none beside it.
func TestTouchedMemoryIsThere(t *testing.T) {
	const page, size = 4096, 5 * touchLong
	for _, c := range [][2]int{{0, size}, {1, size - 1}, {page - 1, size - page}, {page, touchLong + page + 7}} {
		all, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Madvise(all, unix.MADV_NOHUGEPAGE); err != nil {
			t.Fatal(err)
		}
		if err := unix.Madvise(all[:page], unix.MADV_POPULATE_WRITE); err != nil {
			t.Skip("this kernel has no MADV_POPULATE_WRITE: ", err)
		}
		touch(all[c[0]:c[1]])()
		there := make([]byte, size/page)
		if _, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&all[0])), size,
			uintptr(unsafe.Pointer(&there[0]))); errno != 0 {
			t.Fatal(errno)
		}
		for i, is := range there[1:] {
			if at := (i + 1) * page; (is&1 == 1) != (at >= c[0] && at+page <= c[1]) {
				t.Fatalf("of bytes %d to %d, the page at %d: %v", c[0], c[1], at, is&1 == 1)
			}
		}
		if err := unix.Munmap(all); err != nil {
			t.Fatal(err)
		}
	}
}
