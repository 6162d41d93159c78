package collective

import (
	"math"
	"unsafe"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/xla/spmd"
)

// kernel folds elements of one type by one reduction.
type kernel struct {
	size    int64                // bytes an element
	neutral func(acc []byte)     // fills acc with what every fold begins with
	fold    func(acc, in []byte) // acc[i] = acc[i] op in[i], for all elements of acc; in flushed
	// all is fold of one input after the other.
	all func(acc []byte, ins [][]byte)
	// begin is neutral, and all.
	begin func(acc []byte, ins [][]byte)
}

// sums are additions by vectors, of n bytes, a multiple of stride and not 0.
type sums struct {
	first func(acc, a, b *byte, n int)               // acc = 0 + a + b
	all   func(acc *byte, ins *[]byte, count, n int) // acc = acc + ins[0] + …; count is 1 at least. Or nil
}

// Three inputs and more are summed at once, so that acc is read and written once: that takes half of the time with
// eight. Two are faster one after the other. More than inputsMost would be more runs of memory than the processor reads
// ahead in. A sum that begins with two to firstMost inputs writes that of the first two, instead of zero: with two that
// takes half of the time in the first cache, and 0.75 beyond it; more than firstMost are faster at once.
const (
	inputsLeast = 3
	inputsMost  = 8
	firstMost   = 4
)

// kernelOf finds the kernel of a reduction, with vectors where the processor has them.
//
// Errors: UNIMPLEMENTED.
func kernelOf(t shape.DType, r spmd.Reduction) (kernel, error) {
	k, err := plainKernel(t, r)
	k.all = func(acc []byte, ins [][]byte) {
		for _, in := range ins {
			k.fold(acc, in)
		}
	}
	k.begin = func(acc []byte, ins [][]byte) {
		k.neutral(acc)
		k.all(acc, ins)
	}
	vectors := vectorsOf(t, r)
	if err != nil || vectors == nil {
		return k, err
	}
	plain := k.fold
	k.fold = func(acc, in []byte) {
		n := len(acc) / stride * stride
		if n > 0 {
			vectors(unsafe.SliceData(acc), unsafe.SliceData(in), n)
		}
		plain(acc[n:], in[n:])
	}
	if sums := sumsOf(t, r); sums.first != nil {
		k.sumBy(sums, plain)
	}
	return k, nil
}

// sumBy has a kernel of sums go by vectors. What they leave plain does.
func (k *kernel) sumBy(v sums, plain func(acc, in []byte)) {
	all, begin := k.all, k.begin
	k.all = func(acc []byte, ins [][]byte) {
		n := len(acc) / stride * stride
		if v.all == nil || len(ins) < inputsLeast || n == 0 {
			all(acc, ins)
			return
		}
		for len(ins) > 0 {
			some := ins[:min(len(ins), inputsMost)]
			ins = ins[len(some):]
			v.all(unsafe.SliceData(acc), unsafe.SliceData(some), len(some), n)
			for _, in := range some {
				plain(acc[n:], in[n:])
			}
		}
	}
	k.begin = func(acc []byte, ins [][]byte) {
		n := len(acc) / stride * stride
		if len(ins) < 2 || len(ins) > firstMost || n == 0 {
			begin(acc, ins)
			return
		}
		v.first(unsafe.SliceData(acc), unsafe.SliceData(ins[0]), unsafe.SliceData(ins[1]), n)
		k.neutral(acc[n:])
		plain(acc[n:], ins[0][n:])
		plain(acc[n:], ins[1][n:])
		k.all(acc, ins[2:])
	}
}

// plainKernel is kernelOf without vectors.
//
// XLA begins each fold with the reduction's neutral element, which shows in a
// sum of -0 and in a minimum of NaN: it keeps what it has where the new value is
// not less, so that NaN never gets into a minimum or maximum. What is not folded
// here XLA's CPU compiler does not ask for: it widens bf16 to f32, f8 to f16 and
// the narrow integers to 8 bits first.
//
// Errors: UNIMPLEMENTED.
func plainKernel(t shape.DType, r spmd.Reduction) (kernel, error) {
	var k kernel
	switch t {
	case shape.Pred:
		k = preds(r)
	case shape.S8:
		k = whole[int8](r, -1<<7, 1<<7-1)
	case shape.S16:
		k = whole[int16](r, -1<<15, 1<<15-1)
	case shape.S32:
		k = whole[int32](r, -1<<31, 1<<31-1)
	case shape.S64:
		k = whole[int64](r, -1<<63, 1<<63-1)
	case shape.U8:
		k = whole[uint8](r, 0, 1<<8-1)
	case shape.U16:
		k = whole[uint16](r, 0, 1<<16-1)
	case shape.U32:
		k = whole[uint32](r, 0, 1<<32-1)
	case shape.U64:
		k = whole[uint64](r, 0, 1<<64-1)
	case shape.F32:
		k = ordered(r, -infinity32, infinity32, negativeZero32)
	case shape.F64:
		k = ordered(r, -infinity64, infinity64, math.Copysign(0, -1))
	case shape.F16, shape.BF16:
		k = halves(t, r)
	case shape.C64:
		k = complexes[complex64](r, func(a, b complex64) complex64 {
			p, q := times(real(a), imag(a), real(b), imag(b))
			return complex(p, q)
		})
	case shape.C128:
		k = complexes[complex128](r, func(a, b complex128) complex128 {
			p, q := times(real(a), imag(a), real(b), imag(b))
			return complex(p, q)
		})
	}
	if k.fold == nil {
		return kernel{}, status.New(status.Unimplemented, "the reduction %s of %s is not implemented", reductionName(r), t)
	}
	return k, nil
}

// stride is the number of bytes that vectors fold at a time.
const stride = 128

func reductionName(r spmd.Reduction) string {
	names := [...]string{"", "sum", "product", "min", "max", "and", "or", "xor"}
	if int(r) < len(names) && r > 0 {
		return names[r]
	}
	return "of an unknown number"
}

// elements sees bytes as elements; the bytes are aligned and whole elements.
func elements[T any](b []byte) []T {
	var t T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(t)))
}

// singly is how many neutral elements are written one by one. They are copied onto the rest, twice as many each time: a
// copy has vectors where Go's loops have none, and is worth its call from so many elements on.
const singly = 16

// of makes a kernel of a neutral element and a fold.
func of[T any](neutral T, fold func(acc, in []T)) kernel {
	return kernel{
		size: int64(unsafe.Sizeof(neutral)),
		neutral: func(acc []byte) {
			a := elements[T](acc)
			done := min(singly, len(a))
			for i := range done {
				a[i] = neutral
			}
			for ; 0 < done && done < len(a); done *= 2 {
				copy(a[done:], a[:done])
			}
		},
		fold: func(acc, in []byte) { fold(elements[T](acc), elements[T](in)) },
	}
}

// each makes a fold of an operation that the compiler does not inline into it.
func each[T any](op func(a, b T) T) func(acc, in []T) {
	return func(acc, in []T) {
		in = in[:len(acc)]
		for i := range acc {
			acc[i] = op(acc[i], in[i])
		}
	}
}

type number interface {
	integer | ~float32 | ~float64
}

type integer interface {
	~int8 | ~int16 | ~int32 | ~int64 | ~uint8 | ~uint16 | ~uint32 | ~uint64
}

// The loops do eight elements at a time: their loads and stores then stand
// without tests of bounds between them.

func sum[T number](acc, in []T) {
	for ; len(acc) >= 8 && len(in) >= 8; acc, in = acc[8:], in[8:] {
		a, b := (*[8]T)(acc), (*[8]T)(in)
		a[0], a[1], a[2], a[3] = a[0]+b[0], a[1]+b[1], a[2]+b[2], a[3]+b[3]
		a[4], a[5], a[6], a[7] = a[4]+b[4], a[5]+b[5], a[6]+b[6], a[7]+b[7]
	}
	for i := range acc {
		acc[i] += in[i]
	}
}

func product[T number](acc, in []T) {
	for ; len(acc) >= 8 && len(in) >= 8; acc, in = acc[8:], in[8:] {
		a, b := (*[8]T)(acc), (*[8]T)(in)
		a[0], a[1], a[2], a[3] = a[0]*b[0], a[1]*b[1], a[2]*b[2], a[3]*b[3]
		a[4], a[5], a[6], a[7] = a[4]*b[4], a[5]*b[5], a[6]*b[6], a[7]*b[7]
	}
	for i := range acc {
		acc[i] *= in[i]
	}
}

// Adding zero, the negative one of floats, changes nothing but denormal floats,
// which flushed has made zero.

func least[T number](zero T) func(acc, in []T) {
	return func(acc, in []T) {
		in = in[:len(acc)]
		for i, v := range in {
			if v < acc[i] {
				acc[i] = v + zero
			}
		}
	}
}

func greatest[T number](zero T) func(acc, in []T) {
	return func(acc, in []T) {
		in = in[:len(acc)]
		for i, v := range in {
			if acc[i] < v {
				acc[i] = v + zero
			}
		}
	}
}

func ordered[T number](r spmd.Reduction, lowest, highest, zero T) kernel {
	switch r {
	case spmd.Sum:
		return of(0, sum[T])
	case spmd.Product:
		return of(1, product[T])
	case spmd.Min:
		return of(highest, least(zero))
	case spmd.Max:
		return of(lowest, greatest(zero))
	}
	return kernel{}
}

func whole[T integer](r spmd.Reduction, lowest, highest T) kernel {
	switch r {
	case spmd.And:
		return of(^T(0), each(func(a, b T) T { return a & b }))
	case spmd.Or:
		return of(0, each(func(a, b T) T { return a | b }))
	case spmd.Xor:
		return of(0, each(func(a, b T) T { return a ^ b }))
	}
	return ordered(r, lowest, highest, 0)
}

// preds folds truth values: a byte each, 0 or 1. A sum is an or.
func preds(r spmd.Reduction) kernel {
	switch r {
	case spmd.Sum, spmd.Max, spmd.Or:
		return of(0, each(func(a, b uint8) uint8 { return a | b }))
	case spmd.Product, spmd.Min, spmd.And:
		return of(1, each(func(a, b uint8) uint8 { return a & b }))
	case spmd.Xor:
		return of(0, each(func(a, b uint8) uint8 { return a ^ b }))
	}
	return kernel{}
}

func complexes[T complex64 | complex128](r spmd.Reduction, product func(a, b T) T) kernel {
	switch r {
	case spmd.Sum:
		return of(0, func(acc, in []T) {
			in = in[:len(acc)]
			for i := range acc {
				acc[i] += in[i]
			}
		})
	case spmd.Product:
		return of(1, each(product))
	}
	return kernel{}
}
