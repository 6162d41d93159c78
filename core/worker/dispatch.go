package worker

import (
	"bytes"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/xla/protowalk"
)

// The messages of every run are read and written here field by field, without
// copies, into memory that is used again; the rest by their generated code.

// dispatch is a wire.Dispatch. Its operation is the payload's memory.
type dispatch struct {
	gang, client, term uint64
	session, kind      uint32
	operation          []byte
}

func (d *dispatch) decode(b []byte) error {
	*d = dispatch{}
	for f, err := range protowalk.Fields(b) {
		switch {
		case err != nil:
			return err
		case f.Bytes != nil:
			if f.Number == 4 {
				d.operation = f.Bytes
			}
		case varint(f):
			switch f.Number {
			case 1:
				d.gang = f.Value
			case 2:
				d.session = uint32(f.Value)
			case 3:
				d.kind = uint32(f.Value)
			case 5:
				d.client = f.Value
			case 6:
				d.term = f.Value
			}
		}
	}
	return nil
}

// varint tells numbers from kinds of field that no message of ours has.
func varint(f protowalk.Field) bool { return f.Raw[0]&7 == byte(protowire.VarintType) }

// decode reads a wire.Run. What it keeps is its own.
func (r *run) decode(g *gang, b []byte) error {
	for f, err := range protowalk.Fields(b) {
		if err != nil {
			return err
		}
		switch {
		case f.Bytes == nil && !varint(f):
		case f.Number == 4:
			if r.inputs, err = numbers(r.inputs, f); err != nil {
				return err
			}
		case f.Number == 6:
			if r.kept, err = numbers(r.kept, f); err != nil {
				return err
			}
		case f.Bytes != nil:
			switch f.Number {
			case 5:
				m := new(wire.Mixed)
				if err := wire.Decode(wire.KindRun, f.Bytes, m); err != nil {
					return err
				}
				r.mixed = append(r.mixed, m)
			case 8:
				r.trace = bytes.Clone(f.Bytes)
			}
		default:
			switch f.Number {
			case 1:
				g.op = f.Value
			case 2:
				r.name = f.Value
			case 3:
				r.first = f.Value
			case 7:
				r.only = uint32(f.Value)
			}
		}
	}
	return nil
}

// numbers reads a repeated field, packed or not.
func numbers[T int | uint64](to []T, f protowalk.Field) ([]T, error) {
	if f.Bytes == nil {
		return append(to, T(f.Value)), nil
	}
	for packed := f.Bytes; len(packed) > 0; {
		v, n := protowire.ConsumeVarint(packed)
		if n < 0 {
			return to, status.New(status.InvalidArgument, "a list of numbers does not decode: %w", protowire.ParseError(n))
		}
		to, packed = append(to, T(v)), packed[n:]
	}
	return to, nil
}

// appendCompleted writes a wire.Completed.
func appendCompleted(b []byte, ok []uint64, failed []*wire.Failure) []byte {
	if len(ok) > 0 {
		size := 0
		for _, v := range ok {
			size += protowire.SizeVarint(v)
		}
		b = protowire.AppendVarint(protowire.AppendTag(b, 1, protowire.BytesType), uint64(size))
		for _, v := range ok {
			b = protowire.AppendVarint(b, v)
		}
	}
	for _, f := range failed {
		var s, m []byte
		s = protowire.AppendVarint(protowire.AppendTag(s, 1, protowire.VarintType), uint64(f.Status.Code))
		s = protowire.AppendString(protowire.AppendTag(s, 2, protowire.BytesType), f.Status.Message)
		m = protowire.AppendVarint(protowire.AppendTag(m, 1, protowire.VarintType), f.Number)
		m = protowire.AppendBytes(protowire.AppendTag(m, 2, protowire.BytesType), s)
		b = protowire.AppendBytes(protowire.AppendTag(b, 2, protowire.BytesType), m)
	}
	return b
}
