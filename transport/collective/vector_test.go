package collective

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"unsafe"

	"pgregory.net/rapid"
)

// stream, which bypasses the caches, copies the same bytes as copy, from and to any address, and writes no others.
func TestStreamCopiesLikeCopy(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 3*streamBytes).Draw(t, "bytes")
		from, to := rapid.IntRange(0, 200).Draw(t, "from"), rapid.IntRange(0, 200).Draw(t, "to")
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		src, got := make([]byte, 200+n), make([]byte, 400+n)
		for i := range src {
			src[i] = byte(rng.Uint32())
		}
		want := bytes.Clone(got)
		copy(want[to:to+n], src[from:from+n])
		stream(got[to:to+n], src[from:from+n])
		if !bytes.Equal(got, want) {
			t.Fatal("the bytes differ")
		}
	})
}

// sameSum checks that a sum by vector instructions has the bits of the scalar one, for any inputs, NaN and denormal
// floats included.
func sameSum[T number](t *testing.T, vectors func(acc, in []T)) {
	t.Helper()
	var one T
	size := int(unsafe.Sizeof(one))
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 500).Draw(t, "elements")
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		in, acc := aligned(int64(n*size)), aligned(int64(n*size))
		for i := range in {
			in[i], acc[i] = byte(rng.Uint32()), byte(rng.Uint32())
		}
		for i := range n { // the largest exponent, with any fraction
			if rng.IntN(8) == 0 {
				in[(i+1)*size-1], in[(i+1)*size-2] = 0x7f|byte(rng.Uint32()&0x80), 0xf8
			}
		}
		want := aligned(int64(n * size))
		copy(want, acc)
		flushed(func() {
			sum(elements[T](want), elements[T](in))
			vectors(elements[T](acc), elements[T](in))
		})
		if !bytes.Equal(acc, want) {
			t.Fatalf("got %x, want %x", acc, want)
		}
	})
}

func TestVectorSumsHaveTheBitsOfScalarOnes(t *testing.T) {
	sameSum(t, sumF32)
	sameSum(t, sumF64)
	sameSum(t, sumS32)
	sameSum(t, sumS64)
	sameSum(t, sumU32)
	sameSum(t, sumU64)
}
