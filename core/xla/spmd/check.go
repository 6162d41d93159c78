package spmd

import (
	"slices"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
)

// check returns an error unless the spec describes a valid collective: it has the fields
// of its op, each rank is where it may be, and shapes match each other and the groups.
func (s *Spec) check() error {
	err := s.checkFields()
	if err == nil {
		err = s.checkRanks()
	}
	if err == nil && s.Site >= 0 {
		err = s.checkShapes()
	}
	return status.Wrap(err, "%s", s.Op)
}

func (s *Spec) checkFields() error {
	bad := func(format string, args ...any) error {
		return status.New(status.InvalidArgument, format, args...)
	}
	if s.Op == PartitionID || s.Op == ReplicaID {
		u32 := shape.Shape{DType: shape.U32}
		if len(s.Operands) != 0 || len(s.Results) != 1 || !same(s.Results[0], u32) || s.Replicas < 1 || s.Parts < 1 ||
			s.Site != -1 {
			return bad("want the numbers of replicas and partitions, and one result u32[]")
		}
		return nil
	}
	if s.Site < 0 || s.Replicas != 0 || s.Parts != 0 {
		return bad("want a site, and no replicas and parts")
	}
	if len(s.Operands) == 0 || len(s.Results) == 0 {
		return bad("it has no operands or no results")
	}
	for _, list := range [...][]shape.Shape{s.Operands, s.Results} {
		for _, o := range list {
			if o.DType.Bits() == 0 || o.HostBytes() < 0 {
				return bad("%s is no array of a size that can be", o)
			}
		}
	}
	reduces := s.Op == AllReduce || s.Op == ReduceScatter
	if reduces != (s.Reduction != 0) || reduces != (s.DType != shape.Invalid) {
		return bad("reduction %s of %s", s.Reduction, s.DType)
	}
	if s.Op == CollectivePermute != (len(s.Groups) == 0) || len(s.Pairs) != 0 && s.Op != CollectivePermute {
		return bad("%d groups and %d pairs", len(s.Groups), len(s.Pairs))
	}
	return nil
}

func (s *Spec) checkRanks() error {
	var in rankSet
	for _, g := range s.Groups {
		if len(g) == 0 {
			return status.New(status.InvalidArgument, "an empty group")
		}
		for _, r := range g {
			if !in.add(r) {
				return status.New(status.InvalidArgument, "rank %d is in two groups, or twice in one", r)
			}
		}
	}
	var sources, targets rankSet
	for _, p := range s.Pairs {
		if !sources.add(p[0]) || !targets.add(p[1]) {
			return status.New(status.InvalidArgument, "pair %d>%d: its source or target stands in another pair too", p[0], p[1])
		}
	}
	return nil
}

// checkShapes compares each result with the one that follows from its operand.
func (s *Spec) checkShapes() error {
	size := 0
	if len(s.Groups) > 0 {
		size = len(s.Groups[0])
	}
	sized := s.Op == AllGather || s.Op == ReduceScatter || s.Op == AllToAll
	for _, g := range s.Groups {
		if sized && len(g) != size {
			return status.New(status.InvalidArgument, "groups of %d and of %d ranks: they must be of one size", size, len(g))
		}
	}
	if s.Op == RaggedAllToAll {
		if len(s.Operands) != 6 || len(s.Results) != 1 || !same(s.Operands[1], s.Results[0]) {
			return status.New(status.InvalidArgument, "%d operands and %d results: want 6, and a result like the second operand",
				len(s.Operands), len(s.Results))
		}
		return nil
	}
	if len(s.Operands) != len(s.Results) {
		return status.New(status.InvalidArgument, "%d operands and %d results", len(s.Operands), len(s.Results))
	}
	parts := s.Op == AllToAll && s.Dim == -1
	if parts && len(s.Operands) != size {
		return status.New(status.InvalidArgument, "%d operands for a group of %d ranks: want one for each", len(s.Operands),
			size)
	}
	if (!sized && s.Dim != 0) || (s.Dim < 0 && !parts) {
		return status.New(status.InvalidArgument, "dimension %d", s.Dim)
	}
	for i, in := range s.Operands {
		out := s.Results[i]
		if s.DType != shape.Invalid && in.DType != s.DType {
			return status.New(status.InvalidArgument, "a reduction of %s over %s", s.DType, in)
		}
		if parts && !same(in, s.Operands[0]) {
			return status.New(status.InvalidArgument, "operands %s and %s: all must be alike", s.Operands[0], in)
		}
		want, n := shape.Shape{DType: in.DType, Dims: slices.Clone(in.Dims)}, int64(size)
		fits := true
		if sized && !parts {
			if s.Dim >= len(in.Dims) {
				return status.New(status.InvalidArgument, "%s has no dimension %d", in, s.Dim)
			}
			switch s.Op {
			case AllGather:
				want.Dims[s.Dim] *= n // in bounds: the result's size was checked, and is compared
			case ReduceScatter:
				want.Dims[s.Dim] /= n
				fits = in.Dims[s.Dim]%n == 0
			case AllToAll:
				fits = in.Dims[s.Dim]%n == 0
			}
		}
		if !fits || !same(out, want) {
			return status.New(status.InvalidArgument, "%s over groups of %d ranks returns %s, want %s", in, size, out, want)
		}
	}
	return nil
}

func same(a, b shape.Shape) bool { return a.DType == b.DType && slices.Equal(a.Dims, b.Dims) }

// rankSet is a set of ranks below maxRanks.
type rankSet []uint64

// add adds r, and reports whether it is a rank and was not in the set.
func (s *rankSet) add(r int) bool {
	if r < 0 || r >= maxRanks {
		return false
	}
	for len(*s) <= r/64 {
		*s = append(*s, 0)
	}
	bit := uint64(1) << (r % 64)
	if (*s)[r/64]&bit != 0 {
		return false
	}
	(*s)[r/64] |= bit
	return true
}
