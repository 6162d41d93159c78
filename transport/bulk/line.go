package bulk

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A line is what carries a stripe to the other host. If it is slower than the hosts, bytes of arrays wait in its queue,
// in this host or on the way, and so does every message that comes behind them, whatever its connection. So a line is
// kept busy, and no more:
//
//   - Several stripes fill a fast line, which one connection cannot. Where bytes wait, one is enough, and others would
//     only have more of them wait: the kernel lets each connection have two segments, of up to 64 KiB, in the queue of
//     its device.
//   - A stripe whose bytes wait changes to BBR, which bounds what is under way by what the line carries in twice its
//     shortest round trip. Other algorithms fill the queue until it drops packets. BBR is no one's from the start,
//     since it costs a fast line a fifth of its speed.
//
// The kernel measures each connection's round trip, and the shortest; what is between them is the wait.
type line struct {
	conn syscall.RawConn // nil if there is nothing to ask
	ask  func(fd int) (trip, shortest time.Duration)
}

const (
	// fullWait is how long bytes wait, at least, on a line that is full. Less may be the wait for a processor.
	fullWait = time.Millisecond
	// calmWait is how long they wait, at least, where a stripe changes its algorithm, for good. One that is alone in the
	// queue of this host's device never waits so long.
	calmWait = 5 * time.Millisecond
	// calm is BBR's name. The kernel may lack it, or keep it for the privileged.
	calm = "bbr"
)

func (x *Exchange) line(socket net.Conn) line {
	if secure, ok := socket.(interface{ NetConn() net.Conn }); ok {
		socket = secure.NetConn()
	}
	tcp, ok := socket.(*net.TCPConn)
	if !ok {
		return line{}
	}
	conn, err := tcp.SyscallConn()
	if err != nil {
		return line{}
	}
	return line{conn, x.trips}
}

// trips returns a connection's mean round trip and its shortest; zeros where they are not known.
func trips(fd int) (trip, shortest time.Duration) {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return 0, 0
	}
	return time.Duration(info.Rtt) * time.Microsecond, time.Duration(info.Min_rtt) * time.Microsecond
}

// isFull reports whether bytes wait longer than their way takes. If they wait long, the stripe changes to BBR.
func (l line) isFull() (full bool) {
	if l.conn == nil {
		return false
	}
	_ = l.conn.Control(func(fd uintptr) {
		trip, shortest := l.ask(int(fd))
		wait := trip - shortest
		full = wait > max(shortest, fullWait)
		if full && wait > calmWait {
			_ = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, calm)
		}
	})
	return full
}
