package spmd

import (
	"slices"

	"github.com/openpathways/pathways/core/xla/protowalk"
)

// XLA's CPU compiler writes the all-to-all of an array as one of its parts: slices of the array, an all-to-all that
// sends part i to member i, and the concatenation of what came. The slices copy the array, and so does the
// concatenation. This file finds operands that are parts of one array, so that one call reads and writes the array in
// place.

// join makes the concatenation of an all-to-all's results the call itself, on the array that its operands were cut
// from, where that is all that the operands and the results are. Slices that nothing else uses go too: the module is
// optimized already, so its compiler removes nothing.
//
// The call is then where the concatenation is, and not before: nothing but the concatenation needs its result, and
// whatever else waits for other devices is ordered after that.
func (w *rewriter) join(c *computation) {
	users := map[int64][]*instruction{}
	ordered := map[int64]bool{} // has a part in control dependencies
	for _, in := range c.instructions {
		for _, id := range in.operands {
			users[id] = append(users[id], in)
		}
		for _, id := range in.control {
			ordered[in.id], ordered[id] = true, true
		}
	}
	for _, in := range c.instructions {
		if in.opcode != "all-to-all" || in.drop || in.from != nil || ordered[in.id] || in.id == c.root {
			continue
		}
		whole, parts := c.concatenated(in, users)
		fixed := func(p *instruction) bool { return ordered[p.id] || p.id == c.root }
		if whole == nil || slices.ContainsFunc(parts, fixed) {
			continue
		}
		dims := ints(whole.raw, instructionDimensions)
		if len(dims) != 1 || len(ints(in.raw, instructionDimensions)) > 0 || !w.cut(c, in, whole, dims[0]) {
			continue
		}
		array, _ := w.slice(c.byID[in.operands[0]])
		whole.from, whole.what = &instruction{operands: []int64{array}}, in
		whole.parts, whole.along = len(parts), dims[0]
		in.drop = true
		for _, p := range parts {
			p.drop = true
		}
		for _, id := range in.operands {
			slice := c.byID[id]
			slice.drop = len(users[id]) == 1 && !fixed(slice)
		}
	}
}

// concatenated returns the one instruction that uses the results of an all-to-all, in their order, and the instructions
// that take them out of the tuple; nil if there is no such one.
func (c *computation) concatenated(in *instruction, users map[int64][]*instruction) (whole *instruction,
	parts []*instruction) {
	n := len(in.operands)
	takes := users[in.id]
	if n < 2 || len(takes) != n || len(users[takes[0].id]) != 1 {
		return nil, nil
	}
	whole = users[takes[0].id][0]
	if whole.opcode != "concatenate" || len(whole.operands) != n {
		return nil, nil
	}
	for i, id := range whole.operands {
		p := c.byID[id]
		index := append(ints(p.raw, instructionTupleIndex), 0)[0] // the first, 0, is not written
		if p.opcode != "get-tuple-element" || !slices.Equal(p.operands, []int64{in.id}) || index != int64(i) ||
			len(users[id]) != 1 {
			return nil, nil
		}
		parts = append(parts, p)
	}
	return whole, parts
}

// cut reports whether the operands of an all-to-all are all parts of one array, in their order along a dimension, which
// lies in memory as the instruction whole does.
func (w *rewriter) cut(c *computation, in, whole *instruction, along int64) bool {
	array, _ := w.slice(c.byID[in.operands[0]])
	if array == 0 {
		return false
	}
	from, err := c.byID[array].arrays()
	to, err2 := whole.arrays()
	if err != nil || err2 != nil || len(from) != 1 || len(to) != 1 {
		return false
	}
	bytes, order, err := from[0].Physical()
	joined, order2, err2 := to[0].Physical()
	if err != nil || err2 != nil || !same(bytes, joined) || !slices.Equal(order, order2) || bytes.DType.Bits() < 8 {
		return false
	}
	dims, n := from[0].Dims, int64(len(in.operands))
	if along < 0 || along >= int64(len(dims)) || dims[along]%n != 0 {
		return false
	}
	for i, id := range in.operands {
		of, ranges := w.slice(c.byID[id])
		if of != array || len(ranges) != len(dims) {
			return false
		}
		for d, r := range ranges {
			want := span{0, dims[d], 1}
			if int64(d) == along {
				want.start, want.limit = int64(i)*dims[d]/n, int64(i+1)*dims[d]/n
			}
			if r != want {
				return false
			}
		}
	}
	return true
}

// span is the range of a dimension that a slice has.
type span struct{ start, limit, stride int64 }

// slice returns the array that an instruction is a slice of, by itself or as all that a fusion does, and what it has of
// each dimension; 0 for any other instruction.
func (w *rewriter) slice(in *instruction) (array int64, ranges []span) {
	if len(in.operands) != 1 {
		return 0, nil
	}
	array = in.operands[0]
	if in.opcode == "fusion" && len(in.called) == 1 {
		fused := w.byID[in.called[0]]
		in = fused.byID[fused.root]
		if len(fused.instructions) != 2 || len(in.operands) != 1 || fused.byID[in.operands[0]].opcode != "parameter" {
			return 0, nil
		}
	}
	if in.opcode != "slice" {
		return 0, nil
	}
	for f := range protowalk.Fields(in.raw) { // read before: no error
		if f.Number != instructionSlices {
			continue
		}
		var r span
		if protowalk.Read(f.Bytes,
			protowalk.Ints{sliceStart: &r.start, sliceLimit: &r.limit, sliceStride: &r.stride}, nil) != nil {
			return 0, nil
		}
		ranges = append(ranges, r)
	}
	return array, ranges
}

// ints returns the numbers in a field.
func ints(raw []byte, number protowalk.Number) (all []int64) {
	if protowalk.Read(raw, nil, protowalk.Lists{number: &all}) != nil {
		return nil
	}
	return all
}
