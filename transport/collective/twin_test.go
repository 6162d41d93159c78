package collective

import (
	"encoding/binary"
	"slices"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/xla/spmd"
)

// assign makes the i-th element of an array the j-th of another. Those of less than a byte fill a byte from its lowest
// bits on.
func assign(t shape.DType, to []byte, i int, from []byte, j int) {
	if size := t.Bits() / 8; size > 0 {
		copy(to[i*size:][:size], from[j*size:])
		return
	}
	to[i*t.Bits()/8] |= narrow(t, from, j) << (i * t.Bits() % 8) // it was zero
}

// narrow is the i-th element of an array whose elements have less than a byte.
func narrow(t shape.DType, b []byte, i int) byte {
	return b[i*t.Bits()/8] >> (i * t.Bits() % 8) & (1<<t.Bits() - 1)
}

// twin computes the result of a collective on each rank from what all ranks bring,
// element by element, knowing nothing of processes, blocks and regions.
func twin(s *spmd.Spec, ranks int, operands [][][]byte) [][][]byte {
	out := make([][][]byte, ranks)
	for r := range out {
		for _, x := range s.Results {
			out[r] = append(out[r], make([]byte, x.Bytes()))
		}
	}
	for _, group := range s.Groups {
		for place, r := range group {
			for i := range s.Results {
				t, dims := s.Results[i].DType, s.Results[i].Dims
				for at := range index(dims) {
					to := flat(dims, at)
					take := func(rank, operand int, from []int64) {
						assign(t, out[r][i], to, operands[rank][operand], flat(s.Operands[operand].Dims, from))
					}
					switch s.Op {
					case spmd.AllReduce:
						if place > 0 { // all have the same
							assign(t, out[r][i], to, out[group[0]][i], to)
							continue
						}
						fold(s, out[r][i], to, group, operands, i, at)
					case spmd.AllGather:
						from := slices.Clone(at)
						n := s.Operands[i].Dims[s.Dim]
						from[s.Dim] %= n
						take(group[at[s.Dim]/n], i, from)
					case spmd.ReduceScatter:
						from := slices.Clone(at)
						from[s.Dim] += int64(place) * dims[s.Dim]
						fold(s, out[r][i], to, group, operands, i, from)
					case spmd.AllToAll:
						if len(s.Operands) > 1 {
							take(group[i], place, at)
							continue
						}
						from := slices.Clone(at)
						n := s.Operands[i].Dims[s.Dim] / int64(len(group))
						from[s.Dim] = int64(place)*n + at[s.Dim]%n
						take(group[at[s.Dim]/n], i, from)
					case spmd.CollectiveBroadcast:
						take(group[0], i, at)
					}
				}
			}
		}
		if s.Op == spmd.RaggedAllToAll {
			raggedTwin(s, group, operands, out)
		}
	}
	for _, p := range s.Pairs {
		for i := range out[p[1]] {
			copy(out[p[1]][i], operands[p[0]][i])
		}
	}
	for r := range out {
		switch s.Op {
		case spmd.PartitionID:
			binary.LittleEndian.PutUint32(out[r][0], uint32(r%s.Parts))
		case spmd.ReplicaID:
			binary.LittleEndian.PutUint32(out[r][0], uint32(r/s.Parts))
		}
	}
	return out
}

// fold is the left fold of one element, the to-th of out.
func fold(s *spmd.Spec, out []byte, to int, group []int, operands [][][]byte, i int, at []int64) {
	t := s.Operands[i].DType
	k, err := kernelOf(t, s.Reduction)
	if err != nil {
		panic(err)
	}
	acc := aligned(k.size)
	k.neutral(acc)
	for _, r := range group {
		one := aligned(k.size)
		assign(t, one, 0, operands[r][i], flat(s.Operands[i].Dims, at))
		flushed(func() { k.fold(acc, one) })
	}
	assign(t, out, to, acc, 0)
}

func raggedTwin(s *spmd.Spec, group []int, operands [][][]byte, out [][][]byte) {
	num := func(rank, operand, i int) int {
		b := operands[rank][operand]
		if s.Operands[operand].DType == shape.S64 {
			return int(binary.LittleEndian.Uint64(b[i*8:]))
		}
		return int(binary.LittleEndian.Uint32(b[i*4:]))
	}
	row := int(s.Operands[0].Bytes() / s.Operands[0].Dims[0])
	for _, r := range group {
		copy(out[r][0], operands[r][1])
	}
	updates := int(s.Operands[2].Dims[0]) / len(group)
	for _, from := range group {
		for i := range updates * len(group) {
			to := group[i/updates]
			for j := range num(from, 3, i) {
				copy(out[to][0][(num(from, 4, i)+j)*row:][:row], operands[from][0][(num(from, 2, i)+j)*row:])
			}
		}
	}
}

// index yields all indices of an array in row-major order.
func index(dims []int64) func(yield func([]int64) bool) {
	return func(yield func([]int64) bool) {
		n := shape.Shape{DType: shape.U8, Dims: dims}.Elements()
		for i := range n {
			at, rest := make([]int64, len(dims)), i
			for d := len(dims) - 1; d >= 0; d-- {
				at[d], rest = rest%dims[d], rest/dims[d]
			}
			if !yield(at) {
				return
			}
		}
	}
}

// flat is the row-major place of an index.
func flat(dims, at []int64) int {
	n := int64(0)
	for d := range dims {
		n = n*dims[d] + at[d]
	}
	return int(n)
}
