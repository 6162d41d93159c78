package worker

import (
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/shape/strided"
	"github.com/openpathways/pathways/core/status"
)

// region is a rectangle of one dense row-major array and its place in another.
type region struct {
	from            []int64 // dimensions of the array it is taken from
	start, size, at []int64
}

// source returns the region's layout in the array that it is taken from, whose elements have width bytes.
func (r region) source(width int64) strided.Layout { return strided.Of(r.from, r.start, r.size, width) }

// place returns where the region lies in the destination, whose dimensions are to.
func (r region) place(to []int64, width int64) strided.Layout {
	return strided.Of(to, r.at, r.size, width)
}

// check refuses a region that is not inside its source.
func (r region) check() error {
	n := len(r.from)
	if len(r.start) != n || len(r.size) != n || len(r.at) != n {
		return status.New(status.InvalidArgument, "a region with start %v, size %v and place %v of an array of %d dimensions",
			r.start, r.size, r.at, n)
	}
	if !shape.Within(r.start, r.size, r.from) {
		return status.New(status.InvalidArgument, "a region of size %v at %v does not lie in an array of %v", r.size, r.start,
			r.from)
	}
	return nil
}
