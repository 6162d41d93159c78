package wire

import (
	"encoding/binary"
	"slices"

	"github.com/openpathways/pathways/core/status"
)

// Header is the size of a message's header in a stream: the length in four bytes, the lowest first, and the kind.
const Header = 5

// MaxFrame bounds a message's payload, on every connection. What may be longer than ContentSize travels by itself, see
// transport/content.
const MaxFrame = 64 << 20

// ContentSize is how long program text, or an executable, may be and still be part of a message: so short that hashing
// and copying it under a lock takes well below a millisecond.
const ContentSize = 256 << 10

// MaxMessage bounds a client's messages, so that each also fits into the Dispatch that workers get of it, and into a
// Rejoin.
const MaxMessage = MaxFrame - 4<<10

// TooLong is the error of a message that is not sent, since it is longer than MaxFrame, or than another bound.
func TooLong(kind Kind, payload, most int) error {
	return status.New(status.InvalidArgument, "a message of kind %v would have %d bytes; a message has at most %d", kind,
		payload, most)
}

// What a burst holds at most: so much that its parts cost little together, and so
// little that waiting for it is not noticed.
const (
	MaxBurst      = 64
	MaxBurstBytes = 32 << 10
)

// AppendFrame writes a message as it stands in a stream, and in a burst, whose
// payload is the messages it is made of.
func AppendFrame(b []byte, kind Kind, payload []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(len(payload)))
	return append(append(b, byte(kind)), payload...)
}

// NextFrame takes the first message out of a burst, or out of a stream that holds
// whole ones.
//
// Errors: INVALID_ARGUMENT.
func NextFrame(burst []byte) (kind Kind, payload, rest []byte, err error) {
	if len(burst) < Header {
		return 0, nil, nil, status.New(status.InvalidArgument, "a burst ends %d bytes into a message's header of %d",
			len(burst), Header)
	}
	n := uint64(binary.LittleEndian.Uint32(burst))
	if n > uint64(len(burst)-Header) {
		return 0, nil, nil, status.New(status.InvalidArgument, "a message of a burst has %d bytes, of which %d are there", n,
			len(burst)-Header)
	}
	end := Header + int(n)
	return Kind(burst[4]), burst[Header:end:end], burst[end:], nil
}

// Burst is the last frame of some that are yet to be written, where other messages can join it.
type Burst struct {
	at int // where it begins
	n  int // messages in it; 0: none can join it
}

// Append writes a message behind frames: into the last of them, where both join and there is room for it.
func (b *Burst) Append(frames []byte, kind Kind, payload []byte, joins bool) []byte {
	if !joins || b.n == 0 || b.n == MaxBurst || len(frames)-b.at+2*Header+len(payload) > MaxBurstBytes {
		*b = Burst{at: len(frames)}
		if joins {
			b.n = 1
		}
		return AppendFrame(frames, kind, payload)
	}
	if b.n == 1 { // it was sent as itself
		var head [Header]byte
		head[4] = byte(KindBurst)
		frames = slices.Insert(frames, b.at, head[:]...)
	}
	frames = AppendFrame(frames, kind, payload)
	binary.LittleEndian.PutUint32(frames[b.at:], uint32(len(frames)-b.at-Header))
	b.n++
	return frames
}

// Left says that the frames are written: nothing can join them any more.
func (b *Burst) Left() { b.n = 0 }
