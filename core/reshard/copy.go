package reshard

import (
	"encoding/binary"
	"slices"
)

// Copy copies a region of an array: size elements along each dimension, of width bytes
// each, beginning at start in src, a dense row-major array of dimensions from, to at in
// dst, a dense row-major array of dimensions to.
func Copy(dst []byte, to, at []int64, src []byte, from, start, size []int64, width int64) {
	if slices.Contains(size, 0) {
		return
	}
	// The trailing dimensions that the region fills in both arrays, and the dimension
	// before them, form one contiguous run.
	run, outer := width, len(size)
	for outer > 0 {
		outer--
		run *= size[outer]
		if size[outer] != from[outer] || size[outer] != to[outer] {
			break
		}
	}
	var room [3 * 8]int64 // enough for up to 8 dimensions, without an allocation
	table := room[:]
	if len(size) > 8 {
		table = make([]int64, 3*len(size))
	}
	n := len(size)
	in, out, index := table[:n], table[n:2*n], table[2*n:3*n]
	i, o := strides(in, from, start, width), strides(out, to, at, width)
	inner, row := outer-1, int64(1)
	if inner >= 0 { // rows copies the innermost of the outer dimensions in a loop of its own
		row = size[inner]
	}
	for {
		if inner < 0 {
			copy(dst[o:o+run], src[i:i+run])
			return
		}
		rows(dst[o:], out[inner], src[i:], in[inner], run, row)
		k := inner - 1
		for ; k >= 0; k-- {
			index[k]++
			i += in[k]
			o += out[k]
			if index[k] < size[k] {
				break
			}
			i -= in[k] * size[k]
			o -= out[k] * size[k]
			index[k] = 0
		}
		if k < 0 {
			return
		}
	}
}

// rows copies n runs of run bytes; they begin in bytes apart in src and out bytes apart
// in dst.
func rows(dst []byte, out int64, src []byte, in, run, n int64) {
	switch run {
	case 8: // a move of a fixed size costs a tenth of a call of copy
		for j := range n {
			binary.NativeEndian.PutUint64(dst[j*out:], binary.NativeEndian.Uint64(src[j*in:]))
		}
	case 4:
		for j := range n {
			binary.NativeEndian.PutUint32(dst[j*out:], binary.NativeEndian.Uint32(src[j*in:]))
		}
	default:
		for j := range n {
			copy(dst[j*out:j*out+run], src[j*in:j*in+run])
		}
	}
}

// strides stores the distance in bytes between neighbors along each dimension in out,
// and returns the offset of the element at at.
func strides(out, dims, at []int64, width int64) (offset int64) {
	step := width
	for i := len(dims) - 1; i >= 0; i-- {
		out[i] = step
		offset += at[i] * step
		step *= dims[i]
	}
	return offset
}
