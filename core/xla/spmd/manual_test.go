package spmd

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/xla/protowalk"
)

// partitioned is a program as XLA dumps it on both sides of the pass: a function of f32[8,6], in rows on four of eight
// devices twice, whose result is whole on all.
type partitioned struct {
	whole, local []byte // shapes of the parameter
	result       []byte
	body         func(b *builder) // the entry comes last
	parameter    []byte           // OpSharding
	output       []byte
}

func dumped(shape, result, more []byte, body func(b *builder)) []byte {
	b := &builder{}
	body(b)
	m, _, _ := unwrap(b.program())
	program := protowalk.AppendBytes(protowalk.AppendBytes(nil, programParameters, shape), programResult, result)
	program = protowalk.AppendBytes(program, 3, "x")
	m = append(protowalk.AppendBytes(slices.Clone(m), moduleProgramShape, program), more...)
	return protowalk.AppendBytes(nil, withConfigModule, m)
}

func (p partitioned) dumps() (before, after []byte) {
	more := protowalk.AppendBytes(nil, moduleShardings, p.parameter)
	more = protowalk.AppendBytes(more, moduleOutputSharding, p.output)
	before = dumped(p.whole, p.result, nil, func(b *builder) { b.computation(instr{opcode: "parameter", shape: p.whole}) })
	return before, dumped(p.local, p.result, more, p.body)
}

// inTiles is an OpSharding as old versions of XLA write it.
func inTiles(copies bool, tiles, devices []int64) []byte {
	b := protowalk.AppendInt(nil, shardingType, 3)
	b = protowalk.AppendInts(b, shardingTiles, tiles...)
	b = protowalk.AppendInts(b, shardingDevices, devices...)
	if copies {
		b = protowalk.AppendInt(b, shardingReplicate, 1)
	}
	return b
}

var replicated = protowalk.AppendInt(nil, shardingType, replicatedType)

func rows() partitioned {
	return partitioned{
		whole: f32(8, 6), local: f32(2, 6), result: f32(),
		parameter: inTiles(true, []int64{4, 1, 2}, []int64{0, 1, 2, 3, 4, 5, 6, 7}),
		output:    replicated,
		body: func(b *builder) {
			add := b.reducer("add")
			b.computation(instr{opcode: "parameter", shape: f32(2, 6)},
				instr{opcode: "reduce", shape: f32(), operands: []int64{1, 1}, called: []int64{add}},
				instr{opcode: "all-reduce", shape: f32(), operands: []int64{2}, called: []int64{add},
					fields: flat(protowalk.AppendBytes(nil, instructionMesh, mesh([]int64{4, 2}, axis{index: 0})))})
		},
	}
}

// lines writes of each instruction what Manual decides.
func lines(t *testing.T, code []byte) (list []string) {
	t.Helper()
	m, err := readModule(code)
	statustest.OK(t, err)
	var last int64
	for _, c := range m.computations {
		for _, in := range c.instructions {
			if in.id <= last {
				t.Errorf("%s has number %d after %d", in.name, in.id, last)
			}
			last = in.id
			text, target, sharding := in.opcode, "", ""
			var groups [][]int64
			for f := range protowalk.Fields(in.raw) {
				switch f.Number {
				case instructionTarget:
					target = " " + string(f.Bytes)
				case instructionSharding:
					sharding = " " + shardingText(t, f.Bytes)
				case instructionReplicaGroups:
					if groups, err = appendGroup(groups, f.Bytes); err != nil {
						t.Fatal(err)
					}
				case instructionMesh, instructionIota, instructionDeviceList:
					t.Errorf("%s has groups that old versions do not know", in.name)
				}
			}
			text += target + sharding
			if groups != nil {
				text += fmt.Sprint(" ", groups)
			}
			list = append(list, text)
		}
		list = append(list, "--")
	}
	return list
}

func shardingText(t *testing.T, b []byte) string {
	t.Helper()
	kind, tiles := -1, []int64(nil)
	for f, err := range protowalk.Fields(b) {
		statustest.OK(t, err)
		switch f.Number {
		case shardingType:
			kind = int(f.Value)
		case shardingTiles:
			tiles, _ = f.AppendInts(tiles)
		case shardingNamed:
			t.Error("a sharding that old versions do not know")
		}
	}
	switch kind {
	case replicatedType:
		return "replicated"
	case manualType:
		return "manual"
	case tupleType:
		text := "("
		for _, p := range tupleShardings(b) {
			text += shardingText(t, p) + " "
		}
		return text[:len(text)-1] + ")"
	}
	return fmt.Sprint("tiles", tiles)
}

func TestManualWrapsAPartitionedProgram(t *testing.T) {
	before, after := rows().dumps()
	p := statustest.Value(Manual(before, after)).OK(t)
	want := []string{
		"parameter", "parameter", "add", "--", // how elements are combined is no part of the program's flow
		"parameter manual", "reduce manual", "all-reduce manual [[0 2 4 6] [1 3 5 7]]", "--",
		"parameter tiles[4 1 2]", "custom-call SPMDFullToShardShape manual", "call manual",
		"custom-call SPMDShardToFullShape replicated", "--",
	}
	if got := lines(t, p.Module); !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if !reflect.DeepEqual(p.Parameters, [][]byte{f32(8, 6)}) || !reflect.DeepEqual(p.Result, f32()) {
		t.Errorf("parameters %x, result %x", p.Parameters, p.Result)
	}
	m := statustest.Value(readModule(p.Module)).OK(t)
	if got := texts(m.rest); !slices.Contains(got, "kept") {
		t.Errorf("fields that are not known are lost: %q", got)
	}
}

func texts(b []byte) (list []string) {
	for f := range protowalk.Fields(b) {
		list = append(list, string(f.Bytes))
	}
	return list
}

func TestManualOfSeveralResults(t *testing.T) {
	for _, sharding := range [][]byte{replicated, tupleSharding([][]byte{replicated, replicated})} {
		p := rows()
		p.result = tuple(f32(), f32(2, 6))
		p.output = sharding
		p.body = func(b *builder) {
			b.computation(instr{opcode: "parameter", shape: f32(2, 6)}, instr{opcode: "constant", shape: f32()},
				instr{opcode: "tuple", shape: p.result, operands: []int64{2, 1}})
		}
		whole := statustest.Value(Manual(p.dumps())).OK(t)
		want := []string{
			"parameter manual", "constant manual", "tuple (manual manual)", "--",
			"parameter tiles[4 1 2]", "custom-call SPMDFullToShardShape manual", "call (manual manual)",
			"get-tuple-element manual", "custom-call SPMDShardToFullShape replicated",
			"get-tuple-element manual", "custom-call SPMDShardToFullShape replicated", "tuple (replicated replicated)", "--",
		}
		if got := lines(t, whole.Module); !slices.Equal(got, want) {
			t.Errorf("got  %q\nwant %q", got, want)
		}
	}
}

// A program that only calls back has no results; XLA gives the empty tuple a sharding all the same.
func TestManualOfNoResults(t *testing.T) {
	p := rows()
	p.result = tuple()
	p.output = tupleSharding([][]byte{replicated})
	p.body = func(b *builder) {
		b.computation(instr{opcode: "parameter", shape: f32(2, 6)}, instr{opcode: "tuple", shape: tuple()})
	}
	whole := statustest.Value(Manual(p.dumps())).OK(t)
	got := lines(t, whole.Module)
	if last := got[len(got)-2]; last != "tuple (replicated)" || !slices.Contains(got, "call (manual)") {
		t.Errorf("got %q", got)
	}
}

func TestLoopsOfAManualProgramAreManual(t *testing.T) {
	p := rows()
	p.result = f32(2, 6)
	p.body = func(b *builder) {
		body := b.computation(instr{opcode: "parameter", shape: f32(2, 6)})
		done := b.computation(instr{opcode: "parameter", shape: f32(2, 6)}, instr{opcode: "constant", shape: f32()})
		b.computation(instr{opcode: "parameter", shape: f32(2, 6)},
			instr{opcode: "while", shape: f32(2, 6), operands: []int64{1}, called: []int64{body, done}})
	}
	whole := statustest.Value(Manual(p.dumps())).OK(t)
	want := []string{"parameter manual", "--", "parameter manual", "constant manual", "--", "parameter manual",
		"while manual", "--"}
	if got := lines(t, whole.Module); !slices.Equal(got[:len(want)], want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func ref(a axis) []byte {
	b := protowalk.AppendInt(nil, axisRefIndex, a.index)
	if a.size > 0 {
		b = protowalk.AppendBytes(b, axisRefSub,
			protowalk.AppendInt(protowalk.AppendInt(nil, subPre, a.pre), subSize, a.size))
	}
	return b
}

// named is an OpSharding over a mesh's axes, as new versions of XLA write it.
func named(sizes, devices []int64, more []byte, dimensions ...[]axis) []byte {
	var m []byte
	for _, s := range sizes {
		m = protowalk.AppendBytes(m, meshAxes, protowalk.AppendInt(nil, axisSize, s))
	}
	if devices != nil {
		m = protowalk.AppendInts(m, meshDevices, devices...)
	}
	n := protowalk.AppendBytes(nil, namedMesh, m)
	for _, d := range dimensions {
		var b []byte
		for _, a := range d {
			b = protowalk.AppendBytes(b, dimensionAxes, ref(a))
		}
		n = protowalk.AppendBytes(n, namedDimensions, b)
	}
	return protowalk.AppendBytes(nil, shardingNamed, append(n, more...))
}

func TestNamedShardingsAreWrittenInTiles(t *testing.T) {
	x, y := axis{index: 0}, axis{index: 1}
	cube := []int64{2, 2, 2}
	for _, c := range []struct {
		name        string
		named, want []byte
		code        status.Code
	}{
		{"rows over one axis of two", named([]int64{4, 2}, nil, nil, []axis{x}, nil),
			inTiles(true, []int64{4, 1, 2}, []int64{0, 1, 2, 3, 4, 5, 6, 7}), 0},
		{"rows over the other", named([]int64{4, 2}, nil, nil, []axis{y}, nil),
			inTiles(true, []int64{2, 1, 4}, []int64{0, 2, 4, 6, 1, 3, 5, 7}), 0},
		{"both", named([]int64{4, 2}, nil, nil, []axis{y}, []axis{x}),
			inTiles(false, []int64{2, 4}, []int64{0, 2, 4, 6, 1, 3, 5, 7}), 0},
		{"rows over both", named([]int64{4, 2}, nil, nil, []axis{x, y}),
			inTiles(false, []int64{8}, []int64{0, 1, 2, 3, 4, 5, 6, 7}), 0},
		{"devices in another order", named([]int64{2, 2}, []int64{3, 2, 1, 0}, nil, []axis{x}, []axis{y}),
			inTiles(false, []int64{2, 2}, []int64{3, 2, 1, 0}), 0},
		{"a part of an axis", named([]int64{8}, nil, nil, []axis{{0, 2, 4}}),
			inTiles(true, []int64{4, 2}, []int64{0, 4, 1, 5, 2, 6, 3, 7}), 0},
		{"no axis", named(cube, nil, nil, nil, nil), replicated, 0},
		{"no mesh", named(nil, nil, nil), replicated, 0},
		{"all manual", named([]int64{4}, nil, protowalk.AppendBytes(nil, namedManual, ref(x))),
			protowalk.AppendInt(nil, shardingType, manualType), 0},
		{"some manual", named([]int64{4, 2}, nil, protowalk.AppendBytes(nil, namedManual, ref(x))), nil,
			status.Unimplemented},
		{"unreduced", named([]int64{4}, nil, protowalk.AppendBytes(nil, namedUnreduced, ref(x))), nil, status.Unimplemented},
		{"an axis twice", named([]int64{4}, nil, nil, []axis{x}, []axis{x}), nil, status.InvalidArgument},
		{"an axis that is not there", named([]int64{4}, nil, nil, []axis{{index: 3}}), nil, status.InvalidArgument},
	} {
		got, err := plainSharding(c.named)
		if status.CodeOf(err) != c.code {
			t.Errorf("%s: %v, want %v", c.name, err, c.code)
		} else if err == nil && !slices.Equal(got, c.want) {
			t.Errorf("%s: got %x, want %x", c.name, got, c.want)
		}
	}
}

func TestManualRefusesBadDumps(t *testing.T) {
	good := rows()
	before, after := good.dumps()
	notPartitioned := dumped(good.local, good.result, nil, good.body)
	twice := good
	twice.body = func(b *builder) {
		b.computation(instr{opcode: "parameter", shape: f32(2, 6)}, instr{opcode: "parameter", shape: f32(2, 6)})
	}
	_, twoParameters := twice.dumps()
	tuples := good
	tuples.body = func(b *builder) {
		b.computation(instr{opcode: "parameter", shape: tuple(f32(), f32())}, instr{opcode: "constant", shape: f32()})
	}
	_, tupled := tuples.dumps()
	for _, c := range []struct {
		name          string
		before, after []byte
		code          status.Code
	}{
		{"no partitioned program", before, notPartitioned, status.InvalidArgument},
		{"another program's", before, twoParameters, status.InvalidArgument},
		{"a tuple as parameter", before, tupled, status.Unimplemented},
		{"nothing before", nil, after, status.InvalidArgument},
		{"nothing after", before, nil, status.InvalidArgument},
		{"half a program", before, after[:len(after)/2], status.InvalidArgument},
	} {
		statustest.Fails(t, c.name, statustest.Of(Manual(c.before, c.after)), c.code)
	}
}

func FuzzManual(f *testing.F) {
	before, after := rows().dumps()
	f.Add(before, after)
	p := rows()
	p.parameter = named([]int64{4, 2}, nil, nil, []axis{{index: 0}}, nil)
	before, after = p.dumps()
	f.Add(before, after)
	f.Fuzz(func(t *testing.T, before, after []byte) {
		if p, err := Manual(before, after); err == nil {
			statustest.Checkf(t, statustest.Of(readModule(p.Module)), "it cannot be read again")
		}
	})
}
