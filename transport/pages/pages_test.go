package pages_test

import (
	"bytes"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/transport/pages"
	"github.com/openpathways/pathways/transport/pages/pagestest"
)

// file makes shared memory.
func file(t *testing.T, size int64) (fd int) {
	t.Helper()
	fd = statustest.Value(unix.MemfdCreate("pagestest", unix.MFD_CLOEXEC)).OK(t)
	t.Cleanup(func() { unix.Close(fd) })
	statustest.OK(t, unix.Ftruncate(fd, size))
	return fd
}

func mapped(t *testing.T, fd int, size int64) []byte {
	t.Helper()
	data := statustest.Value(pages.Map(fd, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)).OK(t)
	t.Cleanup(func() { statustest.OK(t, pages.Unmap(data)) })
	return data
}

// Bytes stay when their memory becomes huge pages, and another mapping of it is in these, too.
func TestSharedMemoryBecomesHugePages(t *testing.T) {
	pagestest.Collapses(t)
	const size = 3 * pages.Huge
	fd := file(t, size)
	one := mapped(t, fd, size)
	for i := 0; i < size; i += 4096 * 3 {
		one[i] = byte(i / 4096)
	}
	before := bytes.Clone(one)
	statustest.OK(t, pages.Collapse(one))
	two := mapped(t, fd, size)
	if !bytes.Equal(one, before) || !bytes.Equal(two, before) {
		t.Error("other bytes are there")
	}
	statustest.Equal(t, pagestest.Huge(t, one), size, "bytes in huge pages where they were collapsed")
	statustest.Equal(t, pagestest.Huge(t, two), size, "bytes in huge pages of another mapping")
}

func TestMemoryIsMappedWhereHugePagesBeginAndLeavesNothing(t *testing.T) {
	count := func() int {
		return bytes.Count(statustest.Value(os.ReadFile("/proc/self/maps")).OK(t), []byte("pagestest"))
	}
	for _, size := range []int64{1, 4096, 100_000, pages.Huge, pages.Huge + 1} {
		fd := file(t, size)
		data := statustest.Value(pages.Map(fd, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)).OK(t)
		statustest.Equal(t, len(data), int(size), "bytes that are mapped")
		statustest.Equal(t, uintptr(unsafe.Pointer(&data[0]))%pages.Huge, 0, "%d bytes begin in a huge page at", size)
		data[size-1] = 1
		statustest.Equal(t, count(), 1, "mappings of %d bytes", size)
		statustest.OK(t, pages.Unmap(data))
		statustest.Equal(t, count(), 0, "mappings that are left of %d bytes", size)
	}
	if _, err := pages.Map(-7, 1, unix.PROT_READ, unix.MAP_SHARED); err != unix.EBADF {
		t.Error("memory of no file was mapped: ", err)
	}
}
