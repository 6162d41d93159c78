package aot_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/openpathways/pathways/core/xla/aot"
	"github.com/openpathways/pathways/core/xla/protowalk"
)

// executable is one as XLA's CPU compiler serializes it, as far as aot reads it.
func executable(features string) []byte {
	var target, compiled, all []byte
	target = protowalk.AppendBytes(target, 1, "x86_64-unknown-linux-gnu")
	target = protowalk.AppendBytes(target, 2, "znver4")
	target = protowalk.AppendBytes(target, 3, features)
	compiled = protowalk.AppendBytes(compiled, 8, "\x7fELF +avx512f is text of the program's own")
	compiled = protowalk.AppendBytes(compiled, 9, target)
	compiled = protowalk.AppendInt(compiled, 11, 7)
	all = protowalk.AppendBytes(all, 1, compiled)
	return protowalk.AppendBytes(all, 2, "options")
}

// has is a machine with all of AVX-512 but fp16.
func has(feature string) bool { return strings.HasPrefix(feature, "avx512") && feature != "avx512fp16" }

func TestForLoadDropsFeaturesThatTheMachineHas(t *testing.T) {
	for name, test := range map[string]struct{ features, want string }{
		"all there":     {"+avx,+avx512bw,+avx512f,+prefer-no-gather,+prefer-no-scatter,+sse,-amx", "+avx,+sse,-amx"},
		"none left":     {"+avx512f", ""},
		"one missing":   {"+avx512f,+avx512fp16,+prefer-no-gather,+sse", "+avx512fp16,+prefer-no-gather,+sse"},
		"disabled":      {"+avx,+avx512f,-avx512fp16", "+avx,-avx512fp16"},
		"older machine": {"+avx,+sse,+fma4", "+avx,+sse,+fma4"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := aot.ForLoad(executable(test.features), has); !bytes.Equal(got, executable(test.want)) {
				t.Errorf("got %q\nwant %q", got, executable(test.want))
			}
		})
	}
}

func TestForLoadLeavesOtherBytesAlone(t *testing.T) {
	for _, other := range []string{"", "not protobuf +avx512f", string(executable("+avx512f")[:40]) + "+avx512f"} {
		if got := aot.ForLoad([]byte(other), has); string(got) != other {
			t.Errorf("%q became %q", other, got)
		}
	}
}

func FuzzForLoad(f *testing.F) {
	f.Add(executable("+avx,+avx512f,+prefer-no-gather"))
	f.Add([]byte("+avx512"))
	f.Fuzz(func(t *testing.T, serialized []byte) {
		once := aot.ForLoad(serialized, has)
		if twice := aot.ForLoad(once, has); !bytes.Equal(once, twice) {
			t.Errorf("%q became %q, then %q", serialized, once, twice)
		}
	})
}
