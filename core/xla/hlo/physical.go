package hlo

import (
	"slices"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
)

// ReadShape parses a serialized xla.ShapeProto.
func ReadShape(b []byte) (Shape, error) { return readShape(b) }

// Physical returns the shape of an array's bytes in memory: the dimension that varies
// slowest comes first. place maps each of the program's dimensions to one of those. It
// fails for a value that is not an array of fixed size.
func (s Shape) Physical() (p shape.Shape, place []int, err error) {
	rank := len(s.Dims)
	switch {
	case s.Tuple != nil || s.opaque || s.DType.Bits() == 0:
		return p, nil, status.New(status.InvalidArgument, "the value is not an array")
	case s.Dynamic:
		return p, nil, status.New(status.Unimplemented, "%s has a size that is known only when it runs", s.Shape)
	case s.elementBits != 0 && s.elementBits != int64(s.DType.Bits()):
		return p, nil, status.New(status.Unimplemented, "%s has elements of %d bits", s.Shape, s.elementBits)
	}
	order := slices.Clone(s.minorToMajor)
	slices.Reverse(order)
	if !s.layout {
		for i := range rank {
			order = append(order, int64(i))
		}
	}
	p.DType = s.DType
	place = make([]int, rank)
	seen := make([]bool, rank)
	for i, d := range order {
		if d < 0 || int(d) >= rank || seen[d] || len(order) != rank {
			return p, nil, status.New(status.InvalidArgument, "%s is laid out as %v", s.Shape, s.minorToMajor)
		}
		seen[d] = true
		place[d] = i
		p.Dims = append(p.Dims, s.Dims[d])
	}
	if len(order) != rank {
		return p, nil, status.New(status.InvalidArgument, "%s is laid out as %v", s.Shape, s.minorToMajor)
	}
	return p, place, nil
}
