package collective

import (
	"math"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/xla/spmd"
)

var (
	infinity32     = float32(math.Inf(1))
	infinity64     = math.Inf(1)
	negativeZero32 = float32(math.Copysign(0, -1))
)

// halvesAtOnce is how many 16-bit floats are widened, folded and rounded back at once: few enough for the first cache.
const halvesAtOnce = 256

// halves folds 16-bit floats: each step in f32, rounded back to nearest even. Three loops without a call for each
// element take 0.5 to 0.7 of the time of one loop with three.
func halves(t shape.DType, r spmd.Reduction) kernel {
	neutral, known := map[spmd.Reduction]float32{spmd.Sum: 0, spmd.Product: 1, spmd.Min: infinity32,
		spmd.Max: -infinity32}[r]
	if !known {
		return kernel{}
	}
	var half [1]uint16
	toHalves(t, half[:], []float32{neutral})
	return of(half[0], func(acc, in []uint16) {
		var a, b [halvesAtOnce]float32
		for n := 0; len(acc) > 0; acc, in = acc[n:], in[n:] {
			n = min(len(acc), len(a))
			toSingles(t, a[:n], acc)
			toSingles(t, b[:n], in)
			foldSingles(r, a[:n], b[:n])
			toHalves(t, acc[:n], a[:n])
		}
	})
}

// foldSingles is the fold of f32, called by its name so that acc and in may be on the stack.
func foldSingles(r spmd.Reduction, acc, in []float32) {
	switch r {
	case spmd.Sum:
		sum(acc, in)
	case spmd.Product:
		product(acc, in)
	case spmd.Min:
		least(negativeZero32)(acc, in)
	case spmd.Max:
		greatest(negativeZero32)(acc, in)
	}
}

// toSingles and toHalves write as many elements as out has.
func toSingles(t shape.DType, out []float32, in []uint16) {
	in = in[:len(out)]
	if t == shape.BF16 {
		for i, h := range in {
			out[i] = bf16(h)
		}
		return
	}
	for i, h := range in {
		out[i] = f16(h)
	}
}

func toHalves(t shape.DType, out []uint16, in []float32) {
	in = in[:len(out)]
	if t == shape.BF16 {
		for i, f := range in {
			out[i] = bf16Bits(f)
		}
		return
	}
	for i, f := range in {
		out[i] = f16Bits(f)
	}
}

func bf16(b uint16) float32 { return math.Float32frombits(uint32(b) << 16) }

func bf16Bits(f float32) uint16 {
	b := math.Float32bits(f)
	if f != f {
		return uint16(b>>16) | 0x40 // quiet
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// f16 and f16Bits are short enough to be inlined.

func f16(h uint16) float32 {
	a := uint32(h&0x7fff) << 13
	switch h & 0x7c00 {
	case 0x7c00: // infinity and NaN
		a |= 0x7f800000
	case 0: // zero and subnormal: units of 2^-24, which are the last of 2^-14 and more
		a = math.Float32bits(math.Float32frombits(a+113<<23) - 0x1p-14)
	default:
		a += 112 << 23
	}
	return math.Float32frombits(uint32(h&0x8000)<<16 | a)
}

func f16Bits(f float32) uint16 {
	b := math.Float32bits(f)
	a := b & 0x7fffffff
	switch {
	case a > 0x7f800000: // NaN
		a = 0x7e00 | a>>13&0x1ff
	case a >= 0x477ff000: // 65520 and above round to infinity
		a = 0x7c00
	// below 2^-14: subnormal. Adding 0.5 leaves the fraction, rounded to units of 2^-24, in the low 16 bits
	case a < 0x38800000:
		a = math.Float32bits(math.Float32frombits(a) + 0.5)
	default: // 0xc8000fff is 0xfff - 112<<23
		a = (a + 0xc8000fff + a>>13&1) >> 13
	}
	return uint16(b>>16&0x8000 | a)
}

// times is the product of two complex numbers as C defines it: where the plain
// formula returns two NaN, infinities are recovered. The conversions keep a
// compiler from fusing multiplication and addition, which would round once where
// XLA rounds twice.
func times[T float32 | float64](a, b, c, d T) (x, y T) {
	ac, bd, ad, bc := a*c, b*d, a*d, b*c
	x, y = T(ac)-T(bd), T(ad)+T(bc)
	if x == x || y == y {
		return x, y
	}
	inf := func(v T) bool { return math.IsInf(float64(v), 0) }
	signed := func(one float64, v T) T { return T(math.Copysign(one, float64(v))) }
	unit := func(v T) T { // 1 for an infinity, 0 for others
		if inf(v) {
			return signed(1, v)
		}
		return signed(0, v)
	}
	number := func(v T) T { // 0 for NaN
		if v != v {
			return signed(0, v)
		}
		return v
	}
	again := false
	if inf(a) || inf(b) {
		a, b, c, d, again = unit(a), unit(b), number(c), number(d), true
	}
	if inf(c) || inf(d) {
		a, b, c, d, again = number(a), number(b), unit(c), unit(d), true
	}
	if !again && (inf(ac) || inf(bd) || inf(ad) || inf(bc)) {
		a, b, c, d, again = number(a), number(b), number(c), number(d), true
	}
	if !again {
		return x, y
	}
	infinity := T(math.Inf(1))
	return infinity * (T(a*c) - T(b*d)), infinity * (T(a*d) + T(b*c))
}
