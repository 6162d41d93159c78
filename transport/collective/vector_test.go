package collective

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/xla/spmd"
)

// Folds by vector instructions have the bits of plain ones, for any inputs, NaN, infinite and denormal floats included.
func TestVectorsHaveTheBitsOfPlainFolds(t *testing.T) {
	for _, dtype := range dtypes {
		for _, r := range reductions {
			plain, err := plainKernel(dtype, r)
			if err != nil || vectorsOf(dtype, r) == nil {
				continue
			}
			vectors := statustest.Value(kernelOf(dtype, r)).OK(t)
			t.Run(fmt.Sprint(dtype, " ", reductionName(r)), func(t *testing.T) {
				rapid.Check(t, func(t *rapid.T) { sameFold(t, dtype, plain, vectors) })
			})
		}
	}
}

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

func sameFold(t *rapid.T, dtype shape.DType, plain, vectors kernel) {
	size := int(plain.size)
	n := rapid.IntRange(0, 500).Draw(t, "elements")
	rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
	acc := aligned(int64(n * size))
	ins := make([][]byte, rapid.IntRange(1, 2*inputsMost+1).Draw(t, "inputs"))
	drawn := func(b []byte) {
		for i := range b {
			b[i] = byte(rng.Uint32())
			if dtype == shape.Pred {
				b[i] &= 1
			}
		}
		for i := 0; i < n && size > 1; i++ {
			switch element := b[i*size : (i+1)*size]; rng.IntN(8) {
			case 0: // of the largest exponent, with any fraction
				element[size-1], element[size-2] = 0x7f|byte(rng.Uint32()&0x80), 0xf8
			case 1: // infinite
				clear(element)
				element[size-1], element[size-2] = 0x7f|byte(rng.Uint32()&0x80), 0x80
				if size == 8 {
					element[6] = 0xf0
				}
			case 2: // zero
				clear(element)
				element[size-1] = byte(rng.Uint32() & 0x80)
			case 3: // of the smallest exponent
				element[size-1], element[size-2] = byte(rng.Uint32()&0x80), 0
			case 4: // that of the other
				copy(element, ins[0][i*size:])
			}
		}
	}
	for i := range ins {
		ins[i] = aligned(int64(n * size))
		drawn(ins[i])
	}
	drawn(acc)
	onto, want, begun := aligned(int64(n*size)), aligned(int64(n*size)), aligned(int64(n*size))
	copy(onto, acc)
	plain.neutral(want)
	flushed(func() {
		for _, in := range ins {
			plain.fold(acc, in)
			plain.fold(want, in)
		}
		vectors.all(onto, ins)
		vectors.begin(begun, ins)
	})
	if !bytes.Equal(onto, acc) || !bytes.Equal(begun, want) {
		t.Fatalf("got %x and %x, want %x and %x", onto, begun, acc, want)
	}
}
