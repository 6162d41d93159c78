package sharded

import (
	"slices"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
)

// form is the type, the shape and the layout of an array.
type form struct {
	dtype  shape.DType
	layout Layout
	shard  []int64 // dimensions of each shard
	tiled  bool    // whether layout.Tiles is known
}

// DType returns the type of the array's elements.
func (a *form) DType() shape.DType { return a.dtype }

// Tiled reports whether the positions of the shards in the array are known. If not, the
// array cannot be read as a whole, and has no Dims.
func (a *form) Tiled() bool { return a.tiled }

// Dims returns the dimensions of the whole array, or nil if they are not known.
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

// Shards returns the number of shards.
func (a *form) Shards() int { return len(a.layout.Devices) }

// Copies returns the number of consecutive shards that are copies of each other; 1 if
// it is not known.
func (a *form) Copies() int {
	if !a.tiled {
		return 1
	}
	return a.Shards() / int(a.layout.parts())
}

// ShardDims returns the dimensions of each shard.
func (a *form) ShardDims() []int64 { return slices.Clone(a.shard) }

// ShardStart returns the position at which a shard begins in the whole array, or nil if
// it is not known.
func (a *form) ShardStart(i int) []int64 {
	if !a.tiled {
		return nil
	}
	return a.layout.start(i, a.shard)
}

// Layout returns the array's layout. Its Tiles are nil if they are not known.
func (a *form) Layout() Layout {
	return Layout{slices.Clone(a.layout.Devices), slices.Clone(a.layout.Tiles)}
}

// index returns the number of the shard on each device.
func (a *form) index() map[uint32]int {
	index := make(map[uint32]int, len(a.layout.Devices))
	for i, d := range a.layout.Devices {
		index[uint32(d)] = i
	}
	return index
}

// known returns an error if the positions of the shards are not known.
func (a *form) known() error {
	if !a.tiled {
		return status.New(status.FailedPrecondition,
			"the layout of the array is not known; set CompileSpec.Outputs when compiling the program that makes it")
	}
	return nil
}

// like returns an error if the shards of an array are not as want describes them.
func (a *form) like(want *form) error {
	if !slices.Equal(a.layout.Devices, want.layout.Devices) {
		return status.New(status.InvalidArgument, "the array is on the devices %v; expected %v. Put or copy it there",
			a.layout.Devices, want.layout.Devices)
	}
	if have, takes := a.one(), want.one(); have.DType != takes.DType || !slices.Equal(have.Dims, takes.Dims) {
		return status.New(status.InvalidArgument, "the array has shards of %v; expected %v", have, takes)
	}
	return nil
}

// one returns the shape of a shard.
func (a *form) one() shape.Shape { return shape.Shape{DType: a.dtype, Dims: a.shard} }
