package schedule

import (
	"cmp"
	"math"
	"slices"
)

// Fair is the policy that shares device time among sessions by their weights. It keeps one queue a session and places
// the gangs of each in the order of submission.
//
// # Shares
//
// Time is counted on each device, as the time for which its gangs occupied it, divided by the session's weight. Each
// device has a virtual time: that at which the session which was served last began its turn. A session that comes
// begins at the virtual time, so it neither has saved time up nor pays for others' (start-time fair queueing). Of the
// gangs at the heads of the queues, the next place is for the one whose session leads least over those that are
// furthest behind on the same devices. A gang is charged its estimated cost when it gets its place, and the difference
// when it ends and was measured.
//
// # The window
//
// A place cannot be taken back, so few are given ahead: on each device as many as fill Window nanoseconds by their
// estimates, and at most Gangs of them. A gang that was not measured yet, or is longer than the window, takes a whole
// one, so it waits until its devices are free. So a session that is below its share waits for one window at most, or
// for one gang that is longer.
//
// # Why every gang gets its place
//
// While a gang that is first in line waits for a device that is full, others leave room for it on all its devices. So
// once it fits on a device it goes on to, and on the full one nothing is placed before it does: it waits for what was
// placed there before, and that ends. Every gang comes first in line at some time, since each gang that is placed
// before it puts that gang's session further ahead.
//
// # Costs
//
// Devices that all gangs so far have used together are one group, and are counted as one. So a step costs time in
// proportion to the sessions that wait and the groups of their gangs, and not to devices.
type Fair struct {
	Window int64 // nanoseconds of estimated device time that are placed ahead; 0 means DefaultWindow
	Gangs  int   // placed and not ended on one device; 0 means no bound

	groups   []*group
	version  int // of groups; changes when one is divided
	sessions []*share
	queued   int
	placed   int
	pushed   uint64

	remaining, common mask // scratch of divide
}

// DefaultWindow is the device time that is placed ahead if Fair has no Window: long enough that a device has work while
// the controller hears that something has ended, and short enough that a person does not notice the wait.
const DefaultWindow = 50e6

// group is a set of devices that each gang so far has used all of, or none of.
type group struct {
	devices mask
	load    int64   // estimated cost of what is placed and has not ended, in nanoseconds on each device
	gangs   int     // placed and not ended
	longest int64   // of those that have ended
	virtual float64 // virtual time, in nanoseconds for a weight of 1
	// Scratch of Pop:
	first float64 // the least finish of the heads
	room  int64   // the load up to which gangs may be placed
}

// share is a session that has gangs, or has had some.
type share struct {
	session uint32
	queue   []*Gang // head first
	on      []use   // by group

	// Of the head:
	order   uint64 // of becoming the head
	groups  []int  // those of its devices
	version int    // of Fair, for which groups are right
	// Scratch of Pop:
	asked bool
	lead  float64 // over the head that is furthest behind on the same device
}

// use is what a session has of a group's devices.
type use struct {
	finish float64 // the virtual time at which its last gang there ends
	gangs  int     // placed and not ended
}

// Push implements Policy.
func (f *Fair) Push(g *Gang) {
	f.divide(&g.Devices.mask)
	s := f.share(g.Session)
	s.queue = append(s.queue, g)
	f.queued++
	if len(s.queue) == 1 {
		f.newHead(s)
	}
}

// newHead begins the turn of a session's next gang: at the virtual time of a device where nothing of the session is
// under way, and elsewhere at most a window or the longest gang behind it, since a gang may be kept from one device by
// another.
func (f *Fair) newHead(s *share) {
	f.pushed++
	s.order, s.version = f.pushed, -1
	if len(s.queue) == 0 {
		return
	}
	f.locate(s)
	for _, i := range s.groups {
		begin, u := f.groups[i].virtual, &s.on[i]
		if u.gangs > 0 {
			begin -= float64(max(f.window(), f.groups[i].longest)) / weight(s.queue[0])
		}
		u.finish = max(u.finish, begin)
	}
}

// locate finds the groups of a session's head.
func (f *Fair) locate(s *share) {
	if s.version != f.version {
		s.groups, s.version = f.groupsOf(&s.queue[0].Devices.mask, s.groups[:0]), f.version
	}
}

// Pop implements Policy.
func (f *Fair) Pop() *Gang {
	if f.queued == 0 {
		return nil
	}
	f.line()
	for open := len(f.groups); open > 0; { // groups in which something may be placed
		s := f.next()
		if s == nil {
			return nil
		}
		s.asked = true
		if f.fits(s) {
			return f.place(s)
		}
		open -= f.reserve(s)
	}
	return nil
}

// line finds, for each head, by how much others are behind it on the device where they are most so.
func (f *Fair) line() {
	for _, at := range f.groups {
		at.room, at.first = f.window(), math.Inf(1)
	}
	for _, s := range f.sessions {
		if s.asked = len(s.queue) == 0; s.asked {
			continue
		}
		f.locate(s)
		for _, i := range s.groups {
			f.groups[i].first = min(f.groups[i].first, s.on[i].finish)
		}
	}
	for _, s := range f.sessions {
		if s.lead = 0; s.asked {
			continue
		}
		for _, i := range s.groups {
			s.lead = max(s.lead, s.on[i].finish-f.groups[i].first)
		}
	}
}

// next returns the session to ask next: the one with the least lead, of equal ones the one that has waited longest.
func (f *Fair) next() (first *share) {
	for _, s := range f.sessions {
		if !s.asked && (first == nil || cmp.Or(cmp.Compare(s.lead, first.lead), cmp.Compare(s.order, first.order)) < 0) {
			first = s
		}
	}
	return first
}

// fits reports whether the session's head can have its place.
func (f *Fair) fits(s *share) bool {
	cost := f.cost(s.queue[0])
	for _, i := range s.groups {
		at := f.groups[i]
		if f.Gangs > 0 && at.gangs >= f.Gangs || at.load+cost > at.room {
			return false
		}
	}
	return true
}

// reserve has those that are asked later leave room for the session's head, which does not fit. It returns in how many
// more groups nothing may be placed.
func (f *Fair) reserve(s *share) (closed int) {
	room := f.window() - f.cost(s.queue[0])
	for _, i := range s.groups {
		at := f.groups[i]
		open := at.room > at.load
		at.room = min(at.room, room)
		if open && at.room <= at.load {
			closed++
		}
	}
	return closed
}

// place takes the session's head off its queue and charges it.
func (f *Fair) place(s *share) *Gang {
	g := s.queue[0]
	cost := f.cost(g)
	for _, i := range s.groups {
		at, u := f.groups[i], &s.on[i]
		at.virtual = max(at.virtual, u.finish)
		at.load += cost
		at.gangs++
		u.finish += float64(cost) / weight(g)
		u.gangs++
	}
	f.placed++
	f.unqueue(s, 0)
	return g
}

// unqueue takes a gang out of a queue.
func (f *Fair) unqueue(s *share, i int) {
	s.queue = slices.Delete(s.queue, i, i+1)
	f.queued--
	if i == 0 {
		f.newHead(s)
	}
}

// Remove implements Policy.
func (f *Fair) Remove(g *Gang) {
	s := f.share(g.Session)
	if i := slices.Index(s.queue, g); i >= 0 {
		f.unqueue(s, i)
	}
	f.forget()
}

// Done implements Policy.
func (f *Fair) Done(g *Gang, time int64) {
	s, cost := f.share(g.Session), f.cost(g)
	for i, at := range f.groups {
		if !at.devices.overlaps(&g.Devices.mask) {
			continue
		}
		at.load -= cost
		at.gangs--
		at.longest = max(at.longest, time)
		s.on[i].gangs--
		s.on[i].finish += float64(time-cost) / weight(g)
	}
	f.placed--
	f.forget()
}

// forget begins anew where nothing waits and nothing runs; otherwise, from time to time, it drops sessions that would
// be treated the same if they came for the first time.
func (f *Fair) forget() {
	const (
		few   = 16  // groups and sessions that are kept for the next gang
		often = 256 // gangs
	)
	switch {
	case f.queued == 0 && f.placed == 0 && len(f.groups) <= few && len(f.sessions) <= few:
		for _, at := range f.groups {
			at.virtual = 0
		}
		for _, s := range f.sessions {
			clear(s.on)
		}
	case f.queued == 0 && f.placed == 0:
		f.groups, f.sessions = nil, nil
	case f.pushed%often == 0:
		f.sessions = slices.DeleteFunc(f.sessions, func(s *share) bool {
			for i, at := range f.groups {
				if u := s.on[i]; u.gangs > 0 || u.finish > at.virtual {
					return false
				}
			}
			return len(s.queue) == 0
		})
	}
}

// cost returns the time that a gang is charged on each device before it is measured. One that may wait for gangs that
// come later takes nothing of the window, or these would have to wait for it.
func (f *Fair) cost(g *Gang) int64 {
	switch {
	case g.Calls:
		return 0
	case g.Cost <= 0:
		return f.window()
	}
	return min(g.Cost, f.window())
}

func (f *Fair) window() int64 { return cmp.Or(f.Window, DefaultWindow) }

func weight(g *Gang) float64 {
	if g.Weight > 0 {
		return g.Weight
	}
	return 1
}

// share returns what is known of a session.
func (f *Fair) share(session uint32) *share {
	for _, s := range f.sessions {
		if s.session == session {
			return s
		}
	}
	s := &share{session: session, version: -1, on: make([]use, len(f.groups))}
	f.sessions = append(f.sessions, s)
	return s
}

// divide has each group be inside of the set or outside of it, and makes one of the devices that are in none.
func (f *Fair) divide(set *mask) {
	left := &f.remaining
	left.low, left.high = set.low, append(left.high[:0], set.high...)
	some := true
	for i := 0; i < len(f.groups) && some; i++ {
		at := f.groups[i]
		if !f.common.intersect(&at.devices, left) {
			continue
		}
		some = left.remove(&f.common)
		inside := mask{f.common.low, slices.Clone(f.common.high)}
		outside := mask{at.devices.low, slices.Clone(at.devices.high)}
		if !outside.remove(&inside) {
			continue // the set has all of the group
		}
		rest := *at
		rest.devices = outside
		at.devices = inside
		f.groups = append(f.groups, &rest)
		for _, s := range f.sessions {
			s.on = append(s.on, s.on[i])
		}
		f.version++
	}
	if some {
		f.groups = append(f.groups, &group{devices: mask{left.low, slices.Clone(left.high)}})
		for _, s := range f.sessions {
			s.on = append(s.on, use{})
		}
		f.version++
	}
}

// groupsOf appends the groups that make up a set, which Push has seen.
func (f *Fair) groupsOf(set *mask, to []int) []int {
	for i, at := range f.groups {
		if at.devices.overlaps(set) {
			to = append(to, i)
		}
	}
	return to
}
