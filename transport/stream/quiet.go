package stream

import (
	"errors"
	"net"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// quiet is a unix socket that wakes this process for what comes, and for nothing else.
//
// Go's poller asks for room to write as well as for bytes to read. A unix socket has room again each time that the peer
// has read a message, so each message would also wake its sender: a thread that finds nothing to do and sleeps again,
// while other processes need the processor. A quiet socket is not in Go's poller. Two epoll files are in its place: one
// watches the socket for bytes to read, the other for room, and only while a write waits for it. On eight workers of
// one host, a collective that is waited for then takes 49 thread switches instead of 67, and nine tenths of the time.
//
// It is a syscall.RawConn. One goroutine at a time reads, and one writes. Close may come from any.
type quiet struct {
	mu     sync.RWMutex // held to use the socket, which never blocks
	fd     int          // -1 if it is closed
	reads  waiting
	writes waiting

	out, oob []byte // of send
	n        int
	err      error
	try      func(fd uintptr) bool
}

// quieted makes a socket quiet, and closes it where that fails.
func quieted(socket *net.UnixConn) (_ *quiet, err error) {
	defer socket.Close()
	q := &quiet{}
	if q.fd, err = duplicate(socket); err != nil {
		return nil, err
	}
	q.try = q.sendmsg
	err = errors.Join(q.reads.init(q, unix.EPOLLIN|unix.EPOLLRDHUP, 0),
		q.writes.init(q, unix.EPOLLONESHOT, unix.EPOLLOUT|unix.EPOLLONESHOT))
	if err != nil {
		q.Close()
		return nil, err
	}
	return q, nil
}

// loud puts the socket into Go's poller. The quiet one is closed.
func (q *quiet) loud() (net.Conn, error) {
	file := os.NewFile(uintptr(q.take()), "unix socket")
	defer file.Close()
	return net.FileConn(file)
}

// Close ends what waits. The socket is closed when it returns.
func (q *quiet) Close() error { return unix.Close(q.take()) }

// take ends what waits, and returns the socket; -1 if it was taken before.
func (q *quiet) take() int {
	_, _ = q.reads.poll.Close(), q.writes.poll.Close()
	q.mu.Lock()
	defer q.mu.Unlock()
	fd := q.fd
	q.fd = -1
	return fd
}

// Control implements syscall.RawConn.
func (q *quiet) Control(f func(fd uintptr)) error {
	q.mu.RLock()
	defer q.mu.RUnlock()
	if q.fd < 0 {
		return net.ErrClosed
	}
	f(uintptr(q.fd))
	return nil
}

// Read implements syscall.RawConn.
func (q *quiet) Read(f func(fd uintptr) bool) error { return q.reads.until(f) }

// Write implements syscall.RawConn.
func (q *quiet) Write(f func(fd uintptr) bool) error {
	q.writes.try = f
	if err := q.Control(q.writes.once); err != nil || q.writes.done {
		return err
	}
	return q.writes.until(f)
}

// send writes some of the bytes, with files if there are any.
func (q *quiet) send(out, rights []byte) (n int, err error) {
	q.out, q.oob = out, rights
	err = q.Write(q.try)
	q.out, q.oob = nil, nil
	if err != nil {
		return 0, err
	}
	return max(q.n, 0), q.err
}

func (q *quiet) sendmsg(fd uintptr) bool {
	for {
		q.n, q.err = unix.SendmsgN(int(fd), q.out, q.oob, nil, unix.MSG_NOSIGNAL)
		if q.err != unix.EINTR {
			return q.err != unix.EAGAIN
		}
	}
}

// waiting is how one direction of a quiet socket waits.
type waiting struct {
	poll   *os.File        // epoll's
	raw    syscall.RawConn // of poll
	fd     int             // of poll
	socket *quiet
	rest   uint32 // the events to ask for while nothing waits
	arm    uint32 // those to ask for each time, for something that waits; 0 if rest has them

	try  func(fd uintptr) bool
	done bool
	err  error
	once func(fd uintptr)        // tries
	next func(poll uintptr) bool // asks for the events, and tries
}

func (w *waiting) init(socket *quiet, rest, arm uint32) (err error) {
	if w.fd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return err
	}
	if err := unix.SetNonblock(w.fd, true); err != nil {
		unix.Close(w.fd)
		return err
	}
	w.poll, w.socket, w.rest, w.arm = os.NewFile(uintptr(w.fd), "epoll"), socket, rest, arm
	if w.raw, err = w.poll.SyscallConn(); err != nil {
		return err
	}
	w.once = func(fd uintptr) { w.done = w.try(fd) }
	w.next = func(uintptr) bool { // in which poll is not closed
		if w.arm != 0 {
			if w.err = w.ask(unix.EPOLL_CTL_MOD, w.arm); w.err != nil {
				return true
			}
		}
		w.err = w.socket.Control(w.once)
		if w.done && w.arm != 0 { // one shot is spent only by who takes the event, and Go's poller does not
			w.err = w.ask(unix.EPOLL_CTL_MOD, w.rest)
		}
		return w.done || w.err != nil
	}
	return w.ask(unix.EPOLL_CTL_ADD, rest)
}

// ask sets the events of the socket that epoll reports.
func (w *waiting) ask(op int, events uint32) (err error) {
	closed := w.socket.Control(func(fd uintptr) {
		err = unix.EpollCtl(w.fd, op, int(fd), &unix.EpollEvent{Events: events})
	})
	if closed != nil {
		return closed
	}
	return err
}

// until tries until it returns true, each time that there may be something new.
func (w *waiting) until(try func(fd uintptr) bool) error {
	w.try, w.done, w.err = try, false, nil
	if err := w.raw.Read(w.next); err != nil {
		return err
	}
	return w.err
}
