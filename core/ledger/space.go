package ledger

import (
	"cmp"
	"math"
	"slices"

	"github.com/openpathways/pathways/core/status"
)

// How the ledger answers in constant time. Each placement has one sum, however many devices it has. used and temps, by
// device, are exact as of the last fold; since then each placement records by how much its own sums have changed. No
// device can have gained more since than the total rise of all placements, so a request certainly fits if
//
//	its bytes + all that rose since the last fold <= the least room that its devices had at the last fold
//
// Placements that only go up and down, as those of a loop do, have risen by little. Only if this does not prove that
// there is room, the changes are folded into used, and each device of the request is checked. A fold takes time in
// proportion to the devices of the placements that have changed.

// The owners of a group have the same sums in addition: what they have together on a device, and how much that may have
// risen. Bytes that are leaving are folded, too, although nothing is decided by them before a fold.

// MaxDevices bounds the numbers of devices: those of 10,000 hosts with some dozens each.
const MaxDevices = 1 << 20

// Placement is a set of devices that an owner's objects can be on. The zero Placement is none.
type Placement struct{ *extent }

// extent is the account of one placement.
type extent struct {
	owner   *account
	devices Devices
	bytes   int64    // on each device
	leaving int64    // of bytes: retired
	temp    int64    // on each device: the most that one of the computations under way takes beside
	temps   []temp   // of the computations under way, ascending by bytes
	objects int      // that are not retired; they may have no bytes
	mask    []uint64 // devices as bits, 64 a word; nil until needed

	// bytes, leaving and temp at the last fold.
	folded, foldedLeaving, foldedTemp int64

	dirty bool   // in space.dirty
	busy  bool   // in space.busy
	room  int64  // the least of its devices at fold number round; noLimit where none has a limit
	most  int64  // that the owner's group had on one of its devices at fold number mostAt
	round uint64 // 0: room was never looked for
	// The same of most.
	mostAt uint64

	linked     bool // in the owner's list
	prev, next *extent
}

// temp counts computations under way that take so many bytes besides what they read and make.
type temp struct {
	bytes int64
	users int
}

// noLimit is the room of a device without a limit.
const noLimit = math.MaxInt64

// maxCharge bounds the sum of all charges, so that no sum overflows.
const maxCharge = math.MaxInt64 / 4

// space adds up memory by placement, and by device where that is needed.
type space struct {
	limits []int64 // by device; 0 is none
	limit  int     // devices that have one
	used   []int64 // by device, as at the last fold
	leaves []int64 // of that, what leaves by itself
	temps  []int64 // the same of computations
	total  int64   // on all devices

	round uint64    // folds, and changes of limits
	rise  int64     // no device has got more since the last fold
	dirty []*extent // whose sums are not those of the last fold
	busy  []*extent // that had computations at the last fold
}

// Place returns a placement: devices, in any order, each once, on which objects of an owner can be.
//
// Errors: INVALID_ARGUMENT, NOT_FOUND where the owner is not known.
func (l *Ledger) Place(o Owner, devices []int) (Placement, error) {
	ids, err := Sort(devices)
	if err != nil {
		return Placement{}, err
	}
	return l.PlaceSorted(o, ids)
}

// Devices are the devices of a placement, in ascending order: see Sort.
type Devices []int32

// PlaceSorted is Place, in constant time. It keeps the devices, which the caller must not change any more.
//
// Errors: NOT_FOUND where the owner is not known.
func (l *Ledger) PlaceSorted(o Owner, devices Devices) (Placement, error) {
	a := l.owners[o]
	if a == nil {
		return Placement{}, status.New(status.NotFound, "owner %d is not there: it was dropped or never added", o)
	}
	l.space.grow(int(devices[len(devices)-1]))
	return Placement{&extent{owner: a, devices: devices}}, nil
}

// SetLimit bounds the memory that objects may take on a device, in bytes; 0 is no bound.
//
// Errors: INVALID_ARGUMENT.
func (l *Ledger) SetLimit(device int, bytes int64) error {
	if device < 0 || device >= MaxDevices || bytes < 0 {
		return status.New(status.InvalidArgument,
			"limit of %d bytes on device %d: want a device in [0, %d) and no negative limit", bytes, device, MaxDevices)
	}
	sp := &l.space
	sp.grow(device)
	if sp.limits[device] > 0 {
		sp.limit--
	}
	if sp.limits[device] = bytes; bytes > 0 {
		sp.limit++
	}
	sp.round++
	return nil
}

func (sp *space) grow(device int) {
	for len(sp.limits) <= device {
		sp.limits, sp.used, sp.temps = append(sp.limits, 0), append(sp.used, 0), append(sp.temps, 0)
		sp.leaves = append(sp.leaves, 0)
	}
}

func (s *Spec) validate(a *account) error {
	switch {
	case s.Placement.extent == nil || s.Placement.owner != a:
		return status.New(status.InvalidArgument, "a placement that is not one of %s; get it from Place", a.name)
	case s.ShardBytes < 0:
		return status.New(status.InvalidArgument, "a shard of %d bytes: want 0 to %d", s.ShardBytes, int64(MaxShardBytes))
	case s.ShardBytes > MaxShardBytes:
		return status.New(status.ResourceExhausted,
			"%q needs %d bytes on each device, and no device has more than %d", s.Label, s.ShardBytes, int64(MaxShardBytes))
	}
	return nil
}

// charge adds bytes to each device of a placement, or subtracts them if negative.
func (sp *space) charge(e *extent, bytes int64) {
	if bytes == 0 {
		return
	}
	before := max(0, e.bytes-e.folded)
	e.bytes += bytes
	more := max(0, e.bytes-e.folded) - before
	sp.rise += more
	if g := e.owner.group; g != nil {
		g.rise += more
	}
	sp.total += bytes * int64(len(e.devices))
	sp.changed(e)
}

// leave adds bytes to those of a placement that are leaving, or subtracts them if negative.
func (sp *space) leave(e *extent, bytes int64) {
	if bytes != 0 {
		e.leaving += bytes
		sp.changed(e)
	}
}

// Begin records that a computation is under way on a placement, which takes so many bytes in addition to what it reads
// and makes: of those under way on a device, the one that takes most counts. End records that it has ended.
func (l *Ledger) Begin(p Placement, bytes int64) { l.compute(p.extent, bytes, 1) }

// End is the end of Begin.
func (l *Ledger) End(p Placement, bytes int64) { l.compute(p.extent, bytes, -1) }

func (l *Ledger) compute(e *extent, bytes int64, n int) {
	if bytes <= 0 {
		return
	}
	e.count(bytes, n)
	l.space.settle(e)
	l.verify()
}

// count adds users to the computations of so many bytes.
func (e *extent) count(bytes int64, n int) {
	i, found := slices.BinarySearchFunc(e.temps, bytes, func(t temp, b int64) int { return cmp.Compare(t.bytes, b) })
	if !found {
		e.temps = slices.Insert(e.temps, i, temp{bytes: bytes})
	}
	if e.temps[i].users += n; e.temps[i].users <= 0 {
		e.temps = slices.Delete(e.temps, i, i+1)
	}
}

// settle adopts a placement's computations.
func (sp *space) settle(e *extent) {
	before := max(0, e.temp-e.foldedTemp)
	e.temp = 0
	if n := len(e.temps); n > 0 {
		e.temp = e.temps[n-1].bytes
	}
	sp.rise += max(0, e.temp-e.foldedTemp) - before
	sp.changed(e)
}

// changed records that a placement's sums are not those of the last fold.
func (sp *space) changed(e *extent) {
	if !e.dirty {
		e.dirty = true
		if sp.dirty = append(sp.dirty, e); len(sp.dirty) > maxDirty {
			sp.fold()
		}
	}
	e.list()
}

// list keeps the owner's list of placements with something on them.
func (e *extent) list() {
	if needed := e.bytes > 0 || e.temp > 0 || e.objects > 0; needed == e.linked {
		return
	}
	a := e.owner
	if e.linked = !e.linked; e.linked {
		if e.prev, e.next = nil, a.extents; e.next != nil {
			e.next.prev = e
		}
		a.extents = e
		return
	}
	if e.prev != nil {
		e.prev.next = e.next
	} else {
		a.extents = e.next
	}
	if e.next != nil {
		e.next.prev = e.prev
	}
	e.prev, e.next = nil, nil
}

// maxDirty bounds the placements that have changed since the last fold, and are kept for that.
const maxDirty = 1 << 12

// fold makes used and temps exact.
func (sp *space) fold() {
	sp.round++
	sp.rise = 0
	busy := false // computations have begun or ended
	for _, e := range sp.dirty {
		g := e.owner.group
		if more := e.bytes - e.folded; more != 0 {
			addTo(sp.used, e.devices, more)
			g.addUsed(e.devices, more)
		}
		if more := e.leaving - e.foldedLeaving; more != 0 {
			addTo(sp.leaves, e.devices, more)
			g.addLeaves(e.devices, more)
		}
		g.folded()
		busy = busy || e.temp != e.foldedTemp
		e.folded, e.foldedLeaving, e.dirty = e.bytes, e.leaving, false
		if e.temp > 0 && !e.busy {
			e.busy = true
			sp.busy = append(sp.busy, e)
		}
	}
	clear(sp.dirty)
	sp.dirty = sp.dirty[:0]
	if !busy {
		return
	}
	for _, e := range sp.busy {
		for _, d := range e.devices {
			sp.temps[d] = 0
		}
	}
	kept := sp.busy[:0]
	for _, e := range sp.busy {
		e.foldedTemp = e.temp
		if e.busy = e.temp > 0; !e.busy {
			continue
		}
		kept = append(kept, e)
		for _, d := range e.devices {
			sp.temps[d] = max(sp.temps[d], e.temp)
		}
	}
	clear(sp.busy[len(kept):])
	sp.busy = kept
}

func addTo(sums []int64, devices Devices, bytes int64) {
	for _, d := range devices {
		sums[d] += bytes
	}
}

// leastRoom returns the least room that a device of the placement had at the last fold.
func (sp *space) leastRoom(e *extent) int64 {
	if e.round != sp.round {
		e.round, e.room = sp.round, noLimit
		for _, d := range e.devices {
			if limit := sp.limits[d]; limit > 0 {
				e.room = min(e.room, limit-sp.used[d]-sp.temps[d])
			}
		}
	}
	return e.room
}

// Usage is the memory of a device, in bytes.
type Usage struct {
	InUse int64
	Temp  int64 // of that, what computations under way take beside objects
	Limit int64 // 0 if there is none
}

// Device returns the usage of one device.
func (l *Ledger) Device(device int) Usage {
	if device >= len(l.space.limits) {
		return Usage{}
	}
	l.space.fold()
	temp := l.space.temps[device]
	return Usage{InUse: l.space.used[device] + temp, Temp: temp, Limit: l.space.limits[device]}
}

// has reports whether d is one of the placement's devices.
func (e *extent) has(d int) bool {
	_, ok := slices.BinarySearch(e.devices, int32(d))
	return ok
}

// Sort returns the devices of a placement. Unlike a Ledger, any number of goroutines may call it.
//
// Errors: INVALID_ARGUMENT for what is no placement.
func Sort(devices []int) (Devices, error) {
	if len(devices) == 0 {
		return nil, status.New(status.InvalidArgument, "a placement needs at least one device, got none")
	}
	ids := make(Devices, len(devices))
	for i, d := range devices {
		if d < 0 || d >= MaxDevices {
			return nil, status.New(status.InvalidArgument, "device %d is not in [0, %d)", d, MaxDevices)
		}
		ids[i] = int32(d)
	}
	slices.Sort(ids)
	for i := 1; i < len(ids); i++ {
		if ids[i] == ids[i-1] {
			return nil, status.New(status.InvalidArgument,
				"device %d occurs twice in a placement; an object has one shard for each device", ids[i])
		}
	}
	return ids, nil
}
