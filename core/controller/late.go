package controller

import (
	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/wire"
)

// lateSize is the size in bytes from which a message is encoded when it is sent, by a goroutine that sends, and not in
// Step, where all other sessions would wait for it. Encoding a shorter one takes some tens of microseconds.
const lateSize = 64 << 10

// spreadSize is the most bytes that a Step copies of one message, for all its receivers together; beyond that, the
// goroutines that send copy them.
const spreadSize = 1 << 20

// Late is a long message that is encoded later, once, in parallel with calls of State. Nothing that it refers to
// changes any more.
type Late struct {
	Size   int // of what Encode returns, in bytes
	Encode func() []byte
}

// LateMessage returns a message of so many bytes that is encoded when it is sent.
func LateMessage(m proto.Message, size int) *Late {
	return &Late{Size: size, Encode: func() []byte { return wire.Encode(nil, m) }}
}
