package stream

import (
	"net"
	"syscall"
	"time"
)

// lone is how long a connection has sent nothing when its next message is one that
// somebody waits for, and no part of a burst.
const lone = 20 * time.Microsecond

// direct is writes without the writer. Waking it costs more than a short write, so
// a message on a quiet connection is written where it is sent; the messages of a
// burst go together, by the writer. It is under the connection's mu, and used only
// while the writer waits.
type direct struct {
	raw  syscall.RawConn // nil where the socket is no file, as under TLS
	try  func(fd uintptr) bool
	out  []byte
	n    int
	last time.Duration // when due was asked last
}

var begin = time.Now()

func (d *direct) init(socket net.Conn) {
	file, ok := socket.(syscall.Conn)
	if !ok {
		return
	}
	raw, err := file.SyscallConn()
	if err != nil {
		return // the writer meets the error
	}
	d.raw = raw
	d.try = func(fd uintptr) bool {
		d.n, _ = syscall.Write(int(fd), d.out) // the writer meets the error
		return true
	}
}

// due says whether a message is to be written at once.
func (d *direct) due() bool {
	if d.raw == nil {
		return false
	}
	now := time.Since(begin)
	quiet := now-d.last > lone
	d.last = now
	return quiet
}

// write writes what the socket has room for, and gives how much that was.
func (d *direct) write(out []byte) int {
	if len(out) > readSize {
		return 0
	}
	d.out, d.n = out, 0
	_ = d.raw.Write(d.try) // as above
	d.out = nil
	return max(d.n, 0)
}
