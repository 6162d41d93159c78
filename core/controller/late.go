package controller

import (
	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/wire"
)

// lateSize is from how many bytes on a message is encoded when it leaves, by a goroutine that sends, and not in Step,
// where all other sessions would wait for it. Encoding less takes some tens of microseconds.
const lateSize = 128 << 10

// spreadSize is how many bytes of one message a Step copies for all of its receivers; longer ones are copied by the
// goroutines that send.
const spreadSize = 1 << 20

// Late is a long message that is yet to be encoded, once, beside other calls of State. Nothing that it refers to
// changes any more.
type Late struct {
	Size   int // of what Encode returns, in bytes
	Encode func() []byte
}

// LateMessage returns a message of so many bytes that is encoded when it leaves.
func LateMessage(m proto.Message, size int) *Late {
	return &Late{Size: size, Encode: func() []byte { return wire.Encode(nil, m) }}
}
