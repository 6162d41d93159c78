package collective

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"testing"
	"unsafe"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/xla/spmd"
)

// dtypes that have kernels.
var dtypes = []shape.DType{shape.Pred, shape.S8, shape.S16, shape.S32, shape.S64, shape.U8, shape.U16, shape.U32,
	shape.U64,
	shape.F16, shape.BF16, shape.F32, shape.F64, shape.C64, shape.C128}

var reductions = []spmd.Reduction{spmd.Sum, spmd.Product, spmd.Min, spmd.Max, spmd.And, spmd.Or, spmd.Xor}

// aligned returns zeroed bytes at a multiple of 64.
func aligned(n int64) []byte {
	b := make([]byte, n+63)
	skip := (64 - int64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))%64)) % 64
	return b[skip : skip+n : skip+n]
}

// foldAll is the left fold of whole operands.
func foldAll(k kernel, ins [][]byte) []byte {
	acc := aligned(int64(len(ins[0])))
	k.neutral(acc)
	flushed(func() {
		for _, in := range ins {
			k.fold(acc, in)
		}
	})
	return acc
}

// component writes the i-th component of an array so that all NaN are one: which
// NaN comes out of an addition of two is the hardware's choice of operands, not
// a matter of the fold.
func component(t shape.DType, b []byte, i int) string {
	switch t {
	case shape.F16:
		if f := f16(elements[uint16](b)[i]); f != f {
			return "nan"
		}
	case shape.F32, shape.C64:
		if f := elements[float32](b)[i]; f != f {
			return "nan"
		}
	case shape.F64, shape.C128:
		if f := elements[float64](b)[i]; f != f {
			return "nan"
		}
	}
	if t.Bits() < 8 {
		return fmt.Sprintf("%x", narrow(t, b, i))
	}
	size := t.Bits() / 8
	if t == shape.C64 || t == shape.C128 {
		size /= 2
	}
	return hex.EncodeToString(b[i*size : (i+1)*size])
}

// subnormal reports whether a component is too small for XLA. A minimum or maximum
// that is, its loops give as it is in some places and as zero in others, whatever
// their vectors are.
func subnormal(t shape.DType, b []byte, i int) bool {
	switch t {
	case shape.F32:
		f := elements[float32](b)[i]
		return f != 0 && math.Abs(float64(f)) < 0x1p-126
	case shape.F64:
		f := elements[float64](b)[i]
		return f != 0 && math.Abs(f) < 0x1p-1022
	}
	return false
}

// Folds are those of XLA's all-reduce inside one process, bit for bit. What XLA
// gave is in testdata/folds.json, which testdata/make.py wrote.
func TestFoldsAreXLAs(t *testing.T) {
	f := statustest.Value(os.Open("testdata/folds.json")).OK(t)
	defer f.Close()
	seen := 0
	for lines := bufio.NewScanner(f); lines.Scan(); seen++ {
		var x struct {
			DType, Reduction string
			Ranks            []string
			Result           string
		}
		statustest.OK(t, json.Unmarshal(lines.Bytes(), &x))
		dtype := dtypes[slices.IndexFunc(dtypes, func(d shape.DType) bool { return d.String() == x.DType })]
		reduction := reductions[slices.IndexFunc(reductions, func(r spmd.Reduction) bool {
			return reductionName(r) == x.Reduction
		})]
		k, err := kernelOf(dtype, reduction)
		if err != nil {
			t.Errorf("XLA folds %s by %s: %v", x.DType, x.Reduction, err)
			continue
		}
		bytesOf := func(s string) []byte {
			b := statustest.Value(hex.DecodeString(s)).OK(t)
			out := aligned(int64(len(b)))
			copy(out, b)
			return out
		}
		var ins [][]byte
		for _, r := range x.Ranks {
			ins = append(ins, bytesOf(r))
		}
		got, want := foldAll(k, ins), bytesOf(x.Result)
		count := len(want) * 8 / dtype.Bits()
		if dtype == shape.C64 || dtype == shape.C128 {
			count *= 2
		}
		for i := range count {
			if (reduction == spmd.Min || reduction == spmd.Max) && subnormal(dtype, want, i) {
				continue
			}
			if g, w := component(dtype, got, i), component(dtype, want, i); g != w {
				var from []string
				for _, in := range ins {
					from = append(from, component(dtype, in, i))
				}
				t.Errorf("%s %s, component %d of %v: got %s, XLA %s", x.DType, x.Reduction, i, from, g, w)
			}
		}
	}
	if seen < 50 {
		t.Errorf("testdata has %d folds", seen)
	}
}

// All f16 and bf16 survive widening and narrowing, and narrowing rounds to the
// nearest, ties to even.
func TestHalfFloatsRoundToNearestEven(t *testing.T) {
	for _, h := range []struct {
		name   string
		wide   func(uint16) float32
		narrow func(float32) uint16
	}{{"f16", f16, f16Bits}, {"bf16", bf16, bf16Bits}} {
		for i := range 1 << 16 {
			b := uint16(i)
			f := h.wide(b)
			if f != f {
				if g := h.wide(h.narrow(f)); g == g {
					t.Fatalf("%s %#04x: NaN becomes %v", h.name, b, g)
				}
				continue
			}
			if got := h.narrow(f); got != b {
				t.Fatalf("%s %#04x is %v and comes back as %#04x", h.name, b, f, got)
			}
			// Half way to the next in magnitude goes to the even one.
			next := h.wide(b + 1)
			if next != next || math.IsInf(float64(next), 0) || math.IsInf(float64(f), 0) || b == 0x7fff {
				continue
			}
			half := float32((float64(f) + float64(next)) / 2)
			if (float64(half)-float64(f))*2 != float64(next)-float64(f) {
				continue // f32 has no such number: the least subnormals of bf16
			}
			even := b + b&1
			if got := h.narrow(half); got != even {
				t.Fatalf("%s: %v, half way from %#04x, becomes %#04x, want %#04x", h.name, half, b, got, even)
			}
			if got := h.narrow(math.Nextafter32(half, f)); got != b {
				t.Fatalf("%s: just below half way from %#04x becomes %#04x", h.name, b, got)
			}
		}
	}
}

func TestBitwiseReductions(t *testing.T) {
	for _, d := range []shape.DType{shape.S8, shape.U16, shape.S32, shape.U64} {
		a, b := aligned(64), aligned(64)
		for i := range a {
			a[i], b[i] = byte(37*i+5), byte(91*i+2)
		}
		for r, op := range map[spmd.Reduction]func(x, y byte) byte{
			spmd.And: func(x, y byte) byte { return x & y },
			spmd.Or:  func(x, y byte) byte { return x | y },
			spmd.Xor: func(x, y byte) byte { return x ^ y },
		} {
			k := statustest.Value(kernelOf(d, r)).OK(t)
			want := make([]byte, len(a))
			for i := range a {
				want[i] = op(a[i], b[i])
			}
			if got := foldAll(k, [][]byte{a, b}); !bytes.Equal(got, want) {
				t.Errorf("%s %s: got %x, want %x", d, reductionName(r), got, want)
			}
		}
	}
}

func TestReductionsWithoutAKernelAreRefused(t *testing.T) {
	for _, c := range []struct {
		d shape.DType
		r spmd.Reduction
	}{{shape.F32, spmd.And}, {shape.C64, spmd.Min}, {shape.F8E5M2, spmd.Sum}, {shape.S4, spmd.Sum}, {shape.F32, 99}} {
		statustest.Fails(t, fmt.Sprintf("%s of %s", reductionName(c.r), c.d), statustest.Of(kernelOf(c.d, c.r)),
			status.Unimplemented)
	}
}

func BenchmarkFold(b *testing.B) {
	for _, d := range []shape.DType{shape.F32, shape.F64, shape.BF16, shape.F16, shape.S8, shape.S16, shape.S32,
		shape.C64} {
		for _, r := range []spmd.Reduction{spmd.Sum, spmd.Product, spmd.Max, spmd.And} {
			k, err := kernelOf(d, r)
			if err != nil {
				continue
			}
			for _, size := range []int64{16 << 10, 16 << 20} {
				b.Run(fmt.Sprintf("%s/%s/%dKiB", d, reductionName(r), size>>10), func(b *testing.B) {
					acc, in := aligned(size), aligned(size)
					b.SetBytes(size)
					for b.Loop() {
						k.fold(acc, in)
					}
				})
			}
		}
	}
}

// What a fold begins with stands in each of its elements, however many there are, and nowhere else.
func TestNeutralElementFillsEveryLength(t *testing.T) {
	k := statustest.Value(kernelOf(shape.F32, spmd.Product)).OK(t)
	for n := range int64(200) {
		b := aligned((n + 1) * k.size)
		k.neutral(b[:n*k.size])
		for i, v := range elements[float32](b) {
			if want := int64(i) < n; (v == 1) != want {
				t.Fatalf("element %d of %d is %v", i, n, v)
			}
		}
	}
}
