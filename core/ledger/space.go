package ledger

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/openpathways/pathways/core/status"
)

// MaxDevices bounds the numbers of devices.
const MaxDevices = 1 << 16

// Placement is a set of devices that objects can be on, known to one Ledger. The zero Placement is none.
type Placement uint32

// maxCharge bounds the sum of all charges, so that no sum overflows.
const maxCharge = math.MaxInt64 / 2

// space adds up memory by placement.
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
	devices []int32 // ascending
	bytes   int64   // charged on each device
}

func (sp *space) init() {
	sp.placements = make([]extent, 1)
	sp.index = make(map[string]Placement)
	sp.minLimit = math.MaxInt64
}

// Place returns the placement of a set of devices, in any order, each once. The same set has the same placement for the
// ledger's life.
func (l *Ledger) Place(devices []int) (Placement, error) {
	ids, err := sortedDevices(devices)
	if err != nil {
		return 0, err
	}
	key := make([]byte, 0, 2*len(ids))
	for _, d := range ids {
		key = binary.LittleEndian.AppendUint16(key, uint16(d))
	}
	sp := &l.space
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

// SetLimit bounds the memory that objects may take on a device, in bytes; 0 is no bound.
func (l *Ledger) SetLimit(device int, bytes int64) error {
	if device < 0 || device >= MaxDevices || bytes < 0 {
		return status.New(status.InvalidArgument,
			"limit of %d bytes on device %d: want a device in [0, %d) and no negative limit", bytes, device, MaxDevices)
	}
	sp := &l.space
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
		return status.New(status.InvalidArgument, "placement %d is not one of this ledger's; get it from Place", s.Placement)
	case s.ShardBytes < 0:
		return status.New(status.InvalidArgument, "a shard of %d bytes: want 0 to %d", s.ShardBytes, int64(MaxShardBytes))
	case s.ShardBytes > MaxShardBytes:
		return status.New(status.ResourceExhausted,
			"%q needs %d bytes on each device, and no device has more than %d", s.Label, s.ShardBytes, int64(MaxShardBytes))
	}
	return nil
}

// charge adds bytes to each device of a placement, or takes them off.
func (sp *space) charge(p Placement, bytes int64) {
	e := &sp.placements[p]
	e.bytes += bytes
	sp.shards += bytes
	sp.total += bytes * int64(len(e.devices))
}

// device adds up what is charged on one device.
func (sp *space) device(d int) (bytes int64) {
	if d < len(sp.byDevice) {
		for _, p := range sp.byDevice[d] {
			bytes += sp.placements[p].bytes
		}
	}
	return bytes
}

func (sp *space) limit(d int) int64 {
	if d < len(sp.limits) {
		return sp.limits[d]
	}
	return 0
}

// Usage is the memory of a device, in bytes.
type Usage struct {
	InUse int64
	Limit int64 // 0 where there is none
}

// Device returns the usage of one device.
func (l *Ledger) Device(device int) Usage {
	return Usage{InUse: l.space.device(device), Limit: l.space.limit(device)}
}

// has reports whether d is one of the placement's devices.
func (e *extent) has(d int) bool {
	_, ok := slices.BinarySearch(e.devices, int32(d))
	return ok
}
