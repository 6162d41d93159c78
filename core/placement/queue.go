package placement

import (
	"cmp"
	"maps"
	"math/bits"
	"slices"

	"github.com/openpathways/pathways/core/status"
)

// # Requests that wait
//
// A request for a slice gets its devices at once if enough of them are free for it. Otherwise it waits, if it may.
//
// # Whose turn it is
//
// A priority orders the requests of one owner, and every minute of waiting counts as one priority more. Between owners,
// each one's first request comes before anyone's second, and so on. Among these, the owner's class decides first
// (higher before lower), then its number of devices in exclusive slices (fewer before more), then the order of arrival;
// after ten minutes of waiting, only the order of arrival counts. So a session does not get ahead of others by the
// priorities or the number of its requests. And since a request that has waited long enough comes before all new ones,
// none waits without end.
//
// # Quotas
//
// An owner's slices have at most Request.Quota devices together. The rest of the quota goes to its requests in the
// order of their turns. From the first request on that needs more than what is left, they wait until the owner's slices
// are released: behind all other requests, and without keeping devices. So they cost other owners nothing, and small
// requests of an owner do not delay its large ones.
//
// # Why every request gets its devices
//
// A request that waits keeps devices for itself for a while: as many as it wants, first those that are free, then those
// with the fewest users. These are not granted to later requests, nor to sessions that begin meanwhile. Then it lets
// others have them for the same time, then keeps them for twice as long, and so on: see isKeeping. So others never wait
// for a request for longer than it has waited itself, and in the end it keeps devices for longer than those who have
// the rest need to release them.

// Request asks for a slice.
type Request struct {
	Session  uint32
	Number   uint64 // of the slice, chosen by the session
	View     *View
	Want     Want
	Owner    string // whose exclusive devices count for its turn
	Class    int    // of the owner; the same for all requests of one
	Priority int    // among requests of the owner, MinPriority to MaxPriority
	Asked    int64  // when, in nanoseconds
	Until    int64  // when its wait ends; it does not wait if that is not after Asked
	Quota    int    // of devices that the slices of the owner may have together; 0 is none; see SetQuota

	granted  *Slice
	err      error
	owner    *owner
	arrived  uint64
	rank     int64 // among those of its owner, as the last look found it
	standing int64 // of its owner, the same; the lowest comes first
	beyond   bool  // its owner's quota, the same
	position int   // 1 for the first of those that wait
	keeps    Numbers
	lacks    Numbers
	reserved Numbers // what it keeps, and what it lacks while it keeps any
	ahead    []Reserved
	since    int64 // when it began to keep devices
}

// Reserved is devices that a request would have if none came before it, and that are reserved for one which does.
type Reserved struct {
	By      *Request
	Devices int // how many
}

// Priorities of requests.
const (
	MinPriority = -100
	MaxPriority = 100
)

// LookAgain is how often, in nanoseconds, Serve has to be called while requests wait.
const LookAgain = 60e9

// How waiting counts, in nanoseconds.
const (
	ages    = LookAgain // for a priority to rise by one, and for which a request keeps devices at first
	patient = 10 * ages // after which it no longer counts what the owner has
)

// Bounds of what waits:
const (
	// MaxWaiting is the number of requests of one session that wait at one time.
	MaxWaiting = 64
	// maxLooking is the number of requests that look for devices. Later ones wait, so that an event costs time for so
	// many requests, and not for all that wait.
	maxLooking = 8
)

// behindAll is more than the number of requests of one owner. It puts those that wait for quotas behind all others.
const behindAll = 1 << 40

// queue is the requests that wait.
type queue struct {
	waiting []*Request // in the order of their turns as the last look found them; new ones at the end
	arrived uint64     // number given last
	// What the requests keep, and what others have of the devices that they want, as the last look found; next is the same
	// of the look under way, which continues with the request at index at.
	reserved, next Numbers
	at             int
	search         search // that for the devices of this request
	looked         int64  // when the last look began
	kept           uint64 // counts changes of what requests keep
}

// search is a search for the devices of a request, in steps, between which other events come. So before it ends in a
// grant, it checks the devices again, and starts over if any of them has changed. If that happens repeatedly, it does
// all steps at once. It also starts over when a worker leaves, or takes the place of another.
type search struct {
	of      *Request // nil: it is yet to begin
	step    step     // the next
	found   found
	free    []candidate // of these, those that it may have, or keep
	devices []int       // of them; nil if there are too few
	tries   int         // how often it has begun anew
}

// step is a step of a search.
type step uint8

const (
	filtering step = iota // behind the first one, which finds all candidates
	choosing
	granting // the last one, if enough are free; otherwise:
	costing
	yielding // where requests before it keep some
	keeping
)

// maxTries bounds search.tries.
const maxTries = 4

// cancel makes a search start over.
func (s *search) cancel() { s.of, s.devices = nil, nil }

// Position returns the place of a request among those that wait, beginning with 1.
func (r *Request) Position() int { return r.position }

// Arrived orders requests that were made at the same time: the first one has the lowest number.
func (r *Request) Arrived() uint64 { return r.arrived }

// IsBeyondQuota reports whether a request waits until its owner's slices, and its requests that come before it, leave
// it enough of the quota.
func (r *Request) IsBeyondQuota() bool { return r.beyond }

// Lacks returns the devices that a waiting request wants and that others have. It is empty if the request is too far
// back in the queue to have looked for any, if requests before it keep all, or if it waits for its owner's quota. The
// caller must not change it.
func (r *Request) Lacks() Numbers { return r.lacks }

// Ahead returns what a waiting request would have if none came before it, by those for which it is reserved, in their
// order. It is empty where Lacks is so because the request has not looked. The caller must not change it.
func (r *Request) Ahead() []Reserved { return r.ahead }

// Result returns the slice of a request that Serve has ended, or why it cannot be met. Both are nil if its time is over
// while others have the devices, which Lacks returns; and if it waited for its owner's quota until its time was over,
// or can never fit into the quota.
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
	if mine := m.holders[r.Session]; mine != nil {
		if mine.requests[r.Number] != nil {
			return status.New(status.AlreadyExists, "slice %d is being waited for; a session uses the number of a slice once",
				r.Number)
		}
		if n := len(mine.requests); n >= MaxWaiting {
			return status.New(status.ResourceExhausted, "%d requests of the session for slices wait, which is its limit; "+
				"cancel some", n)
		}
	}
	if err := m.enough(r.View, r.Want); err != nil {
		return err
	}
	r.Want.Topology = slices.Clone(r.Want.Topology)
	q := &m.queue
	q.arrived++
	r.arrived, r.owner = q.arrived, m.owner(r.Owner)
	r.owner.requests = append(r.owner.requests, r)
	if r.Quota > 0 {
		r.owner.order(max(q.looked, r.Asked)) // a look under way may come to it
	}
	m.holder(r.Session).requests[r.Number] = r
	q.waiting = append(q.waiting, r)
	return nil
}

// SetQuota changes the quota of an owner's requests.
func (m *Map) SetQuota(owner string, quota int) {
	o := m.owners[owner]
	if o == nil {
		return
	}
	for _, r := range o.requests {
		r.Quota = quota
	}
	o.order(m.queue.looked)
}

// Serve grants slices to requests whose turn has come, and ends requests whose time is over or that can no longer be
// met. It returns those that have ended, and sets Position, Lacks and Ahead of the others. The search for a request's
// devices has a few steps, each of which takes time in proportion to the cluster's devices; a call does the given
// number of steps at most. If more is true, the next call continues with the rest; changes in between count in the next
// look.
func (m *Map) Serve(now int64, occupied Occupied, most int) (ended []*Request, more bool) {
	q := &m.queue
	for begin := q.at == 0 && q.search.of == nil; ; begin = false {
		if begin {
			m.order(now)
			q.at, q.looked = 0, now
			clear(q.next)
		}
		if q.at == len(q.waiting) {
			q.reserved, q.next, q.at = q.next, q.reserved, 0
			q.search.cancel() // of one that has come to wait for its quota meanwhile
			return ended, false
		}
		r := q.waiting[q.at]
		r.position = q.at + 1
		late := r.Until <= now
		waits := true
		if r.beyond || q.at >= maxLooking && !late {
			r.lacks, r.reserved, r.ahead = nil, nil, nil
			q.keep(r, nil, now)
			waits = r.Quota == 0 || r.Want.Devices <= r.Quota
		} else {
			for over := false; !over; {
				if most--; most < 0 && q.search.tries < maxTries {
					return ended, true
				}
				over, waits = m.look(r, now, occupied, late)
			}
			q.search.tries = 0
		}
		if waits && !late {
			q.at++
			continue
		}
		ended = append(ended, r)
		rest := len(r.owner.requests) > 1
		if m.remove(r); rest { // whose turns have changed
			q.at = 0
			m.order(now)
			clear(q.next)
		}
	}
}

// look does a step of the search for a request's devices. The last step grants the slice, or finds that the request can
// no longer be met, or, if it waits, keeps devices for it.
func (m *Map) look(r *Request, now int64, occupied Occupied, late bool) (over, waits bool) {
	q, s := &m.queue, &m.queue.search
	switch {
	case s.of != r:
		if r.err = m.candidates(&s.found, r, nil, occupied); r.err != nil {
			return true, false
		}
		if s.of, s.step, s.devices = r, filtering, nil; s.found.free < r.Want.Devices {
			s.step = costing
		}
		return false, true
	case s.step == filtering:
		s.free, s.step = s.found.unreserved(s.free[:0], q.next), choosing
		return false, true
	case s.step == choosing:
		if s.devices, s.step = m.choose(r, s.free, s.found.several), granting; s.devices == nil {
			s.step = costing
		}
		return false, true
	case s.step == costing:
		s.free = s.found.ranked(s.free[:0], q.next)
		if s.step = yielding; q.next.Count() == 0 {
			s.step, r.ahead = keeping, nil
		}
		return false, true
	case s.step == yielding:
		r.ahead, s.step = m.yields(r, s.free, s.found.several), keeping
		s.free = dropReserved(s.free)
		return false, true
	}
	step, devices := s.step, s.devices
	s.cancel()
	if step == granting {
		if !m.areFree(r, devices, occupied) {
			s.tries++
			return false, true
		}
		r.granted = m.grant(r, devices)
		return true, false
	}
	keeps, lacks := m.reserve(r, s.free, s.found.several)
	r.lacks, r.reserved = lacks, nil
	if late || !r.isKeeping(now) {
		q.keep(r, nil, now)
		return true, true
	}
	r.reserved.Union(keeps)
	r.reserved.Union(lacks)
	q.next.Union(r.reserved)
	q.keep(r, keeps, now)
	return true, true
}

// isKeeping reports whether a request keeps devices for itself now: in the first minute of its wait and not in the
// second, in the next two and not in the two after these, in the next four, and so on.
func (r *Request) isKeeping(now int64) bool {
	minutes := uint64(max(0, now-r.Asked)/ages) + 2 // a look goes on with the time at which it began
	return minutes>>(bits.Len64(minutes)-2)&1 == 0
}

// keep makes a request keep devices.
func (q *queue) keep(r *Request, devices Numbers, now int64) {
	if slices.Equal(r.keeps, devices) {
		return
	}
	if r.keeps == nil {
		r.since = now
	}
	r.keeps = devices
	q.kept++
}

// IsDue reports whether, since the last Serve, time alone may have made a request's turn come, or another one keep
// devices.
func (m *Map) IsDue(now int64) bool {
	q := &m.queue
	return len(q.waiting) > 0 && now/ages != q.looked/ages ||
		slices.ContainsFunc(q.waiting[:min(len(q.waiting), maxLooking)], func(r *Request) bool {
			return r.isKeeping(now) != r.isKeeping(q.looked)
		})
}

// Kept counts the changes of Keeper's results.
func (m *Map) Kept() uint64 { return m.queue.kept }

// Keeper returns a request of another session that keeps one of some devices, which are free, for an exclusive slice,
// and has since before a session began; nil if there is none.
func (m *Map) Keeper(session uint32, began int64, devices []int) (keeper *Request, device int) {
	q := &m.queue
	for _, r := range q.waiting[:min(len(q.waiting), maxLooking)] {
		if !r.Want.Exclusive || r.keeps == nil || r.Session == session || r.since > began {
			continue
		}
		if i := slices.IndexFunc(devices, r.keeps.Has); i >= 0 {
			return r, i
		}
	}
	return nil, 0
}

// order sorts the requests by their turns.
func (m *Map) order(now int64) {
	q := &m.queue
	for _, o := range m.owners {
		o.order(now)
		for _, r := range o.requests {
			r.standing = -int64(r.Class)*(MaxGranted+1) + int64(min(o.alone, MaxGranted))
			if now-r.Asked >= patient {
				r.standing = -1 << 62
			}
		}
	}
	slices.SortFunc(q.waiting, func(a, b *Request) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.standing, b.standing), cmp.Compare(a.Asked, b.Asked),
			cmp.Compare(a.arrived, b.arrived))
	})
}

// order sorts an owner's requests, and finds those that wait for its quota.
func (o *owner) order(now int64) {
	slices.SortFunc(o.requests, func(a, b *Request) int {
		return cmp.Or(cmp.Compare(b.urgency(now), a.urgency(now)), cmp.Compare(a.arrived, b.arrived))
	})
	wants := o.devices
	for i, r := range o.requests {
		wants += r.Want.Devices
		r.rank = int64(i)
		if r.beyond = r.Quota > 0 && wants > r.Quota; r.beyond {
			r.rank += behindAll
		}
	}
}

// urgency is a request's priority and what it has gained by waiting.
func (r *Request) urgency(now int64) int64 { return int64(r.Priority) + (now-r.Asked)/ages }

// Requests returns the requests that wait, in the order of their turns as Serve has found them. The caller must not
// change the slice.
func (m *Map) Requests() []*Request { return m.queue.waiting }

// available returns devices for a request among candidates: free ones that no request before it keeps. It returns nil
// if there are too few now.
func (m *Map) available(r *Request, of *found, reserved Numbers) []int {
	m.scratch.some = of.unreserved(m.scratch.some[:0], reserved)
	return m.choose(r, m.scratch.some, of.several)
}

// choose returns devices for a request of those that it may have, nil if there are too few.
func (m *Map) choose(r *Request, free []candidate, several bool) []int {
	chosen := m.scratch.chooser.choose(free, r.Want, several)
	if chosen == nil {
		return nil
	}
	devices := make([]int, 0, r.Want.Devices)
	for _, c := range chosen {
		for k := range c.count {
			devices = append(devices, int(c.device+k))
		}
	}
	return devices
}

// unreserved appends those candidates that are free and that no request keeps.
func (f *found) unreserved(into []candidate, reserved Numbers) []candidate {
	into = slices.Grow(into, len(f.all))
	for i := range f.all {
		if f.all[i].free {
			into = appendParts(into, &f.all[i], reserved)
		}
	}
	return dropReserved(into)
}

// areFree reports whether a request can still have the devices that available has returned.
func (m *Map) areFree(r *Request, devices []int, occupied Occupied) bool {
	free := m.freeFor(r, occupied)
	for len(devices) > 0 {
		at, local, count := r.View.lead(devices)
		for number := at.base + local; number < at.base+local+count; number++ {
			if !free.has(number) || m.queue.next.Has(number) {
				return false
			}
		}
		devices = devices[count:]
	}
	return true
}

// ranked appends all candidates, in parts that are reserved or not. Those that others have cost most, and of equal ones
// those that are reserved.
func (f *found) ranked(into []candidate, reserved Numbers) []candidate {
	into = slices.Grow(into, len(f.all))
	for i := range f.all {
		from := len(into)
		into = appendParts(into, &f.all[i], reserved)
		for k := from; k < len(into); k++ {
			if !into[k].free {
				into[k].cost += inUse
			}
			if into[k].reserved {
				into[k].cost += outOfTurn
			}
		}
	}
	return into
}

// yields returns what a request leaves to those before it: of the devices that it would keep if it were the first,
// those that are reserved for them.
func (m *Map) yields(r *Request, ranked []candidate, several bool) (ahead []Reserved) {
	wants := m.scratch.wants[:0]
	for _, c := range m.chooseOrAll(r, ranked, several) {
		if c.reserved {
			wants.add(int(c.number), int(c.count))
		}
	}
	m.scratch.wants = wants
	q := &m.queue
	for _, by := range q.waiting[:min(q.at, maxLooking)] {
		if n := by.reserved.common(wants); n > 0 {
			ahead = append(ahead, Reserved{by, n})
		}
	}
	return ahead
}

// chooseOrAll returns those of some candidates that a request would have; if they are too few, all of them.
func (m *Map) chooseOrAll(r *Request, of []candidate, several bool) []candidate {
	if chosen := m.scratch.chooser.choose(of, r.Want, several); chosen != nil {
		return chosen
	}
	return of
}

// reserve returns the devices that a waiting request wants to keep, of those that no request keeps: the free ones, and
// those that others have.
func (m *Map) reserve(r *Request, rest []candidate, several bool) (free, lacks Numbers) {
	for _, c := range m.chooseOrAll(r, rest, several) { // all, where those before it leave too few
		if c.free {
			free.add(int(c.number), int(c.count))
		} else {
			lacks.add(int(c.number), int(c.count))
		}
	}
	return free, lacks
}

// Waiting returns a request of a session that waits; nil if there is none of this number.
func (m *Map) Waiting(session uint32, number uint64) *Request {
	if mine := m.holders[session]; mine != nil {
		return mine.requests[number]
	}
	return nil
}

// WaitingOf returns the requests of a session that wait, sorted by number.
func (m *Map) WaitingOf(session uint32) []*Request {
	mine := m.holders[session]
	if mine == nil {
		return nil
	}
	byNumber := func(a, b *Request) int { return cmp.Compare(a.Number, b.Number) }
	return slices.SortedFunc(maps.Values(mine.requests), byNumber)
}

// Cancel removes a request that waits, and returns it; nil if there is none.
func (m *Map) Cancel(session uint32, number uint64) *Request {
	r := m.Waiting(session, number)
	if r != nil {
		m.remove(r)
	}
	return r
}

// remove removes requests from those that wait.
func (m *Map) remove(all ...*Request) {
	q := &m.queue
	for _, r := range all {
		if q.keep(r, nil, 0); r == q.search.of {
			q.search.cancel()
		}
		r.owner.requests = slices.DeleteFunc(r.owner.requests, func(o *Request) bool { return o == r })
		m.disown(r.owner)
		delete(m.holders[r.Session].requests, r.Number)
		m.drop(r.Session)
		i := slices.Index(q.waiting, r)
		q.waiting = slices.Delete(q.waiting, i, i+1)
		if i < q.at {
			q.at--
		}
	}
}

// HasExclusive reports whether there are exclusive slices.
func (m *Map) HasExclusive() bool { return m.exclusive > 0 }

// Excluded returns the exclusive slice of another session that has one of some devices, by their numbers in the whole
// cluster, and the index of that device; nil if there is none.
func (m *Map) Excluded(session uint32, devices []int) (s *Slice, device int) {
	for i, number := range devices {
		if s := m.loads[number].exclusive; s != nil && s.Session != session {
			return s, i
		}
	}
	return nil, 0
}
