package collective

import (
	"math/rand/v2"
	"slices"

	"pgregory.net/rapid"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/xla/spmd"
)

// places spreads ranks over processes.
func places(t *rapid.T, ranks, processes int) []Place {
	out, next := make([]Place, ranks), map[uint64]int{}
	for r := range out {
		p := uint64(rapid.IntRange(1, processes).Draw(t, "process"))
		out[r] = Place{p, next[p]}
		next[p]++
	}
	return out
}

// blocked spreads ranks evenly, in order.
func blocked(ranks, processes int) []Place {
	out := make([]Place, ranks)
	each := (ranks + processes - 1) / processes
	for r := range out {
		out[r] = Place{uint64(r/each + 1), r % each}
	}
	return out
}

// moved are the types of arrays that only move: those of kernels, and others of whole bytes.
var moved = append(slices.Clone(dtypes), shape.F8E5M2, shape.F8E4M3FN, shape.F8E4M3)

// few ranks may have large arrays.
const few = 9

// drawRanks draws ranks, mostly few, and over how many processes they are spread.
func drawRanks(t *rapid.T) (ranks, processes int) {
	switch rapid.IntRange(0, 7).Draw(t, "many") {
	case 0:
		return 64, rapid.IntRange(1, 16).Draw(t, "processes")
	case 1:
		return rapid.IntRange(few, 64).Draw(t, "ranks"), rapid.IntRange(1, 16).Draw(t, "processes")
	}
	return rapid.IntRange(1, few).Draw(t, "ranks"), rapid.IntRange(1, 5).Draw(t, "processes")
}

// drawSpec draws a collective and how large its arrays are.
func drawSpec(t *rapid.T, ranks int) *spmd.Spec {
	s := &spmd.Spec{Op: rapid.SampledFrom([]spmd.Op{
		spmd.AllReduce, spmd.AllReduce, spmd.AllGather, spmd.ReduceScatter, spmd.AllToAll, spmd.CollectivePermute,
		spmd.CollectiveBroadcast, spmd.RaggedAllToAll, spmd.PartitionID, spmd.ReplicaID}).Draw(t, "op"), Parts: 1}
	order := rapid.Permutation(slices.Collect(func(yield func(int) bool) {
		for r := range ranks {
			if !yield(r) {
				return
			}
		}
	})).Draw(t, "order")
	var divisors []int
	for n := 1; n <= ranks; n++ {
		if ranks%n == 0 {
			divisors = append(divisors, n)
		}
	}
	n := rapid.SampledFrom(divisors).Draw(t, "group size")
	if s.Op == spmd.PartitionID || s.Op == spmd.ReplicaID {
		s.Site = -1
	} else if s.Op != spmd.CollectivePermute {
		for g := range slices.Chunk(order, n) {
			s.Groups = append(s.Groups, slices.Clone(g))
		}
	}
	large := ranks <= few && rapid.IntRange(0, 7).Draw(t, "large") == 0
	drawShape := func(kind []shape.DType) shape.Shape {
		x := shape.Shape{DType: rapid.SampledFrom(kind).Draw(t, "dtype")}
		dims := 3
		if ranks > few {
			dims = 2
		}
		for range rapid.IntRange(0, dims).Draw(t, "dims") {
			x.Dims = append(x.Dims, rapid.Int64Range(0, 5).Draw(t, "dim"))
		}
		if large {
			x.Dims = append(x.Dims, rapid.Int64Range(9000, 20000).Draw(t, "dim"))
			if len(x.Dims) > 2 {
				x.Dims = x.Dims[len(x.Dims)-2:]
			}
		}
		return x
	}
	splits := func(x *shape.Shape, times int64) {
		if len(x.Dims) == 0 {
			x.Dims = []int64{3}
		}
		s.Dim = min(s.Dim, len(x.Dims)-1)
		x.Dims[s.Dim] *= times
	}
	switch s.Op {
	case spmd.AllReduce, spmd.ReduceScatter:
		var kind []shape.DType
		s.Reduction = rapid.SampledFrom(reductions).Draw(t, "reduction")
		for _, d := range dtypes {
			if _, err := kernelOf(d, s.Reduction); err == nil {
				kind = append(kind, d)
			}
		}
		s.Dim = rapid.IntRange(0, 2).Draw(t, "along")
		for range rapid.IntRange(1, 3).Draw(t, "operands") {
			x := drawShape(kind)
			if s.Op == spmd.ReduceScatter {
				splits(&x, 1)
			}
			res := shape.Shape{DType: x.DType, Dims: slices.Clone(x.Dims)}
			if s.Op == spmd.ReduceScatter {
				x.Dims[s.Dim] *= int64(n)
			}
			s.Operands, s.Results = append(s.Operands, x), append(s.Results, res)
		}
		if s.Op == spmd.ReduceScatter { // one dimension for all
			for i := range s.Operands {
				x := shape.Shape{DType: s.Operands[i].DType, Dims: slices.Clone(s.Results[i].Dims)}
				for len(x.Dims) <= s.Dim {
					x.Dims = append(x.Dims, 2)
				}
				s.Results[i] = shape.Shape{DType: x.DType, Dims: slices.Clone(x.Dims)}
				x.Dims[s.Dim] *= int64(n)
				s.Operands[i] = x
			}
		}
		s.DType = s.Operands[0].DType
	case spmd.AllGather:
		s.Dim = rapid.IntRange(0, 1).Draw(t, "along")
		for range rapid.IntRange(1, 2).Draw(t, "operands") {
			x := drawShape(moved)
			for len(x.Dims) <= s.Dim {
				x.Dims = append(x.Dims, 2)
			}
			res := shape.Shape{DType: x.DType, Dims: slices.Clone(x.Dims)}
			res.Dims[s.Dim] *= int64(n)
			s.Operands, s.Results = append(s.Operands, x), append(s.Results, res)
		}
	case spmd.AllToAll:
		if x := drawShape(moved); n > 1 && rapid.Bool().Draw(t, "tuple") {
			for range n {
				s.Operands, s.Results = append(s.Operands, x), append(s.Results, x)
			}
		} else {
			s.Dim = rapid.IntRange(0, 2).Draw(t, "along")
			splits(&x, int64(n))
			s.Operands, s.Results = []shape.Shape{x}, []shape.Shape{x}
		}
	case spmd.CollectivePermute:
		targets := rapid.Permutation(order).Draw(t, "targets")
		for i := range rapid.IntRange(0, ranks).Draw(t, "pairs") {
			s.Pairs = append(s.Pairs, [2]int{order[i], targets[i]})
		}
		x := drawShape(moved)
		s.Operands, s.Results = []shape.Shape{x}, []shape.Shape{x}
	case spmd.CollectiveBroadcast:
		s.Groups = s.Groups[:rapid.IntRange(0, len(s.Groups)).Draw(t, "groups")]
		x := drawShape(moved)
		s.Operands, s.Results = []shape.Shape{x}, []shape.Shape{x}
	case spmd.RaggedAllToAll:
		updates := rapid.Int64Range(1, 2).Draw(t, "updates")
		list := shape.Shape{DType: rapid.SampledFrom([]shape.DType{shape.S32, shape.S64}).Draw(t, "offsets"),
			Dims: []int64{int64(n) * updates}}
		in := shape.Shape{DType: shape.F32, Dims: []int64{10, 3}}
		out := shape.Shape{DType: shape.F32, Dims: []int64{int64(n) * updates * 2, 3}}
		s.Operands, s.Results = []shape.Shape{in, out, list, list, list, list}, []shape.Shape{out}
	default:
		s.Groups = nil
		s.Parts = rapid.SampledFrom(divisors).Draw(t, "parts")
		s.Replicas = ranks / s.Parts
		s.Results = []shape.Shape{{DType: shape.U32}}
	}
	return s
}

// bring makes the operands of all ranks.
func bring(s *spmd.Spec, ranks int, rng *rand.Rand) [][][]byte {
	out := make([][][]byte, ranks)
	for r := range out {
		for _, x := range s.Operands {
			b := aligned(x.Bytes())
			for i := range b {
				b[i] = byte(rng.Uint32())
				if x.DType == shape.Pred {
					b[i] &= 1
				}
			}
			out[r] = append(out[r], b)
		}
	}
	if s.Op != spmd.RaggedAllToAll {
		return out
	}
	for _, g := range s.Groups {
		k := int(s.Operands[2].Dims[0]) / len(g)
		for place, r := range g {
			for i := range k * len(g) {
				// To every member, a place of its own for this one: two rows an update.
				put(s, out[r], 2, i, int64(rng.IntN(9)))
				put(s, out[r], 3, i, int64(rng.IntN(2)))
				put(s, out[r], 4, i, int64(place*k*2+i%k*2))
			}
		}
	}
	return out
}

func put(s *spmd.Spec, ops [][]byte, operand, i int, v int64) {
	if s.Operands[operand].DType == shape.S64 {
		elements[int64](ops[operand])[i] = v
		return
	}
	elements[int32](ops[operand])[i] = int32(v)
}
