// Package protowalk reads and writes serialized protobuf messages field by field.
// It is for messages of others of which only a few fields are of interest: XLA's
// compile options and programs, whose declarations are not part of this module.
//
// A message is rewritten by writing again what is kept, which a Field carries as
// it stood, in its place between what is new. So fields that nobody here knows
// survive.
//
// It is pure: no state, and what it gives aliases what it was given. Whatever the
// bytes are, they are read to their end or to an error of INVALID_ARGUMENT. Any
// package may import it.
package protowalk

import (
	"fmt"
	"iter"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/openpathways/pathways/core/status"
)

// Number is the number of a field.
type Number = protowire.Number

// Field is one field of a message, as it stands there.
type Field struct {
	Number Number
	Value  uint64 // of a varint
	Bytes  []byte // of bytes, a string or a message; nil for all other kinds
	Raw    []byte // tag and value
}

// Fields gives the fields of a message in their order. An error is the last that
// it gives.
func Fields(message []byte) iter.Seq2[Field, error] {
	return func(yield func(Field, error) bool) {
		for len(message) > 0 {
			number, kind, tag := protowire.ConsumeTag(message)
			if tag < 0 {
				yield(Field{}, malformed(protowire.ParseError(tag)))
				return
			}
			if number > protowire.MaxValidNumber {
				yield(Field{}, malformed(fmt.Errorf("field number %d", number)))
				return
			}
			f := Field{Number: number}
			rest, size := message[tag:], 0
			switch kind {
			case protowire.VarintType:
				f.Value, size = protowire.ConsumeVarint(rest)
			case protowire.BytesType:
				if f.Bytes, size = protowire.ConsumeBytes(rest); f.Bytes == nil {
					f.Bytes = []byte{}
				}
			default:
				size = protowire.ConsumeFieldValue(number, kind, rest)
			}
			if size < 0 {
				yield(Field{}, malformed(protowire.ParseError(size)))
				return
			}
			f.Raw, message = message[:tag+size:tag+size], rest[size:]
			if !yield(f, nil) {
				return
			}
		}
	}
}

// AppendInts adds what the field holds of a repeated integer or bool, packed or
// one by one.
func (f Field) AppendInts(to []int64) ([]int64, error) {
	if f.Bytes == nil {
		return append(to, int64(f.Value)), nil
	}
	for packed := f.Bytes; len(packed) > 0; {
		v, size := protowire.ConsumeVarint(packed)
		if size < 0 {
			return to, malformed(protowire.ParseError(size))
		}
		to, packed = append(to, int64(v)), packed[size:]
	}
	return to, nil
}

func malformed(err error) error {
	return status.New(status.InvalidArgument, "not a serialized protobuf message: %w", err)
}

// AppendInt writes a field of an integer or bool.
func AppendInt(to []byte, n Number, v int64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(to, n, protowire.VarintType), uint64(v))
}

// AppendInts writes a field of repeated integers, packed.
func AppendInts(to []byte, n Number, values ...int64) []byte {
	var packed []byte
	for _, v := range values {
		packed = protowire.AppendVarint(packed, uint64(v))
	}
	return AppendBytes(to, n, packed)
}

// AppendBytes writes a field of bytes, a string or a message.
func AppendBytes[B ~[]byte | ~string](to []byte, n Number, v B) []byte {
	return append(protowire.AppendVarint(protowire.AppendTag(to, n, protowire.BytesType), uint64(len(v))), v...)
}
