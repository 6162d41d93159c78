package cluster

import (
	"bytes"
	"os"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
)

// All whole pages of memory are there, wherever it begins and ends, and none beside it.
func TestTouchedMemoryIsThere(t *testing.T) {
	const page, size = 4096, 5 * touchLong
	for _, c := range [][2]int{{0, size}, {1, size - 1}, {page - 1, size - page}, {page, touchLong + page + 7}} {
		all, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		statustest.OK(t, err)
		statustest.OK(t, unix.Madvise(all, unix.MADV_NOHUGEPAGE))
		if err := unix.Madvise(all[:page], unix.MADV_POPULATE_WRITE); err != nil {
			t.Skip("this kernel has no MADV_POPULATE_WRITE: ", err)
		}
		stop := touch(all[c[0]:c[1]])
		there, want := make([]byte, size/page), make([]byte, size/page)
		want[0] = 1
		for at := 0; at < size; at += page {
			if at >= c[0] && at+page <= c[1] {
				want[at/page] = 1
			}
		}
		statustest.Soon(t, func() string {
			if _, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&all[0])), size,
				uintptr(unsafe.Pointer(&there[0]))); errno != 0 {
				t.Fatal(errno)
			}
			return string(there)
		}, string(want), "pages that are there of bytes %d to %d", c[0], c[1])
		stop()
		touch(all)() // it may be stopped at any time
		statustest.OK(t, unix.Munmap(all))
	}
}

// failing is a cluster whose fetches fail at once.
type failing struct{ client.Cluster }

var errFails = status.New(status.Unavailable, "the session has ended")

func (failing) Fetch(uint64, uint32, []byte, func(error)) error { return errFails }

// A fetch that fails at once leaves the memory alone: its owner may unmap it.
func TestFetchThatFailsTouchesNothingAfterwards(t *testing.T) {
	s := &session{cluster: failing{}}
	const size = 64 * touchLong // takes far longer to touch than to fail
	memory, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	statustest.OK(t, err)
	statustest.Equal(t, s.fetch(1, 0, memory, func(error) { t.Error("done is called, too") }), errFails, "it returns")
	was := resident(t, memory)
	time.Sleep(10 * time.Millisecond) // nothing is to happen, so there is nothing to wait for
	statustest.Equal(t, resident(t, memory), was, "pages that are there a while after it has failed")
	statustest.OK(t, unix.Munmap(memory))
}

// resident counts the pages of some memory that are there.
func resident(t *testing.T, memory []byte) int {
	t.Helper()
	there := make([]byte, len(memory)/os.Getpagesize())
	if _, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&memory[0])), uintptr(len(memory)),
		uintptr(unsafe.Pointer(&there[0]))); errno != 0 {
		t.Fatal(errno)
	}
	return bytes.Count(there, []byte{1})
}
