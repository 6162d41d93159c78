package reshard

import (
	"encoding/binary"
	"slices"
)

// Copy copies a box of size elements of width bytes from start in src, a dense
// row-major array of dimensions from, to at in dst, one of dimensions to.
func Copy(dst []byte, to, at []int64, src []byte, from, start, size []int64, width int64) {
	if slices.Contains(size, 0) {
		return
	}
	// The trailing dimensions that the box fills in both arrays, and one more, are
	// one run.
	run, outer := width, len(size)
	for outer > 0 {
		outer--
		run *= size[outer]
		if size[outer] != from[outer] || size[outer] != to[outer] {
			break
		}
	}
	var room [3 * 8]int64 // of most arrays
	table := room[:]
	if len(size) > 8 {
		table = make([]int64, 3*len(size))
	}
	n := len(size)
	in, out, index := table[:n], table[n:2*n], table[2*n:3*n]
	i, o := strides(in, from, start, width), strides(out, to, at, width)
	inner, row := outer-1, int64(1)
	if inner >= 0 { // rows of the innermost of the outer dimensions, by themselves
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

// rows copies n runs, each so many bytes after the other.
func rows(dst []byte, out int64, src []byte, in, run, n int64) {
	switch run {
	case 8: // moves of a known size cost a tenth of a call
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

// strides writes the bytes between neighbours along each dimension, and gives the
// place of an element.
func strides(out, dims, at []int64, width int64) (offset int64) {
	step := width
	for i := len(dims) - 1; i >= 0; i-- {
		out[i] = step
		offset += at[i] * step
		step *= dims[i]
	}
	return offset
}
