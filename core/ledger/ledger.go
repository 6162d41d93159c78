// Package ledger keeps the account of device memory: which objects exist, who owns them, and how many bytes they take
// on which device.
//
// An object is one logical array with a shard on each device of its placement. It is counted, owned and freed as one.
// While devices are far from their limits, nothing here takes time or memory in proportion to shards: the ledger adds
// up bytes by placement, and spreads them over devices only when the sums no longer prove that there is room
// (space.go). It does not know the contents, which drivers hold.
//
// # Guarantees
//
// Admit makes all objects of a request or none, and none that would exceed a device's limit; Charge makes one object
// regardless of limits, for callers that have asked Fits. An object is counted until Free, or until Retire and then
// Passed for its horizon, or until its owner is dropped. The ID of an object that is gone is never reused, and calls
// with it do nothing.
//
// # Concurrency
//
// A Ledger has no lock, clock or goroutine: its caller serializes the calls.
package ledger

import (
	"github.com/openpathways/pathways/core/invariants"
	"github.com/openpathways/pathways/core/status"
)

// ID names an object of a Ledger. The zero ID names none.
type ID = uint64

// An ID is a slot's index below the generation of its use.
const (
	indexBits = 26
	maxIndex  = 1<<indexBits - 1
	maxGen    = 1<<(64-indexBits) - 1
)

// Owner owns objects, which are freed when it is dropped: a session.
type Owner uint32

// Spec describes an object to be made.
type Spec struct {
	ShardBytes int64 // on each device of the placement
	Placement  Placement
	Label      string // what users know it by; for messages
}

// MaxShardBytes bounds the memory of one shard.
const MaxShardBytes = 1 << 46

// object is a slot of the ledger.
type object struct {
	gen        uint64
	extent     *extent // in a free slot nil, or one of an owner that was dropped
	prev, next uint32  // neighbors in the owner's list; next also links retired objects, and free slots
	bytes      int64   // of a shard
	label      string
	retired    bool
	horizon    uint64 // of a retired object: it goes when the owner's gangs have ended up to here
}

// account is what an owner has in the ledger.
type account struct {
	name        string
	group       *Group // nil: it is in none
	live        int    // objects, those included that are retired
	first, last uint32 // of its objects that are not retired
	// Retired objects, in the order of their horizons.
	retired, lastRetired uint32
	extents              *extent // those with something on them
	uses                 uint64  // see Uses
	left                 bool    // its objects count as retired: see Leave
	dropped              bool
}

const (
	chunkBits = 9
	chunkSize = 1 << chunkBits
	none      = ^uint32(0) // no slot
)

// Ledger is an account of objects. The zero Ledger is not ready; use New.
type Ledger struct {
	// chunks hold the slots; a slot never moves.
	chunks [][]object
	slots  uint32 // ever used
	free   uint32 // first of the free slots
	live   int    // objects, those included that are retired
	spent  int    // slots without another generation
	owners map[Owner]*account
	space  space
	needs  []int64 // scratch: bytes by device, zero between calls
}

// New returns an empty ledger without limits.
func New() *Ledger {
	return &Ledger{free: none, owners: make(map[Owner]*account), space: space{round: 1}}
}

// AddOwner makes an owner known. The name is for messages, such as "session 3".
//
// Errors: ALREADY_EXISTS.
func (l *Ledger) AddOwner(o Owner, name string) error {
	if a := l.owners[o]; a != nil {
		return status.New(status.AlreadyExists, "owner %d (%s) exists already; take another number", o, a.name)
	}
	l.owners[o] = &account{name: name, first: none, last: none, retired: none, lastRetired: none}
	return nil
}

// Join adds an owner that has nothing yet to a group.
//
// Errors: NOT_FOUND, FAILED_PRECONDITION if it has something.
func (l *Ledger) Join(o Owner, g *Group) error {
	a := l.owners[o]
	switch {
	case a == nil:
		return status.New(status.NotFound, "owner %d is not there: it was dropped or never added", o)
	case a.extents != nil || a.group != nil:
		return status.New(status.FailedPrecondition,
			"owner %d (%s) has objects or a group already; have it join before it makes any", o, a.name)
	}
	a.group = g
	return nil
}

// DropOwner frees all objects of an owner, ends its computations, and forgets it. Its placements must not be used
// again. An owner that is not known does nothing.
//
// It takes time in proportion to the owner's placements and their devices, whatever the number of its objects: their
// slots become free as the lists that they are in.
func (l *Ledger) DropOwner(o Owner) {
	a := l.owners[o]
	if a == nil {
		return
	}
	var gone []*extent
	for e := a.extents; e != nil; e = a.extents {
		gone = append(gone, e)
		e.objects, e.temps = 0, nil
		l.space.leave(e, -e.leaving)
		l.space.charge(e, -e.bytes)
		l.space.settle(e) // after which it is in the list no more
	}
	l.space.fold()
	for _, e := range gone { // the free slots still have it
		*e = extent{owner: a}
	}
	l.live -= a.live
	l.release(a.first, a.last)
	l.release(a.retired, a.lastRetired)
	delete(l.owners, o)
	*a = account{dropped: true}
	l.verify()
}

// release frees the slots that are linked from first to last.
func (l *Ledger) release(first, last uint32) {
	if first != none {
		l.slot(last).next, l.free = l.free, first
	}
}

// Charge makes an object regardless of the limits. Bytes beyond what can be counted, which no device has, are not
// counted. If there is no Room, the object is not made, and the ID names none.
func (l *Ledger) Charge(sp Spec) ID {
	if sp.ShardBytes < 0 || sp.ShardBytes > MaxShardBytes ||
		sp.ShardBytes*int64(len(sp.Placement.devices)) > maxCharge-l.space.total {
		sp.ShardBytes = 0
	}
	i := l.take()
	if i == none {
		return 0
	}
	e := sp.Placement.extent
	a := e.owner
	s := l.slot(i)
	*s = object{gen: s.gen + 1, extent: e, prev: none, next: a.first, bytes: sp.ShardBytes, label: sp.Label}
	if a.first != none {
		l.slot(a.first).prev = i
	} else {
		a.last = i
	}
	a.first = i
	l.live++
	a.live++
	if e.objects++; e.objects == 1 {
		a.uses++
		e.list()
	}
	l.space.charge(e, s.bytes)
	return s.id(i)
}

// take returns a free slot that has generations left; none if there is none.
func (l *Ledger) take() uint32 {
	for i := l.free; i != none; i = l.free {
		if l.free = l.slot(i).next; l.slot(i).gen < maxGen {
			return i
		}
		l.spent++
	}
	i := l.slots
	if i > maxIndex {
		return none
	}
	if i>>chunkBits == uint32(len(l.chunks)) {
		l.chunks = append(l.chunks, make([]object, chunkSize))
	}
	l.slots++
	return i
}

// Free removes an object. An ID that names none, or a retired one, does nothing.
func (l *Ledger) Free(id ID) {
	if s := l.find(id); s != nil && !s.isRetired() {
		l.remove(uint32(id & maxIndex))
	}
	l.verify()
}

// Retire removes an object as soon as its owner's gangs up to horizon have ended, which Passed reports. Until then its
// bytes count as leaving. Horizons of one owner never decrease.
func (l *Ledger) Retire(id ID, horizon uint64) {
	s := l.find(id)
	if s == nil || s.isRetired() {
		return
	}
	i := uint32(id & maxIndex)
	a := s.extent.owner
	l.unlink(i)
	s.next, s.retired, s.horizon = none, true, horizon
	if a.lastRetired == none {
		a.retired = i
	} else {
		l.slot(a.lastRetired).next = i
	}
	a.lastRetired = i
	l.space.leave(s.extent, s.bytes)
	l.verify()
}

// Leave marks all objects of an owner as leaving: they are removed by DropOwner, when all of its gangs have ended. An
// owner that leaves makes no more objects. Leave takes time in proportion to the owner's placements.
func (l *Ledger) Leave(o Owner) {
	a := l.owners[o]
	if a == nil || a.left {
		return
	}
	a.left = true
	a.uses++
	for e := a.extents; e != nil; {
		next := e.next
		e.objects = 0
		l.space.leave(e, e.bytes-e.leaving)
		e.list()
		e = next
	}
	l.verify()
}

// Shrink subtracts bytes from each shard of an object, since something else has taken over their memory. An ID that
// names none, or a retired one, does nothing.
func (l *Ledger) Shrink(id ID, bytes int64) {
	s := l.find(id)
	if s == nil || s.isRetired() {
		return
	}
	bytes = min(bytes, s.bytes)
	s.bytes -= bytes
	l.space.charge(s.extent, -bytes)
	l.verify()
}

// Passed records that all gangs of an owner up to this one have ended, and reports whether that removed any bytes.
func (l *Ledger) Passed(o Owner, ended uint64) (left bool) {
	a := l.owners[o]
	if a == nil {
		return false
	}
	for a.retired != none && l.slot(a.retired).horizon <= ended {
		l.remove(l.unretire(a))
		left = true
	}
	l.verify()
	return left
}

// Len returns the number of objects.
func (l *Ledger) Len() int { return l.live }

// Room returns how many more objects there can be.
func (l *Ledger) Room() int { return maxIndex - l.live - l.spent }

func (l *Ledger) slot(i uint32) *object { return &l.chunks[i>>chunkBits][i&(chunkSize-1)] }

// find returns the slot of an object, or nil.
func (l *Ledger) find(id ID) *object {
	if i := uint32(id & maxIndex); i < l.slots {
		if s := l.slot(i); s.isUsed() && s.gen == id>>indexBits {
			return s
		}
	}
	return nil
}

func (s *object) id(i uint32) ID { return s.gen<<indexBits | uint64(i) }

// isUsed reports whether an object is in a slot.
func (s *object) isUsed() bool { return s.extent != nil && !s.extent.owner.dropped }

// isRetired reports whether an object that is there leaves by itself.
func (s *object) isRetired() bool { return s.retired || s.extent.owner.left }

// unlink removes a slot from its owner's list of objects.
func (l *Ledger) unlink(i uint32) {
	s := l.slot(i)
	if s.extent.objects--; s.extent.objects == 0 {
		s.extent.owner.uses++
		s.extent.list()
	}
	if s.prev != none {
		l.slot(s.prev).next = s.next
	} else {
		s.extent.owner.first = s.next
	}
	if s.next != none {
		l.slot(s.next).prev = s.prev
	} else {
		s.extent.owner.last = s.prev
	}
}

// unretire removes the first of an owner's retired objects from their list, and returns its slot.
func (l *Ledger) unretire(a *account) uint32 {
	i := a.retired
	s := l.slot(i)
	if a.retired = s.next; a.retired == none {
		a.lastRetired = none
	}
	l.space.leave(s.extent, -s.bytes)
	return i
}

// remove frees an object's slot.
func (l *Ledger) remove(i uint32) {
	s := l.slot(i)
	if !s.retired {
		l.unlink(i)
	}
	l.space.charge(s.extent, -s.bytes)
	l.live--
	s.extent.owner.live--
	*s = object{gen: s.gen}
	l.release(i, i)
}

func (l *Ledger) verify() {
	if invariants.Checked {
		l.check()
	}
}
