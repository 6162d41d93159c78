package collective

import (
	"math"

	"github.com/openpathways/pathways/core/xla/spmd"
)

var (
	infinity32 = float32(math.Inf(1))
	infinity64 = math.Inf(1)
)

// halves folds 16-bit floats: each step in f32, rounded back to nearest even.
func halves(r spmd.Reduction, wide func(uint16) float32, narrow func(float32) uint16) kernel {
	step := func(neutral float32, op func(a, b float32) float32) kernel {
		return of(narrow(neutral), func(acc, in []uint16) {
			in = in[:len(acc)]
			for i := range acc {
				acc[i] = narrow(op(wide(acc[i]), wide(in[i])))
			}
		})
	}
	switch r {
	case spmd.Sum:
		return step(0, func(a, b float32) float32 { return a + b })
	case spmd.Product:
		return step(1, func(a, b float32) float32 { return a * b })
	case spmd.Min:
		return of(narrow(infinity32), func(acc, in []uint16) {
			in = in[:len(acc)]
			for i := range acc {
				if wide(in[i]) < wide(acc[i]) {
					acc[i] = in[i]
				}
			}
		})
	case spmd.Max:
		return of(narrow(-infinity32), func(acc, in []uint16) {
			in = in[:len(acc)]
			for i := range acc {
				if wide(acc[i]) < wide(in[i]) {
					acc[i] = in[i]
				}
			}
		})
	}
	return kernel{}
}

func bf16(b uint16) float32 { return math.Float32frombits(uint32(b) << 16) }

func bf16Bits(f float32) uint16 {
	b := math.Float32bits(f)
	if f != f {
		return uint16(b>>16) | 0x40 // quiet
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

func f16(h uint16) float32 {
	sign, exp, frac := uint32(h&0x8000)<<16, uint32(h>>10&0x1f), uint32(h&0x3ff)
	switch {
	case exp == 0x1f: // infinity and NaN
		return math.Float32frombits(sign | 0x7f800000 | frac<<13)
	case exp == 0: // zero and subnormal: frac units of 2^-24, exact in f32
		return math.Float32frombits(sign | math.Float32bits(float32(frac)*0x1p-24))
	}
	return math.Float32frombits(sign | (exp+112)<<23 | frac<<13)
}

func f16Bits(f float32) uint16 {
	b := math.Float32bits(f)
	sign, a := uint16(b>>16&0x8000), b&0x7fffffff
	switch {
	case a > 0x7f800000: // NaN
		return sign | 0x7e00 | uint16(a>>13&0x1ff)
	case a >= 0x477ff000: // 65520 and above round to infinity
		return sign | 0x7c00
	// below 2^-14: subnormal. Adding 0.5 leaves the fraction, rounded to units of 2^-24, in the low bits
	case a < 0x38800000:
		return sign | uint16(math.Float32bits(math.Float32frombits(a)+0.5)-0x3f000000)
	}
	return sign | uint16((a-(112<<23)+0xfff+a>>13&1)>>13)
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
