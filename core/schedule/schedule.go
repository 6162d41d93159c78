// Package schedule decides in which order the gangs of one island start.
//
// It is a pure state machine: State.Step takes an event and appends the actions
// that follow from it. It has no goroutine, lock, clock, socket or random
// source, so the same events give the same actions; the caller serialises calls
// of Step and carries the actions out. There is one State an island. Anything
// may import it; it imports core/status alone.
//
// # What it guarantees
//
// Every gang that is submitted gets exactly one verdict: Start, Fail or Refuse.
//
// A gang of several devices holds a lane of each of its devices from Start until
// Launched, when its work is in the queue of every one of them. Two such gangs
// that share a device never hold lanes at the same time, so all devices see the
// gangs they share in one order. Gangs that share no device do not wait for each
// other. A gang of one device needs no lane and waits for its producers alone.
//
// A gang starts after the gangs of its After list have launched. If one of them
// fails before that, the gang fails with the same error, and so does what waits
// for it, each once.
//
// Start actions carry the island's sequence number: 1, 2, 3 and so on.
//
// # Why it cannot deadlock
//
// A Policy gives gangs their places, one after the other; this is the order. A
// gang waits only for gangs placed before it: After names gangs that State knew
// already when the gang was submitted, a policy places a gang behind its
// producers, and a lane is waited for only behind gangs that have it by an
// earlier place. Every wait points backward in one finite order, so waits form
// no cycle, and the first placed gang that has not started waits only for gangs
// that have started. These wait for nothing here: they launch, or fail, within
// the bounds that their workers keep, and either releases the lanes. On the
// devices, every pair of gangs of several devices stands in the same order in
// every queue both are in, so the first one not finished is at the head of all
// its queues (but for work of one device, which waits for no other device) and
// its collectives find all their members.
package schedule

import (
	"cmp"
	"slices"

	"github.com/openpathways/pathways/core/status"
)

// Gang is one run of one computation on all its devices.
type Gang struct {
	ID      uint64    // names the run; not in use by another gang that State knows
	Session uint32    // who submitted it
	Weight  float64   // the session's share, for policies that weigh; 0 is 1
	Devices DeviceSet // one or more, as the island numbers them
	Cost    int64     // estimated device time in nanoseconds; 0 where not known
	// After lists gangs whose outputs this one reads. One that State does not
	// know has ended, and its outputs tell how. Step reads the slice and does
	// not keep it.
	After []uint64
	// Collective: its shards wait for each other.
	Collective bool
	// Reads lists gangs of which this one reads an array on each of its devices, so
	// that no shard of it begins before that gang's shard on the device has ended.
	// Step reads the slice and does not keep it.
	Reads []uint64

	of *record
}

// EventKind says what happened.
type EventKind uint8

// The events. One about a gang that State does not know, or that comes late, such
// as Launched after Completed, does nothing.
const (
	Submit        EventKind = iota // Gang is new; again while it is known does nothing
	Launched                       // ID's work is in the queue of every device
	Completed                      // ID's work is done; Time is what it took; implies Launched
	Failed                         // ID failed with Err, at whatever stage; its launch, if begun, was undone on every device
	Cancel                         // ID is not wanted, for the reason Err; does nothing once it has started
	SessionClosed                  // as Cancel for every gang of Session
)

// Event is one input of Step.
type Event struct {
	Kind    EventKind
	Gang    Gang // of Submit
	ID      uint64
	Session uint32
	Time    int64 // of Completed and Failed: measured device time in nanoseconds
	Err     error // of Failed and Cancel
}

// ActionKind says what to do.
type ActionKind uint8

// The actions.
const (
	Start  ActionKind = iota // launch ID with sequence number Seq, then report Launched or Failed
	Fail                     // ID will not start; Err says why, Cause which gang failed first
	Refuse                   // ID was not taken: MaxQueued gangs wait already
)

// Action is one output of Step.
type Action struct {
	Kind  ActionKind
	ID    uint64
	Seq   uint64 // of Start
	Cause uint64 // of Fail: ID itself, or the gang it waited for
	Err   error  // of Fail and Refuse
}

// Config is what a State is made from.
type Config struct {
	// MaxQueued bounds the gangs that were submitted and have not started;
	// 0 means DefaultMaxQueued.
	MaxQueued int
	// Policy places gangs; nil means FIFO without a window.
	Policy Policy
}

// DefaultMaxQueued is the bound where Config gives none.
const DefaultMaxQueued = 4096

var (
	errFull      = status.New(status.ResourceExhausted, "the island's queue of gangs is full; wait until some have started")
	errClosed    = status.New(status.Cancelled, "the session was closed before the run started")
	errCancelled = status.New(status.Cancelled, "the run was cancelled before it started")
	errNoReason  = status.New(status.Internal, "the run failed and its worker gave no reason")
	errNoDevice  = status.New(status.InvalidArgument, "a run needs at least one device, got none")
	errSelf      = status.New(status.InvalidArgument, "a run cannot come after itself")
)

type phase uint8

const (
	held     phase = iota // the policy has it
	placed                // has its place, waits for lanes or producers
	started               // Start is out
	launched              // in every device's queue
	dead                  // failed while placed; keeps its place until its lanes come to it
)

// record is what State keeps of a gang. Records are used again; gen tells an edge
// that its record has moved on.
type record struct {
	gang  Gang
	phase phase
	multi bool // spans several devices
	// doomed says that the gang fails because gang cause did.
	doomed bool
	cause  uint64
	gen    uint32
	lanes  int32  // gangs that must give up a lane first
	data   int32  // producers that must launch first
	order  uint64 // of submission
	succ   []edge // who waits for this gang
	// Neighbours in State's list of lanes; next also links free records.
	prev, next *record
}

type edge struct {
	to   *record
	gen  uint32
	lane bool // waits for a lane; otherwise for outputs
}

// State is the scheduler of one island. The zero State is not ready; use New.
type State struct {
	policy    Policy
	passer    passer // the policy, or nil
	maxQueued int

	gangs   map[uint64]*record // all but dead
	queued  int                // held, placed or dead
	running int                // started or launched
	seq     uint64             // of the last Start
	order   uint64             // of the last Submit

	// Gangs of several devices from their place until they have launched, in
	// the order of places, and the union of their devices.
	first, last *record
	busy        mask

	free  *record
	rest  mask      // scratch of place
	stack []*record // scratch of release
	work  []*record // of doom, for reap

	sinceCheck int // events since check was called
}

// New makes a State with no gangs.
func New(c Config) *State {
	if c.MaxQueued <= 0 {
		c.MaxQueued = DefaultMaxQueued
	}
	if c.Policy == nil {
		c.Policy = new(FIFO)
	}
	s := &State{policy: c.Policy, maxQueued: c.MaxQueued, gangs: make(map[uint64]*record)}
	s.passer, _ = c.Policy.(passer)
	return s
}

// Queued is the number of places of the queue that are taken: gangs that were
// submitted and have not started.
func (s *State) Queued() int { return s.queued }

// Running is the number of gangs that have started and not ended.
func (s *State) Running() int { return s.running }

// Step takes one event and appends what is to be done to out, in order. It does
// not allocate once the State has grown to the load.
func (s *State) Step(ev Event, out []Action) []Action {
	switch ev.Kind {
	case Submit:
		out = s.submit(&ev.Gang, out)
	case Launched:
		if r := s.gangs[ev.ID]; r != nil && r.phase == started {
			out = s.launched(r, out)
		}
	case Completed:
		if r := s.gangs[ev.ID]; r != nil && r.phase >= started {
			if r.phase == started {
				out = s.launched(r, out)
			}
			out = s.end(r, ev.Time, out)
		}
	case Failed:
		if r := s.gangs[ev.ID]; r != nil {
			err := cmp.Or(ev.Err, errNoReason)
			switch r.phase {
			case started:
				s.doom(r, ev.ID)
				out = s.end(r, ev.Time, s.reap(err, out))
			case launched: // who reads its outputs learns it from them
				out = s.end(r, ev.Time, out)
			default:
				s.doom(r, ev.ID)
				out = s.pump(s.reap(err, out))
			}
		}
	case Cancel:
		if r := s.gangs[ev.ID]; r != nil && r.phase < started {
			s.doom(r, ev.ID)
			out = s.pump(s.reap(cmp.Or(ev.Err, errCancelled), out))
		}
	case SessionClosed:
		out = s.close(ev.Session, out)
	}
	if checked {
		s.checkOften()
	}
	return out
}

// Pass is Step for Submit of a gang of one device, and for Completed right after it,
// where these come to nothing but a Start: the gang comes after no other, and its
// policy would not hold it back. It says whether that was so, and otherwise does
// nothing. It is for gangs that nobody waits for.
func (s *State) Pass(g *Gang) bool {
	if s.passer == nil || g.Devices.Len() != 1 || len(g.After) > 0 || s.queued >= s.maxQueued || s.gangs[g.ID] != nil ||
		!s.passer.Passes(g.Session, g.Collective) {
		return false
	}
	s.order++
	s.seq++
	return true
}

func (s *State) submit(g *Gang, out []Action) []Action {
	switch {
	case s.gangs[g.ID] != nil:
		return out
	case g.Devices.Len() == 0:
		return append(out, Action{Kind: Fail, ID: g.ID, Cause: g.ID, Err: errNoDevice})
	case s.queued >= s.maxQueued:
		return append(out, Action{Kind: Refuse, ID: g.ID, Err: errFull})
	}
	r := s.record()
	r.gang = *g
	r.gang.of = r
	r.multi = g.Devices.Len() > 1
	for _, id := range g.After {
		if id == g.ID {
			s.drop(r)
			return append(out, Action{Kind: Fail, ID: g.ID, Cause: g.ID, Err: errSelf})
		}
		if p := s.gangs[id]; p != nil && p.phase < launched {
			p.succ = append(p.succ, edge{to: r, gen: r.gen})
			r.data++
		}
	}
	s.order++
	r.order = s.order
	s.gangs[g.ID] = r
	s.queued++
	s.policy.Push(&r.gang)
	r.gang.After = nil
	return s.pump(out)
}

// pump places what the policy lets go.
func (s *State) pump(out []Action) []Action {
	for g := s.policy.Pop(); g != nil; g = s.policy.Pop() {
		out = s.place(g.of, out)
	}
	return out
}

// place gives r the next place in the order and the waits that follow from it.
func (s *State) place(r *record, out []Action) []Action {
	if r.phase != held {
		panic("schedule: the policy gave a gang a second place")
	}
	r.phase = placed
	if r.multi {
		// The newest holder of each device is enough: it waits for the ones before.
		if s.rest.intersect(&s.busy, &r.gang.Devices.mask) {
			for p := s.last; p != nil; p = p.prev {
				if s.rest.overlaps(&p.gang.Devices.mask) {
					p.succ = append(p.succ, edge{to: r, gen: r.gen, lane: true})
					r.lanes++
					if !s.rest.remove(&p.gang.Devices.mask) {
						break
					}
				}
			}
		}
		s.busy.add(&r.gang.Devices.mask)
		if r.prev = s.last; r.prev != nil {
			r.prev.next = r
		} else {
			s.first = r
		}
		s.last = r
	}
	return s.tryStart(r, out)
}

func (s *State) tryStart(r *record, out []Action) []Action {
	if r.phase != placed || r.lanes > 0 || r.data > 0 {
		return out
	}
	r.phase = started
	s.queued--
	s.running++
	s.seq++
	return append(out, Action{Kind: Start, ID: r.gang.ID, Seq: s.seq})
}

// launched lets go of r's lanes and of what waits for its outputs.
func (s *State) launched(r *record, out []Action) []Action {
	r.phase = launched
	if r.multi {
		s.unlink(r)
	}
	return s.release(r, out)
}

// unlink takes r, which waits for no lane, out of the list of lanes.
func (s *State) unlink(r *record) {
	if r.prev != nil {
		r.prev.next = r.next
	} else {
		s.first = r.next
	}
	if r.next != nil {
		r.next.prev = r.prev
	} else {
		s.last = r.prev
	}
	r.prev, r.next = nil, nil
	// Nobody before r has its devices, and the first behind it on each waits for it.
	s.busy.remove(&r.gang.Devices.mask)
	for _, e := range r.succ {
		if e.lane {
			s.busy.add(&e.to.gang.Devices.mask)
		}
	}
}

// release tells who waits for r, which is out of the list of lanes, that it need
// not any more. A dead gang whose turn comes passes its lanes on.
func (s *State) release(r *record, out []Action) []Action {
	stack := append(s.stack[:0], r)
	for len(stack) > 0 {
		r := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		for _, e := range r.succ {
			to := e.to
			if to.gen != e.gen {
				continue // it failed meanwhile
			}
			if !e.lane {
				to.data--
			} else if to.lanes--; to.lanes == 0 && to.phase == dead {
				s.unlink(to)
				stack = append(stack, to)
				continue
			}
			out = s.tryStart(to, out)
		}
		clear(r.succ)
		r.succ = r.succ[:0]
		if r.phase == dead {
			s.queued--
			s.drop(r)
		}
	}
	s.stack = stack
	return out
}

// end forgets r, which has launched or failed after its start.
func (s *State) end(r *record, time int64, out []Action) []Action {
	s.running--
	delete(s.gangs, r.gang.ID)
	s.policy.Done(&r.gang, time)
	s.drop(r)
	return s.pump(out)
}

// doom marks r, which has not launched, for reap.
func (s *State) doom(r *record, cause uint64) {
	if !r.doomed {
		r.doomed, r.cause = true, cause
		s.work = append(s.work, r)
	}
}

// reap fails what is doomed and all that waits for its outputs. The caller ends
// what had started.
func (s *State) reap(err error, out []Action) []Action {
	for i := 0; i < len(s.work); i++ {
		r := s.work[i]
		for _, e := range r.succ {
			if !e.lane && e.to.gen == e.gen {
				s.doom(e.to, r.cause)
			}
		}
		if r.phase == started {
			continue
		}
		out = append(out, Action{Kind: Fail, ID: r.gang.ID, Cause: r.cause, Err: err})
		delete(s.gangs, r.gang.ID)
		if r.phase == held {
			s.policy.Remove(&r.gang)
		} else {
			s.policy.Done(&r.gang, 0)
		}
		if r.phase == placed && r.multi {
			r.phase = dead
			continue
		}
		s.queued--
		s.drop(r)
	}
	// Only now that all of them are out may others start.
	for _, r := range s.work {
		switch {
		case r.phase == started:
			out = s.launched(r, out)
		case r.phase == dead && r.lanes == 0:
			s.unlink(r)
			out = s.release(r, out)
		}
	}
	clear(s.work)
	s.work = s.work[:0]
	return out
}

// close fails what the session has not started, in the order of submission.
func (s *State) close(session uint32, out []Action) []Action {
	for _, r := range s.gangs {
		if r.phase < started && r.gang.Session == session {
			s.doom(r, r.gang.ID)
		}
	}
	slices.SortFunc(s.work, func(a, b *record) int { return cmp.Compare(a.order, b.order) })
	return s.pump(s.reap(errClosed, out))
}

// record gives an empty record.
func (s *State) record() *record {
	r := s.free
	if r == nil {
		return new(record)
	}
	s.free, r.next = r.next, nil
	return r
}

// drop takes a record back.
func (s *State) drop(r *record) {
	clear(r.succ)
	*r = record{gen: r.gen + 1, succ: r.succ[:0], next: s.free}
	s.free = r
}
