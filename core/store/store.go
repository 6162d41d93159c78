// Package store is an executor's table of objects: who owns them, who still
// needs them, and how much memory they take on which device.
//
// An object is one logical array, or another piece of device memory such as a
// run's scratch, with a shard on each device of its placement. It is counted,
// owned, failed and freed as one, and nothing here costs time or memory in
// proportion to its shards: the table adds up bytes by placement and spreads
// them over devices when it is asked. The contents are the caller's, who keeps
// them by ID.Index and lets go of them when the table says that they are freed.
//
// # What keeps an object
//
// References are names for it, such as a client's handle. Holds are of runs: Hold
// when a run is submitted, Admit when it starts, Release when it has ended, or
// Abandon where it never started. Pins are of memory seen from outside, by
// NumPy, DLPack or Arrow; a user ends them, or nobody does. Memory is charged
// while there is a hold, a pin, or a reference to contents that were not deleted;
// an ID is valid while there is any of the three. Deleting an object, as donation
// does, and dropping its owner end no hold and no pin, so that runs submitted
// before still find their inputs.
//
// A call that ends the charge reports the object as freed, once, and the caller
// then closes the contents. The object's ID may live on as the name of something
// failed or deleted.
//
// # Admission
//
// Admit makes all objects of a run on all their devices or none, so that runs
// that wait for memory never have a part of it. A run waits only while the end of
// runs that were admitted, which devices bound, makes enough room; where it does
// not, the run gets RESOURCE_EXHAUSTED with need, limit and holders. What runs
// that still wait hold does not count as leaving, or a run would wait for its own
// inputs. Runs are to be admitted in the order of submission, so that this
// overlooks none that could make room.
//
// # Concurrency
//
// All methods may be called from any goroutine. None waits for anything but the
// table's lock, and none calls back. It imports core/status alone; executors
// and whatever joins a client to them may import it.
package store

import (
	"fmt"
	"slices"
	"sync"

	"github.com/openpathways/pathways/core/status"
)

// ID names an object of a Table. The zero ID names none. The ID of an object that
// has gone is never given again.
type ID uint64

// An ID is a slot's index below the generation of its use.
const (
	indexBits = 26
	maxIndex  = 1<<indexBits - 1
	maxGen    = 1<<(64-indexBits) - 1
)

// Index is the number of the object's slot: small, dense, and taken by no other
// object as long as this one lives.
func (id ID) Index() int { return int(id & maxIndex) }

// String writes the ID as slot and generation.
func (id ID) String() string { return fmt.Sprintf("%d.%d", id&maxIndex, id>>indexBits) }

// Owner is who answers for objects and takes them along when it goes: a session.
type Owner uint32

// Purpose says what memory is for.
type Purpose uint8

// The purposes.
const (
	Array   Purpose = iota // inputs and outputs, held by users
	Scratch                // temporaries of a running computation
	Code                   // loaded executables
	Staging                // on its way between devices and hosts
	Purposes
)

var purposeNames = [Purposes]string{"array", "scratch", "code", "staging"}

// String gives the purpose's name.
func (p Purpose) String() string {
	if p < Purposes {
		return purposeNames[p]
	}
	return fmt.Sprintf("purpose%d", uint8(p))
}

// Spec is what an object is made from.
type Spec struct {
	ShardBytes int64 // on each device of the placement
	Placement  Placement
	Purpose    Purpose
	Label      string // what users know it by; for messages
}

// MaxShardBytes bounds the memory of one shard.
const MaxShardBytes = 1 << 46

// State is how far an object is.
type State uint8

// The states. Pending and Ready have contents; Gone is that of an ID whose object
// is no more.
const (
	Pending State = iota
	Ready
	Failed
	Deleted
	Gone
)

var stateNames = [...]string{"pending", "ready", "failed", "deleted", "gone"}

// String gives the state's name.
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("state%d", uint8(s))
}

// object is a slot of the table.
type object struct {
	gen     uint64
	refs    int64
	waits   int64 // holds of runs that were not admitted yet
	holds   int64 // holds of runs that were
	pins    int64
	state   State
	purpose Purpose
	// What the accounts contain of this object; settle keeps them so.
	charged, leaving bool
	placement        Placement
	owner            *account // nil in a free slot
	prev, next       uint32   // neighbours in the owner's list; next also links free slots
	bytes            int64    // a shard
	label            string
	err              error // of Failed
}

const (
	chunkBits = 9
	chunkSize = 1 << chunkBits
	none      = ^uint32(0) // no slot
)

// Table is a table of objects. The zero Table is not ready; use New.
type Table struct {
	mu sync.Mutex
	// chunks hold the slots; a slot never moves.
	chunks [][]object
	slots  uint32 // ever used
	free   uint32 // first of the free slots
	live   int    // objects
	spent  int    // slots without another generation
	owners map[Owner]*account
	space  space
	needs  []int64 // scratch of Admit: bytes by device, zero between calls
}

// New makes an empty table without limits.
func New() *Table {
	t := &Table{free: none, owners: make(map[Owner]*account)}
	t.space.init()
	return t
}

// AddOwner makes an owner known. The name is for messages, such as "session 3".
func (t *Table) AddOwner(o Owner, name string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if a := t.owners[o]; a != nil {
		if a.dropped {
			return status.New(status.AlreadyExists, "owner %d (%s) was dropped and memory of it is still in use; take another number", o, a.name)
		}
		return status.New(status.AlreadyExists, "owner %d (%s) exists already; take another number", o, a.name)
	}
	t.owners[o] = &account{owner: o, name: name, first: none}
	return nil
}

// DropOwner takes away all references to what o owns and forgets o. Memory that
// running work holds or that is pinned stays charged to it until that ends.
// DropOwner appends to freed what is freed now. Create and Admit for o fail from
// here on; an owner that is not known does nothing.
func (t *Table) DropOwner(o Owner, freed []ID) []ID {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := t.owners[o]
	if a == nil || a.dropped {
		return freed
	}
	a.dropped = true
	for i := a.first; i != none; {
		s := t.slot(i)
		next := s.next
		s.refs = 0
		if id := s.id(i); t.settle(id, s) {
			freed = append(freed, id)
		}
		i = next
	}
	if a.objects == 0 { // settle forgets it otherwise, with its last object
		delete(t.owners, o)
	}
	t.verify()
	return freed
}

// Create makes a pending object with one reference. It does not look at limits:
// it is for memory that is there already.
func (t *Table) Create(o Owner, sp Spec) (ID, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	a, err := t.account(o)
	if err == nil {
		err = t.space.validate(&sp)
	}
	if err == nil {
		err = t.room(1)
	}
	if err != nil {
		return 0, err
	}
	id := t.create(a, &sp, 1, 0)
	t.verify()
	return id, nil
}

// Ref adds a reference to a named object, whatever its state, and reports whether
// the ID names one.
func (t *Table) Ref(id ID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.named(id)
	if s != nil {
		s.refs++
	}
	return s != nil
}

// Unref takes a reference away and reports whether that freed the object's memory.
// An ID that names nothing, as after DropOwner, does nothing.
func (t *Table) Unref(id ID) (freed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.named(id); s != nil {
		s.refs--
		freed = t.settle(id, s)
	}
	t.verify()
	return freed
}

// UnrefAll is Unref for many; it appends to freed those that it freed.
func (t *Table) UnrefAll(ids, freed []ID) []ID {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, id := range ids {
		if s := t.named(id); s != nil {
			s.refs--
			if t.settle(id, s) {
				freed = append(freed, id)
			}
		}
	}
	t.verify()
	return freed
}

// Hold keeps the contents of all objects for a run that was submitted, or of none
// with the error of the first that has no contents. An object may be there twice.
func (t *Table) Hold(ids []ID) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, id := range ids {
		if err := t.usable(id); err != nil {
			return err
		}
	}
	for _, id := range ids {
		t.named(id).waits++ // charged already, and not leaving
	}
	return nil
}

// Abandon ends holds of a run that was not admitted; it appends to freed what that
// freed.
func (t *Table) Abandon(ids, freed []ID) []ID {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, id := range ids {
		if s := t.alive(id); s != nil && s.waits > 0 {
			s.waits--
			if t.settle(id, s) {
				freed = append(freed, id)
			}
		}
	}
	t.verify()
	return freed
}

// Release ends holds of a run that was admitted, of its inputs and of what Admit
// made; it appends to freed what that freed.
func (t *Table) Release(ids, freed []ID) []ID {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, id := range ids {
		if s := t.alive(id); s != nil && s.holds > 0 {
			s.holds--
			if t.settle(id, s) {
				freed = append(freed, id)
			}
		}
	}
	t.verify()
	return freed
}

// Pin keeps the memory for somebody outside, past the last reference and past the
// owner.
func (t *Table) Pin(id ID) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.usable(id); err != nil {
		return err
	}
	t.named(id).pins++
	return nil
}

// Unpin ends one Pin and reports whether that freed the memory.
func (t *Table) Unpin(id ID) (freed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.alive(id); s != nil && s.pins > 0 {
		s.pins--
		freed = t.settle(id, s)
	}
	t.verify()
	return freed
}

// SetReady says that the contents of a pending object are there.
func (t *Table) SetReady(id ID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.alive(id); s != nil && s.state == Pending {
		s.state = Ready
	}
}

// Fail says that a pending object will not be: err stands in place of its contents
// for whoever asks. The first word about an object holds. It reports whether that
// freed the memory.
func (t *Table) Fail(id ID, err error) (freed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.alive(id); s != nil && s.state == Pending {
		if err == nil {
			err = status.New(status.Internal, "the array failed and its worker gave no reason")
		}
		s.state, s.err = Failed, err
		freed = t.settle(id, s)
	}
	t.verify()
	return freed
}

// Delete takes the contents away from all who have references, as donation and a
// user's delete do; holds and pins keep the memory. It reports whether that freed
// the memory.
func (t *Table) Delete(id ID) (freed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.named(id); s != nil {
		s.state, s.err = Deleted, nil
		freed = t.settle(id, s)
	}
	t.verify()
	return freed
}

// State gives the object's state, with the error that a use of it gets: nil for
// Pending and Ready, the error of Fail for Failed, and one that says so for
// Deleted and Gone.
func (t *Table) State(id ID) (State, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.named(id); s != nil {
		return s.state, t.usable(id)
	}
	return Gone, t.usable(id) // for names: a hold or a pin alone is none
}

// Len is the number of objects, with those that only holds or pins keep.
func (t *Table) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.live
}

func (t *Table) slot(i uint32) *object { return &t.chunks[i>>chunkBits][i&(chunkSize-1)] }

func (s *object) id(i uint32) ID { return ID(s.gen<<indexBits | uint64(i)) }

// alive gives the slot of an object that anything keeps, or nil.
func (t *Table) alive(id ID) *object {
	i := uint32(id & maxIndex)
	if i >= t.slots {
		return nil
	}
	s := t.slot(i)
	if s.owner == nil || s.gen != uint64(id>>indexBits) {
		return nil
	}
	return s
}

// named gives the slot of an object that has references, or nil.
func (t *Table) named(id ID) *object {
	if s := t.alive(id); s != nil && s.refs > 0 {
		return s
	}
	return nil
}

// usable is nil where id names contents, and otherwise says what is wrong.
func (t *Table) usable(id ID) error {
	s := t.named(id)
	switch {
	case s == nil:
		return status.New(status.NotFound, "object %v is not there any more: its last reference or its session has gone", id)
	case s.state == Failed:
		return s.err
	case s.state == Deleted && s.label != "":
		return status.New(status.FailedPrecondition, "array %q was deleted or donated and cannot be used again", s.label)
	case s.state == Deleted:
		return status.New(status.FailedPrecondition, "the array was deleted or donated and cannot be used again")
	}
	return nil
}

// account gives the account of an owner that may have new objects.
func (t *Table) account(o Owner) (*account, error) {
	a := t.owners[o]
	if a == nil || a.dropped {
		return nil, status.New(status.NotFound, "owner %d is not there: it was dropped or never added", o)
	}
	return a, nil
}

// room is an error where n more objects have no slots.
func (t *Table) room(n int) error {
	if n > maxIndex-t.live-t.spent {
		return status.New(status.ResourceExhausted, "the table is full with %d objects; delete some arrays", t.live)
	}
	return nil
}

func (t *Table) create(a *account, sp *Spec, refs, holds int64) ID {
	i := t.free
	if i != none {
		t.free = t.slot(i).next
	} else {
		i = t.slots
		if i>>chunkBits == uint32(len(t.chunks)) {
			t.chunks = append(t.chunks, make([]object, chunkSize))
		}
		t.slots++
	}
	s := t.slot(i)
	*s = object{gen: s.gen + 1, refs: refs, holds: holds, purpose: sp.Purpose, placement: sp.Placement,
		owner: a, prev: none, next: a.first, bytes: sp.ShardBytes, label: sp.Label}
	if a.first != none {
		t.slot(a.first).prev = i
	}
	a.first = i
	a.objects++
	t.live++
	id := s.id(i)
	t.settle(id, s)
	return id
}

// settle makes the accounts, and the slot itself, agree with the counts of s after
// a change of them, and reports whether the charge ended.
func (t *Table) settle(id ID, s *object) (freed bool) {
	contents := s.refs > 0 && s.state < Failed
	stays := contents || s.waits > 0 || s.pins > 0
	charged := stays || s.holds > 0
	leaving := charged && !stays
	if charged != s.charged {
		freed = s.charged
		s.charged = charged
		t.space.charge(s, charged)
	}
	if leaving != s.leaving {
		s.leaving = leaving
		t.space.leave(s, leaving)
	}
	if s.refs == 0 && !charged {
		t.remove(uint32(id&maxIndex), s)
	}
	return freed
}

// remove takes the slot of an object that nothing keeps out of use.
func (t *Table) remove(i uint32, s *object) {
	a := s.owner
	if s.prev != none {
		t.slot(s.prev).next = s.next
	} else {
		a.first = s.next
	}
	if s.next != none {
		t.slot(s.next).prev = s.prev
	}
	if a.objects--; a.objects == 0 && a.dropped {
		delete(t.owners, a.owner)
	}
	t.live--
	*s = object{gen: s.gen, next: none}
	if s.gen < maxGen {
		s.next, t.free = t.free, i
	} else {
		t.spent++
	}
}

func (t *Table) verify() {
	if checked {
		t.check()
	}
}

// sortedDevices gives a copy in ascending order, or an error for what is no
// placement.
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
			return nil, status.New(status.InvalidArgument, "device %d is twice in a placement; an object has one shard a device", ids[i])
		}
	}
	return ids, nil
}
