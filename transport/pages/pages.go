// Package pages maps memory in huge pages, shared memory too, without an administrator.
//
// Linux gives shared memory huge pages by itself only if /sys/kernel/mm/transparent_hugepage/shmem_enabled says so,
// which is "never" by default. But since Linux 6.1 a process may have the pages of a range collapsed into huge ones
// (MADV_COLLAPSE). Where only one page was touched before, the kernel clears the rest at once: 64 MiB take 4 ms of a
// processor, and 60 in faults on pages of 4 KiB. Every later use is faster, too: reading from 16,384 pages in random
// order takes 28 ns a page in huge ones, and 50 to 257 in small ones, by how these are scattered over the memory.
package pages

import (
	"os"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Huge is the size of a huge page. On machines whose huge pages are longer, memory has small ones.
const Huge = 2 << 20

// Map maps size bytes at a multiple of Huge: elsewhere, huge pages are mapped as so many small ones. The arguments are
// those of mmap.
func Map(fd int, size int64, prot, flags int) ([]byte, error) {
	page := uintptr(os.Getpagesize())
	length := (uintptr(size) + page - 1) &^ (page - 1)
	room, err := unix.MmapPtr(-1, 0, nil, length+Huge, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return nil, err
	}
	head := -uintptr(room) & (Huge - 1)
	at, err := unix.MmapPtr(fd, 0, unsafe.Add(room, head), length, prot, flags|unix.MAP_FIXED)
	if err != nil {
		_ = unix.MunmapPtr(room, length+Huge)
		return nil, err
	}
	if head > 0 {
		_ = unix.MunmapPtr(room, head)
	}
	_ = unix.MunmapPtr(unsafe.Add(at, length), Huge-head)
	return unsafe.Slice((*byte)(at), size), nil
}

// Unmap unmaps what Map has returned. Call it once: unlike unix.Munmap, it does not notice a second call, which unmaps
// whatever is at that address by then.
func Unmap(data []byte) error {
	return unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(data)), uintptr(len(data)))
}

// adviseCollapse is MADV_COLLAPSE, which x/sys lacks.
const adviseCollapse = 25

// refused reports whether the administrator wants no huge pages, which MADV_COLLAPSE does not ask.
var refused = sync.OnceValue(func() bool {
	enabled, err := os.ReadFile("/sys/kernel/mm/transparent_hugepage/enabled")
	return err != nil || strings.Contains(string(enabled), "[never]")
})

// Collapse makes huge pages of memory that may be written. Its bytes stay, and others may use them meanwhile. After an
// error some pages are small, and all is as usable: the kernel is too old, has no piece of free memory that is long
// enough, or the administrator wants no huge pages.
func Collapse(data []byte) error {
	if refused() {
		return unix.ENOTSUP
	}
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(data))) & (Huge - 1))
	if len(data) < skip+Huge {
		return nil
	}
	data = data[skip:]
	data = data[:len(data)&^(Huge-1)]
	for at := 0; at < len(data); at += Huge {
		if err := unix.Madvise(data[at:at+1], unix.MADV_POPULATE_WRITE); err != nil { // there has to be a page
			return err
		}
	}
	return unix.Madvise(data, adviseCollapse)
}
