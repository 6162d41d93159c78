package controller

import (
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/wire"
)

// lateSize is from how many bytes on a message is encoded when it leaves, by a goroutine that sends, and not in Step,
// where all other sessions would wait for it. Encoding less takes some tens of microseconds.
const lateSize = 128 << 10

// spreadSize is how many bytes of one message a Step copies for all of its receivers; longer ones are copied by the
// goroutines that send.
const spreadSize = 1 << 20

// late is a long message that is yet to be encoded. Nothing that it refers to changes any more.
type late struct {
	encode  func() ([]byte, error)
	size    int
	once    sync.Once // several connections may be sent it
	payload []byte
	err     error
}

// lateMessage returns a message of so many bytes that is encoded when it leaves.
func lateMessage(m proto.Message, size int) *late {
	return &late{size: size, encode: func() ([]byte, error) { return proto.Marshal(m) }}
}

// bytes returns the encoded message, which stays as it is.
func (l *late) bytes() ([]byte, error) {
	l.once.Do(func() {
		l.payload, l.err = l.encode()
		l.encode = nil
	})
	return l.payload, l.err
}

// bytes returns what is sent.
func (f *frame) bytes() ([]byte, error) {
	if f.late != nil {
		return f.late.bytes()
	}
	return f.payload, nil
}

// lasting returns a frame of a message. Payload is copied, as it may change.
func lasting(kind wire.Kind, payload []byte, l *late) frame {
	if l == nil {
		payload = append([]byte(nil), payload...)
	}
	return frame{kind, payload, l}
}
