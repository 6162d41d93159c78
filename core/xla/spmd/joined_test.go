package spmd

import (
	"testing"

	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/xla/protowalk"
)

// sliced is a slice of instruction 1, with two numbers for each dimension: from where to where.
func sliced(shape []byte, bounds ...int64) instr {
	in := instr{opcode: "slice", shape: shape, operands: []int64{1}}
	for ; len(bounds) > 0; bounds = bounds[2:] {
		d := protowalk.AppendInt(nil, sliceStart, bounds[0])
		d = protowalk.AppendInt(protowalk.AppendInt(d, sliceLimit, bounds[1]), sliceStride, 1)
		in.fields = protowalk.AppendBytes(in.fields, instructionSlices, d)
	}
	return in
}

func taken(shape []byte, of, index int64) instr {
	return instr{opcode: "get-tuple-element", shape: shape, operands: []int64{of},
		fields: protowalk.AppendInt(nil, instructionTupleIndex, index)}
}

// cutAndJoined is an all-to-all of the halves of f32[6,4] as XLA's CPU compiler writes it. The halves are cut along one
// dimension, and what came is joined in an order along a dimension; extra instructions, if any, follow it.
func cutAndJoined(first, second instr, order [2]int64, along int64, extra ...instr) *builder {
	b := &builder{replicas: 2}
	half := f32(6, 2)
	fused := b.computation(instr{opcode: "parameter", shape: f32(6, 4)}, second)
	list := []instr{
		{opcode: "parameter", shape: f32(6, 4)},
		first,
		{opcode: "fusion", shape: half, operands: []int64{1}, called: []int64{fused}},
		{opcode: "all-to-all", shape: tuple(half, half), operands: []int64{2, 3}, fields: groups([]int64{0, 1})},
		taken(half, 4, 0),
		taken(half, 4, 1),
		{opcode: "concatenate", shape: f32(6, 4), operands: []int64{5 + order[0], 5 + order[1]},
			fields: protowalk.AppendInts(nil, instructionDimensions, along)},
	}
	b.computation(append(list, extra...)...)
	return b
}

// TestAllToAllOfPartsOfAnArrayIsOfTheArray checks that what XLA cut and joins again is sent from where it lies, and
// that all else stays as it is.
func TestAllToAllOfPartsOfAnArrayIsOfTheArray(t *testing.T) {
	left, right := sliced(f32(6, 2), 0, 6, 0, 2), sliced(f32(6, 2), 0, 6, 2, 4)
	const whole = "all-to-all site=0 groups=0:2 dim=1 in=f32[6,4] out=f32[6,4]"
	const parts = "all-to-all site=0 groups=0:2 dim=-1 in=f32[6,2]/f32[6,2] out=f32[6,2]/f32[6,2]"
	for _, c := range []struct {
		name string
		b    *builder
		want string
	}{
		{"halves", cutAndJoined(left, right, [2]int64{0, 1}, 1), whole},
		{"halves that change places", cutAndJoined(right, left, [2]int64{0, 1}, 1), parts},
		{"results that change places", cutAndJoined(left, right, [2]int64{1, 0}, 1), parts},
		{"one half twice", cutAndJoined(left, left, [2]int64{0, 1}, 1), parts},
		{"one result twice", cutAndJoined(left, right, [2]int64{0, 0}, 1), parts},
		{"joined along another dimension", cutAndJoined(left, right, [2]int64{0, 1}, 0), parts},
		{"less than all", cutAndJoined(sliced(f32(6, 2), 0, 6, 0, 1), right, [2]int64{0, 1}, 1), parts},
		{"a part that is used by itself", cutAndJoined(left, right, [2]int64{0, 1}, 1,
			instr{opcode: "negate", shape: f32(6, 2), operands: []int64{5}}), parts},
		{"results that something waits for", cutAndJoined(left, right, [2]int64{0, 1}, 1, instr{opcode: "negate",
			shape: f32(6, 4), operands: []int64{7}, fields: protowalk.AppendInts(nil, instructionControl, 4)}), parts},
	} {
		p, err := Rewrite(c.b.program())
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		statustest.EqualSlices(t, specs(p), []string{c.want}, "%s: got", c.name)
	}
	for _, c := range []struct {
		name  string
		extra []instr
		want  []string
	}{
		{"slices that nothing else uses", nil, []string{"parameter", "custom-call"}},
		{"a slice that something else uses", []instr{{opcode: "negate", shape: f32(6, 2), operands: []int64{2}}},
			[]string{"parameter", "slice", "custom-call", "negate"}},
	} {
		p := statustest.Value(Rewrite(cutAndJoined(left, right, [2]int64{0, 1}, 1, c.extra...).program())).OK(t)
		statustest.EqualSlices(t, opcodes(t, p.Module), c.want, "%s: got", c.name)
	}
}
