// Package resume keeps what was sent over a connection until the peer has it, so
// that it can be sent again over another connection: nothing is lost, and nothing
// arrives twice.
//
// Both ends count the frames of a direction, from 1 on. A connection keeps their
// order, so the count says which they were, and no frame carries a number. Now and
// then the receiver acknowledges its count. When a connection has broken, each end
// says on the next one how many frames it has; the other end sends what follows.
//
// The types do no I/O and have no lock: a link owns them. transport/bulk imports it.
package resume

import (
	"encoding/binary"
	"os"

	"golang.org/x/sys/unix"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// The receiver acknowledges after so many frames or bytes: often enough that little
// memory is kept, so seldom that it costs nothing.
const (
	ackFrames = 256
	ackBytes  = 64 << 10
)

// Sent is the sending half. The zero value is ready.
type Sent struct {
	count  uint64 // frames that were sent
	acked  uint64 // of those, how many the peer has
	frames []byte // those that it may not have
	head   int    // of frames, where the first begins
	files  []file // that go with them
}

// file is an open file that goes with a frame.
type file struct {
	number uint64
	file   *os.File
}

// Add keeps a frame. It copies payload.
func (s *Sent) Add(kind wire.Kind, payload []byte) {
	s.count++
	s.frames = wire.AppendFrame(s.frames, kind, payload)
}

// AddFile keeps a frame and a duplicate of the file that goes with it.
func (s *Sent) AddFile(kind wire.Kind, payload []byte, f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var fd int
	if e := raw.Control(func(old uintptr) { fd, err = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) }); e != nil {
		return e
	}
	if err != nil {
		return status.New(status.ResourceExhausted, "a file cannot be kept until it is sent: %w", err)
	}
	s.Add(kind, payload)
	s.files = append(s.files, file{s.count, os.NewFile(uintptr(fd), f.Name())})
	return nil
}

// Ack forgets the first frames, of which the peer has so many.
//
// Errors: INVALID_ARGUMENT where the peer cannot have that many, or had more before.
func (s *Sent) Ack(count uint64) error {
	if count > s.count || count < s.acked {
		return status.New(status.InvalidArgument, "it has received %d messages, of %d that were sent and %d that it had",
			count, s.count, s.acked)
	}
	for ; s.acked < count; s.acked++ {
		s.head += wire.Header + int(binary.LittleEndian.Uint32(s.frames[s.head:]))
	}
	for len(s.files) > 0 && s.files[0].number <= count {
		s.files[0].file.Close()
		s.files = s.files[1:]
	}
	switch rest := len(s.frames) - s.head; {
	case rest == 0 && cap(s.frames) > 4*ackBytes:
		s.frames, s.head = nil, 0
	case s.head > rest: // each byte is moved at most once for each that was sent
		s.frames, s.head = s.frames[:copy(s.frames, s.frames[s.head:])], 0
	}
	return nil
}

// Again passes the frames that the peer has not acknowledged to send, in order. The
// file is nil for most.
func (s *Sent) Again(send func(kind wire.Kind, payload []byte, file *os.File) error) error {
	number, files := s.acked, s.files
	for at := s.head; at < len(s.frames); {
		kind, end := wire.Kind(s.frames[at+4]), at+wire.Header+int(binary.LittleEndian.Uint32(s.frames[at:]))
		number++
		var f *os.File
		if len(files) > 0 && files[0].number == number {
			f, files = files[0].file, files[1:]
		}
		if err := send(kind, s.frames[at+wire.Header:end], f); err != nil {
			return err
		}
		at = end
	}
	return nil
}

// Count returns how many frames were sent.
func (s *Sent) Count() uint64 { return s.count }

// Acked returns how many frames the peer has acknowledged.
func (s *Sent) Acked() uint64 { return s.acked }

// Bytes is the memory of frames that the peer has not acknowledged.
func (s *Sent) Bytes() int { return len(s.frames) - s.head }

// Close releases all that is kept.
func (s *Sent) Close() {
	for _, f := range s.files {
		f.file.Close()
	}
	*s = Sent{count: s.count, acked: s.count}
}

// Received is the receiving half. The zero value is ready.
type Received struct {
	count uint64
	owes  int // frames since the last acknowledgment
	bytes int // of their payloads
}

// Add counts a frame. It reports whether Count is to be acknowledged now. A frame
// with a file always is: the sender holds the file open.
func (r *Received) Add(bytes int, file bool) (ack bool) {
	r.count++
	r.owes++
	r.bytes += bytes
	if !file && r.owes < ackFrames && r.bytes < ackBytes {
		return false
	}
	r.owes, r.bytes = 0, 0
	return true
}

// Count returns how many frames were received.
func (r *Received) Count() uint64 { return r.count }
