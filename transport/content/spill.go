package content

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/system"
)

// Bytes that are kept for others, who may ask for them at any time or never, need not stay in memory. They are moved to
// files without names: the system writes them to the disk when it wants to, drops them from memory when it lacks some,
// and reads them again when they are sent. Files go with the process, however it ends.

// SpillFolder returns the folder of such files: that of TMPDIR, or else one that is on a disk by convention.
func SpillFolder() string {
	if dir := os.Getenv("TMPDIR"); dir != "" {
		return dir
	}
	return "/var/tmp"
}

// Spilled returns a Memory with a copy of data, in a file in the folder.
//
// Errors: UNIMPLEMENTED where a file there would be memory as well; those of package system.
func Spilled(folder string, data []byte) (*Memory, error) {
	fd, err := unnamed(folder, data)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	mapped, err := unix.Mmap(fd, 0, len(data), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, system.Error(err, "cannot map a file of a compiled program")
	}
	m := Bytes(mapped)
	m.release = func() { _ = unix.Munmap(mapped) } // it was mapped
	return m, nil
}

// Spill moves bytes that were received, or read, to a file in the folder. They keep their addresses for all who use
// them, also while it runs, and they must not be written to any more. The caller is a user. Other bytes stay in memory.
//
// Errors: those of Spilled; then nothing has changed.
func (m *Memory) Spill(folder string) error {
	if !m.mapped || len(m.Data) == 0 {
		return nil
	}
	fd, err := unnamed(folder, m.Data)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	at := unsafe.Pointer(&m.Data[0])
	_, err = unix.MmapPtr(fd, 0, at, uintptr(len(m.Data)), unix.PROT_READ, unix.MAP_SHARED|unix.MAP_FIXED)
	if err != nil {
		return system.Error(err, "cannot map a file of a compiled program")
	}
	m.mapped = false
	used.Add(-m.counted)
	m.counted = 0
	return nil
}

// unnamed returns a file in the folder with some bytes, and no name.
func unnamed(folder string, data []byte) (fd int, err error) {
	var on unix.Statfs_t
	if err := unix.Statfs(folder, &on); err != nil {
		return 0, system.Error(err, "cannot keep a compiled program in %s", folder)
	}
	if on.Type == unix.TMPFS_MAGIC || on.Type == unix.RAMFS_MAGIC {
		return 0, status.New(status.Unimplemented, "files in %s are in memory", folder)
	}
	fd, err = unix.Open(folder, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err == nil {
		defer func() {
			if err != nil {
				unix.Close(fd)
			}
		}()
		// A page of a file for which the disk has no room would be a signal when it is read.
		err = unix.Fallocate(fd, 0, 0, int64(len(data)))
	}
	for at := 0; err == nil && at < len(data); {
		var n int
		n, err = unix.Pwrite(fd, data[at:min(at+chunkSize, len(data))], int64(at))
		at += n
	}
	if err != nil {
		return 0, system.Error(err, "cannot keep a compiled program in %s", folder)
	}
	return fd, nil
}
