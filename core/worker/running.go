package worker

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/openpathways/pathways/core/wire"
)

// This file knows what each device computes: for "pathways status", and for the
// decision to give up a computation that never ends (see evict.go).
//
// A queue writes down each computation that has begun, and strikes it out
// when that has ended. No one else writes, and no clock is read there: a heartbeat
// looks at what is written down, and remembers since when the same computation has
// been the oldest of its device.

// flights are the computations that a device has under way, by devicequeue.Flight.Index. The
// queue's owner calls take and land; each may be called while others look.
type flights struct {
	slots []atomic.Pointer[gang]
}

func newFlights(window int) *flights { return &flights{make([]atomic.Pointer[gang], window)} }

// take records that a gang's part has begun on the device.
func (f *flights) take(slot int, g *gang) { f.slots[slot].Store(g) }

// land records that the part in a slot has ended.
func (f *flights) land(slot int) { f.slots[slot].Store(nil) }

// find returns the gang of a launch that is under way, or nil.
func (f *flights) find(launch int32) *gang {
	for i := range f.slots {
		if g := f.slots[i].Load(); g != nil && launchID(g.ID) == launch {
			return g
		}
	}
	return nil
}

// oldest returns the gang that began first of those under way, and how many began
// after it. Gangs begin on a device in the order of their numbers.
func (f *flights) oldest() (first *gang, behind int) {
	for i := range f.slots {
		g := f.slots[i].Load()
		if g == nil || !g.launched() {
			continue
		}
		behind++
		if first == nil || g.ID < first.ID {
			first = g
		}
	}
	return first, max(behind-1, 0)
}

// launched reports whether the driver has the gang's run, or is being given it. Until
// then its devices may still wait for each other.
func (g *gang) launched() bool {
	r := g.work.(*run)
	return r.meet == nil || r.meet.begun.Load()
}

// Running is the computation that has been under way longest on some devices.
type Running struct {
	Devices []int
	Gang    uint64
	Session uint32
	Client  *wire.Process // of the session; may be nil
	Program string
	Line    string        // of the user's code; may be empty
	Since   time.Duration // since a look first found it there
	Gone    time.Duration // since its session ended; 0 while it lives
	Behind  int           // computations that began after it, on the device with most of them

	FirstCall bool // Line is that of the program's first call
}

// String names the computation for people.
func (r Running) String() string {
	s := fmt.Sprintf("%s (operation %d", r.Program, r.Gang)
	if called := wire.Called(r.Line, r.FirstCall); called != "" {
		s += ", " + called
	}
	return s + ")"
}

// sightings remembers since when the oldest computation of each device is the same
// one. One goroutine owns it: that of the heartbeats.
type sightings map[int]sighting

type sighting struct {
	gang  uint64
	since time.Time
}

// Running returns what each device computes.
func (w *Worker) Running() []Running { return w.running(sightings{}, time.Now()) }

// running looks at what all devices compute, and remembers it.
func (w *Worker) running(seen sightings, now time.Time) (all []Running) {
	by := map[uint64]*Running{}
	for _, q := range w.queues {
		g, behind := q.flights.oldest()
		if g == nil {
			delete(seen, q.local)
			continue
		}
		s := seen[q.local]
		if s.gang != g.ID {
			s = sighting{g.ID, now}
			seen[q.local] = s
		}
		r := by[g.ID]
		if r == nil {
			what := g.work.(*run)
			r = &Running{Gang: g.ID, Session: g.Session, Program: what.program.Name, Line: wire.Line(what.trace),
				FirstCall: what.first}
			by[g.ID] = r
		}
		r.Devices = append(r.Devices, q.local)
		r.Since, r.Behind = max(r.Since, now.Sub(s.since)), max(r.Behind, behind)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(by)) {
		r := by[id]
		c := w.clients[r.Session]
		r.Client = c.process
		if !c.gone.IsZero() {
			r.Gone = max(now.Sub(c.gone), 1)
		}
		all = append(all, *r)
	}
	// Those of a session that has gone are kept until its work has ended.
	for session, c := range w.clients {
		if !c.gone.IsZero() && !w.hasWork(session) {
			delete(w.clients, session)
		}
	}
	return all
}

// client is whose a session is, or was.
type client struct {
	process *wire.Process
	gone    time.Time // when the session ended; zero while it lives
}

// owner says for people whose a session is.
func (w *Worker) owner(session uint32) string {
	w.mu.Lock()
	c := w.clients[session].process
	w.mu.Unlock()
	return owner(session, c)
}

func owner(session uint32, client *wire.Process) string {
	return wire.Owner(session, client.GetName(), client.GetUser(), client.GetMachine())
}

// hasWork reports whether something of a session is under way. mu is held.
func (w *Worker) hasWork(session uint32) bool {
	for _, g := range w.gangs {
		if g.Session == session {
			return true
		}
	}
	return false
}

// mostRunning bounds the running computations that a heartbeat lists.
const mostRunning = 64

// tell writes for the controller what devices compute, the oldest first, and how many more there are.
func tell(all []Running) (out []*wire.Running, more uint32) {
	slices.SortStableFunc(all, func(a, b Running) int { return cmp.Compare(b.Since, a.Since) })
	for _, r := range all[:min(len(all), mostRunning)] {
		m := &wire.Running{Gang: r.Gang, Session: r.Session, Client: r.Client.GetName(), User: r.Client.GetUser(),
			Host: r.Client.GetMachine(), Program: r.Program, Line: r.Line, FirstCall: r.FirstCall,
			SinceMs: r.Since.Milliseconds(), Gone: r.Gone > 0, Behind: uint32(r.Behind)}
		for _, d := range r.Devices {
			m.Devices = append(m.Devices, uint32(d))
		}
		out = append(out, m)
	}
	return out, uint32(len(all) - len(out))
}
