package collective

import (
	"golang.org/x/sys/cpu"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/xla/spmd"
)

//go:noescape
func addI8AVX(acc, in *byte, n int)

//go:noescape
func addI16AVX(acc, in *byte, n int)

//go:noescape
func addI32AVX(acc, in *byte, n int)

//go:noescape
func addI64AVX(acc, in *byte, n int)

//go:noescape
func addF32AVX(acc, in *byte, n int)

//go:noescape
func addF64AVX(acc, in *byte, n int)

//go:noescape
func mulI16AVX(acc, in *byte, n int)

//go:noescape
func mulI32AVX(acc, in *byte, n int)

//go:noescape
func mulF32AVX(acc, in *byte, n int)

//go:noescape
func mulF64AVX(acc, in *byte, n int)

//go:noescape
func minS8AVX(acc, in *byte, n int)

//go:noescape
func minU8AVX(acc, in *byte, n int)

//go:noescape
func minS16AVX(acc, in *byte, n int)

//go:noescape
func minU16AVX(acc, in *byte, n int)

//go:noescape
func minS32AVX(acc, in *byte, n int)

//go:noescape
func minU32AVX(acc, in *byte, n int)

//go:noescape
func maxS8AVX(acc, in *byte, n int)

//go:noescape
func maxU8AVX(acc, in *byte, n int)

//go:noescape
func maxS16AVX(acc, in *byte, n int)

//go:noescape
func maxU16AVX(acc, in *byte, n int)

//go:noescape
func maxS32AVX(acc, in *byte, n int)

//go:noescape
func maxU32AVX(acc, in *byte, n int)

//go:noescape
func andAVX(acc, in *byte, n int)

//go:noescape
func orAVX(acc, in *byte, n int)

//go:noescape
func xorAVX(acc, in *byte, n int)

//go:noescape
func minF32AVX(acc, in *byte, n int)

//go:noescape
func maxF32AVX(acc, in *byte, n int)

//go:noescape
func minF64AVX(acc, in *byte, n int)

//go:noescape
func maxF64AVX(acc, in *byte, n int)

//go:noescape
func addF16AVX(acc, in *byte, n int)

//go:noescape
func mulF16AVX(acc, in *byte, n int)

//go:noescape
func minF16AVX(acc, in *byte, n int)

//go:noescape
func maxF16AVX(acc, in *byte, n int)

//go:noescape
func sumI8AVX(acc *byte, ins *[]byte, count, n int)

//go:noescape
func sumI16AVX(acc *byte, ins *[]byte, count, n int)

//go:noescape
func sumI32AVX(acc *byte, ins *[]byte, count, n int)

//go:noescape
func sumI64AVX(acc *byte, ins *[]byte, count, n int)

//go:noescape
func sumF32AVX(acc *byte, ins *[]byte, count, n int)

//go:noescape
func sumF64AVX(acc *byte, ins *[]byte, count, n int)

//go:noescape
func firstI8AVX(acc, a, b *byte, n int)

//go:noescape
func firstI16AVX(acc, a, b *byte, n int)

//go:noescape
func firstI32AVX(acc, a, b *byte, n int)

//go:noescape
func firstI64AVX(acc, a, b *byte, n int)

//go:noescape
func firstF32AVX(acc, a, b *byte, n int)

//go:noescape
func firstF64AVX(acc, a, b *byte, n int)

//go:noescape
func firstF16AVX(acc, a, b *byte, n int)

var (
	hasVectors = cpu.X86.HasAVX2
	hasHalves  = hasVectors && cpu.X86.HasF16C
)

// sumsOf returns the sums of a type by vectors; none if there are none.
func sumsOf(t shape.DType, r spmd.Reduction) sums {
	if !hasVectors || r != spmd.Sum {
		return sums{}
	}
	switch t {
	case shape.F16:
		if hasHalves {
			// Each of several terms would have to be rounded: they are no faster at once.
			return sums{first: firstF16AVX}
		}
	case shape.S8, shape.U8:
		return sums{firstI8AVX, sumI8AVX}
	case shape.S16, shape.U16:
		return sums{firstI16AVX, sumI16AVX}
	case shape.S32, shape.U32:
		return sums{firstI32AVX, sumI32AVX}
	case shape.S64, shape.U64:
		return sums{firstI64AVX, sumI64AVX}
	case shape.F32:
		return sums{firstF32AVX, sumF32AVX}
	case shape.F64:
		return sums{firstF64AVX, sumF64AVX}
	}
	return sums{}
}

// vectorsOf returns the fold of a reduction by vectors, of n bytes, a multiple of stride; nil if there is none.
func vectorsOf(t shape.DType, r spmd.Reduction) func(acc, in *byte, n int) {
	if !hasVectors || t == shape.F16 && !hasHalves {
		return nil
	}
	return byVectors[reductionOf{t, r}]
}

type reductionOf struct {
	t shape.DType
	r spmd.Reduction
}

var byVectors = map[reductionOf]func(acc, in *byte, n int){
	{shape.S8, spmd.Sum}:       addI8AVX,
	{shape.U8, spmd.Sum}:       addI8AVX,
	{shape.S16, spmd.Sum}:      addI16AVX,
	{shape.U16, spmd.Sum}:      addI16AVX,
	{shape.S32, spmd.Sum}:      addI32AVX,
	{shape.U32, spmd.Sum}:      addI32AVX,
	{shape.S64, spmd.Sum}:      addI64AVX,
	{shape.U64, spmd.Sum}:      addI64AVX,
	{shape.F32, spmd.Sum}:      addF32AVX,
	{shape.F64, spmd.Sum}:      addF64AVX,
	{shape.S16, spmd.Product}:  mulI16AVX,
	{shape.U16, spmd.Product}:  mulI16AVX,
	{shape.S32, spmd.Product}:  mulI32AVX,
	{shape.U32, spmd.Product}:  mulI32AVX,
	{shape.F32, spmd.Product}:  mulF32AVX,
	{shape.F64, spmd.Product}:  mulF64AVX,
	{shape.S8, spmd.Min}:       minS8AVX,
	{shape.U8, spmd.Min}:       minU8AVX,
	{shape.S16, spmd.Min}:      minS16AVX,
	{shape.U16, spmd.Min}:      minU16AVX,
	{shape.S32, spmd.Min}:      minS32AVX,
	{shape.U32, spmd.Min}:      minU32AVX,
	{shape.S8, spmd.Max}:       maxS8AVX,
	{shape.U8, spmd.Max}:       maxU8AVX,
	{shape.S16, spmd.Max}:      maxS16AVX,
	{shape.U16, spmd.Max}:      maxU16AVX,
	{shape.S32, spmd.Max}:      maxS32AVX,
	{shape.U32, spmd.Max}:      maxU32AVX,
	{shape.S8, spmd.And}:       andAVX,
	{shape.S16, spmd.And}:      andAVX,
	{shape.S32, spmd.And}:      andAVX,
	{shape.S64, spmd.And}:      andAVX,
	{shape.U8, spmd.And}:       andAVX,
	{shape.U16, spmd.And}:      andAVX,
	{shape.U32, spmd.And}:      andAVX,
	{shape.U64, spmd.And}:      andAVX,
	{shape.S8, spmd.Or}:        orAVX,
	{shape.S16, spmd.Or}:       orAVX,
	{shape.S32, spmd.Or}:       orAVX,
	{shape.S64, spmd.Or}:       orAVX,
	{shape.U8, spmd.Or}:        orAVX,
	{shape.U16, spmd.Or}:       orAVX,
	{shape.U32, spmd.Or}:       orAVX,
	{shape.U64, spmd.Or}:       orAVX,
	{shape.S8, spmd.Xor}:       xorAVX,
	{shape.S16, spmd.Xor}:      xorAVX,
	{shape.S32, spmd.Xor}:      xorAVX,
	{shape.S64, spmd.Xor}:      xorAVX,
	{shape.U8, spmd.Xor}:       xorAVX,
	{shape.U16, spmd.Xor}:      xorAVX,
	{shape.U32, spmd.Xor}:      xorAVX,
	{shape.U64, spmd.Xor}:      xorAVX,
	{shape.F16, spmd.Sum}:      addF16AVX,
	{shape.F16, spmd.Product}:  mulF16AVX,
	{shape.F16, spmd.Min}:      minF16AVX,
	{shape.F16, spmd.Max}:      maxF16AVX,
	{shape.F32, spmd.Min}:      minF32AVX,
	{shape.F32, spmd.Max}:      maxF32AVX,
	{shape.F64, spmd.Min}:      minF64AVX,
	{shape.F64, spmd.Max}:      maxF64AVX,
	{shape.Pred, spmd.Sum}:     orAVX,
	{shape.Pred, spmd.Max}:     orAVX,
	{shape.Pred, spmd.Or}:      orAVX,
	{shape.Pred, spmd.Product}: andAVX,
	{shape.Pred, spmd.Min}:     andAVX,
	{shape.Pred, spmd.And}:     andAVX,
	{shape.Pred, spmd.Xor}:     xorAVX,
}
