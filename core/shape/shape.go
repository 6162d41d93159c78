// Package shape describes arrays: element types, dimensions and byte sizes.
//
// It is pure: values only, no state. Element types carry PJRT's numbers, so that
// they cross the C API unchanged.
package shape

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// DType is an element type, numbered as PJRT_Buffer_Type.
type DType uint32

// The element types.
const (
	Invalid DType = iota
	Pred
	S8
	S16
	S32
	S64
	U8
	U16
	U32
	U64
	F16
	F32
	F64
	BF16
	C64
	C128
	F8E5M2
	F8E4M3FN
	F8E4M3B11FNUZ
	F8E5M2FNUZ
	F8E4M3FNUZ
	S4
	U4
	Token
	S2
	U2
	F8E4M3
	F8E3M4
	F8E8M0FNU
	F4E2M1FN
	S1
	U1
	F6E2M3FN
	F6E3M2FN
)

var dtypes = [...]struct {
	name string
	bits int
}{{"invalid", 0}, {"pred", 8}, {"s8", 8}, {"s16", 16}, {"s32", 32}, {"s64", 64}, {"u8", 8}, {"u16", 16}, {"u32", 32},
	{"u64", 64}, {"f16", 16}, {"f32", 32}, {"f64", 64}, {"bf16", 16}, {"c64", 64}, {"c128", 128}, {"f8e5m2", 8},
	{"f8e4m3fn", 8}, {"f8e4m3b11fnuz", 8}, {"f8e5m2fnuz", 8}, {"f8e4m3fnuz", 8}, {"s4", 4}, {"u4", 4}, {"token", 0},
	{"s2", 2}, {"u2", 2}, {"f8e4m3", 8}, {"f8e3m4", 8}, {"f8e8m0fnu", 8}, {"f4e2m1fn", 4}, {"s1", 1}, {"u1", 1},
	{"f6e2m3fn", 6}, {"f6e3m2fn", 6}}

// String returns XLA's name of the type, such as f32.
func (t DType) String() string {
	if int(t) < len(dtypes) {
		return dtypes[t].name
	}
	return fmt.Sprintf("dtype%d", uint32(t))
}

// Bits returns the width of one element in bits; 0 for tokens and for unknown types.
func (t DType) Bits() int {
	if int(t) < len(dtypes) {
		return dtypes[t].bits
	}
	return 0
}

// Shape is an element type and dimensions. A scalar has no dimensions.
type Shape struct {
	DType DType
	Dims  []int64
}

// Elements returns the number of elements, or -1 if a dimension is negative or
// the product does not fit in an int64.
func (s Shape) Elements() int64 {
	n := int64(1)
	for _, d := range s.Dims {
		if d < 0 {
			return -1
		}
		if d != 0 && n > math.MaxInt64/d {
			return -1
		}
		n *= d
	}
	return n
}

// Bytes returns the size of a dense array of this shape in bytes, with sub-byte
// elements packed, or -1 if it does not fit in an int64.
func (s Shape) Bytes() int64 {
	n, bits := s.Elements(), int64(s.DType.Bits())
	if n < 0 || (bits != 0 && n > (math.MaxInt64-7)/bits) {
		return -1
	}
	return (n*bits + 7) / 8
}

// HostBytes returns the size of a dense array of this shape in host memory, where an
// element narrower than a byte takes a whole byte, as in NumPy and PJRT; -1 if the size
// does not fit in an int64.
func (s Shape) HostBytes() int64 {
	n, size := s.Elements(), int64(s.DType.Bits()+7)/8
	if n < 0 || (size != 0 && n > math.MaxInt64/size) {
		return -1
	}
	return n * size
}

// String formats the shape as XLA does, such as f32[4,8].
func (s Shape) String() string {
	var b strings.Builder
	b.WriteString(s.DType.String())
	b.WriteByte('[')
	for i, d := range s.Dims {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprint(&b, d)
	}
	b.WriteByte(']')
	return b.String()
}

// BytesText formats a number of bytes for people, such as 1.5 MiB.
func BytesText(n int64) string {
	const units = "KMGTPE"
	if n < 1<<10 {
		return fmt.Sprintf("%d bytes", n)
	}
	f, unit := float64(n)/(1<<10), 0
	for f >= 1<<10 && unit < len(units)-1 {
		f, unit = f/(1<<10), unit+1
	}
	return fmt.Sprintf("%.4g %ciB", f, units[unit])
}

// Units of bytes, those first whose names end like others.
var units = []struct {
	name  string
	bytes int64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
	{"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"B", 1},
}

// ParseBytes reads a number of bytes that a person wrote, such as "4GiB", "1.5 GB" or "500000000". It reports whether
// the text is one.
func ParseBytes(text string) (bytes int64, ok bool) {
	digits, unit := strings.TrimSpace(text), int64(1)
	for _, u := range units {
		if rest, has := strings.CutSuffix(digits, u.name); has {
			digits, unit = strings.TrimSpace(rest), u.bytes
			break
		}
	}
	n, err := strconv.ParseFloat(digits, 64)
	if all := n * float64(unit); err == nil && all >= 0 && all < math.MaxInt64 {
		return int64(all), true
	}
	return 0, false
}

// Within reports whether the region of a size that begins at start lies inside of an array of dims. It is false where
// these have different numbers of dimensions.
func Within(start, size, dims []int64) bool {
	if len(start) != len(dims) || len(size) != len(dims) {
		return false
	}
	for i, d := range dims {
		if start[i] < 0 || size[i] < 0 || start[i] > d || size[i] > d-start[i] {
			return false
		}
	}
	return true
}
