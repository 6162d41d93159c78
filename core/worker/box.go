package worker

import (
	"slices"

	"github.com/openpathways/pathways/core/status"
)

// box is a rectangle of one dense row-major array and its place in another.
type box struct {
	from            []int64 // dimensions of the array it is taken from
	start, size, at []int64
}

// check refuses a box that does not lie in its source.
func (b box) check() error {
	n := len(b.from)
	if len(b.start) != n || len(b.size) != n || len(b.at) != n {
		return status.New(status.InvalidArgument, "a box with start %v, size %v and place %v of an array of %d dimensions",
			b.start, b.size, b.at, n)
	}
	if !within(b.start, b.size, b.from) {
		return status.New(status.InvalidArgument, "a box of size %v at %v does not lie in an array of %v", b.size, b.start,
			b.from)
	}
	return nil
}

func within(start, size, dims []int64) bool {
	if len(start) != len(dims) || len(size) != len(dims) {
		return false
	}
	for i, d := range dims {
		if start[i] < 0 || size[i] < 0 || size[i] > d || start[i] > d-size[i] {
			return false
		}
	}
	return true
}

// copy copies the box from src, of dimensions from, to dst, of dimensions to;
// elements are width bytes. Runs that are contiguous in both are copied as one.
func (b box) copy(dst []byte, to []int64, src []byte, width int64) {
	if slices.Contains(b.size, 0) {
		return
	}
	// The trailing dimensions that the box fills in both arrays, and one more, are
	// one run.
	run, outer := width, len(b.size)
	for outer > 0 {
		outer--
		run *= b.size[outer]
		if b.size[outer] != b.from[outer] || b.size[outer] != to[outer] {
			break
		}
	}
	strides := func(dims []int64) []int64 {
		s := make([]int64, len(dims))
		step := width
		for i := len(dims) - 1; i >= 0; i-- {
			s[i] = step
			step *= dims[i]
		}
		return s
	}
	in, out := strides(b.from), strides(to)
	var i, o int64
	for k := range b.size {
		i += b.start[k] * in[k]
		o += b.at[k] * out[k]
	}
	at := make([]int64, outer)
	for {
		copy(dst[o:o+run], src[i:i+run])
		k := outer - 1
		for ; k >= 0; k-- {
			at[k]++
			i += in[k]
			o += out[k]
			if at[k] < b.size[k] {
				break
			}
			i -= at[k] * in[k]
			o -= at[k] * out[k]
			at[k] = 0
		}
		if k < 0 {
			return
		}
	}
}
