package spmd

import (
	"cmp"
	"slices"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/xla/protowalk"
)

// This file reads who takes part in a collective. XLA has written that in four ways over the years, and modules of all
// ages must be read: lists of numbers (in the instruction, or in a device list), an iota, which is an array of numbers
// that counts up, transposed and cut into rows, and axes of a mesh. All become lists, and what their numbers mean
// (numbering) makes these lists of ranks. A rank is replica × partitions + partition.
//
// The bytes come from a compiler, but also from any sender of a program: each number is checked before it indexes or
// sizes anything, and no list has more than maxRanks elements.

// Field numbers of messages in XLA's xla/xla_data.proto.
const (
	groupIDs = 1

	deviceListGroups = 1
	deviceListIota   = 2

	iotaGroups  = 1
	iotaSize    = 2
	iotaReshape = 3
	iotaPerm    = 4

	meshGroupsMesh = 1
	meshGroupsAxes = 2

	meshAxes      = 1
	meshDevices   = 2
	meshTransform = 3
	axisSize      = 2

	transformReshape = 1
	transformPerm    = 2

	axisRefIndex = 1
	axisRefSub   = 2
	subPre       = 1
	subSize      = 2

	pairSource = 1
	pairTarget = 2
)

// numbering is the meaning of the numbers in a collective's groups (XLA's
// CollectiveOpGroupMode).
type numbering int

const (
	crossReplica             numbering = iota // replicas, for each partition
	crossPartition                            // partitions, for each replica
	crossReplicaAndPartition                  // replicas, with all their partitions
	flattened                                 // ranks
)

// ids returns how many numbers of this kind there are.
func (m *module) ids(n numbering) int {
	switch n {
	case crossPartition:
		return m.partitions
	case flattened:
		return m.replicas * m.partitions
	}
	return m.replicas
}

// ranks resolves groups of numbers to groups of ranks. No groups means one group of all.
func (m *module) ranks(groups [][]int64, n numbering) ([][]int, error) {
	count := m.ids(n)
	if len(groups) == 0 {
		all := make([]int64, count)
		for i := range all {
			all[i] = int64(i)
		}
		groups = [][]int64{all}
	}
	var seen rankSet
	for _, g := range groups {
		for _, id := range g {
			if id < 0 || id >= int64(count) || !seen.add(int(id)) {
				return nil, status.New(status.InvalidArgument, "a group holds %d: want each of 0 to %d at most once", id, count-1)
			}
		}
	}
	var out [][]int
	each := func(times int, rank func(time, id int) int) {
		for t := range times {
			for _, g := range groups {
				ranks := make([]int, len(g))
				for i, id := range g {
					ranks[i] = rank(t, int(id))
				}
				out = append(out, ranks)
			}
		}
	}
	switch n {
	case crossReplica:
		each(m.partitions, func(p, r int) int { return r*m.partitions + p })
	case crossPartition:
		each(m.replicas, func(r, p int) int { return r*m.partitions + p })
	case flattened:
		each(1, func(_, rank int) int { return rank })
	case crossReplicaAndPartition:
		for _, g := range groups {
			var ranks []int
			for _, r := range g {
				for p := range m.partitions {
					ranks = append(ranks, int(r)*m.partitions+p)
				}
			}
			out = append(out, ranks)
		}
	}
	return out, nil
}

// readGroups reads the groups of a collective from the fields that contain them.
func (m *module) readGroups(fields []protowalk.Field) (groups [][]int64, err error) {
	for _, f := range fields {
		switch f.Number {
		case instructionReplicaGroups:
			groups, err = appendGroup(groups, f.Bytes)
		case instructionDeviceList:
			for f, bad := range protowalk.Fields(f.Bytes) {
				if err = bad; err != nil {
					break
				}
				switch f.Number {
				case deviceListGroups:
					groups, err = appendGroup(groups, f.Bytes)
				case deviceListIota:
					groups, err = readIota(f.Bytes)
				}
				if err != nil {
					break
				}
			}
		case instructionIota:
			groups, err = readIota(f.Bytes)
		case instructionMesh:
			groups, err = readMeshGroups(f.Bytes)
		}
		if err != nil {
			return nil, err
		}
	}
	return groups, nil
}

func appendGroup(groups [][]int64, b []byte) ([][]int64, error) {
	var g []int64
	if err := protowalk.Read(b, nil, protowalk.Lists{groupIDs: &g}); err != nil {
		return nil, err
	}
	return append(groups, g), nil
}

// readIota reads groups that are the rows of a transposed array of the numbers from 0.
func readIota(b []byte) ([][]int64, error) {
	var count, size int64
	var reshape, perm []int64
	if err := protowalk.Read(b, protowalk.Ints{iotaGroups: &count, iotaSize: &size},
		protowalk.Lists{iotaReshape: &reshape, iotaPerm: &perm}); err != nil {
		return nil, err
	}
	all, err := transposed(nil, reshape, perm)
	if err != nil {
		return nil, err
	}
	return split(all, count, size)
}

// split cuts a list into groups of the same size.
func split(all []int64, count, size int64) ([][]int64, error) {
	if count < 1 || size < 1 || count > int64(len(all)) || size > int64(len(all)) || count*size != int64(len(all)) {
		return nil, status.New(status.InvalidArgument, "%d groups of %d out of %d devices", count, size, len(all))
	}
	return slices.Collect(slices.Chunk(all, int(size))), nil
}

// transposed treats a list, or if it is nil the numbers from 0, as an array of dims, and
// returns its elements in the order of the dimensions perm.
func transposed(list, dims, perm []int64) ([]int64, error) {
	bad := func() ([]int64, error) {
		return nil, status.New(status.InvalidArgument, "devices arranged as %v in the order %v", dims, perm)
	}
	if len(dims) != len(perm) {
		return bad()
	}
	total := int64(1)
	for _, d := range dims {
		if d < 1 || d > maxRanks || total*d > maxRanks {
			return bad()
		}
		total *= d
	}
	if list != nil && int64(len(list)) != total {
		return bad()
	}
	strides := make([]int64, len(dims)) // of the elements in memory, the last dimension's being 1
	stride := int64(1)
	for i := len(dims) - 1; i >= 0; i-- {
		strides[i] = stride
		stride *= dims[i]
	}
	// The offsets of all elements, one dimension of the result after the other: each offset so far is followed by those
	// of the next dimension.
	out := []int64{0}
	seen := make([]bool, len(dims))
	for _, p := range perm {
		if p < 0 || p >= int64(len(dims)) || seen[p] {
			return bad()
		}
		seen[p] = true
		if dims[p] == 1 {
			continue
		}
		next := make([]int64, 0, int64(len(out))*dims[p])
		for _, o := range out {
			for i := range dims[p] {
				next = append(next, o+i*strides[p])
			}
		}
		out = next
	}
	if list != nil {
		for i, o := range out {
			out[i] = list[o]
		}
	}
	return out, nil
}

// axis is a part of a mesh axis: size parts of it, after a prefix of pre parts.
type axis struct{ index, pre, size int64 }

// readMeshGroups reads groups that are given by axes of a mesh: devices that differ only
// in those axes are in the same group.
func readMeshGroups(b []byte) ([][]int64, error) {
	var sizes, devices []int64
	var axes []axis
	for f, err := range protowalk.Fields(b) {
		switch f.Number {
		case meshGroupsMesh:
			sizes, devices, err = readMesh(f.Bytes)
		case meshGroupsAxes:
			var a axis
			a, err = readAxis(f.Bytes)
			axes = append(axes, a)
		}
		if err != nil {
			return nil, err
		}
	}
	parts, err := cutMesh(sizes, axes)
	if err != nil {
		return nil, err
	}
	together, size, err := parts.of(axes)
	if err != nil {
		return nil, err
	}
	all, err := transposed(devices, parts.sizes(), append(parts.rest(), together...))
	if err != nil {
		return nil, err
	}
	return split(all, int64(len(all))/max(size, 1), size)
}

// meshParts holds a mesh's axes, cut where a named part begins or ends.
//
// A part is named by the product of what comes before it in its axis, and its size: of an axis of 8, seen as 2 × 2 × 2,
// pre 2 and size 2 name the one in the middle. Names may overlap in any way that divides. Once every axis is cut at
// each end of each name, a name stands for whole parts, and groups are a matter of order alone: with the parts that no
// name has in front and the named ones behind, devices that differ only in named axes follow each other.
type meshParts struct {
	parts []axis
	taken []bool // by of
}

const mostAxes = 64 // more than a mesh of maxRanks devices can have

func badAxes(axes []axis, sizes []int64) error {
	return status.New(status.InvalidArgument, "axes %v of a mesh of %v", axes, sizes)
}

// cutMesh cuts a mesh at the ends of the named axes. It refuses names that do not divide their axis, or each other.
func cutMesh(sizes []int64, axes []axis) (*meshParts, error) {
	if len(axes) > mostAxes || len(sizes) > mostAxes {
		return nil, badAxes(axes, sizes)
	}
	m := &meshParts{}
	for i, size := range sizes {
		cuts := []int64{1, size}
		for _, a := range axes {
			if a.index == int64(i) && a.size > 0 {
				if a.pre < 1 || a.pre > maxRanks || a.size > maxRanks {
					return nil, badAxes(axes, sizes)
				}
				cuts = append(cuts, a.pre, a.pre*a.size)
			}
		}
		slices.Sort(cuts)
		for j, cut := range cuts[1:] {
			before := cuts[j]
			if before < 1 || cut%before != 0 || cut > size {
				return nil, badAxes(axes, sizes)
			}
			if cut > before || size == 1 {
				m.parts = append(m.parts, axis{int64(i), before, cut / before})
			}
		}
	}
	for _, a := range axes {
		if a.index < 0 || a.index >= int64(len(sizes)) {
			return nil, badAxes(axes, sizes)
		}
	}
	m.taken = make([]bool, len(m.parts))
	return m, nil
}

// of takes the parts that make up axes, which must be among those that the mesh was cut for. It returns their numbers
// and the product of their sizes. A part can be taken once.
func (m *meshParts) of(axes []axis) (numbers []int64, size int64, err error) {
	size = 1
	for _, a := range axes {
		for i, p := range m.parts {
			whole := a.size == 0
			if p.index != a.index || (!whole && (p.pre < a.pre || p.pre >= a.pre*a.size)) {
				continue
			}
			if m.taken[i] {
				return nil, 0, badAxes(axes, m.sizes())
			}
			m.taken[i] = true
			numbers = append(numbers, int64(i))
			size *= p.size
		}
	}
	return numbers, size, nil
}

// rest returns the numbers of the parts that are not taken.
func (m *meshParts) rest() (numbers []int64) {
	for i, taken := range m.taken {
		if !taken {
			numbers = append(numbers, int64(i))
		}
	}
	return numbers
}

func (m *meshParts) sizes() []int64 {
	out := make([]int64, len(m.parts))
	for i, p := range m.parts {
		out[i] = p.size
	}
	return out
}

// readMesh returns the sizes of a mesh's axes, and its devices if they are not in order.
func readMesh(b []byte) (sizes, devices []int64, err error) {
	var reshape, perm []int64
	for f, err := range protowalk.Fields(b) {
		switch f.Number {
		case meshAxes:
			size := int64(0)
			err = protowalk.Read(f.Bytes, protowalk.Ints{axisSize: &size}, nil)
			sizes = append(sizes, size)
		case meshDevices:
			devices, err = f.AppendInts(devices)
		case meshTransform:
			err = protowalk.Read(f.Bytes, nil, protowalk.Lists{transformReshape: &reshape, transformPerm: &perm})
		}
		if err != nil {
			return nil, nil, err
		}
	}
	if reshape != nil {
		devices, err = transposed(nil, reshape, perm)
	}
	return sizes, devices, err
}

func readAxis(b []byte) (a axis, err error) {
	for f, err := range protowalk.Fields(b) {
		switch f.Number {
		case axisRefIndex:
			a.index = int64(f.Value)
		case axisRefSub:
			err = protowalk.Read(f.Bytes, protowalk.Ints{subPre: &a.pre, subSize: &a.size}, nil)
			if err == nil && a.size < 1 {
				err = status.New(status.InvalidArgument, "a part of an axis of size %d", a.size)
			}
		}
		if err != nil {
			return a, err
		}
	}
	return a, nil
}

// readPairs resolves source and target numbers to ranks.
func (m *module) readPairs(fields []protowalk.Field, n numbering) ([][2]int, error) {
	var pairs [][2]int
	count := m.ids(n)
	var sources, targets rankSet
	for _, f := range fields {
		if f.Number != instructionPairs {
			continue
		}
		var ends [2]int64
		if err := protowalk.Read(f.Bytes, protowalk.Ints{pairSource: &ends[0], pairTarget: &ends[1]}, nil); err != nil {
			return nil, err
		}
		if ends[0] < 0 || ends[0] >= int64(count) || ends[1] < 0 || ends[1] >= int64(count) ||
			!sources.add(int(ends[0])) || !targets.add(int(ends[1])) {
			return nil, status.New(status.InvalidArgument,
				"the pair %d>%d: want numbers of 0 to %d, each once a source and once a target", ends[0], ends[1], count-1)
		}
		source, target := int(ends[0]), int(ends[1])
		if n == crossPartition {
			for r := range m.replicas {
				pairs = append(pairs, [2]int{r*m.partitions + source, r*m.partitions + target})
			}
		} else {
			for p := range m.partitions {
				pairs = append(pairs, [2]int{source*m.partitions + p, target*m.partitions + p})
			}
		}
	}
	slices.SortFunc(pairs, func(a, b [2]int) int { return cmp.Compare(a[0], b[0]) })
	return pairs, nil
}
