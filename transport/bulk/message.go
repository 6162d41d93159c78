package bulk

import (
	"encoding/binary"
	"strings"

	"github.com/openpathways/pathways/core/shape/strided"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
)

// The kinds of frames of a link. Numbers are little-endian. Each side numbers
// what it pushes over a link 1, 2, 3 …; a number is n below.
const (
	kindLink   wire.Kind = wire.KindBulk + iota // dialer: this is a link; its token, 16 bytes; and back, when it is taken
	kindStream                                  // dialer: this is a stream of the link with that token; and back
	// From who pushes.
	kindEager   // n, key, the bytes
	kindQuiet   // n, key, the bytes; no answer is wanted
	kindOffer   // n, key, size
	kindWritten // n: the bytes are in the block that was granted
	kindFailed  // n, status: they never will be
	// From who receives.
	kindSegment // number, size; a file comes with it
	kindUnmap   // number
	kindGrant   // n, segment's number (0: send them by stream), offset
	kindTaken   // n, status: the bytes are there, or will not be taken
	kindCredit  // bytes of quiet blocks that were taken
	// From either.
	kindGoodbye // status: the process ends, and why, where that is not its own will; what breaks from here on was not lost
	// From who pushes, since protocol 2.
	kindShow // number, size; a file comes with it: memory that blocks are lent from
	kindHide // number
	kindLend // n, key, size, segment's number, offset
	// From either, since protocol 5. Neither kindResume nor kindAck is counted.
	// dialer: this connection is for the link with that token; the token, the number of the attempt, messages received;
	// and back
	kindResume
	kindAck    // messages received so far, see transport/resume
	kindAgain  // from who receives; n: its bytes were lost with the streams, send them again
	kindAfresh // from who pushes; n, and 1 where its end was announced since: the answer to kindAgain
	// From who receives, since protocol 11.
	kindPlace // n, segment's number, offset of an array, layout of the block in it
)

// chunkHeader is the bytes of n, offset, length, in front of the bytes on a stream.
const chunkHeader = 8 + 8 + 4

const (
	tokenSize  = 16
	resumeSize = tokenSize + 8 + 8
	keySize    = 24
	maxMessage = 17 << 10 // bytes of a status's text: more than status.Brief returns
)

// reader takes a payload apart. Bad is set where it is too short.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) u32() uint32 {
	if len(r.b) < 4 {
		r.bad = true
		return 0
	}
	v := binary.LittleEndian.Uint32(r.b)
	r.b = r.b[4:]
	return v
}

func (r *reader) u64() uint64 {
	if len(r.b) < 8 {
		r.bad = true
		return 0
	}
	v := binary.LittleEndian.Uint64(r.b)
	r.b = r.b[8:]
	return v
}

// size is a count of bytes, which fits an int64.
func (r *reader) size() int64 {
	v := r.u64()
	if v > 1<<62 {
		r.bad = true
		return 0
	}
	return int64(v)
}

// end reports an error unless the payload was read to its end.
func (r *reader) end() bool {
	r.bad = r.bad || len(r.b) > 0
	return !r.bad
}

func (r *reader) key() transport.Key {
	return transport.Key{Space: r.u64(), ID: r.u64(), Part: r.u64()}
}

// layout is the rest of the payload. It is not checked.
func (r *reader) layout() strided.Layout {
	at := strided.Layout{Offset: r.size(), Run: r.size()}
	for len(r.b) > 0 && len(at.Dims) <= strided.MaxDims {
		at.Dims = append(at.Dims, strided.Dim{Count: r.size(), Step: r.size()})
	}
	return at
}

// status is the rest of the payload: a code and a text.
func (r *reader) status() error {
	code := r.u32()
	if code == 0 {
		return nil
	}
	if code > uint32(status.Unauthenticated) || len(r.b) > maxMessage {
		r.bad = true
		return nil
	}
	return status.New(status.Code(code), "%s", r.b)
}

func numbers(b []byte, vs ...uint64) []byte {
	for _, v := range vs {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return b
}

func withStatus(b []byte, err error) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(status.CodeOf(err)))
	if err != nil {
		b = append(b, strings.ToValidUTF8(status.Brief(err), "")...) // letters may be cut
	}
	return b
}

func eagerFrame(b []byte, n uint64, key transport.Key, data []byte) []byte {
	return append(numbers(b, n, key.Space, key.ID, key.Part), data...)
}

func offerFrame(n uint64, key transport.Key, size int64) []byte {
	return numbers(nil, n, key.Space, key.ID, key.Part, uint64(size))
}

func grantFrame(b []byte, n uint64, segment uint32, offset int64) []byte {
	b = numbers(b, n)
	return numbers(binary.LittleEndian.AppendUint32(b, segment), uint64(offset))
}

func placeFrame(n uint64, segment uint32, offset int64, at strided.Layout) []byte {
	b := numbers(grantFrame(make([]byte, 0, 64), n, segment, offset), uint64(at.Offset), uint64(at.Run))
	for _, d := range at.Dims {
		b = numbers(b, uint64(d.Count), uint64(d.Step))
	}
	return b
}

func lendFrame(n uint64, key transport.Key, size int64, segment uint32, offset int64) []byte {
	b := binary.LittleEndian.AppendUint32(offerFrame(n, key, size), segment)
	return numbers(b, uint64(offset))
}

func resumeFrame(token [tokenSize]byte, attempt, received uint64) []byte {
	return numbers(token[:], attempt, received)
}

func segmentFrame(number uint32, size int64) []byte {
	return numbers(binary.LittleEndian.AppendUint32(nil, number), uint64(size))
}
