package placement

import (
	"cmp"
	"maps"
	"slices"

	"github.com/openpathways/pathways/core/status"
)

// # Requests that wait
//
// A request for a slice gets its devices at once if enough of them are free for it. Otherwise it waits, if it may. Of
// the requests that wait, the first is the one with the highest priority; every minute of waiting counts as one
// priority more. Among equals it is the one whose owner has the fewest devices in exclusive slices, and then the one
// that came first.
//
// # Why every request gets its devices
//
// A request that waits reserves as many devices as it wants: those that are free, and of the others those that the
// fewest have. Devices that it reserves are granted to no later request, nor to a session that asks for a number of
// devices. So its free devices stay free, and it gets the others when those who have them let them go: that ends the
// wait unless somebody never does, which the request's own time bounds. And it does not stay behind others without
// end, since a request that has waited for long enough comes before all that arrive.

// Request asks for a slice.
type Request struct {
	Session  uint32
	Number   uint64 // of the slice, chosen by the session
	View     *View
	Want     Want
	Owner    string // whose exclusive devices count for its turn
	Priority int    // MinPriority to MaxPriority
	Asked    int64  // when, in nanoseconds
	Until    int64  // when its wait ends; it does not wait if that is not after Asked

	granted  *Slice
	err      error
	position int      // 1 for the first of those that wait
	lacks    []Device // that it reserves, and that others have
}

// Priorities of requests.
const (
	MinPriority = -100
	MaxPriority = 100
)

// ages is how long a request waits, in nanoseconds, for its priority to rise by one.
const ages = 60e9

// Bounds of what waits:
const (
	// MaxWaiting is the number of requests of one session that wait at one time.
	MaxWaiting = 64
	// maxReserving is the number of requests that reserve devices. Later ones wait without looking for devices, so that
	// an event costs time for so many requests, and not for all that wait.
	maxReserving = 8
)

// Position returns the place of a request among those that wait, beginning with 1.
func (r *Request) Position() int { return r.position }

// Lacks returns the devices that a waiting request has reserved and that others have. It is empty if the request is too
// far behind to have reserved any. The caller must not change it.
func (r *Request) Lacks() []Device { return r.lacks }

// Result returns the slice of a request that Serve has ended, or why it cannot be met. Both are nil if its time passed
// while others had the devices, which Lacks returns.
func (r *Request) Result() (*Slice, error) { return r.granted, r.err }

// Ask asks for a slice: devices from one island, if any has enough; there, those that the fewest slices and views of a
// fixed size have; among these, as many as possible from one worker. The request waits until Serve has served it.
//
// Errors: INVALID_ARGUMENT for what no cluster could grant and for an unknown island or kind; RESOURCE_EXHAUSTED if
// there are too few such devices, or the session has or waits for too much already; ALREADY_EXISTS.
func (m *Map) Ask(r *Request) error {
	if r.Priority < MinPriority || r.Priority > MaxPriority {
		return status.New(status.InvalidArgument, "a slice was asked for with priority %d; expected %d to %d", r.Priority,
			MinPriority, MaxPriority)
	}
	if err := m.allowed(r.Session, r.Number, r.Want); err != nil {
		return err
	}
	waiting := 0
	for _, o := range m.requests {
		if o.Session != r.Session {
			continue
		}
		if o.Number == r.Number {
			return status.New(status.AlreadyExists, "slice %d is being waited for; a session uses the number of a slice once",
				r.Number)
		}
		waiting++
	}
	if waiting >= MaxWaiting {
		return status.New(status.ResourceExhausted, "%d requests of the session for slices wait, which is its limit; "+
			"cancel some", waiting)
	}
	if _, err := m.candidates(r.View, r.Want, nil); err != nil {
		return err
	}
	r.Want.Topology = slices.Clone(r.Want.Topology)
	m.requests = append(m.requests, r)
	return nil
}

// Serve grants slices to the requests whose turn has come, and ends those whose time has passed or that cannot be met
// any more. It returns those that have ended, and sets Position and Lacks of the others.
func (m *Map) Serve(now int64, occupied Occupied) (ended []*Request) {
	waiting := m.requests
	m.requests = nil // those that go on waiting, in the order of their turns
	reserved := reservation{}
	m.order(waiting, now)
	for len(waiting) > 0 {
		r := waiting[0]
		waiting = waiting[1:]
		r.position = len(m.requests) + 1
		reserves := len(m.requests) < maxReserving
		late := r.Until <= now
		if reserves || late {
			devices, err := m.available(r, nil, reserved, occupied)
			if err != nil || devices != nil {
				if r.err = err; err == nil {
					r.granted = m.grant(r, devices)
					m.order(waiting, now)
				}
				ended = append(ended, r)
				continue
			}
		}
		switch r.lacks = nil; {
		case late:
			r.lacks = m.reserve(r, maps.Clone(reserved), occupied) // for its error alone
			ended = append(ended, r)
			continue
		case reserves:
			r.lacks = m.reserve(r, reserved, occupied)
		}
		m.requests = append(m.requests, r)
	}
	return ended
}

// order sorts requests by their turns.
func (m *Map) order(waiting []*Request, now int64) {
	slices.SortStableFunc(waiting, func(a, b *Request) int {
		return cmp.Or(cmp.Compare(b.urgency(now), a.urgency(now)), cmp.Compare(m.owned[a.Owner], m.owned[b.Owner]),
			cmp.Compare(a.Asked, b.Asked))
	})
}

// urgency is a request's priority and what it has gained by waiting.
func (r *Request) urgency(now int64) int64 { return int64(r.Priority) + (now-r.Asked)/ages }

// Requests returns the requests that wait, in the order of their turns as Serve has found them. The caller must not
// change the slice.
func (m *Map) Requests() []*Request { return m.requests }

// reservation has the devices that requests have reserved.
type reservation map[spot]bool

type spot struct {
	worker *Worker
	local  int
}

// available returns devices for a request that are free for it: reserved by none before it, exclusive to no slice, and
// if it wants to be alone, in use by no one. It returns nil if there are too few now.
func (m *Map) available(r *Request, old []int, reserved reservation, occupied Occupied) ([]int, error) {
	all, err := m.candidates(r.View, r.Want, old)
	if err != nil {
		return nil, err
	}
	several := !oneHas(all, r.Want.Devices) // only if no island will ever do
	free := slices.DeleteFunc(all, func(c candidate) bool {
		return reserved[spot{c.worker, c.local}] || !m.free(r, c, occupied)
	})
	if len(free) < r.Want.Devices {
		return nil, nil
	}
	return choose(free, r.Want, several), nil
}

// reserve reserves devices for a request that waits, and returns those of them that others have.
func (m *Map) reserve(r *Request, reserved reservation, occupied Occupied) (lacks []Device) {
	all, err := m.candidates(r.View, r.Want, nil)
	if err != nil {
		return nil
	}
	several := !oneHas(all, r.Want.Devices)
	rest := slices.DeleteFunc(all, func(c candidate) bool { return reserved[spot{c.worker, c.local}] })
	byDevice := make(map[int]*candidate, len(rest))
	for i := range rest {
		c := &rest[i]
		byDevice[c.device] = c
		if !m.free(r, *c, occupied) {
			c.cost += inUse
		}
	}
	var chosen []int
	if len(rest) >= r.Want.Devices {
		chosen = choose(rest, r.Want, several)
	}
	if chosen == nil { // earlier requests leave too few: what they leave is for this one
		for _, c := range rest {
			chosen = append(chosen, c.device)
		}
	}
	for _, d := range chosen {
		c := byDevice[d]
		reserved[spot{c.worker, c.local}] = true
		if c.cost >= inUse {
			lacks = append(lacks, r.View.Device(d))
		}
	}
	return lacks
}

// inUse is the cost of reserving a device that others have; it is more than any number of slices on a device.
const inUse = 1 << 40

// reservations returns what the requests reserve that wait now.
func (m *Map) reservations(occupied Occupied) reservation {
	reserved := reservation{}
	for _, r := range m.requests[:min(len(m.requests), maxReserving)] {
		m.reserve(r, reserved, occupied)
	}
	return reserved
}

// free reports whether a device could be granted for a request.
func (m *Map) free(r *Request, c candidate, occupied Occupied) bool {
	if c.worker.exclusive[c.local] != nil {
		return false
	}
	if !r.Want.Exclusive {
		return true
	}
	views := c.worker.viewed[c.local]
	if r.View.sized {
		views-- // its own
	}
	return views == 0 && c.worker.granted[c.local] == 0 &&
		(occupied == nil || !occupied(r.Session, r.View.Device(c.device)))
}

// oneHas reports whether one island has so many of the candidates.
func oneHas(all []candidate, devices int) bool {
	var island *Island
	n := 0
	for _, c := range all { // which are sorted by island
		if c.island != island {
			island, n = c.island, 0
		}
		if n++; n >= devices {
			return true
		}
	}
	return false
}

// Cancel removes a request that waits.
func (m *Map) Cancel(session uint32, number uint64) {
	m.requests = slices.DeleteFunc(m.requests, func(r *Request) bool {
		return r.Session == session && r.Number == number
	})
}

// HasExclusive reports whether there are exclusive slices.
func (m *Map) HasExclusive() bool { return m.exclusive > 0 }

// Excluded returns the exclusive slice of another session that has a device, or nil.
func (m *Map) Excluded(session uint32, d Device) *Slice {
	if w := m.workers[d.Worker]; w != nil {
		if s := w.exclusive[d.Local]; s != nil && s.Session != session {
			return s
		}
	}
	return nil
}
