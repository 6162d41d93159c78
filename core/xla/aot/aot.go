// Package aot edits executables that XLA's CPU compiler has serialized, of which only
// the description of the target machine is of interest.
//
// The compiler writes down the processor features that it compiled for. An XLA of up to
// mid-2026 compares them, when it loads the executable, with those of the machine that
// loads it. Where AVX-512 is among them, it first adds two hints for LLVM's tuning,
// +prefer-no-gather and +prefer-no-scatter, which no processor has, and so prints an
// error for each, on the very machine that has compiled the executable. It adds the
// hints to no text that is free of AVX-512. So what the loading machine has of it is
// taken out of the text before XLA sees it; what is missing stays, for XLA to report.
//
// It is pure: no state, and what it returns may alias what it was given. Any package
// may import it.
package aot

import (
	"bytes"
	"slices"
	"strings"

	"github.com/openpathways/pathways/core/xla/protowalk"
)

// Of a feature's name, as LLVM writes them in a list: "+avx2,+avx512f,-amx-tile". Both
// begin the names of what a program needs.
const (
	hint   = "+prefer-"
	vector = "+avx512"
)

// features is where the text of the target's features stands: in the result of the
// compilation, its target machine, and there in the list of features.
var features = []protowalk.Number{1, 9, 3}

// ForLoad returns a serialized executable as a machine is to load it of which has
// reports the features, by LLVM's names. It returns what it is given where nothing has
// to change, or where that is none of XLA's CPU compiler.
func ForLoad(serialized []byte, has func(feature string) bool) []byte {
	if !bytes.Contains(serialized, []byte(vector)) {
		return serialized
	}
	edited, err := edit(serialized, features, has)
	if err != nil {
		return serialized
	}
	return edited
}

// edit rewrites the text that the path leads to.
func edit(message []byte, path []protowalk.Number, has func(string) bool) ([]byte, error) {
	if len(path) == 0 {
		return without(message, has), nil
	}
	out := make([]byte, 0, len(message))
	for f, err := range protowalk.Fields(message) {
		if err != nil {
			return nil, err
		}
		if f.Number != path[0] || f.Bytes == nil {
			out = append(out, f.Raw...)
			continue
		}
		inner, err := edit(f.Bytes, path[1:], has)
		if err != nil {
			return nil, err
		}
		out = protowalk.AppendBytes(out, f.Number, inner)
	}
	return out, nil
}

// without takes out of a list what the machine has of AVX-512, and the hints with it
// where nothing of that stays.
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
