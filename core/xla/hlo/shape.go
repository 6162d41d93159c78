package hlo

import (
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/xla/protowalk"
)

// Field numbers of messages in XLA's xla/xla_data.proto.
const (
	shapeElementType = 2
	shapeDimensions  = 3
	shapeTuple       = 4
	shapeLayout      = 5
	shapeDynamic     = 6

	layoutMinorToMajor = 1
	layoutElementBits  = 7
	layoutMemory       = 8

	programParameters = 1
	programResult     = 2
)

// Numbers of xla.PrimitiveType for values that are not arrays.
const (
	typeTuple  = 13
	typeOpaque = 14
	typeToken  = 17
)

// dtypes maps XLA's PrimitiveType numbers to element types.
var dtypes = map[uint64]shape.DType{1: shape.Pred, 2: shape.S8, 3: shape.S16, 4: shape.S32, 5: shape.S64, 6: shape.U8,
	7: shape.U16, 8: shape.U32, 9: shape.U64, 10: shape.F16, 11: shape.F32, 12: shape.F64, 15: shape.C64, 16: shape.BF16,
	typeToken: shape.Token, 18: shape.C128, 19: shape.F8E5M2, 20: shape.F8E4M3FN, 21: shape.S4, 22: shape.U4,
	23: shape.F8E4M3B11FNUZ, 24: shape.F8E5M2FNUZ, 25: shape.F8E4M3FNUZ, 26: shape.S2, 27: shape.U2, 28: shape.F8E4M3,
	29: shape.F8E3M4, 30: shape.S1, 31: shape.U1, 32: shape.F4E2M1FN, 33: shape.F8E8M0FNU, 35: shape.F6E3M2FN,
	36: shape.F6E2M3FN}

// Shape is the shape of a value of a program: an array's, or a tuple of shapes.
type Shape struct {
	shape.Shape         // of an array; DType is Invalid for tuples and opaque values
	Tuple       []Shape // not nil for tuples
	Dynamic     bool    // whether the size of some dimension is only bounded

	opaque       bool
	layout       bool    // whether an array's layout is given
	minorToMajor []int64 // of that layout
	elementBits  int64   // of that layout; 0 means whole bytes per element
	memory       uint64  // of that layout; 0 means the default one
}

func readShape(b []byte) (Shape, error) {
	var s Shape
	for f, err := range protowalk.Fields(b) {
		if err != nil {
			return s, err
		}
		switch f.Number {
		case shapeElementType:
			var known bool
			switch s.DType, known = dtypes[f.Value]; {
			case f.Value == typeTuple:
				s.Tuple = make([]Shape, 0)
			case f.Value == typeOpaque:
				s.opaque = true
			case !known:
				err = status.New(status.InvalidArgument, "element type %d is unknown", f.Value)
			}
		case shapeDimensions:
			s.Dims, err = f.AppendInts(s.Dims)
		case shapeTuple:
			var part Shape
			part, err = readShape(f.Bytes)
			s.Tuple = append(s.Tuple, part)
		case shapeLayout:
			s.layout = true
			err = s.readLayout(f.Bytes)
		case shapeDynamic:
			var dynamic []int64
			dynamic, err = f.AppendInts(nil)
			for _, d := range dynamic {
				s.Dynamic = s.Dynamic || d != 0
			}
		}
		if err != nil {
			return s, err
		}
	}
	if s.Elements() < 0 {
		return s, status.New(status.InvalidArgument, "the shape has invalid dimensions %v", s.Dims)
	}
	return s, nil
}

func (s *Shape) readLayout(b []byte) error {
	for f, err := range protowalk.Fields(b) {
		switch f.Number {
		case layoutMinorToMajor:
			s.minorToMajor, err = f.AppendInts(s.minorToMajor)
		case layoutElementBits:
			s.elementBits = int64(f.Value)
		case layoutMemory:
			s.memory = f.Value
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// order returns the dimensions of the layout, the minor one first; nil for a row-major one.
func (s Shape) order() []int64 {
	if len(s.minorToMajor) != len(s.Dims) {
		return nil
	}
	for i, d := range s.minorToMajor {
		if d != int64(len(s.Dims)-1-i) {
			return s.minorToMajor
		}
	}
	return nil
}

// each calls f for the shape and all shapes within it, with their places: "{}", "{1}",
// "{1,0}".
func (s Shape) each(place []int, f func(s Shape, place []int)) {
	f(s, place)
	for i, part := range s.Tuple {
		part.each(append(place[:len(place):len(place)], i), f)
	}
}
