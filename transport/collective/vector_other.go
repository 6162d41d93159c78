//go:build !amd64

package collective

import (
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/xla/spmd"
)

// vectorsOf returns nil: only amd64 has folds by vectors here.
func vectorsOf(shape.DType, spmd.Reduction) func(acc, in *byte, n int) { return nil }

// sumsOf returns none, too.
func sumsOf(shape.DType, spmd.Reduction) sums { return sums{} }
