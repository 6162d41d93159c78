package hlo_test

import (
	"bytes"
	"testing"

	"github.com/openpathways/pathways/core/xla/hlo"
	"github.com/openpathways/pathways/core/xla/protowalk"
)

// withLiterals is an optimized program of two computations, the second of which has constants of these sizes.
func withLiterals(sizes ...int) []byte {
	inner := protowalk.AppendBytes(nil, 1, "main")
	for _, n := range sizes {
		instruction := protowalk.AppendBytes(nil, 2, "constant")
		if n >= 0 {
			instruction = protowalk.AppendBytes(instruction, 8, bytes.Repeat([]byte{7}, n))
		}
		instruction = protowalk.AppendInt(instruction, 35, 9)
		inner = protowalk.AppendBytes(inner, 2, instruction)
	}
	module := protowalk.AppendBytes(nil, 1, "jit_f")
	module = protowalk.AppendBytes(module, 3, "first")
	module = protowalk.AppendBytes(module, 3, inner)
	module = protowalk.AppendInt(module, 6, 1)
	return append(protowalk.AppendBytes(nil, 1, module), protowalk.AppendBytes(nil, 2, "config")...)
}

// Long constants lose their values; all else stays, byte for byte.
func TestLongConstantsLoseTheirValues(t *testing.T) {
	const long = 300 << 10
	for name, c := range map[string]struct{ have, want []byte }{
		"a short program":   {withLiterals(100<<10, 5), withLiterals(100<<10, 5)},
		"a long constant":   {withLiterals(5, long, 64<<10), withLiterals(5, -1, 64<<10)},
		"no module":         {bytes.Repeat([]byte{255}, long), bytes.Repeat([]byte{255}, long)},
		"long, and in many": {withLiterals(long, long, long), withLiterals(-1, -1, -1)},
	} {
		before := bytes.Clone(c.have)
		if got := hlo.WithoutConstants("hlo_with_config", c.have); !bytes.Equal(got, c.want) {
			t.Errorf("%s: %d bytes became %d, want %d", name, len(c.have), len(got), len(c.want))
		}
		if !bytes.Equal(before, c.have) {
			t.Errorf("%s was changed", name)
		}
	}
}

// A module without a configuration is returned in the form of one that has one.
func TestWithoutConstantsOfAModule(t *testing.T) {
	for _, size := range []int{5, 300 << 10} {
		for f := range protowalk.Fields(withLiterals(size)) {
			if f.Number != 1 {
				continue
			}
			want := hlo.WithoutConstants("hlo_with_config", f.Raw)
			if got := hlo.WithoutConstants("hlo", f.Bytes); !bytes.Equal(got, want) {
				t.Errorf("a module with a constant of %d bytes became %d bytes, want %d", size, len(got), len(want))
			}
		}
	}
}
