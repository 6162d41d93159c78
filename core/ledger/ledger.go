// Package ledger is the account of device memory: which objects there are, whose they are, and how many bytes they take
// on which device.
//
// An object is one logical array with a shard on each device of its placement. It is counted, owned and freed as one,
// and nothing here costs time or memory in proportion to its shards: the ledger adds up bytes by placement and spreads
// them over devices when it is asked. It knows nothing of contents, which drivers hold.
//
// # Guarantees
//
// Create makes all objects of a call or none. No device has more than its limit. An object is counted from Create until
// Free, or until its owner goes. The ID of an object that has gone is never used again, and does nothing.
//
// # Concurrency
//
// A Ledger has no lock, clock or goroutine: its caller serialises the calls.
package ledger

import (
	"slices"

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

// Spec is what an object is made from.
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
	owner      *account // nil in a free slot
	prev, next uint32   // neighbours in the owner's list; next also links free slots
	placement  Placement
	bytes      int64 // of a shard
	label      string
}

// account is what an owner has.
type account struct {
	name  string
	first uint32 // of its objects
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
	live   int    // objects
	spent  int    // slots without another generation
	owners map[Owner]*account
	space  space
	needs  []int64 // scratch of fits: bytes by device, zero between calls
}

// New returns an empty ledger without limits.
func New() *Ledger {
	l := &Ledger{free: none, owners: make(map[Owner]*account)}
	l.space.init()
	return l
}

// AddOwner makes an owner known. The name is for messages, such as "session 3".
//
// Errors: ALREADY_EXISTS.
func (l *Ledger) AddOwner(o Owner, name string) error {
	if a := l.owners[o]; a != nil {
		return status.New(status.AlreadyExists, "owner %d (%s) exists already; take another number", o, a.name)
	}
	l.owners[o] = &account{name: name, first: none}
	return nil
}

// DropOwner frees all objects of an owner and forgets it. An owner that is not known does nothing.
func (l *Ledger) DropOwner(o Owner) {
	a := l.owners[o]
	if a == nil {
		return
	}
	for a.first != none {
		l.remove(a.first)
	}
	delete(l.owners, o)
	l.verify()
}

// Create makes an object of each spec, all or none, and writes their IDs to ids, which is as long as specs.
//
// Errors: INVALID_ARGUMENT for specs that make no sense, NOT_FOUND where the owner is not known, RESOURCE_EXHAUSTED,
// with need, limit and holders, where the limit of a device leaves no room.
func (l *Ledger) Create(o Owner, specs []Spec, ids []ID) error {
	a := l.owners[o]
	if a == nil {
		return status.New(status.NotFound, "owner %d is not there: it was dropped or never added", o)
	}
	if err := l.fits(a, specs); err != nil {
		return err
	}
	for i := range specs {
		ids[i] = l.create(a, &specs[i])
	}
	l.verify()
	return nil
}

// Free takes an object out. An ID that names none does nothing.
func (l *Ledger) Free(id ID) {
	if i := uint32(id & maxIndex); i < l.slots {
		if s := l.slot(i); s.owner != nil && s.gen == id>>indexBits {
			l.remove(i)
		}
	}
	l.verify()
}

// Len returns the number of objects.
func (l *Ledger) Len() int {
	return l.live
}

func (l *Ledger) slot(i uint32) *object { return &l.chunks[i>>chunkBits][i&(chunkSize-1)] }

func (s *object) id(i uint32) ID { return s.gen<<indexBits | uint64(i) }

func (l *Ledger) create(a *account, sp *Spec) ID {
	i := l.free
	if i != none {
		l.free = l.slot(i).next
	} else {
		i = l.slots
		if i>>chunkBits == uint32(len(l.chunks)) {
			l.chunks = append(l.chunks, make([]object, chunkSize))
		}
		l.slots++
	}
	s := l.slot(i)
	*s = object{gen: s.gen + 1, owner: a, prev: none, next: a.first,
		placement: sp.Placement, bytes: sp.ShardBytes, label: sp.Label}
	if a.first != none {
		l.slot(a.first).prev = i
	}
	a.first = i
	l.live++
	l.space.charge(s.placement, s.bytes)
	return s.id(i)
}

// remove takes an object's slot out of use.
func (l *Ledger) remove(i uint32) {
	s := l.slot(i)
	l.space.charge(s.placement, -s.bytes)
	if s.prev != none {
		l.slot(s.prev).next = s.next
	} else {
		s.owner.first = s.next
	}
	if s.next != none {
		l.slot(s.next).prev = s.prev
	}
	l.live--
	*s = object{gen: s.gen, next: none}
	if s.gen < maxGen {
		s.next, l.free = l.free, i
	} else {
		l.spent++
	}
}

func (l *Ledger) verify() {
	if checked {
		l.check()
	}
}

// sortedDevices returns a copy in ascending order, or an error for what is no placement.
func sortedDevices(devices []int) ([]int32, error) {
	if len(devices) == 0 {
		return nil, status.New(status.InvalidArgument, "a placement needs at least one device, got none")
	}
	ids := make([]int32, len(devices))
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
				"device %d is twice in a placement; an object has one shard a device", ids[i])
		}
	}
	return ids, nil
}
