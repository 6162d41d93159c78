package devicequeue

import (
	"maps"
	"slices"

	"github.com/openpathways/pathways/core/status"
)

// Buffer is the driver's handle of an array: a Queue keeps it and hands it out.
type Buffer any

// A shard is pending from the moment that its part begins. Fill makes it ready, Spoil makes it
// failed, and a ready one may fail later: by Fault, or because a computation took over its
// memory. Beside its state a shard is either named, that is in its session's table, or freed.
//
// Two may still come back to a shard that was freed: a part that was given it to read, until
// Unpin, and the caller who brings its contents, until Fill or Spoil. So a freed shard is
// recycled, which releases its buffer and makes the Shard usable for another object, at the
// first moment at which it is neither pinned nor pending: each of remove, Unpin, Fill and Spoil
// looks whether that is now. A ready or failed shard never becomes pending again, and a freed
// one is in no table, so it cannot be pinned again: a shard is recycled once.
//
// A buffer is handed out for closing by discard alone, which takes it out of its shard: so it
// is handed out once. Every way out of ready passes discard: recycle, or spoil with the last Unpin
// where the shard was pinned when it failed.
//
// What is told later than that, such as that a copy into a shard failed after all, names the
// object and not the Shard, which may hold another object by then (see Fault).

// table is the arrays of one session on the device, by object.
type table struct {
	session uint32
	shards  map[uint64]*Shard
	// lost are the errors of what failed when it could not be named any more: computations
	// that had begun read it, and Cause looks here.
	lost map[uint64]error
}

// maxLost bounds table.lost. If there is more, errors lose the name of what failed first, and nothing else.
const maxLost = 1024

// Shard is the part of one array on the device. A Queue uses a Shard again once it is in no
// table, is not pinned and not pending; so a caller may keep one only as long as it has it
// pinned, or owes Fill or Spoil for it.
type Shard struct {
	Buffer Buffer // while it is ready; otherwise nil, or not for reading
	Maker  uint64 // the caller's own
	Came   any    // the caller's own: tells when the contents came that the driver had promised at Fill

	state   state
	freed   bool // it is in no table any more
	readers int  // pins: parts that have begun to read it, and whose driver has yet to
	err     error
	charge  *Charge // nil if its bytes are not counted
}

type state uint8

const (
	pending state = iota // bytes are on their way, or a launch is
	ready                // the driver has it, or has promised it
	failed
)

// Freed reports whether a shard cannot be named any more, so that its bytes are of no use.
func (s *Shard) Freed() bool { return s.freed }

// ErrFreed is the error of an array that was freed before its bytes came.
var ErrFreed = status.New(status.FailedPrecondition, "the array was freed before its bytes came")

var errDonated = status.New(status.FailedPrecondition,
	"the array was donated to a computation and its contents are gone")

// table returns a session's arrays. A session is known from its first part on.
func (q *Queue) table(session uint32) *table {
	if t := q.last; t != nil && t.session == session {
		return t
	}
	t := q.tables[session]
	if t == nil {
		t = &table{session: session, shards: map[uint64]*Shard{}}
		q.tables[session] = t
	}
	q.last = t
	return t
}

// add makes a pending shard.
func (q *Queue) add(session uint32, object uint64) *Shard {
	var s *Shard
	if n := len(q.spare) - 1; n >= 0 {
		s, q.spare = q.spare[n], q.spare[:n]
	} else {
		s = new(Shard)
	}
	t := q.table(session)
	if was := t.shards[object]; was != nil { // an object made twice: a session harms itself alone
		q.remove(was)
	} else {
		q.objects++
	}
	t.shards[object] = s
	return s
}

// Unpin ends the use of a shard that Begin returned to be read.
func (q *Queue) Unpin(s *Shard) {
	s.readers--
	switch {
	case s.readers > 0:
	case s.freed:
		q.recycle(s)
	case s.state == failed:
		q.discard(s)
	}
}

// Fill records that the driver has a pending shard, or has promised it.
func (q *Queue) Fill(s *Shard, b Buffer) {
	s.Buffer, s.state = b, ready
	if s.freed && s.readers == 0 {
		q.recycle(s)
	}
}

// Spoil records that a pending shard will have no contents, because of err.
func (q *Queue) Spoil(s *Shard, err error) {
	q.spoil(s, err)
	if s.freed && s.readers == 0 {
		q.recycle(s)
	}
}

// spoil ends a shard's contents.
func (q *Queue) spoil(s *Shard, err error) {
	s.charge.leaves()
	if s.readers == 0 {
		q.discard(s)
	}
	s.state, s.err = failed, err
}

// discard hands the buffer of a shard out for closing, where it has one.
func (q *Queue) discard(s *Shard) {
	if s.Buffer != nil {
		q.discarded = append(q.discarded, s.Buffer)
		s.Buffer = nil
	}
	s.charge.goes()
}

// Fault records that an object which was ready has failed after all, because of err: parts
// that read it fail, and Cause says so of those that have begun.
func (q *Queue) Fault(session uint32, object uint64, err error) {
	t := q.tables[session]
	if t == nil {
		return // there is nothing left to ask
	}
	if s := t.shards[object]; s != nil {
		q.spoil(s, err)
		return
	}
	if t.lost == nil || len(t.lost) >= maxLost {
		t.lost = map[uint64]error{}
	}
	t.lost[object] = err
}

// Each calls each for the objects of all sessions whose shards are ready, with their buffers, or have failed. Donated
// says that a computation has taken over the contents.
func (q *Queue) Each(each func(session uint32, object uint64, buffer Buffer, donated bool, err error)) {
	for _, session := range slices.Sorted(maps.Keys(q.tables)) {
		t := q.tables[session]
		for _, object := range slices.Sorted(maps.Keys(t.shards)) {
			switch s := t.shards[object]; {
			case s.state == ready:
				each(session, object, s.Buffer, false, nil)
			case s.state == failed && s.err == errDonated:
				each(session, object, nil, true, nil)
			case s.state == failed:
				each(session, object, nil, false, s.err)
			}
		}
	}
}

// Failure returns the error of an object without contents; nil if it has contents, or if a computation has taken them
// over.
func (q *Queue) Failure(session uint32, object uint64) error {
	t := q.tables[session]
	if t == nil {
		return nil
	}
	if s := t.shards[object]; s == nil {
		return t.lost[object]
	} else if s.state == failed && s.err != errDonated {
		return s.err
	}
	return nil
}

// remove releases a shard that is in no table any more. One that is pinned or pending
// stays, until Unpin, Fill or Spoil comes back to it.
func (q *Queue) remove(s *Shard) {
	s.freed = true
	s.charge.leaves()
	if s.readers == 0 && s.state != pending {
		q.recycle(s)
	}
}

// recycle releases the buffer of a shard that was freed, and keeps the Shard for another object.
func (q *Queue) recycle(s *Shard) {
	const most = 256 // that are kept to be used again
	q.discard(s)
	*s = Shard{}
	if len(q.spare) < most {
		q.spare = append(q.spare, s)
	}
}

// free frees objects.
func (q *Queue) free(g *Gang) {
	t := q.table(g.Session)
	for _, object := range g.Objects {
		q.release(t, object)
	}
}

// release frees an object, if it is known.
func (q *Queue) release(t *table, object uint64) {
	if s := t.shards[object]; s != nil {
		delete(t.shards, object)
		q.objects--
		q.remove(s)
	}
}

// drop releases all objects of a session.
func (q *Queue) drop(session uint32) {
	t := q.tables[session]
	if t == nil {
		return
	}
	delete(q.tables, session)
	q.last = nil
	q.objects -= len(t.shards)
	for _, s := range t.shards {
		q.remove(s)
	}
}
