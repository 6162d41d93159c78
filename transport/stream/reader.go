package stream

import (
	"bytes"
	"encoding/binary"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// The reader returns the peer's frames whole and in the peer's order. Memory grows with the bytes that come, never with
// a length that a peer claims: a frame that buf cannot hold doubles its memory as it fills up, and one of more than
// longFrame needs room in a pool that the connections of a listener share (unfinished.go), which ends those that hold
// room and send nothing. Before the peer is let in, frames have the length of a greeting at most.
//
// Four words tell the Conn's timer, without a lock, what the reader waits for: reading while a read is under way, so
// that a peer counts as silent only if it is listened to; inside while the rest of a frame is awaited, which bounds a
// frame's time; reads and frames count what has come.
//
// A file comes with the first bytes of its message, so it is in files before Recv returns the message that announces
// it.

// maxFiles bounds the files that came and were not taken.
const maxFiles = 64

// reader is the receiving half of a Conn. Its buffers belong to the caller of
// Recv.
type reader struct {
	conn *Conn
	max  atomic.Int64 // bytes of a payload
	from func([]byte) (int, error)

	raw  syscall.RawConn // of readRaw, with what it hands to try
	try  func(fd uintptr) bool
	into []byte
	n    int
	err  error
	msg  unix.Msghdr // of a socket that files come by
	iov  unix.Iovec

	buf  []byte // of quietSize until a read has filled it
	r, w int    // what is read and not received: buf[r:w]
	more bool   // a read has filled buf
	big  []byte // for payloads that buf cannot hold
	long *unfinished
	held atomic.Pointer[arrival] // the payload that the caller of Recv has, where it is a long one

	reads   atomic.Uint64 // for the timer
	frames  atomic.Uint64
	reading atomic.Bool // bytes are awaited
	inside  atomic.Bool // the rest of a frame is awaited

	mu     sync.Mutex
	files  []*os.File // that came and were not taken
	closed bool       // no more are kept
	oob    []byte
}

func (r *reader) init(c *Conn, raw syscall.RawConn, trusted bool, begin []byte) {
	r.conn = c
	r.buf = make([]byte, max(quietSize, len(begin)))
	r.w = copy(r.buf, begin)
	r.from = c.net.Read
	if raw != nil {
		r.raw, r.from = raw, r.readRaw
		r.try = func(fd uintptr) bool {
			r.n, r.err = call(syscall.SYS_READ, fd, unsafe.Pointer(unsafe.SliceData(r.into)), uintptr(len(r.into)))
			return r.err != syscall.EAGAIN
		}
	}
	r.max.Store(greetingSize)
	if trusted {
		r.max.Store(int64(c.config.MaxFrame))
	}
}

// Recv implements transport.Conn.
func (c *Conn) Recv() (wire.Kind, []byte, error) {
	kind, payload, err := c.reader.next()
	if err != nil {
		c.fail(err)
		return 0, nil, c.failure()
	}
	return kind, payload, nil
}

// Buffered implements transport.Conn.
func (c *Conn) Buffered() bool {
	kind, bad := c.reader.peek()
	return kind != 0 || bad
}

// Peek implements transport.Peeker.
func (c *Conn) Peek() wire.Kind {
	kind, _ := c.reader.peek()
	return kind
}

// peek returns the kind of the frame that is at hand whole, 0 if there is none, and whether what is at hand is an
// error.
func (r *reader) peek() (kind wire.Kind, bad bool) {
	for r.w-r.r >= header {
		n, kind := int64(binary.LittleEndian.Uint32(r.buf[r.r:])), wire.Kind(r.buf[r.r+4])
		if n > r.max.Load() || kind == 0 {
			return 0, true
		}
		if kind == wire.KindHeartbeat && n == 0 {
			r.r += header
			continue
		}
		if int64(r.w-r.r-header) < n {
			break
		}
		return kind, false
	}
	return 0, false
}

// next reads a frame, and passes over heartbeats that say nothing.
func (r *reader) next() (wire.Kind, []byte, error) {
	r.release()
	for {
		if err := r.fill(header); err != nil {
			return 0, nil, err
		}
		n, kind := int64(binary.LittleEndian.Uint32(r.buf[r.r:])), wire.Kind(r.buf[r.r+4])
		switch limit := r.max.Load(); {
		case kind == 0:
			return 0, nil, status.New(status.InvalidArgument, "%s sent a message of no kind; is it a process of Open Pathways?",
				r.conn.peer)
		case n > limit:
			return 0, nil, status.New(status.InvalidArgument, "%s sent a message of %d bytes, at most %d are allowed",
				r.conn.peer, n, limit)
		case kind == wire.KindHeartbeat && n == 0:
			r.r += header
			r.frames.Add(1)
			continue
		}
		payload, err := r.payload(int(n))
		if err != nil {
			return 0, nil, err
		}
		r.frames.Add(1)
		return kind, payload, nil
	}
}

// payload reads the n bytes behind the header that buf begins with.
func (r *reader) payload(n int) ([]byte, error) {
	if header+n <= len(r.buf) {
		if err := r.fill(header + n); err != nil {
			return nil, err
		}
		p := r.buf[r.r+header : r.r+header+n : r.r+header+n]
		r.r += header + n
		return p, nil
	}
	r.inside.Store(true)
	defer r.inside.Store(false)
	begin := r.buf[r.r+header : r.w]
	r.r, r.w = 0, 0
	if n > longFrame {
		return r.longPayload(n, begin)
	}
	// It grows as bytes come, so that a peer cannot claim memory by naming a number.
	p := append(r.big[:0], begin...)
	for len(p) < n {
		have, step := len(p), min(n-len(p), max(len(p), readSize))
		p = slices.Grow(p, step)[:have+step]
		for have < len(p) {
			got, err := r.read(p[have:])
			have += got
			if err != nil && have < n {
				return nil, r.conn.lost(cut(err))
			}
		}
	}
	r.big = p
	return p, nil
}

// longPayload is payload where begin has been read of n bytes, which are many.
func (r *reader) longPayload(n int, begin []byte) ([]byte, error) {
	f, err := r.long.begin(r.conn, n)
	if err != nil {
		return nil, err
	}
	defer f.unmap()
	r.long.grew(f, copy(f.memory, begin))
	for f.have < n {
		got, err := r.read(r.long.next(f))
		r.long.grew(f, got)
		if err != nil && f.have < n {
			r.long.end(f)
			return nil, r.conn.lost(cut(err))
		}
	}
	r.held.Store(f)
	select {
	case <-r.conn.gone: // which may have looked for what is held before
		r.release()
	default:
	}
	return bytes.Clone(f.memory), nil
}

// release frees the room of the payload that the caller of Recv had.
func (r *reader) release() {
	if f := r.held.Swap(nil); f != nil {
		r.long.end(f)
	}
}

// fill reads until n bytes are at hand.
func (r *reader) fill(n int) error {
	if r.w-r.r >= n {
		return nil
	}
	if r.r == r.w {
		r.r, r.w = 0, 0
		if r.more && len(r.buf) < readSize {
			r.buf = make([]byte, readSize)
		}
	} else if r.r+n > len(r.buf) {
		r.w = copy(r.buf, r.buf[r.r:r.w])
		r.r = 0
	}
	begun := n > header || r.w > r.r
	if begun {
		r.inside.Store(true)
		defer r.inside.Store(false)
	}
	for r.w-r.r < n {
		got, err := r.read(r.buf[r.w:])
		r.w += got
		r.more = r.more || r.w == len(r.buf)
		if err != nil && r.w-r.r < n {
			if begun {
				err = cut(err)
			}
			return r.conn.lost(err)
		}
		if !begun && r.w-r.r < n {
			begun = true
			r.inside.Store(true)
			defer r.inside.Store(false)
		}
	}
	return nil
}

func cut(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

func (r *reader) read(into []byte) (int, error) {
	r.reading.Store(true)
	n, err := r.from(into)
	r.reading.Store(false)
	if n > 0 {
		r.reads.Add(1)
	} else if err == nil {
		err = io.ErrNoProgress
	}
	return n, err
}

// readRaw is Read of a socket that is a file, see call.
func (r *reader) readRaw(into []byte) (int, error) {
	r.into = into
	err := r.raw.Read(r.try)
	r.into = nil
	switch {
	case err != nil:
		return 0, err
	case r.err != nil:
		return 0, r.err
	case r.n == 0:
		return 0, io.EOF
	}
	return r.n, nil
}

// rest returns the bytes that were read and not received.
func (r *reader) rest() []byte { return r.buf[r.r:r.w] }

// TakeFiles lets the peer pass files from now on. It is called before the message that may come with one is received.
// If the connection is not a unix socket, it does nothing.
func (c *Conn) TakeFiles() {
	if r := &c.reader; r.raw != nil && c.PassesFiles() {
		r.oob = make([]byte, syscall.CmsgSpace(4*16))
		r.try = r.receive
		r.from = r.readFiles
	}
}

// receive is readRaw's try where files may come along.
func (r *reader) receive(fd uintptr) bool {
	r.iov.Base = unsafe.SliceData(r.into)
	r.iov.SetLen(len(r.into))
	r.msg = unix.Msghdr{Iov: &r.iov, Control: unsafe.SliceData(r.oob)}
	r.msg.SetIovlen(1)
	r.msg.SetControllen(len(r.oob))
	r.n, r.err = call(syscall.SYS_RECVMSG, fd, unsafe.Pointer(&r.msg), syscall.MSG_CMSG_CLOEXEC)
	r.iov.Base = nil
	return r.err != syscall.EAGAIN
}

// readFiles is Read that keeps files which come along.
func (r *reader) readFiles(into []byte) (int, error) {
	n, err := r.readRaw(into)
	if n == 0 {
		return 0, err
	}
	if came := r.msg.Controllen; came > 0 {
		if bad := r.keep(r.oob[:came]); bad != nil {
			return 0, bad // the connection ends here, whatever came with it
		}
	}
	if r.msg.Flags&syscall.MSG_CTRUNC != 0 {
		return 0, status.New(status.InvalidArgument, "more files than allowed came at once")
	}
	return n, nil
}

func (r *reader) keep(oob []byte) error {
	messages, err := syscall.ParseSocketControlMessage(oob)
	if err != nil {
		return err
	}
	for i := range messages {
		fds, err := syscall.ParseUnixRights(&messages[i])
		if err != nil {
			continue // another kind of control message
		}
		r.mu.Lock()
		for _, fd := range fds {
			syscall.CloseOnExec(fd)
			file := os.NewFile(uintptr(fd), "passed by "+r.conn.peer)
			if r.closed || len(r.files) >= maxFiles {
				file.Close()
				err = status.New(status.InvalidArgument, "more than %d files came without a message that announces them", maxFiles)
				continue
			}
			r.files = append(r.files, file)
		}
		r.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// File takes the oldest file that came, or nil.
func (c *Conn) File() *os.File {
	r := &c.reader
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.files) == 0 {
		return nil
	}
	f := r.files[0]
	r.files = r.files[1:]
	return f
}

// DropFiles closes files that came and were not taken.
func (c *Conn) DropFiles() {
	r := &c.reader
	r.mu.Lock()
	files := r.files
	r.files, r.closed = nil, true
	r.mu.Unlock()
	for _, f := range files {
		f.Close()
	}
}
