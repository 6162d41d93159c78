package sharded

import (
	"slices"

	"github.com/openpathways/pathways/core/status"
)

// Layout describes how an array is distributed over devices. Dimension d is cut into
// Tiles[d] equal parts. Part p, counted in row-major order, is shard p; if there are n
// times as many devices as parts, shards p*n to p*n + n-1 are copies of it. Shard i is on
// Devices[i].
type Layout struct {
	Devices []int   // nil means device 0
	Tiles   []int64 // nil means that each device has the whole array
}

// Rows returns the layout of an array whose first dimension is cut into as many parts as
// there are devices.
func Rows(devices ...int) Layout {
	return Layout{Devices: devices, Tiles: []int64{int64(len(devices))}}
}

// parts returns the number of different shards.
func (l Layout) parts() int64 {
	n := int64(1)
	for _, t := range l.Tiles {
		n *= t
	}
	return n
}

// check returns the layout, for an array of these dimensions, with missing fields filled
// in. Tiles that are missing at the end are 1.
func (l Layout) check(dims []int64, devices int) (Layout, error) {
	l = Layout{slices.Clone(l.Devices), slices.Clone(l.Tiles)}
	if l.Devices == nil {
		l.Devices = []int{0}
	}
	seen := map[int]bool{}
	for _, d := range l.Devices {
		if d < 0 || d >= devices || seen[d] {
			return l, status.New(status.InvalidArgument,
				"an array on the devices %v: expected devices of this session, 0 to %d, each at most once", l.Devices, devices-1)
		}
		seen[d] = true
	}
	if len(l.Tiles) > len(dims) {
		return l, status.New(status.InvalidArgument, "the tiles %v have %d dimensions, and the array has %d: %v", l.Tiles,
			len(l.Tiles), len(dims), dims)
	}
	for len(l.Tiles) < len(dims) {
		l.Tiles = append(l.Tiles, 1)
	}
	parts := int64(1)
	for d, t := range l.Tiles {
		if t < 1 || dims[d]%t != 0 {
			return l, status.New(status.InvalidArgument,
				"an array of dimensions %v cannot be cut into %v equal parts: dimension %d has %d elements", dims, l.Tiles, d,
				dims[d])
		}
		if parts *= t; parts > int64(len(l.Devices)) {
			break
		}
	}
	if len(l.Devices) == 0 || int64(len(l.Devices))%parts != 0 {
		return l, status.New(status.InvalidArgument,
			"the tiles %v make %d parts, which cannot be distributed evenly over %d devices", l.Tiles, parts, len(l.Devices))
	}
	return l, nil
}

// shard returns the dimensions of each shard.
func (l Layout) shard(dims []int64) []int64 {
	out := slices.Clone(dims)
	for d, t := range l.Tiles {
		out[d] /= t
	}
	return out
}

// start returns the position at which a shard begins in an array whose shards have these
// dimensions.
func (l Layout) start(shard int, dims []int64) []int64 {
	part := int64(shard) / (int64(len(l.Devices)) / l.parts())
	start := make([]int64, len(dims))
	for d := len(dims) - 1; d >= 0; d-- {
		start[d] = part % l.Tiles[d] * dims[d]
		part /= l.Tiles[d]
	}
	return start
}
