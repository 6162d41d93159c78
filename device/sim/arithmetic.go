package sim

import (
	"unsafe"

	"github.com/openpathways/pathways/core/shape"
)

// lane is the arithmetic of one element type, on whole arrays of it.
type lane struct {
	whole    bool // integers only
	fill     func(dst []byte, v float64)
	add, mul func(dst, a, b []byte) // dst may be a
}

// Whole numbers wrap, so that the bits are the same for signed and unsigned ones.
var lanes = map[shape.DType]lane{
	shape.S32: laneOf(integer[uint32]), shape.U32: laneOf(integer[uint32]),
	shape.S64: laneOf(integer[uint64]), shape.U64: laneOf(integer[uint64]),
	shape.F32: laneOf(func(v float64) float32 { return float32(v) }),
	shape.F64: laneOf(func(v float64) float64 { return v }),
}

type number interface {
	uint32 | uint64 | float32 | float64
}

// laneOf returns the arithmetic of the elements that numbers become.
func laneOf[E number](of func(float64) E) lane {
	return lane{
		whole: E(1)/2 == 0,
		fill: func(dst []byte, v float64) {
			to, one := elements[E](dst), of(v)
			for i := range to {
				to[i] = one
			}
		},
		add: func(dst, a, b []byte) {
			to, x, y := elements[E](dst), elements[E](a), elements[E](b)
			for i := range to {
				to[i] = x[i] + y[i]
			}
		},
		mul: func(dst, a, b []byte) {
			to, x, y := elements[E](dst), elements[E](a), elements[E](b)
			for i := range to {
				to[i] = x[i] * y[i]
			}
		},
	}
}

func integer[E uint32 | uint64](v float64) E {
	if v < 0 {
		return E(int64(v))
	}
	return E(uint64(v))
}

// elements returns bytes as the elements that they are.
func elements[E number](b []byte) []E {
	return unsafe.Slice((*E)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(*new(E))))
}

// compute writes one result to dst, which may be the first argument's bytes. Nil arguments
// stand for zeros.
func (r Result) compute(t shape.DType, dst []byte, args ...[]byte) {
	l := lanes[t]
	for i, a := range args {
		if a == nil {
			args[i] = make([]byte, len(dst))
		}
	}
	switch r.Op {
	case "copy":
		copy(dst, args[0])
	case "fill":
		l.fill(dst, r.Value)
	case "add", "mul":
		f := l.add
		if r.Op == "mul" {
			f = l.mul
		}
		if len(args) == 1 {
			all := make([]byte, len(dst))
			l.fill(all, r.Value)
			args = append(args, all)
		}
		f(dst, args[0], args[1])
	case "all-reduce":
		// A left fold over the devices in order, like XLA's own.
		copy(dst, args[0])
		for _, a := range args[1:] {
			l.add(dst, dst, a)
		}
	}
}
