// Package protowalk reads and writes serialized protobuf messages field by field. It is
// for messages whose declarations are not part of this module and of which only a few
// fields matter: XLA's compile options and programs.
//
// To rewrite a message, write the fields to keep again, in their order, between the new
// ones: a Field has its bytes as they were. So unknown fields survive.
//
// The package is pure: it has no state, and its results alias its arguments. For any
// bytes, reading ends at their end or with INVALID_ARGUMENT.
package protowalk

import (
	"fmt"
	"iter"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/openpathways/pathways/core/status"
)

// Number is the number of a field.
type Number = protowire.Number

// Field is one field of a message, with its original bytes.
type Field struct {
	Number Number
	Value  uint64 // of a varint
	Bytes  []byte // of bytes, a string or a message; nil for all other kinds
	Raw    []byte // tag and value
}

// Fields returns an iterator over the fields of a message in their order. It ends after an
// error.
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

// Ints and Lists say where the values of integer or bool fields go: the last one of a number, and all of a number.
type (
	Ints  map[Number]*int64
	Lists map[Number]*[]int64
)

// Read reads those fields of a message, packed or not, and skips all others. It is for small messages: in those of
// which a program has many, a switch is faster.
func Read(message []byte, ints Ints, lists Lists) error {
	for f, err := range Fields(message) {
		if to := ints[f.Number]; to != nil {
			*to = int64(f.Value)
		}
		if to := lists[f.Number]; to != nil {
			*to, err = f.AppendInts(*to)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Prefix returns the message at the beginning of a buffer whose other bytes are zero: no field has the number 0.
func Prefix(buffer []byte) []byte {
	size := 0
	for f, err := range Fields(buffer) {
		if err != nil {
			break
		}
		size += len(f.Raw)
	}
	return buffer[:size]
}

// AppendInts appends the values of a repeated integer or bool field, packed or not.
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

// AppendInt appends an integer or bool field.
func AppendInt(to []byte, n Number, v int64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(to, n, protowire.VarintType), uint64(v))
}

// AppendInts appends a field of repeated integers, packed.
func AppendInts(to []byte, n Number, values ...int64) []byte {
	var packed []byte
	for _, v := range values {
		packed = protowire.AppendVarint(packed, uint64(v))
	}
	return AppendBytes(to, n, packed)
}

// AppendBytes appends a field of bytes, a string or a message.
func AppendBytes[B ~[]byte | ~string](to []byte, n Number, v B) []byte {
	return append(protowire.AppendVarint(protowire.AppendTag(to, n, protowire.BytesType), uint64(len(v))), v...)
}
