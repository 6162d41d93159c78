package pjrt

import (
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/openpathways/pathways/core/shape"
)

// signature is what an optimized HLO module says of its parameters; PJRT itself
// only tells of outputs.
type signature struct {
	params  []shape.Shape // of one shard
	donated []int         // parameters whose memory an output takes
}

// Field numbers of XLA's xla/service/hlo.proto and xla/xla_data.proto.
const (
	withConfigModule = 1

	moduleProgramShape = 4
	moduleAlias        = 8

	programParameters = 1

	shapeElementType = 2
	shapeDimensions  = 3
	shapeTuple       = 4
	shapeDynamic     = 6

	aliasEntries     = 1
	entryParameter   = 2
	entryTuple       = 3
	elementTypeTuple = 13
)

// dtypes gives the element type of XLA's PrimitiveType numbers.
var dtypes = map[uint64]shape.DType{1: shape.Pred, 2: shape.S8, 3: shape.S16, 4: shape.S32, 5: shape.S64, 6: shape.U8,
	7: shape.U16, 8: shape.U32, 9: shape.U64, 10: shape.F16, 11: shape.F32, 12: shape.F64, 15: shape.C64, 16: shape.BF16,
	17: shape.Token, 18: shape.C128, 19: shape.F8E5M2, 20: shape.F8E4M3FN, 21: shape.S4, 22: shape.U4,
	23: shape.F8E4M3B11FNUZ, 24: shape.F8E5M2FNUZ, 25: shape.F8E4M3FNUZ, 26: shape.S2, 27: shape.U2, 28: shape.F8E4M3,
	29: shape.F8E3M4, 30: shape.S1, 31: shape.U1, 32: shape.F4E2M1FN, 33: shape.F8E8M0FNU, 35: shape.F6E3M2FN,
	36: shape.F6E2M3FN}

// ReadSignature reads the shapes of a shard's arguments from a serialized program
// of format "hlo" or "hlo_with_config", and which of them are donated. Known is
// false where the program says nothing that can be relied on.
func ReadSignature(format string, code []byte) (params []shape.Shape, donated []int, known bool) {
	s := readSignature(format, code)
	if s == nil {
		return nil, nil, false
	}
	return s.params, s.donated, true
}

// readSignature reads a serialized program of format "hlo" or "hlo_with_config".
// It gives nil where the program says nothing that can be relied on: a format
// that is not known here, bytes that do not parse, dynamic shapes.
func readSignature(format string, code []byte) *signature {
	switch format {
	case "hlo":
	case "hlo_with_config":
		var module []byte
		if !fields(code, func(n protowire.Number, _ uint64, b []byte) bool {
			if n == withConfigModule {
				module = b
			}
			return true
		}) {
			return nil
		}
		code = module
	default:
		return nil
	}
	var s signature
	known := false
	ok := fields(code, func(n protowire.Number, _ uint64, b []byte) bool {
		switch n {
		case moduleProgramShape:
			known = true
			return fields(b, func(n protowire.Number, _ uint64, b []byte) bool {
				return n != programParameters || s.addParameter(b)
			})
		case moduleAlias:
			return fields(b, func(n protowire.Number, _ uint64, b []byte) bool {
				return n != aliasEntries || s.addAlias(b)
			})
		}
		return true
	})
	if !ok || !known {
		return nil
	}
	slices.Sort(s.donated)
	s.donated = slices.Compact(s.donated)
	return &s
}

func (s *signature) addParameter(b []byte) bool {
	p, tuple, ok := readShape(b)
	if !ok || tuple != nil {
		// All arguments as one tuple is a calling convention of its own.
		return false
	}
	s.params = append(s.params, p)
	return true
}

func (s *signature) addAlias(b []byte) bool {
	parameter := 0
	ok := fields(b, func(n protowire.Number, v uint64, b []byte) bool {
		if n == entryParameter {
			parameter = int(v)
		}
		return n != entryTuple // parameters are no tuples here
	})
	s.donated = append(s.donated, parameter)
	return ok
}

func readShape(b []byte) (s shape.Shape, tuple []byte, ok bool) {
	ok = fields(b, func(n protowire.Number, v uint64, b []byte) bool {
		switch n {
		case shapeElementType:
			if v == elementTypeTuple {
				tuple = []byte{}
			}
			t, known := dtypes[v]
			s.DType = t
			return known || tuple != nil
		case shapeDimensions:
			if b == nil {
				s.Dims = append(s.Dims, int64(v))
				return true
			}
			return varints(b, func(v uint64) { s.Dims = append(s.Dims, int64(v)) })
		case shapeTuple:
			tuple = b
		case shapeDynamic:
			dynamic := v != 0
			return (b == nil || varints(b, func(v uint64) { dynamic = dynamic || v != 0 })) && !dynamic
		}
		return true
	})
	return s, tuple, ok
}

// fields calls f for each field of a message until it says false: with v for a
// varint, with b, which is then not nil, for bytes. It reports whether the whole
// message was read.
func fields(message []byte, f func(n protowire.Number, v uint64, b []byte) bool) bool {
	for len(message) > 0 {
		n, kind, size := protowire.ConsumeTag(message)
		if size < 0 {
			return false
		}
		message = message[size:]
		var v uint64
		var b []byte
		switch kind {
		case protowire.VarintType:
			v, size = protowire.ConsumeVarint(message)
		case protowire.BytesType:
			b, size = protowire.ConsumeBytes(message)
			if b == nil {
				b = []byte{}
			}
		default:
			size = protowire.ConsumeFieldValue(n, kind, message)
		}
		if size < 0 {
			return false
		}
		message = message[size:]
		if !f(n, v, b) {
			return false
		}
	}
	return true
}

func varints(b []byte, f func(uint64)) bool {
	for len(b) > 0 {
		v, size := protowire.ConsumeVarint(b)
		if size < 0 {
			return false
		}
		f(v)
		b = b[size:]
	}
	return true
}
