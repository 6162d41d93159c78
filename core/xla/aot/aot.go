// Package aot edits executables that XLA's CPU compiler has serialized. It changes only
// the description of the target machine.
//
// The compiler records the processor features that it compiled for. When an XLA of up to
// mid-2026 loads the executable, it compares them with those of the loading machine. If
// AVX-512 is among them, it first adds two hints for LLVM's tuning, +prefer-no-gather and
// +prefer-no-scatter, which no processor has, and so prints an error for each, even on the
// machine that compiled the executable. Without AVX-512 in the list it adds no hints. So
// this package removes the AVX-512 features that the loading machine has from the list
// before XLA sees it. Features that the machine lacks stay, so that XLA reports them.
//
// The package is pure: it has no state. Results may alias arguments.
package aot

import (
	"bytes"
	"slices"
	"strings"

	"github.com/openpathways/pathways/core/xla/protowalk"
)

// Prefixes of features that a program needs, in LLVM's list "+avx2,+avx512f,-amx-tile".
const (
	hint   = "+prefer-"
	vector = "+avx512"
)

// features is the path to the text of the target's features: in the result of the
// compilation, its target machine, and there the list of features.
var features = []protowalk.Number{1, 9, 3}

// Module returns the optimized program in a serialized executable, a HloModuleProtoWithConfig;
// nil if XLA's CPU compiler did not write it.
func Module(serialized []byte) []byte {
	for range 2 { // in the result of the compilation, its program
		var inner []byte
		for f, err := range protowalk.Fields(serialized) {
			if err != nil {
				return nil
			}
			if f.Number == 1 {
				inner = f.Bytes
			}
		}
		serialized = inner
	}
	return serialized
}

// ForLoad returns a serialized executable in the form in which a machine should load it;
// has reports the machine's features, by LLVM's names. It returns serialized itself if
// nothing has to change, or if XLA's CPU compiler did not write it.
func ForLoad(serialized []byte, has func(feature string) bool) []byte {
	edited, changed, err := edit(serialized, features, has)
	if err != nil || !changed {
		return serialized
	}
	return edited.Join()
}

// edit writes a message with the text at the end of the path changed, if it has to be. Of what may be gigabytes it
// looks at the fields on the path alone.
func edit(message []byte, path []protowalk.Number, has func(string) bool) (out *protowalk.Message, changed bool,
	err error) {
	out = new(protowalk.Message)
	if len(path) == 0 {
		text := message
		if changed = bytes.Contains(text, []byte(vector)); changed {
			text = without(text, has)
		}
		out.Raw(text)
		return out, changed, nil
	}
	for f, err := range protowalk.Fields(message) {
		if err != nil {
			return nil, false, err
		}
		if f.Number != path[0] || f.Bytes == nil {
			out.Raw(f.Raw)
			continue
		}
		inner, c, err := edit(f.Bytes, path[1:], has)
		if err != nil {
			return nil, false, err
		}
		out.Message(f.Number, inner)
		changed = changed || c
	}
	return out, changed, nil
}

// without removes the AVX-512 features that the machine has from a list, and the hints
// too if no such feature remains.
func without(text []byte, has func(string) bool) []byte {
	var kept []string
	missing := false
	for feature := range strings.SplitSeq(string(text), ",") {
		if strings.HasPrefix(feature, vector) {
			if has(feature[1:]) {
				continue
			}
			missing = true
		}
		kept = append(kept, feature)
	}
	if !missing {
		kept = slices.DeleteFunc(kept, func(feature string) bool { return strings.HasPrefix(feature, hint) })
	}
	return []byte(strings.Join(kept, ","))
}
