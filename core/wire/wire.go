// Package wire defines the messages between the processes of a cluster, the numbers of their kinds, and which versions
// understand each other. It does no I/O; package transport carries the messages.
//
// # Rules
//
// Old and new versions understand each other: Hello carries the range of protocols that a process speaks, and Welcome
// the one that both use. Fields and kinds are never used again.
package wire

//go:generate go run ./gen
//go:generate go tool stringer -type=Kind -trimprefix=Kind

import (
	"errors"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/status"
)

// The protocols that this process speaks. Each step has a line, with its date:
//
//	16 2026-11-26  the first that may be released: 1 to 15 were steps on the way here
//	17 2026-11-27  small collectives of many hosts' workers take other blocks, in more rounds
//	18 2026-11-27  large reductions between hosts go in lanes, each with blocks of its own
//	19 2026-11-27  workers are sent only those devices of a session and a program that they use
//	20 2026-11-28  an artifact has its long constants as parts of their own
//	21 2026-11-28  long arrays of devices with memory of their own move in pieces, each a block
const (
	ProtocolMin = 21
	ProtocolMax = 21
)

// Kind is the type of a frame.
type Kind uint8

// The kinds of control connections.
const (
	KindHello     Kind = 1
	KindWelcome   Kind = 2
	KindHeartbeat Kind = 3
	KindGoodbye   Kind = 4
	KindReceived  Kind = 5 // how many frames of a link have come, see transport/link
	// KindRestarted is never sent. A link returns it from Recv when the controller has started again: messages before it
	// are from the earlier start, and messages sent after it go to the new one, which expects Rejoin first.
	KindRestarted Kind = 6
	KindRejoin    Kind = 7
	KindSettled   Kind = 8
	KindWait      Kind = 9

	KindCompile   Kind = 10
	KindCompiled  Kind = 11
	KindLoad      Kind = 12
	KindForget    Kind = 13
	KindCompiling Kind = 14
	KindGive      Kind = 15
	KindWant      Kind = 16
	KindSource    Kind = 17
	KindHave      Kind = 18
	KindLoaded    Kind = 19

	KindRun      Kind = 20
	KindPut      Kind = 21
	KindTransfer Kind = 22
	KindFetch    Kind = 23
	KindFree     Kind = 24
	KindGraph    Kind = 25
	KindPlay     Kind = 26
	KindBurst    Kind = 27 // several of these, see AppendFrame
	KindAssemble Kind = 28

	KindDispatch  Kind = 30
	KindCompleted Kind = 31
	KindAbort     Kind = 32
	KindPeers     Kind = 33
	KindDrop      Kind = 34
	KindSession   Kind = 35
	KindHostCall  Kind = 36
	KindPlayed    Kind = 37
	KindHeld      Kind = 38
	KindRebind    Kind = 39

	KindAsk    Kind = 40
	KindReport Kind = 41

	KindProfile  Kind = 45
	KindProfiled Kind = 46
	KindWatch    Kind = 47
	KindDoing    Kind = 48
	KindTrace    Kind = 49

	KindEpoch      Kind = 50
	KindKeyRequest Kind = 51
	KindKeyAnswer  Kind = 52

	KindSliceRequest Kind = 60
	KindSliceAnswer  Kind = 61
	KindSliceRelease Kind = 62

	// KindBulk and above are of peer links, see transport/bulk.
	KindBulk Kind = 64
)

// Decode reads a message of a frame. Unknown fields are ignored.
//
// Errors: INVALID_ARGUMENT.
func Decode(k Kind, payload []byte, into proto.Message) error {
	if err := proto.Unmarshal(payload, into); err != nil {
		return status.New(status.InvalidArgument, "a message of kind %v does not decode as %s: %w", k,
			into.ProtoReflect().Descriptor().Name(), err)
	}
	return nil
}

// Decoded decodes a message of a frame and calls f with it.
//
// Errors: those of Decode.
func Decoded[M proto.Message](k Kind, payload []byte, m M, f func(M)) error {
	if err := Decode(k, payload, m); err != nil {
		return err
	}
	f(m)
	return nil
}

// Agree returns the highest protocol that both ranges have.
//
// Errors: FAILED_PRECONDITION, with both ranges named.
func Agree(low, high uint32) (uint32, error) {
	if low > ProtocolMax || high < ProtocolMin || low > high {
		return 0, status.New(status.FailedPrecondition,
			"the other side speaks protocols %d to %d, this side %d to %d; install the same version of openpathways on both",
			low, high, ProtocolMin, ProtocolMax)
	}
	return min(high, ProtocolMax), nil
}

// MaxFailures bounds the errors in one message. Together they are far shorter than a frame.
const MaxFailures = 256

// Of puts an error into a message; nil is OK. Of a text that is longer than 16 KiB it keeps the beginning and the end.
func Of(err error) *Status {
	if err == nil {
		return nil
	}
	// A message that is not valid text would make the whole frame undecodable.
	return &Status{Code: uint32(status.CodeOf(err)), Message: strings.ToValidUTF8(status.Brief(err), "\ufffd")}
}

// Err takes an error out of a message.
func (s *Status) Err() error {
	if s == nil || s.Code == 0 {
		return nil
	}
	return status.New(status.Code(s.Code), "%s", s.Message)
}

// ErrStopped is the cause of a worker's end if its controller was told to stop.
var ErrStopped = errors.New("the controller stops")

// Leave returns the error that a controller's Goodbye stands for, nil if it stands for none.
func Leave(m *Goodbye) error {
	if m.Stops {
		return status.New(status.Unavailable, "%w", ErrStopped)
	}
	return m.Status.Err()
}

// ProfileKey is the ID under which workers push what they recorded for a profile: none
// of an operation.
func ProfileKey(id uint64) uint64 { return 1<<63 | id }

// hostAlign is the alignment of every value in a block of a HostCall.
const hostAlign = 64

// HostBytes returns the size of the block that holds values; -1 if they are invalid.
func HostBytes(values []*HostValue) int64 {
	total := int64(0)
	for _, v := range values {
		const most = 1 << 46
		n := v.GetBytes()
		if n < 0 || n > most || total > most {
			return -1
		}
		total += (n + hostAlign - 1) / hostAlign * hostAlign
	}
	return total
}

// HostParts returns each value's part of a block of host values.
func HostParts(values []*HostValue, block []byte) [][]byte {
	parts := make([][]byte, len(values))
	for i, v := range values {
		n := int(v.GetBytes())
		parts[i], block = block[:n:n], block[(n+hostAlign-1)/hostAlign*hostAlign:]
	}
	return parts
}
