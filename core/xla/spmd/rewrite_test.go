package spmd

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/xla/protowalk"
)

// builder writes an HloModuleProtoWithConfig.
type builder struct {
	replicas, partitions int
	computations         [][]byte
	next                 int64
	shape                []byte // of the program, if it says so
}

type instr struct {
	opcode   string
	shape    []byte
	operands []int64
	called   []int64
	fields   []byte
}

func array(kind int64, dims ...int64) []byte {
	b := protowalk.AppendInt(nil, 2, kind)
	b = protowalk.AppendInts(b, 3, dims...)
	var order []int64
	for i := len(dims) - 1; i >= 0; i-- {
		order = append(order, int64(i))
	}
	return protowalk.AppendBytes(b, 5, protowalk.AppendInts(nil, 1, order...))
}

func f32(dims ...int64) []byte { return array(11, dims...) }

func tuple(parts ...[]byte) []byte {
	b := protowalk.AppendInt(nil, 2, 13)
	for _, p := range parts {
		b = protowalk.AppendBytes(b, 4, p)
	}
	return b
}

// computation adds one whose instructions are numbered from 1; the last is its
// root. It returns the computation's number.
func (b *builder) computation(list ...instr) int64 {
	b.next++
	c := protowalk.AppendInt(nil, computationID, b.next)
	c = protowalk.AppendInt(c, computationRoot, int64(len(list)))
	parameter := int64(0)
	for i, in := range list {
		p := protowalk.AppendBytes(nil, instructionName, fmt.Sprintf("%s.%d", in.opcode, i+1))
		p = protowalk.AppendBytes(p, instructionOpcode, in.opcode)
		p = protowalk.AppendBytes(p, instructionShape, in.shape)
		p = protowalk.AppendInt(p, instructionID, int64(i+1))
		p = protowalk.AppendInts(p, instructionOperands, in.operands...)
		p = protowalk.AppendInts(p, instructionCalled, in.called...)
		if in.opcode == "parameter" {
			p = protowalk.AppendInt(p, instructionParameter, parameter)
			parameter++
		}
		c = protowalk.AppendBytes(c, computationInstructions, append(p, in.fields...))
	}
	b.computations = append(b.computations, c)
	return b.next
}

// program ends with the entry, the computation that was added last.
func (b *builder) program() []byte {
	var m []byte
	for _, c := range b.computations {
		m = protowalk.AppendBytes(m, moduleComputations, c)
	}
	if m = protowalk.AppendInt(m, moduleEntry, b.next); b.shape != nil {
		m = protowalk.AppendBytes(m, moduleProgramShape, b.shape)
	}
	m = protowalk.AppendBytes(m, moduleSchedule, []byte{})
	m = protowalk.AppendBytes(m, 99, "kept")
	config := protowalk.AppendInt(nil, configReplicas, int64(b.replicas))
	config = protowalk.AppendInt(config, configPartitions, int64(b.partitions))
	return protowalk.AppendBytes(protowalk.AppendBytes(nil, withConfigModule, m), withConfigConfig, config)
}

func (b *builder) reducer(opcode string) int64 {
	return b.computation(instr{opcode: "parameter", shape: f32()}, instr{opcode: "parameter", shape: f32()},
		instr{opcode: opcode, shape: f32(), operands: []int64{1, 2}})
}

func groups(lists ...[]int64) (b []byte) {
	for _, l := range lists {
		b = protowalk.AppendBytes(b, instructionReplicaGroups, protowalk.AppendInts(nil, groupIDs, l...))
	}
	return b
}

// flat makes the numbers of groups ranks.
func flat(b []byte) []byte {
	return protowalk.AppendInt(protowalk.AppendInt(b, instructionChannel, 1), instructionGlobalIDs, 1)
}

func tiles(count, size int64, dims, perm []int64) []byte {
	b := protowalk.AppendInt(nil, iotaGroups, count)
	b = protowalk.AppendInt(b, iotaSize, size)
	b = protowalk.AppendInts(b, iotaReshape, dims...)
	return protowalk.AppendInts(b, iotaPerm, perm...)
}

func mesh(sizes []int64, axes ...axis) []byte {
	var m, b []byte
	for _, s := range sizes {
		m = protowalk.AppendBytes(m, meshAxes, protowalk.AppendInt(nil, axisSize, s))
	}
	b = protowalk.AppendBytes(b, meshGroupsMesh, m)
	for _, a := range axes {
		ref := protowalk.AppendInt(nil, axisRefIndex, a.index)
		if a.size > 0 {
			ref = protowalk.AppendBytes(ref, axisRefSub,
				protowalk.AppendInt(protowalk.AppendInt(nil, subPre, a.pre), subSize, a.size))
		}
		b = protowalk.AppendBytes(b, meshGroupsAxes, ref)
	}
	return b
}

// opcodes lists what a rewritten program holds, with the targets and the
// predecessors by control of its calls.
func opcodes(t *testing.T, code []byte) (list []string) {
	t.Helper()
	m := &module{byID: map[int64]*computation{}}
	statustest.OK(t, m.read(code))
	for _, c := range m.computations {
		for _, in := range c.instructions {
			text := in.opcode
			if len(in.control) > 0 {
				text += fmt.Sprint(in.control)
			}
			list = append(list, text)
		}
	}
	return list
}

func specs(p *Program) (list []string) {
	for i := range p.Collectives {
		list = append(list, p.Collectives[i].String())
	}
	return list
}

// TestAllReduceWithGroupsInEveryForm writes one all-reduce over 8 devices with groups in every form.
func TestAllReduceWithGroupsInEveryForm(t *testing.T) {
	for _, c := range []struct {
		name                 string
		replicas, partitions int
		fields               []byte
		want                 string
	}{
		{"all replicas", 8, 1, nil, "0:8"},
		{"no groups, two partitions", 4, 2, nil, "0:4:2/1:4:2"},
		{"lists", 8, 1, groups([]int64{0, 3}, []int64{7, 5}), "0,3/7,5"},
		{"replicas with their partitions", 4, 2,
			protowalk.AppendInt(groups([]int64{3, 0}, []int64{1, 2}), instructionChannel, 1),
			"6:2,0:2/2:4"},
		{"ranks", 4, 2, flat(groups([]int64{0, 7})), "0,7"},
		{"device list", 1, 8, flat(protowalk.AppendBytes(nil, instructionDeviceList,
			protowalk.AppendBytes(nil, deviceListGroups, protowalk.AppendInts(nil, groupIDs, 4, 5)))), "4:2"},
		{"iota in a device list", 1, 8, flat(protowalk.AppendBytes(nil, instructionDeviceList,
			protowalk.AppendBytes(nil, deviceListIota, tiles(2, 4, []int64{8}, []int64{0})))), "0:4/4:4"},
		{"iota", 1, 8, flat(protowalk.AppendBytes(nil, instructionIota, tiles(4, 2, []int64{2, 4}, []int64{1, 0}))),
			"0,4/1,5/2,6/3,7"},
		{"iota of three", 1, 8,
			flat(protowalk.AppendBytes(nil, instructionIota, tiles(2, 4, []int64{2, 2, 2}, []int64{1, 0, 2}))),
			"0:2,4:2/2:2,6:2"},
		{"last axis", 1, 8, flat(protowalk.AppendBytes(nil, instructionMesh, mesh([]int64{2, 4}, axis{index: 1}))),
			"0:4/4:4"},
		{"first axis", 1, 8, flat(protowalk.AppendBytes(nil, instructionMesh, mesh([]int64{2, 4}, axis{index: 0}))),
			"0,4/1,5/2,6/3,7"},
		{"axes in another order", 1, 8,
			flat(protowalk.AppendBytes(nil, instructionMesh, mesh([]int64{2, 4}, axis{index: 1}, axis{index: 0}))),
			"0,4,1,5,2,6,3,7"},
		{"part of an axis", 1, 8, flat(protowalk.AppendBytes(nil, instructionMesh, mesh([]int64{8}, axis{0, 2, 2}))),
			"0,2/1,3/4,6/5,7"},
		{"two parts of an axis", 1, 8,
			flat(protowalk.AppendBytes(nil, instructionMesh, mesh([]int64{8}, axis{0, 4, 2}, axis{0, 1, 2}))),
			"0,4,1,5/2,6,3,7"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := &builder{replicas: c.replicas, partitions: c.partitions}
			add := b.reducer("add")
			b.computation(instr{opcode: "parameter", shape: f32(2)},
				instr{opcode: "all-reduce", shape: f32(2), operands: []int64{1}, called: []int64{add}, fields: c.fields})
			p := statustest.Value(Rewrite(b.program())).OK(t)
			want := statustest.Value(parseGroups(c.want)).OK(t)
			if got := p.Collectives[0].Groups; !slices.EqualFunc(got, want, slices.Equal[[]int]) {
				t.Errorf("got %v, want %v", got, want)
			}
		})
	}
}

// TestAsynchronousCollectivesBecomeOneCall checks the asynchronous forms: one call stands where the result is
// awaited, and what is not reached any more is gone.
func TestAsynchronousCollectivesBecomeOneCall(t *testing.T) {
	b := &builder{replicas: 1, partitions: 2}
	add := b.reducer("maximum")
	inner := b.computation(instr{opcode: "parameter", shape: f32(4)},
		instr{opcode: "reduce-scatter", shape: f32(2), operands: []int64{1}, called: []int64{add},
			fields: flat(append(groups([]int64{0, 1}), protowalk.AppendInts(nil, instructionDimensions, 0)...))})
	b.computation(
		instr{opcode: "parameter", shape: f32(2)},
		instr{opcode: "all-gather-start", shape: tuple(f32(2), f32(4)), operands: []int64{1},
			fields: flat(append(groups([]int64{0, 1}), protowalk.AppendInts(nil, instructionDimensions, 0)...))},
		instr{opcode: "negate", shape: f32(2), operands: []int64{1}},
		instr{opcode: "all-gather-done", shape: f32(4), operands: []int64{2}},
		instr{opcode: "async-start", shape: tuple(tuple(f32(4)), f32(2)), operands: []int64{4}, called: []int64{inner}},
		instr{opcode: "async-update", shape: tuple(tuple(f32(4)), f32(2)), operands: []int64{5}, called: []int64{inner}},
		instr{opcode: "async-done", shape: f32(2), operands: []int64{6}, called: []int64{inner}},
		instr{opcode: "partition-id", shape: array(8)},
		instr{opcode: "tuple", shape: tuple(f32(2), array(8), f32(2)), operands: []int64{7, 8, 3}})
	p := statustest.Value(Rewrite(b.program())).OK(t)
	want := []string{"all-gather site=0 groups=0:2 in=f32[2] out=f32[4]",
		"reduce-scatter site=1 groups=0:2 reduction=max type=f32 in=f32[4] out=f32[2]"}
	statustest.EqualSlices(t, specs(p), want, "got")
	list := []string{"parameter", "negate", "custom-call", "custom-call[4]", "custom-call", "tuple"}
	statustest.EqualSlices(t, opcodes(t, p.Module), list, "got")
	text := string(p.Module)
	for _, part := range []string{
		`{spec = "all-gather site=0`, `{spec = "partition-id site=-1 out=u32[] replicas=1 parts=2"}`, Target, "kept"} {
		if !strings.Contains(text, part) {
			t.Errorf("the module lacks %q", part)
		}
	}
}

// TestLoopsAndBranchesKeepTheirOrder checks that loops and branches with collectives keep their place
// among collectives.
func TestLoopsAndBranchesKeepTheirOrder(t *testing.T) {
	b := &builder{replicas: 2}
	add := b.reducer("add")
	sum := func(of int64) instr {
		return instr{opcode: "all-reduce", shape: f32(2), operands: []int64{of}, called: []int64{add}}
	}
	condition := b.computation(instr{opcode: "parameter", shape: f32(2)}, instr{opcode: "constant", shape: array(1)})
	body := b.computation(instr{opcode: "parameter", shape: f32(2)}, sum(1), sum(1))
	call := b.computation(instr{opcode: "parameter", shape: f32(2)},
		instr{opcode: "while", shape: f32(2), operands: []int64{1}, called: []int64{body, condition}})
	b.computation(
		instr{opcode: "parameter", shape: f32(2)},
		sum(1),
		instr{opcode: "call", shape: f32(2), operands: []int64{1}, called: []int64{call}},
		instr{opcode: "while", shape: f32(2), operands: []int64{1}, called: []int64{condition, condition}},
		sum(4))
	p := statustest.Value(Rewrite(b.program())).OK(t)
	want := []string{"parameter", "constant", "parameter", "custom-call", "custom-call[2]", "parameter", "while",
		"parameter", "custom-call", "call[2]", "while", "custom-call[3]"}
	statustest.EqualSlices(t, opcodes(t, p.Module), want, "got")
	statustest.Equal(t, len(p.Collectives), 4, "collectives")
}

func TestProgramsThatCannotBeRewrittenAreRefused(t *testing.T) {
	one := func(in instr) []byte {
		b := &builder{replicas: 2}
		add := b.reducer("add")
		odd := b.reducer("subtract")
		if in.called != nil {
			in.called = [][]int64{{add}, {odd}}[in.called[0]]
		}
		in.operands = []int64{1}
		b.computation(instr{opcode: "parameter", shape: f32(2)}, in)
		return b.program()
	}
	for _, c := range []struct {
		name  string
		code  []byte
		want  status.Code
		texts []string
	}{
		{"send", one(instr{opcode: "send", shape: f32(2)}), status.Unimplemented, []string{"send.2"}},
		{"unknown", one(instr{opcode: "collective-sort", shape: f32(2)}), status.Unimplemented, []string{"collective-sort"}},
		{"reduction", one(instr{opcode: "all-reduce", shape: f32(2), called: []int64{1}}), status.Unimplemented,
			[]string{"all-reduce.2", "subtract.3"}},
		{"in a fusion", func() []byte {
			b := &builder{replicas: 2}
			c := b.computation(instr{opcode: "parameter", shape: f32(2)},
				instr{opcode: "collective-broadcast", shape: f32(2), operands: []int64{1}})
			b.computation(instr{opcode: "parameter", shape: f32(2)},
				instr{opcode: "fusion", shape: f32(2), operands: []int64{1}, called: []int64{c}})
			return b.program()
		}(), status.Unimplemented, []string{"fusion.2"}},
		{"not awaited", one(instr{opcode: "all-reduce-start", shape: f32(2), called: []int64{0}}), status.Unimplemented,
			[]string{"all-reduce-start.2"}},
		{"shape", one(instr{opcode: "all-reduce", shape: f32(3), called: []int64{0}}), status.InvalidArgument,
			[]string{"f32[3]", "f32[2]"}},
		{"rank", one(instr{opcode: "all-reduce", shape: f32(2), called: []int64{0}, fields: groups([]int64{0, 2})}),
			status.InvalidArgument, []string{"holds 2"}},
		{"rank twice", one(instr{opcode: "all-reduce", shape: f32(2), called: []int64{0},
			fields: groups([]int64{0}, []int64{0})}), status.InvalidArgument, []string{"holds 0"}},
		{"split", one(instr{opcode: "all-to-all", shape: f32(2),
			fields: protowalk.AppendInts(nil, instructionDimensions, 1)}), status.InvalidArgument, []string{"dimensions [1]"}},
		{"slices", one(instr{opcode: "collective-permute", shape: f32(2),
			fields: protowalk.AppendInts(nil, instructionSliceSizes, 1)}), status.Unimplemented, []string{"slices"}},
		{"empty", nil, status.InvalidArgument, []string{"entry"}},
	} {
		_, err := Rewrite(c.code)
		if status.CodeOf(err) != c.want {
			t.Errorf("%s: %v: %v, want %v", c.name, status.CodeOf(err), err, c.want)
			continue
		}
		for _, text := range c.texts {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("%s: the message lacks %q: %v", c.name, text, err)
			}
		}
	}
}

// FuzzRewrite checks that garbage ends in an error, or in a program whose specs
// are in order.
func FuzzRewrite(f *testing.F) {
	b := &builder{replicas: 2, partitions: 2}
	add := b.reducer("add")
	body := b.computation(instr{opcode: "parameter", shape: f32(2)},
		instr{opcode: "all-reduce", shape: f32(2), operands: []int64{1}, called: []int64{add},
			fields: flat(groups([]int64{0, 1}, []int64{2, 3}))})
	b.computation(instr{opcode: "parameter", shape: f32(2)},
		instr{opcode: "while", shape: f32(2), operands: []int64{1}, called: []int64{body, body}},
		instr{opcode: "all-gather", shape: f32(4), operands: []int64{2},
			fields: protowalk.AppendInts(protowalk.AppendBytes(nil, instructionIota,
				tiles(1, 2, []int64{2}, []int64{0})), instructionDimensions, 0)},
		instr{opcode: "collective-permute", shape: f32(4), operands: []int64{3},
			fields: protowalk.AppendBytes(nil, instructionPairs,
				protowalk.AppendInt(protowalk.AppendInt(nil, pairSource, 0), pairTarget, 1))})
	f.Add(b.program())
	f.Add(cutAndJoined(sliced(f32(6, 2), 0, 6, 0, 2), sliced(f32(6, 2), 0, 6, 2, 4), [2]int64{0, 1}, 1).program())
	f.Add(long().program())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, code []byte) {
		p, err := rewrite(code, 8)
		if err != nil {
			if status.CodeOf(err) == status.Unknown {
				t.Errorf("no code: %v", err)
			}
			return
		}
		for i := range p.Collectives {
			s := &p.Collectives[i]
			text := s.String()
			back, err := ParseSpec(text)
			statustest.OKf(t, err, "%q", text)
			if back.String() != text {
				t.Errorf("%q comes back as %q", text, back)
			}
		}
		for _, c := range p.Constants {
			c.CopyTo(make([]byte, c.Shape.HostBytes()))
		}
		statustest.Check(t, statustest.Of(p.OneDevice(nil)))
	})
}
