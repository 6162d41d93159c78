package worker

import (
	"github.com/openpathways/pathways/core/shape/strided"
	"github.com/openpathways/pathways/core/status"
)

// region is a rectangle of one dense row-major array and its place in another.
type region struct {
	from            []int64 // dimensions of the array it is taken from
	start, size, at []int64
}

// source is where the region lies in the array that it is taken from, where elements have width bytes.
func (b region) source(width int64) strided.Layout { return strided.Of(b.from, b.start, b.size, width) }

// place is where it lies in the other, of dimensions to.
func (b region) place(to []int64, width int64) strided.Layout {
	return strided.Of(to, b.at, b.size, width)
}

// check refuses a region that does not lie in its source.
func (b region) check() error {
	n := len(b.from)
	if len(b.start) != n || len(b.size) != n || len(b.at) != n {
		return status.New(status.InvalidArgument, "a region with start %v, size %v and place %v of an array of %d dimensions",
			b.start, b.size, b.at, n)
	}
	if !within(b.start, b.size, b.from) {
		return status.New(status.InvalidArgument, "a region of size %v at %v does not lie in an array of %v", b.size, b.start,
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
