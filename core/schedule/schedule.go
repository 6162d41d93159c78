// Package schedule decides in which order the gangs of one island start.
//
// It is a pure state machine: State.Step takes an event and appends the actions
// that follow from it. It has no goroutine, lock, clock, socket or random
// source, so the same events always produce the same actions. The caller serializes
// calls of Step and carries the actions out. Each island has one State. The package
// imports only core/status and core/invariants.
//
// # What it guarantees
//
// Every gang that is submitted gets exactly one verdict: Start, Fail or Refuse.
//
// Each device has one lane. A gang of several devices holds the lanes of all its
// devices from Start until Launched, when its work is in the queue of every one of
// them. Two such gangs that share a device never hold lanes at the same time, so
// all devices see the gangs that they share in the same order. Gangs that share no
// device do not wait for each other. A gang of one device needs no lane and waits
// only for its producers.
//
// A gang starts after the gangs of its After list have launched. If one of them
// fails before that, the gang fails with the same error, and so does every gang that
// waits for it, each once.
//
// # Why it cannot deadlock
//
// A Policy assigns places to gangs, one at a time; the places are the order. A gang
// waits only for gangs that were placed before it: After names gangs that State
// already knew when the gang was submitted, a policy places a gang after its
// producers, and a gang waits for a lane only while a gang with an earlier place
// holds it. Every wait points backward in one finite order, so waits form no cycle,
// and the first placed gang that has not started waits only for gangs that have
// started. Those wait for nothing here: they launch or fail within the time limits
// that their workers enforce, and both release the lanes.
//
// On the devices, any two gangs of several devices are in the same order in every
// queue that has both. So the first gang that has not finished is at the head of all
// its queues (apart from work of a single device, which waits for no other device),
// and its collectives find all their members.
package schedule

import (
	"cmp"
	"slices"

	"github.com/openpathways/pathways/core/invariants"
	"github.com/openpathways/pathways/core/status"
)

// Gang is one run of one computation on all its devices.
type Gang struct {
	ID      uint64    // identifies the run; unique among the gangs that State knows
	Session uint32    // the session that submitted it
	Tenant  *Tenant   // whose session that is, for policies that weigh; nil: a tenant of its own
	Devices DeviceSet // one or more, as the island numbers them
	Cost    int64     // estimated device time in nanoseconds; 0 if unknown
	// After lists the gangs whose outputs this one reads. A gang that State does not
	// know has ended; its outputs carry its error, if it failed. Step reads the slice
	// and does not keep it.
	After []uint64
	// Collective reports whether the gang's shards wait for each other.
	Collective bool
	// Calls reports whether the gang may wait for its session, which it calls, and whose next gangs it may need.
	Calls bool
	// Reads lists gangs whose outputs this gang reads on every one of its devices, so
	// that no shard of it begins before that gang's shard on the same device has ended.
	// Step reads the slice and does not keep it.
	Reads []uint64

	of   *record
	left mask // devices on which it has ended
}

// EventKind says what happened.
type EventKind uint8

// The kinds of events. An event about a gang that State does not know, or one that
// comes late, such as Launched after Completed, does nothing.
const (
	Submit        EventKind = iota // Gang is new; does nothing if State knows a gang of that ID
	Launched                       // ID's work is in the queue of every device
	Completed                      // ID's work is done and took Time; implies Launched
	Failed                         // ID failed with Err, at any stage; a launch that had begun was undone on every device
	Cancel                         // ID is no longer wanted, because of Err; does nothing once it has started
	Left                           // ID ended on Gang.Devices, after Time there, while on others it has not
	SessionClosed                  // like Cancel for every gang of Session
	Terms                          // Gang.Tenant's terms have changed, also for gangs that wait
	Resume                         // go on with what More reported, or when it is Due
)

// Event is one input of Step.
type Event struct {
	Kind    EventKind
	Gang    Gang // of Submit; of Left its Devices; of Terms its Tenant
	ID      uint64
	Session uint32
	Time    int64 // of Completed, Failed and Left: measured device time in nanoseconds
	Err     error // of Failed and Cancel
	Now     int64 // nanoseconds on a clock that does not go back, for policies that bound a tenant's time
}

// ActionKind says what to do.
type ActionKind uint8

// The kinds of actions.
const (
	Start  ActionKind = iota // launch ID, then report Launched or Failed
	Fail                     // ID will not start; Err says why
	Refuse                   // ID was not accepted: MaxQueued gangs are already waiting
)

// Action is one output of Step.
type Action struct {
	Kind ActionKind
	ID   uint64
	Err  error // of Fail and Refuse
}

// Config configures a State.
type Config struct {
	// MaxQueued bounds the gangs that were submitted and have not started;
	// 0 means DefaultMaxQueued.
	MaxQueued int
	// Policy assigns places to gangs; nil means FIFO without a window.
	Policy Policy
	// OneByOne has each Step assign one place at most, so that a session that submits its next gang when this one has its
	// place is not passed by others in between. While More reports that there may be more to place, the caller submits
	// what it has to, and then calls Step with Resume.
	OneByOne bool
}

// DefaultMaxQueued is the bound that applies if Config has none.
const DefaultMaxQueued = 4096

var (
	errFull = status.New(status.ResourceExhausted,
		"the island's queue of gangs is full; wait until some have started")
	errClosed    = status.New(status.Cancelled, "the session was closed before the run started")
	errCancelled = status.New(status.Cancelled, "the run was cancelled before it started")
	errNoReason  = status.New(status.Internal, "the run failed and its worker gave no reason")
	errNoDevice  = status.New(status.InvalidArgument, "a run needs at least one device, got none")
	errSelf      = status.New(status.InvalidArgument, "a run cannot come after itself")
)

type phase uint8

const (
	pending  phase = iota // submitted; the policy has not placed it
	placed                // has its place; waits for lanes or producers
	started               // Start was returned
	launched              // in the queue of every device
	dead                  // failed while placed; keeps its place until its lanes become free
)

// record is State's record of a gang. Records are reused; an edge whose gen differs
// from its record's refers to an earlier use.
type record struct {
	gang    Gang
	phase   phase
	multi   bool // spans several devices
	failing bool // see markFailed
	gen     uint32
	lanes   int32  // gangs that must release a lane first
	data    int32  // producers that must launch first
	order   uint64 // of submission
	succ    []edge // to the gangs that wait for this one
	// Neighbors in State's list of lanes; next also links free records.
	prev, next *record
}

type edge struct {
	to   *record
	gen  uint32
	lane bool // to waits for a lane; otherwise it waits for outputs
}

// State is the scheduler of one island. The zero State is not ready; use New.
type State struct {
	policy    Policy
	passer    passer // the policy, or nil
	timer     timer  // the policy, or nil
	leaver    leaver // the policy, or nil
	sharer    sharer // the same
	maxQueued int
	oneByOne  bool
	more      bool // the last pump ended before the policy said that it has no more

	gangs   map[uint64]*record // all except dead ones
	queued  int                // pending, placed or dead
	pending int
	running int    // started or launched
	order   uint64 // of the last Submit

	// The list of lanes: gangs of several devices that have a place and have not
	// launched, in the order of places. busy is the union of their devices.
	first, last *record
	busy        mask

	free  *record
	rest  mask      // scratch for place
	stack []*record // scratch for release
	work  []*record // gangs that markFailed has marked, for collectFailed

	sinceCheck int // events since the last call of check
}

// New returns a State without gangs.
func New(c Config) *State {
	if c.MaxQueued <= 0 {
		c.MaxQueued = DefaultMaxQueued
	}
	if c.Policy == nil {
		c.Policy = new(FIFO)
	}
	s := &State{policy: c.Policy, maxQueued: c.MaxQueued, oneByOne: c.OneByOne, gangs: make(map[uint64]*record)}
	s.passer, _ = c.Policy.(passer)
	s.timer, _ = c.Policy.(timer)
	s.leaver, _ = c.Policy.(leaver)
	s.sharer, _ = c.Policy.(sharer)
	return s
}

// Queued returns the number of gangs that were submitted and have not started,
// those included that failed but still keep a place.
func (s *State) Queued() int { return s.queued }

// Running returns the number of gangs that have started and not ended.
func (s *State) Running() int { return s.running }

// Step applies one event, appends the actions that follow to out, in order, and
// returns out. It does not allocate once the State has grown to the load.
func (s *State) Step(ev Event, out []Action) []Action {
	if s.timer != nil {
		s.timer.SetTime(ev.Now)
	}
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
				s.markFailed(r)
				out = s.end(r, ev.Time, s.collectFailed(err, out))
			case launched: // its readers learn of the failure from its outputs
				out = s.end(r, ev.Time, out)
			default:
				s.markFailed(r)
				out = s.pump(s.collectFailed(err, out))
			}
		}
	case Cancel:
		if r := s.gangs[ev.ID]; r != nil && r.phase < started {
			s.markFailed(r)
			out = s.pump(s.collectFailed(cmp.Or(ev.Err, errCancelled), out))
		}
	case Left:
		if r := s.gangs[ev.ID]; r != nil && r.phase >= started && s.leaver != nil {
			s.leaver.Left(&r.gang, ev.Gang.Devices, ev.Time)
			out = s.pump(out)
		}
	case SessionClosed:
		out = s.close(ev.Session, out)
	case Terms:
		if s.sharer != nil {
			s.sharer.SetTerms(ev.Gang.Tenant)
			out = s.pump(out)
		}
	case Resume:
		out = s.pump(out)
	}
	if invariants.Checked {
		s.checkOften()
	}
	return out
}

// Pass does what Step does for Submit of a gang of one device, followed by Completed,
// if all that comes of these two is a Start: the gang comes after no other, and the
// policy would place it at once. Pass reports whether that was so; otherwise it does
// nothing. It is for gangs that no other gang waits for.
func (s *State) Pass(g *Gang) bool {
	if s.passer == nil || g.Devices.Len() != 1 || len(g.After) > 0 || s.queued >= s.maxQueued || s.gangs[g.ID] != nil ||
		!s.passer.CanPass(g.Session, g.Collective) {
		return false
	}
	s.order++
	return true
}

// Passes reports whether Pass would accept a gang of this session that is not collective, has one device, and comes
// after no other. It changes only with Step.
func (s *State) Passes(session uint32) bool {
	return s.passer != nil && s.queued < s.maxQueued && s.passer.CanPass(session, false)
}

func (s *State) submit(g *Gang, out []Action) []Action {
	switch {
	case s.gangs[g.ID] != nil:
		return out
	case g.Devices.Len() == 0:
		return append(out, Action{Kind: Fail, ID: g.ID, Err: errNoDevice})
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
			return append(out, Action{Kind: Fail, ID: g.ID, Err: errSelf})
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
	s.pending++
	s.policy.Push(&r.gang)
	r.gang.After = nil
	return s.pump(out)
}

// pump places every gang that the policy releases, or, one by one, the next.
func (s *State) pump(out []Action) []Action {
	s.more = false
	for g := s.policy.Pop(); g != nil; g = s.policy.Pop() {
		s.pending--
		out = s.place(g.of, out)
		if s.oneByOne {
			s.more = s.pending > 0
			break
		}
	}
	return out
}

// More reports whether gangs may get their places with the next Resume. It is always false unless Config.OneByOne is
// set.
func (s *State) More() bool { return s.more }

// Due returns the time by which Resume has to come, since a gang may then get its place although nothing else happens;
// 0 if there is none.
func (s *State) Due() int64 {
	if s.timer == nil {
		return 0
	}
	return s.timer.Due()
}

// place assigns the next place in the order to r, and records what r has to wait for.
func (s *State) place(r *record, out []Action) []Action {
	if r.phase != pending {
		panic("schedule: the policy gave a gang a second place")
	}
	r.phase = placed
	if r.multi {
		// To wait for the newest holder of each device is enough: it waits for those before it.
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
	return append(out, Action{Kind: Start, ID: r.gang.ID})
}

// launched releases r's lanes and the gangs that wait for its outputs.
func (s *State) launched(r *record, out []Action) []Action {
	r.phase = launched
	if r.multi {
		s.unlink(r)
	}
	return s.release(r, out)
}

// unlink removes r, which waits for no lane, from the list of lanes.
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
	// No gang before r has its devices, and on each device the next gang waits for r.
	s.busy.remove(&r.gang.Devices.mask)
	for _, e := range r.succ {
		if e.lane {
			s.busy.add(&e.to.gang.Devices.mask)
		}
	}
}

// release ends the waits for r, which is no longer in the list of lanes, and starts
// the gangs that now wait for nothing. A dead gang passes its lanes on as soon as it
// gets them.
func (s *State) release(r *record, out []Action) []Action {
	stack := append(s.stack[:0], r)
	for len(stack) > 0 {
		r := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		for _, e := range r.succ {
			to := e.to
			if to.gen != e.gen {
				continue // it has failed in the meantime
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

// markFailed marks r, which has not launched, for collectFailed.
func (s *State) markFailed(r *record) {
	if !r.failing {
		r.failing = true
		s.work = append(s.work, r)
	}
}

// collectFailed fails the marked gangs and all gangs that wait for their outputs.
// The caller ends those that had started.
func (s *State) collectFailed(err error, out []Action) []Action {
	for i := 0; i < len(s.work); i++ {
		r := s.work[i]
		for _, e := range r.succ {
			if !e.lane && e.to.gen == e.gen {
				s.markFailed(e.to)
			}
		}
		if r.phase == started {
			continue
		}
		out = append(out, Action{Kind: Fail, ID: r.gang.ID, Err: err})
		delete(s.gangs, r.gang.ID)
		if r.phase == pending {
			s.pending--
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
	// Other gangs may start only now that all of these have left the state.
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

// close fails the session's gangs that have not started, in the order of submission.
func (s *State) close(session uint32, out []Action) []Action {
	for _, r := range s.gangs {
		if r.phase < started && r.gang.Session == session {
			s.markFailed(r)
		}
	}
	slices.SortFunc(s.work, func(a, b *record) int { return cmp.Compare(a.order, b.order) })
	return s.pump(s.collectFailed(errClosed, out))
}

// record returns an empty record.
func (s *State) record() *record {
	r := s.free
	if r == nil {
		return new(record)
	}
	s.free, r.next = r.next, nil
	return r
}

// drop returns a record to the free list.
func (s *State) drop(r *record) {
	clear(r.succ)
	*r = record{gen: r.gen + 1, succ: r.succ[:0], next: s.free}
	s.free = r
}
