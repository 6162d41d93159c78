package hlo

import (
	"encoding/binary"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/xla/protowalk"
)

// literalShape is a field number of xla.LiteralProto.
const literalShape = 1

// literalValues are the fields of xla.LiteralProto that hold the elements of an array, by their type.
var literalValues = map[shape.DType]struct {
	field protowalk.Number
	ints  bool // varints; otherwise the elements as they are in memory
}{shape.Pred: {2, true}, shape.U8: {3, false}, shape.S32: {4, true}, shape.S64: {5, true}, shape.U32: {6, true},
	shape.U64: {7, true}, shape.F32: {8, false}, shape.F64: {9, false}, shape.F16: {11, false}, shape.C64: {12, false},
	shape.BF16: {13, false}, shape.S8: {15, false}, shape.U16: {16, false}, shape.S16: {17, false},
	shape.C128: {18, false}}

// Literal is the value of a row-major array in a program, whose bytes it aliases.
type Literal struct {
	Shape  shape.Shape
	values []byte
	ints   bool
}

// ReadLiteral reads a serialized xla.LiteralProto, the value of a constant with this serialized xla.ShapeProto.
//
// Errors: UNIMPLEMENTED for other than row-major arrays of whole bytes in the default memory; INVALID_ARGUMENT.
func ReadLiteral(literal, of []byte) (Literal, error) {
	s, err := readShape(of)
	if err != nil {
		return Literal{}, err
	}
	kind, known := literalValues[s.DType]
	if !known || !s.plain() {
		return Literal{}, status.New(status.Unimplemented, "a constant of %s that is not a row-major array of whole bytes",
			s.Shape)
	}
	l := Literal{Shape: s.Shape, ints: kind.ints}
	same := false
	for f, err := range protowalk.Fields(literal) {
		if err != nil {
			return Literal{}, err
		}
		switch f.Number {
		case literalShape:
			own, err := readShape(f.Bytes)
			if err != nil {
				return Literal{}, err
			}
			same = own.plain() && own.DType == s.DType && slices.Equal(own.Dims, s.Dims)
		case kind.field:
			if l.values != nil {
				return Literal{}, status.New(status.Unimplemented, "a constant of %s in several pieces", s.Shape)
			}
			l.values = f.Bytes
		}
	}
	if n := s.HostBytes(); !same || n < 0 || l.size() != n {
		return Literal{}, status.New(status.InvalidArgument, "the value of a constant of %s is of another shape", s.Shape)
	}
	return l, nil
}

// plain reports whether a value is a row-major array of whole bytes in the default memory.
func (s Shape) plain() bool {
	bits := int64(s.DType.Bits())
	return s.Tuple == nil && !s.opaque && !s.Dynamic && bits > 0 && bits%8 == 0 && s.memory == 0 &&
		(s.elementBits == 0 || s.elementBits == bits) &&
		s.order() == nil && (!s.layout || len(s.minorToMajor) == len(s.Dims))
}

// size returns how many bytes the elements have in memory, -1 if they are malformed.
func (l Literal) size() int64 {
	if !l.ints {
		return int64(len(l.values))
	}
	n := int64(0)
	for rest := l.values; len(rest) > 0; n++ {
		_, size := protowire.ConsumeVarint(rest)
		if size < 0 {
			return -1
		}
		rest = rest[size:]
	}
	return n * int64(l.Shape.DType.Bits()/8)
}

// CopyTo writes the elements to memory of Shape.HostBytes.
func (l Literal) CopyTo(to []byte) {
	if !l.ints {
		copy(to, l.values)
		return
	}
	width := l.Shape.DType.Bits() / 8
	for rest := l.values; len(rest) > 0; to = to[width:] {
		v, size := protowire.ConsumeVarint(rest)
		rest = rest[size:]
		switch width {
		case 1:
			to[0] = byte(min(v, 1))
		case 4:
			binary.LittleEndian.PutUint32(to, uint32(v))
		case 8:
			binary.LittleEndian.PutUint64(to, v)
		}
	}
}
