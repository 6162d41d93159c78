package spmd

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/xla/hlo"
	"github.com/openpathways/pathways/core/xla/protowalk"
)

// elements is how many f32 a constant has that is long in these tests.
const elements = 16

// constant is one of f32 with this value in all bytes.
func constant(value byte, elements int64, order ...int64) instr {
	s := f32(elements)
	if len(order) > 0 {
		s = protowalk.AppendInts(protowalk.AppendInt(nil, 2, 11), 3, elements/2, 2)
		s = protowalk.AppendBytes(s, 5, protowalk.AppendInts(nil, 1, order...))
	}
	l := protowalk.AppendBytes(nil, 1, s)
	l = protowalk.AppendBytes(l, 8, bytes.Repeat([]byte{value}, int(4*elements)))
	return instr{opcode: "constant", shape: s, fields: protowalk.AppendBytes(nil, instructionLiteral, l)}
}

// long is a program whose entry computation has constants of all kinds: the second, fourth and last are lifted.
func long() *builder {
	b := &builder{replicas: 1, partitions: 2}
	body := b.computation(instr{opcode: "parameter", shape: f32(2)}, constant(9, elements),
		instr{opcode: "slice", shape: f32(2), operands: []int64{2}})
	b.computation(
		instr{opcode: "parameter", shape: f32(2)},
		constant(1, elements),
		constant(2, elements-1),
		constant(3, elements+5),
		constant(4, elements, 0, 1), // columns
		constant(5, elements),       // a result
		constant(6, elements),       // so is this, by another name
		constant(7, elements, 1, 0),
		instr{opcode: "bitcast", shape: f32(elements), operands: []int64{7}},
		instr{opcode: "while", shape: f32(2), operands: []int64{1}, called: []int64{body, body}},
		instr{opcode: "fusion", shape: f32(2), operands: []int64{2, 3, 4, 5, 8, 2, 10}, called: []int64{body}},
		instr{opcode: "tuple", shape: tuple(f32(2), f32(elements), f32(elements)), operands: []int64{11, 6, 9}})
	b.shape = protowalk.AppendBytes(nil, programParameters, f32(2))
	b.shape = protowalk.AppendBytes(b.shape, programNames, "x")
	return b
}

func TestLongConstantsBecomeParameters(t *testing.T) {
	p := statustest.Value(rewrite(long().program(), 4*elements)).OK(t)
	want := []string{"f32[16]=1", "f32[21]=3", "f32[8,2]=7"}
	var got []string
	for _, c := range p.Constants {
		data := make([]byte, c.Shape.HostBytes())
		c.CopyTo(data)
		if !bytes.Equal(data, bytes.Repeat(data[:1], len(data))) {
			t.Errorf("%s has other bytes", c.Shape)
		}
		got = append(got, fmt.Sprintf("%s=%d", c.Shape, data[0]))
	}
	statustest.EqualSlices(t, got, want, "constants")
	statustest.EqualSlices(t, opcodes(t, p.Module), []string{"parameter", "constant", "slice", "parameter", "parameter",
		"constant", "parameter", "constant", "constant", "constant", "parameter", "bitcast", "while", "fusion", "tuple"},
		"instructions")
	statustest.Equal(t, len(p.parameters), 4, "arguments of the compile options")
	s := statustest.Value(hlo.ReadSignature("hlo", p.Module)).OK(t)
	statustest.Equal(t, fmt.Sprint(s.Params), "[f32[2] f32[16] f32[21] f32[8,2]]", "parameters")
	m := &module{byID: map[int64]*computation{}}
	statustest.OK(t, m.read(p.Module))
	var numbers []int64
	for _, in := range m.byID[m.entry].instructions {
		if in.opcode == "parameter" {
			numbers = append(numbers, in.parameter)
			if bytes.Contains(in.raw, bytes.Repeat([]byte{byte(in.parameter*2 - 1)}, 50)) {
				t.Errorf("%s has the value still", in.name)
			}
		}
	}
	statustest.EqualSlices(t, numbers, []int64{0, 1, 2, 3}, "numbers")
	names := 0
	for f := range protowalk.Fields(m.shape) {
		if f.Number == programNames {
			names++
		}
	}
	statustest.Equal(t, names, 4, "names")
}

// Where the entry computation's arguments are not known to be all of a run's, its constants stay.
func TestConstantsStay(t *testing.T) {
	plain := []instr{{opcode: "parameter", shape: f32(2)}, constant(1, elements),
		{opcode: "slice", shape: f32(2), operands: []int64{2}}}
	shape := protowalk.AppendBytes(nil, programParameters, f32(2))
	waits := constant(1, elements)
	waits.fields = protowalk.AppendInts(waits.fields, instructionControl, 1)
	for name, c := range map[string]struct {
		lifts bool
		b     builder
		entry []instr
	}{
		"a plain one": {true, builder{shape: shape}, plain},
		"an argument that the program's shape lacks": {false, builder{}, plain},
		"a tuple as argument": {false, builder{shape: protowalk.AppendBytes(nil, programParameters, tuple(f32(2)))},
			slices.Concat([]instr{{opcode: "parameter", shape: tuple(f32(2))}}, plain[1:])},
		"an entry that is called": {false, builder{shape: shape},
			slices.Concat(plain, []instr{{opcode: "call", shape: f32(2), operands: []int64{1}, called: []int64{1}}})},
		"a constant that waits": {false, builder{shape: shape}, slices.Concat(plain[:1], []instr{waits}, plain[2:])},
	} {
		c.b.replicas, c.b.partitions = 1, 2
		c.b.computation(c.entry...)
		p := statustest.Value(rewrite(c.b.program(), 4*elements)).OK(t)
		if lifts := len(p.Constants) > 0; lifts != c.lifts {
			t.Errorf("%s: %d constants become parameters", name, len(p.Constants))
		}
	}
}
