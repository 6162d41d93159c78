package sharded

import (
	"slices"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
)

// form is what arrays are like: of one type, on the same devices in the same way.
type form struct {
	dtype  shape.DType
	layout Layout
	shard  []int64 // dimensions of each
	tiled  bool    // layout.Tiles is known
}

// DType is the type of the array's elements.
func (a *form) DType() shape.DType { return a.dtype }

// Tiled says whether it is known how the shards lie: if not, the array cannot be
// read as a whole, and has no Dims.
func (a *form) Tiled() bool { return a.tiled }

// Dims is the dimensions of the whole array, or nil where they are not known.
func (a *form) Dims() []int64 {
	if !a.tiled {
		return nil
	}
	dims := slices.Clone(a.shard)
	for d, t := range a.layout.Tiles {
		dims[d] *= t
	}
	return dims
}

// Shards is how many shards the array has.
func (a *form) Shards() int { return len(a.layout.Devices) }

// Copies is how many shards in a row are the same; 1 where it is not known.
func (a *form) Copies() int {
	if !a.tiled {
		return 1
	}
	return a.Shards() / int(a.layout.parts())
}

// ShardDims is the dimensions of each shard.
func (a *form) ShardDims() []int64 { return slices.Clone(a.shard) }

// ShardStart is where a shard begins in the whole array; nil where that is not known.
func (a *form) ShardStart(i int) []int64 {
	if !a.tiled {
		return nil
	}
	return a.layout.start(i, a.shard)
}

// Layout says how the array lies. Tiles is nil where that is not known.
func (a *form) Layout() Layout {
	return Layout{slices.Clone(a.layout.Devices), slices.Clone(a.layout.Tiles)}
}

// index is which shard is a device's.
func (a *form) index() map[uint32]int {
	index := make(map[uint32]int, len(a.layout.Devices))
	for i, d := range a.layout.Devices {
		index[uint32(d)] = i
	}
	return index
}

// known is an error where it is not known how the shards lie.
func (a *form) known() error {
	if !a.tiled {
		return status.New(status.FailedPrecondition, "it is not known how the array lies on its devices; say so in CompileSpec.Outputs")
	}
	return nil
}

// like says why a shard of an array is not what is wanted, where it is not.
func (a *form) like(want *form) error {
	if !slices.Equal(a.layout.Devices, want.layout.Devices) {
		return status.New(status.InvalidArgument, "the array lies on the devices %v where %v are expected: put or copy it there", a.layout.Devices, want.layout.Devices)
	}
	if have, takes := a.one(), want.one(); have.DType != takes.DType || !slices.Equal(have.Dims, takes.Dims) {
		return status.New(status.InvalidArgument, "the array has shards of %v where %v are expected", have, takes)
	}
	return nil
}

// one is the shape of a shard.
func (a *form) one() shape.Shape { return shape.Shape{DType: a.dtype, Dims: a.shard} }
