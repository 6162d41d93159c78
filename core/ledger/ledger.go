// Package ledger is the account of device memory: which objects there are, whose they are, and how many bytes they
// take on which device.
//
// An object is one logical array with a shard on each device of its placement. It is counted, owned and freed as one,
// and nothing here costs time or memory in proportion to its shards while devices are far from their limits: the
// ledger adds up bytes by placement and spreads them over devices where the sums no longer show that there is room
// (space.go). It knows nothing of contents, which drivers hold.
//
// # Guarantees
//
// Admit makes all objects of a request or none, and none that passes a device's limit; Charge makes one object whatever
// the limits, for callers that have asked Fits. An object is counted until Free, or until Retire and the Passed that
// follows, or until its owner goes. The ID of an object that has gone is never used again, and does nothing.
//
// # Concurrency
//
// A Ledger has no lock, clock or goroutine: its caller serialises the calls.
package ledger

import (
	"math"

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

// Owner is who answers for objects and takes them along when it goes: a session.
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
	extent     *extent // nil in a free slot
	prev, next uint32  // neighbours in the owner's list; next also links retired objects, and free slots
	bytes      int64   // of a shard
	label      string
	retired    bool
	horizon    uint64 // of a retired object: it goes when the owner's gangs have ended up to here
}

// account is what an owner has.
type account struct {
	name  string
	group *Group // nil: it is in none
	first uint32 // of its objects that are not retired
	// Retired objects, in the order of their horizons.
	retired, lastRetired uint32
	extents              *extent // those with something on them
	uses                 uint64  // see Uses
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
	l.owners[o] = &account{name: name, first: none, retired: none, lastRetired: none}
	return nil
}

// Join has an owner that has nothing yet be of a group.
//
// Errors: NOT_FOUND, FAILED_PRECONDITION where it has something.
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
func (l *Ledger) DropOwner(o Owner) {
	a := l.owners[o]
	if a == nil {
		return
	}
	for a.first != none {
		l.remove(a.first)
	}
	for a.retired != none {
		l.remove(l.unretire(a))
	}
	for e := a.extents; e != nil; e = a.extents { // which computations alone keep there
		for _, t := range e.temps {
			e.count(t.bytes, -t.users)
		}
		l.space.settle(e)
	}
	delete(l.owners, o)
	l.space.fold() // which releases its placements
	l.verify()
}

// Charge makes an object regardless of the limits. More bytes than can be counted, which no device has, are not
// counted. Without Room the object is not made, and its ID names none.
func (l *Ledger) Charge(sp Spec) ID {
	if sp.ShardBytes < 0 || sp.ShardBytes > MaxShardBytes ||
		sp.ShardBytes*int64(len(sp.Placement.devices)) > maxCharge-l.space.total {
		sp.ShardBytes = 0
	}
	i := l.free
	if i != none {
		l.free = l.slot(i).next
	} else if i = l.slots; i > maxIndex {
		return 0
	} else {
		if i>>chunkBits == uint32(len(l.chunks)) {
			l.chunks = append(l.chunks, make([]object, chunkSize))
		}
		l.slots++
	}
	e := sp.Placement.extent
	a := e.owner
	s := l.slot(i)
	s.gen++
	s.extent, s.prev, s.next, s.bytes, s.label = e, none, a.first, sp.ShardBytes, sp.Label
	if a.first != none {
		l.slot(a.first).prev = i
	}
	a.first = i
	l.live++
	if e.objects++; e.objects == 1 {
		a.uses++
		e.list()
	}
	l.space.charge(e, s.bytes)
	return s.id(i)
}

// Free has an object go. An ID that names none, or one that was retired, does nothing.
func (l *Ledger) Free(id ID) {
	if s := l.find(id); s != nil && !s.retired {
		l.remove(uint32(id & maxIndex))
	}
	l.verify()
}

// Retire has an object go as soon as its owner's gangs have ended up to horizon, of which Passed tells. Until then its
// bytes count as leaving. Horizons of one owner never decrease.
func (l *Ledger) Retire(id ID, horizon uint64) {
	s := l.find(id)
	if s == nil || s.retired {
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

// Leave has all that an owner has leave when all of its gangs have ended, of which DropOwner tells. An owner that
// leaves makes nothing any more.
func (l *Ledger) Leave(o Owner) {
	a := l.owners[o]
	if a == nil {
		return
	}
	for i := a.first; i != none; i = a.first {
		l.Retire(l.slot(i).id(i), math.MaxUint64)
	}
}

// Shrink takes bytes off each shard of an object: something else has taken their memory over. An ID that names none, or
// one that was retired, does nothing.
func (l *Ledger) Shrink(id ID, bytes int64) {
	s := l.find(id)
	if s == nil || s.retired {
		return
	}
	bytes = min(bytes, s.bytes)
	s.bytes -= bytes
	l.space.charge(s.extent, -bytes)
	l.verify()
}

// Passed records that all gangs of an owner have ended up to this one, and reports whether bytes left for that.
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

// Room returns how many more there can be.
func (l *Ledger) Room() int { return maxIndex - l.live - l.spent }

func (l *Ledger) slot(i uint32) *object { return &l.chunks[i>>chunkBits][i&(chunkSize-1)] }

// find returns the slot of an object, or nil.
func (l *Ledger) find(id ID) *object {
	if i := uint32(id & maxIndex); i < l.slots {
		if s := l.slot(i); s.extent != nil && s.gen == id>>indexBits {
			return s
		}
	}
	return nil
}

func (s *object) id(i uint32) ID { return s.gen<<indexBits | uint64(i) }

// unlink takes a slot out of its owner's list of objects.
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
	}
}

// unretire takes the first of an owner's retired objects out of their list, to be removed.
func (l *Ledger) unretire(a *account) uint32 {
	i := a.retired
	s := l.slot(i)
	if a.retired = s.next; a.retired == none {
		a.lastRetired = none
	}
	l.space.leave(s.extent, -s.bytes)
	return i
}

// remove takes an object's slot out of use.
func (l *Ledger) remove(i uint32) {
	s := l.slot(i)
	if !s.retired {
		l.unlink(i)
	}
	l.space.charge(s.extent, -s.bytes)
	l.live--
	*s = object{gen: s.gen, next: none}
	if s.gen < maxGen {
		s.next, l.free = l.free, i
	} else {
		l.spent++
	}
}

func (l *Ledger) verify() {
	if invariants.Checked {
		l.check()
	}
}
