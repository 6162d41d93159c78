package store

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/openpathways/pathways/core/status"
)

// MaxDevices bounds the numbers of devices.
const MaxDevices = 1 << 16

// Placement is a set of devices that objects can be on, known to one Table. The
// zero Placement is none. What the table calls a device is one memory with a
// limit of its own: an executor that counts pinned host memory too gives it
// numbers beside those of its accelerators.
type Placement uint32

// maxCharge bounds the sum of all charges, so that no sum overflows.
const maxCharge = math.MaxInt64 / 2

// space adds up memory by placement. Table.mu guards it.
type space struct {
	placements []extent // [0] is not used
	index      map[string]Placement
	byDevice   [][]Placement // the placements that have the device
	limits     []int64       // by device; 0 is none
	minLimit   int64         // the least of limits; MaxInt64 where there are none
	shards     int64         // sum of placements' bytes: no device has more
	total      int64         // on all devices
}

// extent is the account of one placement.
type extent struct {
	devices   []int32 // ascending
	bytes     int64   // charged on each device
	leaving   int64   // of these, what holds alone keep
	byPurpose [Purposes]int64
}

// account is what an owner has.
type account struct {
	owner     Owner
	name      string
	dropped   bool
	objects   int
	first     uint32 // of its objects
	byPurpose [Purposes]int64
}

func (sp *space) init() {
	sp.placements = make([]extent, 1)
	sp.index = make(map[string]Placement)
	sp.minLimit = math.MaxInt64
}

// Place gives the placement of a set of devices, in any order, each once. The
// same set has the same placement for the table's life.
func (t *Table) Place(devices []int) (Placement, error) {
	ids, err := sortedDevices(devices)
	if err != nil {
		return 0, err
	}
	key := make([]byte, 0, 2*len(ids))
	for _, d := range ids {
		key = binary.LittleEndian.AppendUint16(key, uint16(d))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	sp := &t.space
	if p, ok := sp.index[string(key)]; ok {
		return p, nil
	}
	p := Placement(len(sp.placements))
	sp.placements = append(sp.placements, extent{devices: ids})
	sp.index[string(key)] = p
	last := int(ids[len(ids)-1])
	for len(sp.byDevice) <= last {
		sp.byDevice = append(sp.byDevice, nil)
	}
	for _, d := range ids {
		sp.byDevice[d] = append(sp.byDevice[d], p)
	}
	return p, nil
}

// SetLimit bounds the memory that Admit gives on a device, in bytes; 0 is no bound.
func (t *Table) SetLimit(device int, bytes int64) error {
	if device < 0 || device >= MaxDevices || bytes < 0 {
		return status.New(status.InvalidArgument, "limit of %d bytes on device %d: want a device in [0, %d) and no negative limit", bytes, device, MaxDevices)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	sp := &t.space
	for len(sp.limits) <= device {
		sp.limits = append(sp.limits, 0)
	}
	sp.limits[device] = bytes
	sp.minLimit = math.MaxInt64
	for _, l := range sp.limits {
		if l > 0 {
			sp.minLimit = min(sp.minLimit, l)
		}
	}
	return nil
}

func (sp *space) validate(s *Spec) error {
	switch {
	case s.Placement == 0 || int(s.Placement) >= len(sp.placements):
		return status.New(status.InvalidArgument, "placement %d is not one of this table's; get it from Place", s.Placement)
	case s.Purpose >= Purposes:
		return status.New(status.InvalidArgument, "purpose %d is not known", s.Purpose)
	case s.ShardBytes < 0:
		return status.New(status.InvalidArgument, "a shard of %d bytes: want 0 to %d", s.ShardBytes, int64(MaxShardBytes))
	case s.ShardBytes > MaxShardBytes:
		return status.New(status.ResourceExhausted, "%q needs %d bytes on each device, and no device has more than %d", s.Label, s.ShardBytes, int64(MaxShardBytes))
	case sp.total > maxCharge-s.ShardBytes*int64(len(sp.placements[s.Placement].devices)):
		return status.New(status.ResourceExhausted, "%q of %s on %d devices is more than can be counted", s.Label, size(s.ShardBytes), len(sp.placements[s.Placement].devices))
	}
	return nil
}

// charge puts s into the accounts, or takes it out.
func (sp *space) charge(s *object, in bool) {
	e := &sp.placements[s.placement]
	bytes := s.bytes
	if !in {
		bytes = -bytes
	}
	all := bytes * int64(len(e.devices))
	e.bytes += bytes
	e.byPurpose[s.purpose] += bytes
	sp.shards += bytes
	sp.total += all
	s.owner.byPurpose[s.purpose] += all
}

// leave counts s among what leaves by itself, or no more.
func (sp *space) leave(s *object, in bool) {
	if in {
		sp.placements[s.placement].leaving += s.bytes
	} else {
		sp.placements[s.placement].leaving -= s.bytes
	}
}

// device adds up what is charged on one device and what of it leaves by itself.
func (sp *space) device(d int) (bytes, leaving int64) {
	if d < len(sp.byDevice) {
		for _, p := range sp.byDevice[d] {
			bytes += sp.placements[p].bytes
			leaving += sp.placements[p].leaving
		}
	}
	return bytes, leaving
}

func (sp *space) limit(d int) int64 {
	if d < len(sp.limits) {
		return sp.limits[d]
	}
	return 0
}

// Usage is memory in bytes.
type Usage struct {
	InUse     int64
	Leaving   int64 // of InUse, what is freed as soon as running work ends
	Limit     int64 // of a device; 0 where there is none
	ByPurpose [Purposes]int64
}

// Device gives the usage of one device.
func (t *Table) Device(device int) Usage {
	t.mu.Lock()
	defer t.mu.Unlock()
	var u Usage
	if device < 0 {
		return u
	}
	sp := &t.space
	u.InUse, u.Leaving = sp.device(device)
	u.Limit = sp.limit(device)
	if device < len(sp.byDevice) {
		for _, p := range sp.byDevice[device] {
			for i, b := range sp.placements[p].byPurpose {
				u.ByPurpose[i] += b
			}
		}
	}
	return u
}

// Total gives the usage of all devices together.
func (t *Table) Total() Usage {
	t.mu.Lock()
	defer t.mu.Unlock()
	u := Usage{InUse: t.space.total}
	for _, e := range t.space.placements {
		n := int64(len(e.devices))
		u.Leaving += e.leaving * n
		for i, b := range e.byPurpose {
			u.ByPurpose[i] += b * n
		}
	}
	return u
}

// OwnerUsage is what an owner has on all devices together.
type OwnerUsage struct {
	Objects   int
	InUse     int64 // bytes
	ByPurpose [Purposes]int64
}

// Owner gives the usage of one owner; one that was dropped counts while memory of
// it is held or pinned.
func (t *Table) Owner(o Owner) OwnerUsage {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := t.owners[o]
	if a == nil {
		return OwnerUsage{}
	}
	u := OwnerUsage{Objects: a.objects, ByPurpose: a.byPurpose}
	for _, b := range a.byPurpose {
		u.InUse += b
	}
	return u
}

// has reports whether d is one of the placement's devices.
func (e *extent) has(d int) bool {
	_, ok := slices.BinarySearch(e.devices, int32(d))
	return ok
}
