package hlo

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/xla/protowalk"
)

// programs returns the serialized programs of testdata by their names.
func programs(t testing.TB) map[string][]byte {
	files, err := filepath.Glob("testdata/*.hlo")
	if err != nil || len(files) == 0 {
		t.Fatalf("no programs in testdata: %v", err)
	}
	all := map[string][]byte{}
	for _, f := range files {
		code := statustest.Value(os.ReadFile(f)).OK(t)
		all[strings.TrimSuffix(filepath.Base(f), ".hlo")] = code
	}
	return all
}

// Every figure is the one that XLA's own analysis has for the same program
// (testdata/make.py).
func TestCostsAreXLAsOwn(t *testing.T) {
	b := statustest.Value(os.ReadFile("testdata/costs.json")).OK(t)
	var want map[string]Cost
	statustest.OK(t, json.Unmarshal(b, &want))
	all := programs(t)
	if len(all) != len(want) {
		t.Errorf("%d programs and %d costs", len(all), len(want))
	}
	for name, code := range all {
		t.Run(name, func(t *testing.T) {
			got := statustest.Value(ReadCost("hlo", code)).OK(t)
			names := map[string]bool{}
			for k := range got {
				names[k] = true
			}
			for k := range want[name] {
				names[k] = true
			}
			for k := range names {
				// XLA counts in single precision.
				if g, w := got[k], want[name][k]; math.Abs(g-w) > 1e-6*math.Abs(w) {
					t.Errorf("%s: %v, want %v", k, g, w)
				}
			}
		})
	}
}

// A convolution counts what a walk over all places counts.
func TestConvolutionCostCountsEveryPlace(t *testing.T) {
	walk := func(d windowDimension, input, kernel, out int64) (n float64) {
		for k := range kernel {
			for o := range out {
				at := o*d.stride + k*d.dilation - d.low
				if at >= 0 && at%d.base == 0 && at/d.base < input {
					n++
				}
			}
		}
		return n
	}
	for low := int64(-3); low < 5; low++ {
		for stride := int64(1); stride < 4; stride++ {
			for dilation := int64(1); dilation < 4; dilation++ {
				for base := int64(1); base < 5; base++ {
					d := windowDimension{stride: stride, low: low, dilation: dilation, base: base}
					for _, size := range [][3]int64{{7, 3, 9}, {7, 9, 3}, {1, 1, 1}, {0, 3, 3}, {5, 0, 2}} {
						statustest.MustEqual(t, d.inside(size[0], size[1], size[2]), walk(d, size[0], size[1], size[2]),
							"%+v of %v", d, size)
					}
				}
			}
		}
	}
	d := windowDimension{stride: 1, dilation: 1, base: 1}
	statustest.Equal(t, d.inside(1<<40, 1<<35, 1<<36), 1<<71, "too large to be walked")
}

func TestReadCostOfNoProgram(t *testing.T) {
	instruction := func(id int64, opcode string, fields ...byte) []byte {
		b := protowalk.AppendInt(protowalk.AppendBytes(nil, instructionOpcode, opcode), instructionID, id)
		return append(b, fields...)
	}
	computation := func(id, root int64, instructions ...[]byte) []byte {
		b := protowalk.AppendInt(protowalk.AppendInt(nil, computationID, id), computationRoot, root)
		for _, in := range instructions {
			b = protowalk.AppendBytes(b, computationInstructions, in)
		}
		return b
	}
	module := func(computations ...[]byte) []byte {
		b := protowalk.AppendInt(nil, moduleEntry, 1)
		for _, c := range computations {
			b = protowalk.AppendBytes(b, moduleComputations, c)
		}
		return b
	}
	call := func(id, of int64) []byte {
		return instruction(id, "call", protowalk.AppendInts(nil, instructionCalled, of)...)
	}
	for name, c := range map[string]struct {
		code []byte
		want string
	}{
		"no entry": {module(), "no computation 1"},
		"no root":  {module(computation(1, 7, instruction(2, "iota"))), "no root"},
		"an operand not there": {
			module(computation(1, 2, instruction(2, "negate", protowalk.AppendInts(nil, instructionOperands, 3)...))),
			"operand 3"},
		"itself an operand": {
			module(computation(1, 2, instruction(2, "negate", protowalk.AppendInts(nil, instructionOperands, 2)...))),
			"operand 2"},
		"a call of nothing":   {module(computation(1, 2, instruction(2, "call"))), "calls 0 computations"},
		"a call into the air": {module(computation(1, 2, call(2, 9))), "no computation 9"},
		"a call of itself":    {module(computation(1, 2, call(2, 1))), "deep"},
		"calls in a circle":   {module(computation(1, 2, call(2, 3)), computation(3, 2, call(2, 1))), "deep"},
		"cut":                 {module(computation(1, 2, instruction(2, "iota")))[:9], "protobuf"},
	} {
		statustest.Fails(t, name, statustest.Of(ReadCost("hlo", c.code)), status.InvalidArgument, c.want)
	}
	// A doubling at each of many levels is counted once a level.
	levels := [][]byte{computation(1, 2, call(2, 2), call(3, 2))}
	for i := int64(2); i < 200; i++ {
		levels = append(levels, computation(i, 2, call(2, i+1), call(3, i+1)))
	}
	scalar := protowalk.AppendInt(nil, shapeElementType, 11)
	levels = append(levels, computation(200, 2,
		instruction(2, "negate", protowalk.AppendBytes(nil, instructionShape, scalar)...)))
	if cost, err := ReadCost("hlo", module(levels...)); err != nil || cost[Flops] != math.Pow(2, 199) {
		t.Errorf("many calls: %v, %v", cost, err)
	}
}

// Reading ends whatever the bytes are.
func FuzzReadCost(f *testing.F) {
	for _, c := range programs(f) {
		f.Add(c)
	}
	f.Fuzz(func(t *testing.T, code []byte) {
		cost, err := ReadCost("hlo", code)
		if err != nil && status.CodeOf(err) != status.InvalidArgument {
			t.Fatal(err)
		}
		for k, v := range cost {
			if v == 0 {
				t.Errorf("%s is 0", k)
			}
		}
	})
}
