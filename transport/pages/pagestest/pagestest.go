// Package pagestest tells tests in which pages memory lies.
package pagestest

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/transport/pages"
)

// Collapses skips a test where the kernel has no huge pages for shared memory, even if it is asked.
func Collapses(t *testing.T) {
	t.Helper()
	fd := statustest.Value(unix.MemfdCreate("test", unix.MFD_CLOEXEC)).OK(t)
	defer unix.Close(fd)
	statustest.OK(t, unix.Ftruncate(fd, pages.Huge))
	data := statustest.Value(pages.Map(fd, pages.Huge, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)).OK(t)
	defer pages.Unmap(data)
	if err := pages.Collapse(data); err != nil {
		t.Skip("this system has no huge pages for shared memory: ", err)
	}
}

// Huge returns how many bytes of the mapping in which data begins are in huge pages of shared memory.
func Huge(t *testing.T, data []byte) (bytes int64) {
	t.Helper()
	f := statustest.Value(os.Open("/proc/self/smaps")).OK(t)
	defer f.Close()
	at := uintptr(unsafe.Pointer(unsafe.SliceData(data)))
	within := false
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var begin, end uintptr
		if n, _ := fmt.Sscanf(lines.Text(), "%x-%x ", &begin, &end); n == 2 {
			within = begin <= at && at < end
		} else if rest, ok := strings.CutPrefix(lines.Text(), "ShmemPmdMapped:"); ok && within {
			var kilobytes int64
			fmt.Sscan(rest, &kilobytes)
			bytes += kilobytes << 10
		}
	}
	return bytes
}
