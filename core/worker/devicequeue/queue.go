// Package devicequeue decides what one device of a worker does next.
//
// A Queue is a pure state machine. Its caller tells it what has happened, by the methods
// from Submit on, and asks Next what the device is to do; Next returns one Action, the
// caller carries it out and asks again. A Queue has no goroutine, lock or clock and calls
// no driver: the same calls have the same answers. What other goroutines may change at any
// time, such as whether a gang has failed, the caller reads last, and passes as Facts.
//
// There is one Queue a device, and its caller calls it from one goroutine at a time. The
// worker alone imports it; it imports values.
//
// # What it guarantees
//
// Order: parts begin, or fail, in the order of Submit, each once. A part that waits holds
// back all parts behind it and nothing else. So two devices that are given the gangs they
// share in one order begin them in one order.
//
// A part begins when nothing below is in its way, looked at in this order:
//
//	its gang has failed                             it fails with that error
//	its program is not loaded                       it waits
//	an array that it reads is not known, or failed  it fails with that error
//	an array that it reads has yet to come          it waits
//	an array that it donates is still being read    it waits
//	the window of computations is full              it waits, if it is one
//	it must be alone, and another is under way      it waits
//	one that must be is, and its devices take
//	threads that the other may need                 it waits
//	there is no room for what it makes              it fails
//	another device of the gang has yet to come      it waits
//
// Arrays: the outputs of a part are known from the moment it begins, and pending until the caller reports their
// outcome. An array that failed keeps its error, and whatever reads it fails with the same one. A buffer is handed out
// for closing once: when its array cannot be named any more, or has failed, and nothing that was begun has yet to read
// it.
//
// Memory: the bytes of the arrays that are there, without those that are leaving, are at most
// Config.MemoryLimit.
//
// # Why nothing waits without end
//
// A wait names what ends it, and that does not need a later part of the same queue: a load
// ends by itself; bytes come or their sender is lost, and the caller is told either; a copy
// or a computation under way ends, since it waits for gangs before it in the order at most;
// the other devices of a gang come to it, since all of them have the gangs before it in the
// same order, or the gang fails.
//
// The caller must ask Next again after each call that reports something, and
// whenever a fact may have changed.
package devicequeue

import (
	"github.com/openpathways/pathways/core/invariants"
	"github.com/openpathways/pathways/core/status"
)

// Config configures a Queue.
type Config struct {
	Device int    // for messages: the device's local number
	Worker string // for messages: its worker
	// Window bounds the computations under way.
	Window int
	// MemoryLimit bounds the bytes of arrays; 0: they are not counted.
	MemoryLimit int64
	// Owner says whose a session is, for messages, such as "session 3, node1:4711 of ada"; MemoryLimit requires it.
	Owner func(session uint32) string
}

// Queue is the state of one device.
type Queue struct {
	config Config

	// Parts that have not begun are parts[head:]. The slice is used again when it is empty.
	parts []Part
	head  int
	// gathering has begun and holds back parts[head:]: the gang's other devices have yet to
	// come, or its launch to return.
	gathering *Flight
	admitted  bool // the gang's other devices were told that this one has come to the first part

	flying int // computations that have begun and not ended; at most config.Window
	// begun counts what another worker may wait for: computations, and copies to it.
	begun int
	alone int // of these, computations that are Alone

	tables  map[uint32]*table // by session
	last    *table            // that was looked at last: mostly the next one, too
	objects int               // in all tables
	room    memory

	inputs       []Input   // scratch of Next
	brief        Flight    // of a part that is not a computation, until the next call of Next
	flights      int       // that were made, each with an Index of its own
	spareFlights []*Flight // of these, what is not in use
	spare        []*Shard  // shards that are not in use
	discarded    []Buffer  // for Discarded

	sinceCheck int // calls of Next since check was called
}

// New makes a Queue with no parts and no arrays.
func New(c Config) *Queue {
	q := &Queue{config: c, tables: map[uint32]*table{}}
	q.brief.Index = NoIndex
	q.room.limit, q.room.arrays = c.MemoryLimit, charges{}
	return q
}

// Facts are what the caller read, just before Next, about the part that First returned.
type Facts struct {
	// Failed is the error of the part's gang, or of its program, nil while there is none.
	Failed error
	// Loading: the part's program is not loaded yet.
	Loading bool
	// Launched: the gang of a part that gathers is being launched, so that it is too late
	// to fail the part here.
	Launched bool
	// Absent is 1 more than the local number of a device of the gang that has yet to come to
	// its part; 0: there is none.
	Absent int
	// Defer: the caller has no time to begin the part. If it could begin, Next returns Ready and changes nothing.
	Defer bool
}

// ActionKind says what the device has to do.
type ActionKind uint8

// The actions. After each but Idle, Waiting and Ready the caller asks again.
const (
	// Idle: there is nothing to do until the next Submit.
	Idle ActionKind = iota
	// Waiting: the first part waits for Wait.
	Waiting
	// Ready: the first part can begin. Only in answer to Facts.Defer.
	Ready
	// Begin: do the work of Flight.Part with the arrays Flight.Inputs. For a computation
	// the answer is Failed, or else Launched, Fill for each of Flight.Made, and Ended. Other
	// parts end without a word; what they made is owed Fill or Spoil, and each of their
	// inputs Unpin.
	Begin
	// Fail: the part does not begin, because of Err. Call Refuse with the action. Own: the
	// error is this part's own, and says nothing yet of where it happened.
	Fail
	// Admit: the device has come to its part. Tell the gang's other devices, for which this
	// is Facts.Absent.
	Admit
	// Passed: a part that only frees is done.
	Passed
)

// Action is the answer of Next.
type Action struct {
	Kind   ActionKind
	Own    bool    // of Fail
	Part   Part    // the part that all but Idle are about
	Flight *Flight // of Begin; of Fail where the part has begun to gather
	Err    error   // of Fail
	Wait   Wait    // of Waiting
}

// Submit appends a part to the queue.
func (q *Queue) Submit(p Part) { q.parts = append(q.parts, p) }

// First returns the part that Next is about to decide on, and false if there is none.
func (q *Queue) First() (Part, bool) {
	switch {
	case q.gathering != nil:
		return q.gathering.Part, true
	case q.head < len(q.parts):
		return q.parts[q.head], true
	}
	return Part{}, false
}

// Next decides what the device does now. The facts are about First.
//
// It does not allocate once the queue has grown to its load, unless memory is short.
func (q *Queue) Next(f Facts) Action {
	if invariants.Checked {
		q.checkOften()
	}
	p, ok := q.First()
	if !ok {
		return Action{Kind: Idle}
	}
	if q.gathering != nil {
		if f.Failed != nil && !f.Launched {
			return Action{Kind: Fail, Part: p, Flight: q.gathering, Err: f.Failed}
		}
		return waiting(p, Wait{For: OtherDevices})
	}
	g := p.Gang
	switch g.Recipe.Kind {
	case Free:
		q.pop()
		q.free(g)
		return Action{Kind: Passed, Part: p}
	case Leave:
		q.pop()
		q.drop(g.Session)
		return Action{Kind: Passed, Part: p}
	}
	if f.Failed != nil {
		return q.fail(p, f.Failed, false)
	}
	if f.Loading {
		return waiting(p, Wait{For: Loading})
	}
	if w, err := q.find(p); err != nil {
		return q.fail(p, err, false)
	} else if w.For != Nothing {
		return waiting(p, w)
	}
	if w := q.crowded(g.Recipe); w.For != Nothing {
		return waiting(p, w)
	}
	if g.makes(p.Index) && !q.admitted {
		if err := q.fits(p); err != nil {
			return q.fail(p, err, true)
		}
		if g.Recipe.Announced {
			// The room stays: nothing behind this part begins before it does.
			q.admitted = true
			return Action{Kind: Admit, Part: p}
		}
	}
	if f.Absent > 0 {
		return waiting(p, Wait{For: Elsewhere, N: uint64(f.Absent - 1)})
	}
	if f.Defer {
		return Action{Kind: Ready, Part: p}
	}
	return Action{Kind: Begin, Part: p, Flight: q.begin(p)}
}

// crowded returns what of the computations under way another one waits for.
func (q *Queue) crowded(r *Recipe) Wait {
	switch {
	case r.Kind != Run:
		return Wait{}
	case q.flying >= q.config.Window:
		return Wait{For: Window, N: uint64(q.flying)}
	case r.Alone && q.begun > 0:
		// What began before may need a thread to end, and others may wait for its end. So a
		// device has at most one thread that waits, and none while anything else of it is
		// under way.
		return Wait{For: Before}
	case r.Pooled && q.alone > 0:
		// That one may need a thread to end, and this one takes one for each of its devices at
		// once, and keeps them until all have one.
		return Wait{For: Before}
	}
	return Wait{}
}

func waiting(p Part, w Wait) Action { return Action{Kind: Waiting, Part: p, Wait: w} }

// fail takes the first part out of the list, because of err.
func (q *Queue) fail(p Part, err error, own bool) Action {
	q.pop()
	return Action{Kind: Fail, Part: p, Err: err, Own: own}
}

// find fills inputs with what a part reads. It returns what the part waits for, or the
// error with which it fails.
func (q *Queue) find(p Part) (Wait, error) {
	g := p.Gang
	t := q.table(g.Session)
	q.inputs = q.inputs[:0]
	for arg, object := range g.reads(p.Index) {
		s := t.shards[object]
		switch {
		case s == nil:
			return Wait{}, status.New(status.NotFound,
				"array %d has no shard on device %d of worker %s: it was freed, or never put there",
				object, q.config.Device, q.config.Worker)
		case s.state == pending:
			return Wait{For: Bytes, Argument: int32(arg), N: object}, nil
		case s.state == failed:
			return Wait{}, s.err
		}
		donated := g.donates(arg)
		if donated && s.readers > 0 {
			return Wait{For: Readers, Argument: int32(arg), N: object}, nil
		}
		q.inputs = append(q.inputs, Input{Shard: s, Donated: donated})
	}
	return Wait{}, nil
}

// begin takes the first part, whose inputs were found, out of the list.
func (q *Queue) begin(p Part) *Flight {
	q.pop()
	g := p.Gang
	f := &q.brief
	if g.Recipe.Kind == Run {
		f = q.flight()
		q.count(g.Recipe, 1)
	}
	f.Part = p
	f.Inputs, q.inputs = q.inputs, f.Inputs[:0]
	f.Made, f.busy = f.Made[:0], f.busy[:0]
	for _, in := range f.Inputs {
		in.Shard.readers++
		if in.Donated {
			in.Shard.charge.leaves() // the outputs are counted from here on
		}
		if c := in.Shard.charge; c != nil && g.Recipe.Kind == Run && !in.Donated {
			f.busy = append(f.busy, c.use())
		}
	}
	if g.makes(p.Index) {
		for k := range g.Recipe.Makes {
			s := q.add(g.Session, g.First+uint64(k))
			q.charge(s, p, k)
			if s.charge != nil && g.Recipe.Kind == Run {
				f.busy = append(f.busy, s.charge.use())
			}
			f.Made = append(f.Made, s)
		}
	}
	if g.Recipe.Together {
		q.gathering = f
	}
	return f
}

// pop takes the first part out of the list.
func (q *Queue) pop() {
	q.admitted = false
	q.parts[q.head] = Part{}
	q.head++
	const few = 64 // parts that have gone, for which moving the others does not pay
	switch {
	case q.head == len(q.parts):
		q.parts, q.head = q.parts[:0], 0
	case q.head > few && q.head > len(q.parts)/2: // at most as many are moved as have gone
		n := copy(q.parts, q.parts[q.head:])
		clear(q.parts[n:])
		q.parts, q.head = q.parts[:n], 0
	}
}

// Launched records that the driver has a computation, so that the part's donated inputs are gone. The caller owes a
// Fill for each of Flight.Made.
func (q *Queue) Launched(f *Flight) {
	q.Depart(f)
	for _, in := range f.Inputs {
		if in.Donated && in.Shard.state == ready {
			q.spoil(in.Shard, errDonated)
		}
	}
	q.unpin(f)
}

// Depart records that what is behind a computation that gathers may begin, although its
// launch has not returned.
func (q *Queue) Depart(f *Flight) {
	if q.gathering == f {
		q.gathering = nil
	}
}

// Failed records that a computation was not launched, because of err: its outputs fail, and the inputs that it would
// have donated stay.
func (q *Queue) Failed(f *Flight, err error) {
	q.Depart(f)
	for _, in := range f.Inputs {
		if in.Donated && in.Shard.state == ready && !in.Shard.freed {
			in.Shard.charge.stays()
		}
	}
	q.unpin(f)
	for _, s := range f.Made {
		q.Spoil(s, err)
	}
	q.land(f)
}

// Ended records that a computation that was launched has ended. With an error, its outputs have failed with that error,
// even for parts that have begun to read them: see Cause.
func (q *Queue) Ended(f *Flight, err error) {
	if err != nil {
		for k := range f.Part.Gang.Recipe.Makes {
			q.Fault(f.Part.Gang.Session, f.Part.Gang.First+uint64(k), err)
		}
	}
	q.land(f)
}

// Refuse ends a part that Next failed. What it would have made fails with err, which is
// the action's, or says more.
func (q *Queue) Refuse(a Action, err error) {
	if a.Flight != nil {
		q.Failed(a.Flight, err)
		return
	}
	g := a.Part.Gang
	if !g.makes(a.Part.Index) {
		return
	}
	for k := range g.Recipe.Makes {
		q.Spoil(q.add(g.Session, g.First+uint64(k)), err)
	}
}

// CopyBegun tells that a copy is under way for which another worker may wait.
func (q *Queue) CopyBegun() { q.begun++ }

// CopyEnded tells that such a copy has ended.
func (q *Queue) CopyEnded() { q.begun-- }

// Drop records that a session has ended: its arrays go, and again those of its parts that
// have yet to fail.
func (q *Queue) Drop(session uint32) {
	q.drop(session)
	if q.head < len(q.parts) {
		q.Submit(Part{Gang: &Gang{Session: session, Recipe: &leaves}})
	}
}

// Close lets all arrays go. Nothing is under way.
func (q *Queue) Close() {
	for session := range q.tables {
		q.drop(session)
	}
}

// Objects is the number of arrays that sessions can name.
func (q *Queue) Objects() int { return q.objects }

// Discarded returns buffers that are to be closed, each once. The slice is good until the
// next call of another method.
func (q *Queue) Discarded() []Buffer {
	all := q.discarded
	q.discarded = all[:0]
	return all
}
