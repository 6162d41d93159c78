package spmd

import (
	"slices"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/xla/protowalk"
)

// Field numbers and values of xla.OpSharding and xla.NamedShardingProto in XLA's xla/xla_data.proto.
const (
	shardingType      = 1
	shardingTiles     = 3
	shardingDevices   = 4
	shardingTuple     = 5
	shardingReplicate = 6 // the last tile dimension is one of copies
	shardingNamed     = 14

	replicatedType = 0
	maximalType    = 1
	tupleType      = 2
	manualType     = 4

	namedMesh       = 2
	namedDimensions = 3
	namedUnreduced  = 5
	namedManual     = 7

	dimensionAxes = 1
)

// leaves counts the arrays and tokens of a shape, with one for an empty tuple, as a sharding of the shape does.
func leaves(shape []byte) int {
	parts := tupleShapes(shape)
	if len(parts) == 0 {
		return 1
	}
	n := 0
	for _, p := range parts {
		n += leaves(p)
	}
	return n
}

// tupleShapes returns the shapes of a tuple's elements, or nil for other shapes. It reads the bytes as far as they are
// well-formed.
func tupleShapes(shape []byte) (parts [][]byte) {
	for f, err := range protowalk.Fields(shape) {
		if err != nil {
			break
		}
		switch {
		case f.Number == shapeType && f.Value == typeTuple && parts == nil:
			parts = [][]byte{}
		case f.Number == shapeTuple:
			parts = append(parts, f.Bytes)
		}
	}
	return parts
}

// tupleShardings returns the parts of a tuple's sharding, or nil for other shardings.
func tupleShardings(sharding []byte) (parts [][]byte) {
	for f := range protowalk.Fields(sharding) { // plain: no error
		if f.Number == shardingTuple {
			parts = append(parts, f.Bytes)
		}
	}
	return parts
}

func tupleSharding(parts [][]byte) []byte {
	out := protowalk.AppendInt(nil, shardingType, tupleType)
	for _, p := range parts {
		out = protowalk.AppendBytes(out, shardingTuple, p)
	}
	return out
}

// manualSharding returns the sharding of a shape that is manual on all devices.
func manualSharding(shape []byte) []byte {
	manual := protowalk.AppendInt(nil, shardingType, manualType)
	if tupleShapes(shape) == nil {
		return manual
	}
	parts := make([][]byte, leaves(shape))
	for i := range parts {
		parts[i] = manual
	}
	return tupleSharding(parts)
}

// plainSharding returns an OpSharding without names of mesh axes, which older versions of XLA do not know.
func plainSharding(sharding []byte) ([]byte, error) {
	out, parts := []byte{}, [][]byte(nil)
	for f, err := range protowalk.Fields(sharding) {
		if err != nil {
			return nil, err
		}
		switch f.Number {
		case shardingNamed:
			return tiled(f.Bytes)
		case shardingTuple:
			p, err := plainSharding(f.Bytes)
			if err != nil {
				return nil, err
			}
			parts = append(parts, p)
		default:
			out = append(out, f.Raw...)
		}
	}
	for _, p := range parts {
		out = protowalk.AppendBytes(out, shardingTuple, p)
	}
	return out, nil
}

// namedSharding is an xla.NamedShardingProto.
type namedSharding struct {
	sizes, devices []int64  // of its mesh
	dimensions     [][]axis // the axes that cut each dimension
	manual         int      // how many axes are manual
}

func readNamed(sharding []byte) (n namedSharding, err error) {
	for f, err := range protowalk.Fields(sharding) {
		if err != nil {
			return n, err
		}
		switch f.Number {
		case namedMesh:
			n.sizes, n.devices, err = readMesh(f.Bytes)
		case namedDimensions:
			var d []axis
			d, err = readAxes(f.Bytes)
			n.dimensions = append(n.dimensions, d)
		case namedManual:
			n.manual++
		case namedUnreduced:
			return n, status.New(status.Unimplemented, "an array of unreduced parts as a parameter or result")
		}
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// tiled returns the OpSharding of an xla.NamedShardingProto, which lists the device of each tile.
func tiled(sharding []byte) ([]byte, error) {
	n, err := readNamed(sharding)
	switch {
	case err != nil:
		return nil, err
	case n.manual > 0 && n.manual == len(n.sizes):
		return protowalk.AppendInt(nil, shardingType, manualType), nil
	case n.manual > 0:
		return nil, status.New(status.Unimplemented,
			"an array that is manual over %d of %d mesh axes as a parameter or result", n.manual, len(n.sizes))
	case len(n.sizes) == 0 && len(n.devices) == 1:
		out := protowalk.AppendInt(nil, shardingType, maximalType)
		out = protowalk.AppendInts(out, shardingTiles, 1)
		return protowalk.AppendInts(out, shardingDevices, n.devices...), nil
	}
	mesh, err := cutMesh(n.sizes, slices.Concat(n.dimensions...))
	if err != nil {
		return nil, err
	}
	var order, tiles []int64
	count := int64(1)
	for _, d := range n.dimensions {
		numbers, size, err := mesh.of(d)
		if err != nil {
			return nil, err
		}
		order, tiles, count = append(order, numbers...), append(tiles, size), count*size
	}
	if count == 1 {
		return protowalk.AppendInt(nil, shardingType, replicatedType), nil
	}
	all, err := transposed(n.devices, mesh.sizes(), append(order, mesh.rest()...))
	if err != nil {
		return nil, err
	}
	copies := int64(len(all)) / count
	if copies > 1 {
		tiles = append(tiles, copies)
	}
	const other = 3 // what a sharding in tiles is called
	out := protowalk.AppendInt(nil, shardingType, other)
	out = protowalk.AppendInts(out, shardingTiles, tiles...)
	out = protowalk.AppendInts(out, shardingDevices, all...)
	if copies > 1 {
		out = protowalk.AppendInt(out, shardingReplicate, 1)
	}
	return out, nil
}

func readAxes(dimension []byte) (axes []axis, err error) {
	for f, err := range protowalk.Fields(dimension) {
		if err != nil {
			return nil, err
		}
		if f.Number == dimensionAxes {
			a, err := readAxis(f.Bytes)
			if err != nil {
				return nil, err
			}
			axes = append(axes, a)
		}
	}
	return axes, nil
}
