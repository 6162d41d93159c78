package stream

import (
	"net"
	"syscall"
	"time"
	"unsafe"
)

// lone is how long a connection has sent nothing before a message that the peer waits for, as opposed to one of a
// burst.
const lone = 20 * time.Microsecond

// direct is writes without the writer. Waking it costs more than a short write, so
// a message on a quiet connection is written where it is sent; the messages of a
// burst go together, by the writer. It is under the connection's mu, and used only
// while the writer waits. The socket never blocks, so the lock is held for one system call:
// 300 bytes took 4 µs on a unix socket and 18 on a TCP one of the same machine, beside
// other work. Waking the writer costs about 20 more. What the socket does not take at once
// is left to the writer.
type direct struct {
	raw  syscall.RawConn // nil if the socket is no file, as under TLS
	try  func(fd uintptr) bool
	out  []byte
	n    int
	last time.Duration // when due was asked last
}

var begin = time.Now()

func (d *direct) init(raw syscall.RawConn) {
	d.raw = raw
	d.try = func(fd uintptr) bool {
		// the writer meets the error
		d.n, _ = call(syscall.SYS_WRITE, fd, unsafe.Pointer(unsafe.SliceData(d.out)), uintptr(len(d.out)))
		return true
	}
}

// rawOf returns a socket's file, or nil.
func rawOf(socket net.Conn) syscall.RawConn {
	file, ok := socket.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := file.SyscallConn()
	if err != nil {
		return nil // the next read or write meets the error
	}
	return raw
}

// call reads or writes what a socket that never blocks has or takes: a system call with
// a file, memory, and its size or flags. Go's scheduler is not told, which it is of
// calls that may block: that wakes its monitor, a thread that then looks every few
// microseconds. A process that sleeps between messages paid more for that than for the
// message.
func call(trap, fd uintptr, p unsafe.Pointer, last uintptr) (int, error) {
	for {
		n, _, errno := syscall.RawSyscall(trap, fd, uintptr(p), last)
		switch errno {
		case 0:
			return int(n), nil
		case syscall.EINTR:
		default:
			return 0, errno
		}
	}
}

// due reports whether a message is to be written at once.
func (d *direct) due() bool {
	if d.raw == nil {
		return false
	}
	now := time.Since(begin)
	quiet := now-d.last > lone
	d.last = now
	return quiet
}

// write writes what the socket has room for, and returns how much that was.
func (d *direct) write(out []byte) int {
	if len(out) > readSize {
		return 0
	}
	d.out, d.n = out, 0
	_ = d.raw.Write(d.try) // as above
	d.out = nil
	return max(d.n, 0)
}
