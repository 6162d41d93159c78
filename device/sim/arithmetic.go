package sim

import (
	"encoding/binary"
	"math"

	"github.com/openpathways/pathways/core/shape"
)

// lane is the arithmetic of one element type; elements travel as their bits.
type lane struct {
	size     int
	whole    bool // integers only
	add, mul func(a, b uint64) uint64
	of       func(float64) uint64
}

var lanes = map[shape.DType]lane{
	shape.S32: integer(4), shape.U32: integer(4), shape.S64: integer(8), shape.U64: integer(8),
	shape.F32: {
		size: 4,
		add:  func(a, b uint64) uint64 { return bits32(float32of(a) + float32of(b)) },
		mul:  func(a, b uint64) uint64 { return bits32(float32of(a) * float32of(b)) },
		of:   func(v float64) uint64 { return bits32(float32(v)) },
	},
	shape.F64: {
		size: 8,
		add:  func(a, b uint64) uint64 { return math.Float64bits(math.Float64frombits(a) + math.Float64frombits(b)) },
		mul:  func(a, b uint64) uint64 { return math.Float64bits(math.Float64frombits(a) * math.Float64frombits(b)) },
		of:   math.Float64bits,
	},
}

// integer returns the arithmetic of whole numbers, which wraps: the low bits are the same
// for signed and unsigned numbers.
func integer(size int) lane {
	return lane{
		size: size, whole: true,
		add: func(a, b uint64) uint64 { return a + b },
		mul: func(a, b uint64) uint64 { return a * b },
		of: func(v float64) uint64 {
			if v < 0 {
				return uint64(int64(v))
			}
			return uint64(v)
		},
	}
}

func float32of(b uint64) float32 { return math.Float32frombits(uint32(b)) }
func bits32(v float32) uint64    { return uint64(math.Float32bits(v)) }

func (l lane) get(b []byte, i int) uint64 {
	if l.size == 4 {
		return uint64(binary.NativeEndian.Uint32(b[4*i:]))
	}
	return binary.NativeEndian.Uint64(b[8*i:])
}

func (l lane) set(b []byte, i int, v uint64) {
	if l.size == 4 {
		binary.NativeEndian.PutUint32(b[4*i:], uint32(v))
	} else {
		binary.NativeEndian.PutUint64(b[8*i:], v)
	}
}

// compute writes one result to dst, which may be the first argument's bytes. Nil arguments
// stand for zeros.
func (r Result) compute(t shape.DType, dst []byte, args ...[]byte) {
	l := lanes[t]
	value := uint64(0)
	if l.of != nil {
		value = l.of(r.Value)
	}
	for i, a := range args {
		if a == nil {
			args[i] = make([]byte, len(dst))
		}
	}
	switch r.Op {
	case "copy":
		copy(dst, args[0])
	case "fill":
		for i := range len(dst) / l.size {
			l.set(dst, i, value)
		}
	case "add", "mul":
		f := l.add
		if r.Op == "mul" {
			f = l.mul
		}
		for i := range len(dst) / l.size {
			b := value
			if len(args) == 2 {
				b = l.get(args[1], i)
			}
			l.set(dst, i, f(l.get(args[0], i), b))
		}
	case "all-reduce":
		// A left fold over the devices in order, like XLA's own.
		copy(dst, args[0])
		for _, a := range args[1:] {
			for i := range len(dst) / l.size {
				l.set(dst, i, l.add(l.get(dst, i), l.get(a, i)))
			}
		}
	}
}
