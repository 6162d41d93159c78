//go:build !race && !invariants

package collective

import (
	"testing"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/xla/spmd"
)

// So have those of f16: for each element, with zeros, subnormals, infinities, NaN and others, on either side.
func TestVectorsFoldEachHalf(t *testing.T) {
	every := aligned(2 << 16)
	for i := range elements[uint16](every) {
		elements[uint16](every)[i] = uint16(i)
	}
	others := []uint16{0, 1, 2, 0x1ff, 0x3ff, 0x400, 0x401, 0x1400, 0x2e66, 0x37ff, 0x3800, 0x3bff, 0x3c00, 0x3c01, 0x3e00,
		0x4248, 0x6400, 0x6801, 0x7800, 0x7bff, 0x7c00, 0x7c01, 0x7dff, 0x7e00, 0x7fff}
	for _, r := range []spmd.Reduction{spmd.Sum, spmd.Product, spmd.Min, spmd.Max} {
		plain := statustest.Value(plainKernel(shape.F16, r)).OK(t)
		vectors := statustest.Value(kernelOf(shape.F16, r)).OK(t)
		for _, other := range others {
			for _, other := range []uint16{other, other | 0x8000} {
				one := aligned(2 << 16)
				for i := range elements[uint16](one) {
					elements[uint16](one)[i] = other
				}
				for _, ins := range [][][]byte{{every, one}, {one, every}} {
					begun, folded, want := aligned(2<<16), aligned(2<<16), aligned(2<<16)
					copy(folded, ins[0])
					flushed(func() {
						vectors.fold(folded, ins[1])
						vectors.begin(begun, ins)
					})
					same := func(what string, got []byte) {
						for i, v := range elements[uint16](got) {
							if w := elements[uint16](want)[i]; v != w {
								t.Fatalf("%s %s of %#04x and %#04x is %#04x, want %#04x", what, reductionName(r),
									elements[uint16](ins[0])[i], elements[uint16](ins[1])[i], v, w)
							}
						}
					}
					copy(want, ins[0])
					flushed(func() { plain.fold(want, ins[1]) })
					same("the", folded)
					flushed(func() {
						plain.neutral(want)
						plain.fold(want, ins[0])
						plain.fold(want, ins[1])
					})
					same("the first", begun)
				}
			}
		}
	}
}
