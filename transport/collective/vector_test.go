package collective

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status/statustest"
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
