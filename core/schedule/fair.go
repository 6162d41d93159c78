package schedule

import (
	"cmp"
	"math"
	"slices"
)

// Fair is the policy that shares device time among tenants by their weights, and what a tenant gets among its sessions.
// It keeps one queue a session and places the gangs of each in the order of submission.
//
// # Shares
//
// Time is counted on each device, as the time for which a session's gangs occupied it, divided by the session's
// weight: its tenant's, divided by how many sessions of the tenant have gangs there, waiting or placed. So a tenant
// gets no more by opening more sessions. Each device has a virtual time: that at which the session which was served
// last began its turn. A session that comes begins at the virtual time, so it neither has saved time up nor pays for
// others' (start-time fair queueing). Of the gangs at the heads of the queues, the next place is for the one whose
// session leads least over those that are furthest behind on the same devices. A gang is charged its estimated cost
// when it gets its place, and the difference when it ends and was measured.
//
// A session that is ahead of another which has gangs there has no more than its part of what is placed. So shares
// hold, too, for sessions that have a few gangs under way at a time and wait for one to end before they ask for the
// next: what they all have under way may be less than a window, and a device takes that as it comes. Two gangs and a
// small part of the window a session has in any case, so that the device has work while its next ones come.
//
// # Classes, and bounds
//
// A tenant may have a class, and a part of each device that it has at least and at most; divideTime says what each then
// gets of a device that all want. A tenant whose part is not the one of its weight is charged as if its weight gave it
// that part. One that has had as much as it may have at most is kept back until time has passed, and takes no part
// meanwhile: so devices may be idle, but for no other reason, and others have what it leaves.
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
// before it puts that gang's session further ahead; and where devices differ in that, one that is overdue comes first.
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
	parties  []*party
	sessions []*share
	queued   int
	free     int // of these, those that take nothing of the window
	placed   int
	pushed   uint64

	bound    int   // parties whose terms say more than a weight
	now, due int64 // see timer

	remaining, common mask    // scratch of divide
	claims            []claim // scratch of weightIn
}

// DefaultWindow is the device time that is placed ahead if Fair has no Window: long enough that a device has work while
// the controller hears that something has ended, and short enough that a person does not notice the wait.
const DefaultWindow = 50e6

// party is a tenant that has sessions here, or a session that is a tenant of its own.
type party struct {
	tenant  uint32  // 0: it is a session's own
	session uint32  // then
	terms   Tenant  // of the newest gang
	on      []turns // by group
	kept    bool    // scratch of forget
}

// turns is what a party has of a group's devices.
type turns struct {
	sessions int // those that have gangs there, waiting at the head of their queues or placed
	// The time at which what was placed has taken no more than the party may have at most; 0 where that is no bound.
	paid int64
}

// take counts time that a party takes of the devices, or gives back, against what it may have at most. What it has not
// taken since a time does not count any more: it may have waited for so long for another's gang to end.
func (u *turns) take(p *party, since, time int64) {
	if p.terms.AtMost > 0 {
		u.paid = max(u.paid, since) + int64(float64(time)/p.terms.AtMost)
	}
}

// kept returns until when the head of a session is kept back, since its party has had as much as it may have at most on
// one of the devices; 0 if it is not. A window may be placed ahead.
func (f *Fair) kept(s *share) (until int64) {
	if s.of.terms.AtMost <= 0 {
		return 0
	}
	for _, i := range s.groups {
		if ahead := s.of.on[i].paid - f.window(); ahead > f.now {
			until = max(until, ahead)
		}
	}
	return until
}

// owes reports whether a party has had more than it may have at most of the time until now.
func (f *Fair) owes(p *party) bool {
	return slices.ContainsFunc(p.on, func(u turns) bool { return u.paid > f.now })
}

// SetTime tells the time.
func (f *Fair) SetTime(now int64) { f.now = max(f.now, now) }

// Due returns when the next gang that was kept back may have its place, 0 if there is none.
func (f *Fair) Due() int64 { return f.due }

// share is a session that has gangs, or has had some.
type share struct {
	session uint32
	of      *party
	queue   []*Gang // head first
	on      []use   // by group

	// Of the head:
	order   uint64 // of becoming the head
	since   int64  // the time of that
	groups  []int  // those of its devices
	version int    // of Fair, for which groups are right
	// Scratch of Pop:
	asked bool
	lead  float64 // over the head that is furthest behind on the same device; below 0 if it is overdue
}

// use is what a session has of a group's devices.
type use struct {
	finish float64 // the virtual time at which its last gang there ends
	gangs  int     // placed and not ended
	waits  bool    // its head is for them
	// Of the gangs that are placed and have not ended, their estimated cost, and what they were charged for that.
	cost    int64
	charged float64
}

func (u *use) isActive() bool { return u.gangs > 0 || u.waits }

// charge charges the estimated cost of a gang that gets its place.
func (u *use) charge(cost int64, weight float64) {
	charge := float64(cost) / weight
	u.finish += charge
	u.cost += cost
	u.charged += charge
}

// correct takes back what charge has charged for a gang, on average where there are several, and charges the time that
// it took: weights change as others come and go.
func (u *use) correct(cost, time int64, weight float64) {
	charged := u.charged
	if u.cost > cost {
		charged *= float64(cost) / float64(u.cost)
	}
	u.cost -= cost
	u.charged -= charged
	u.finish += float64(time)/weight - charged
}

// set sets what a session has of a group, and has its party count it.
func (s *share) set(group, gangs int, waits bool) {
	u, p := &s.on[group], &s.of.on[group]
	was := u.isActive()
	u.gangs, u.waits = gangs, waits
	switch is := u.isActive(); {
	case is && !was:
		p.sessions++
	case was && !is:
		p.sessions--
	}
}

// Push implements Policy.
func (f *Fair) Push(g *Gang) {
	f.divide(&g.Devices.mask)
	s := f.share(g)
	f.setTerms(s.of, termsOf(g))
	s.queue = append(s.queue, g)
	f.queued++
	if g.Calls {
		f.free++
	}
	if len(s.queue) == 1 {
		f.newHead(s)
	}
}

// newHead begins the turn of a session's next gang: at the virtual time of a device where nothing of the session is
// under way, and elsewhere at most a window or the longest gang behind it, since a gang may be kept from one device by
// another.
func (f *Fair) newHead(s *share) {
	f.pushed++
	s.order, s.since, s.version = f.pushed, f.now, -1
	if len(s.queue) == 0 {
		return
	}
	f.locate(s)
	for _, i := range s.groups {
		at, u := f.groups[i], &s.on[i]
		s.set(i, u.gangs, true)
		begin := at.virtual
		if u.gangs > 0 {
			begin -= float64(max(f.window(), at.longest)) / f.weightOf(s, i)
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
	f.due = 0
	if f.queued == 0 || f.isFull() {
		return nil
	}
	f.line()
	for open := len(f.groups); open > 0; { // groups in which something may be placed
		s := f.next()
		if s == nil {
			return nil
		}
		s.asked = true
		switch ahead := f.aheadOn(s); {
		case ahead >= 0 && s.lead >= 0:
			// Those that are asked after it are further ahead, so they wait with it.
			open -= f.groups[ahead].close(f.groups[ahead].load)
		case f.fits(s):
			return f.place(s)
		default:
			open -= f.reserve(s)
		}
	}
	return nil
}

// isFull reports whether no device has room for a gang that takes some. It spares most calls of Pop the rest.
func (f *Fair) isFull() bool {
	for _, at := range f.groups {
		if at.load < f.window() && (f.Gangs == 0 || at.gangs < f.Gangs) {
			return false
		}
	}
	return f.free == 0
}

// line finds, for each head, by how much others are behind it on the device where they are most so.
func (f *Fair) line() {
	for _, at := range f.groups {
		at.room, at.first, at.least = f.window(), math.Inf(1), math.Inf(1)
	}
	for _, s := range f.sessions {
		if s.asked = len(s.queue) == 0; !s.asked {
			f.locate(s)
			if until := f.kept(s); until > 0 { // others need not wait for it
				s.asked = true
				f.due = cmp.Or(min(f.due, until), until)
				continue
			}
			for _, i := range s.groups {
				f.groups[i].first = min(f.groups[i].first, s.on[i].finish)
			}
		}
		for i := range s.on {
			if u := &s.on[i]; u.isActive() {
				f.groups[i].least = min(f.groups[i].least, u.finish)
			}
		}
	}
	for _, at := range f.groups {
		// One that another device keeps back for long must not make all that use this device seem far ahead.
		at.first = max(at.first, at.virtual-float64(max(f.window(), at.longest)))
	}
	for _, s := range f.sessions {
		if s.lead = 0; s.asked {
			continue
		}
		for _, i := range s.groups {
			s.lead = max(s.lead, s.on[i].finish-f.groups[i].first)
		}
		if f.isOverdue(s) {
			s.lead = -1
		}
	}
}

// isOverdue reports whether a session's head has waited for much longer than its part of the devices makes it wait. So
// a gang of several devices does not wait without end where it is far behind on one, and where sessions that it shares
// another with are always a little less ahead than it is.
func (f *Fair) isOverdue(s *share) bool {
	const (
		least    = 1e9 // nanoseconds of waiting that are never too long
		patience = 3   // times the gap between two gangs of the session
	)
	waited := f.now - s.since
	if waited < least {
		return false
	}
	for _, i := range s.groups {
		gap := float64(max(s.queue[0].Cost, f.window(), f.groups[i].longest)) / f.partOf(s, i)
		if float64(waited) < patience*gap {
			return false
		}
	}
	return true
}

// next returns the session to ask next: the one with the least lead, of equal ones the one that has waited longest.
func (f *Fair) next() (first *share) {
	for _, s := range f.sessions {
		if !s.asked && (first == nil || s.lead < first.lead || s.lead == first.lead && s.order < first.order) {
			first = s
		}
	}
	return first
}

// aheadOn returns the group on whose devices the session's head waits for gangs of its own session to end, or -1: it is
// ahead of another session there and has its part of what is placed.
func (f *Fair) aheadOn(s *share) (group int) {
	const few, small = 2, 1. / 16 // gangs, and part of the window, that it has in any case
	cost := f.cost(s.queue[0])
	for _, i := range s.groups {
		at, u := f.groups[i], &s.on[i]
		own := float64(u.cost + cost)
		if u.gangs >= few && u.finish > at.least && own > small*float64(f.window()) &&
			own > f.partOf(s, i)*float64(at.load+cost) {
			return i
		}
	}
	return -1
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
		closed += f.groups[i].close(room)
	}
	return closed
}

// place takes the session's head off its queue and charges it.
func (f *Fair) place(s *share) *Gang {
	g := s.queue[0]
	cost := f.cost(g)
	for _, i := range s.groups {
		at, u := f.groups[i], &s.on[i]
		if s.lead >= 0 { // otherwise others, which are behind it, would lose what they have yet to get
			at.virtual = max(at.virtual, u.finish)
		}
		at.load += cost
		at.gangs++
		u.charge(cost, f.weightOf(s, i))
		s.set(i, u.gangs+1, u.waits)
		s.of.on[i].take(s.of, f.now-at.longest, cost)
	}
	f.placed++
	f.unqueue(s, 0)
	return g
}

// unqueue takes a gang out of a queue.
func (f *Fair) unqueue(s *share, i int) {
	if i == 0 {
		f.locate(s)
		for _, k := range s.groups {
			s.set(k, s.on[k].gangs, false)
		}
	}
	if s.queue[i].Calls {
		f.free--
	}
	s.queue = slices.Delete(s.queue, i, i+1)
	f.queued--
	if i == 0 {
		f.newHead(s)
	}
}

// Remove implements Policy.
func (f *Fair) Remove(g *Gang) {
	s := f.share(g)
	if i := slices.Index(s.queue, g); i >= 0 {
		f.unqueue(s, i)
	}
	f.forget()
}

// Done implements Policy.
func (f *Fair) Done(g *Gang, time int64) {
	s, cost := f.share(g), f.cost(g)
	for i, at := range f.groups {
		if !at.devices.overlaps(&g.Devices.mask) {
			continue
		}
		at.load -= cost
		at.gangs--
		at.longest = max(at.longest, time)
		u := &s.on[i]
		u.correct(cost, time, f.weightOf(s, i))
		s.set(i, u.gangs-1, u.waits)
		s.of.on[i].take(s.of, f.now-at.longest, time-cost)
	}
	f.placed--
	f.forget()
}

// forget begins anew where nothing waits and nothing runs; otherwise, from time to time, it drops sessions and parties
// that would be treated the same if they came for the first time.
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
		for _, p := range f.parties {
			for i := range p.on {
				p.on[i] = turns{paid: p.on[i].paid}
			}
		}
	case f.queued == 0 && f.placed == 0 && !slices.ContainsFunc(f.parties, f.owes):
		f.groups, f.sessions, f.parties, f.bound = nil, nil, nil, 0
	case f.pushed%often == 0:
		f.dropIdle()
	}
}

// dropIdle drops sessions that have nothing and no lead, and parties without sessions.
func (f *Fair) dropIdle() {
	for _, p := range f.parties {
		p.kept = f.owes(p)
	}
	f.sessions = slices.DeleteFunc(f.sessions, func(s *share) bool {
		kept := len(s.queue) > 0
		for i, at := range f.groups {
			kept = kept || s.on[i].gangs > 0 || s.on[i].finish > at.virtual
		}
		s.of.kept = s.of.kept || kept
		return !kept
	})
	f.parties = slices.DeleteFunc(f.parties, func(p *party) bool {
		if !p.kept && p.terms.isBound() {
			f.bound--
		}
		return !p.kept
	})
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

// termsOf are those of a gang's party: of its tenant, or of a session that is a tenant of its own.
func termsOf(g *Gang) Tenant {
	switch {
	case g.Tenant != nil:
		return *g.Tenant
	case g.Weight > 0:
		return Tenant{Weight: g.Weight}
	}
	return Tenant{Weight: 1}
}

// setTerms takes note of a party's terms, and of whether they say more than a weight.
func (f *Fair) setTerms(p *party, terms Tenant) {
	if p.terms == terms {
		return
	}
	if p.terms.isBound() {
		f.bound--
	}
	if p.terms = terms; terms.isBound() {
		f.bound++
	}
}

// isBound reports whether terms say more than a weight.
func (t *Tenant) isBound() bool { return t.Class != 0 || t.AtLeast > 0 || t.AtMost > 0 }

// weightOf returns a session's weight on a group's devices: its party's, of which the party's sessions there have equal
// parts. A party's is the one that its terms say, unless classes or bounds give it another part of the time than that.
func (f *Fair) weightOf(s *share, group int) float64 {
	sessions := float64(max(1, s.of.on[group].sessions))
	if f.bound == 0 {
		return s.of.terms.Weight / sessions
	}
	part, level := f.divideAmong(s.of, group)
	const least = 1e-6 // of a device, so that sums of time by weight stay numbers
	return max(part, least) / max(level, least) / sessions
}

// partOf returns the part of a group's devices that a session is to have.
func (f *Fair) partOf(s *share, group int) float64 {
	part, _ := f.divideAmong(s.of, group)
	return part / float64(max(1, s.of.on[group].sessions))
}

// divideAmong divides the time of a group's devices among a party and those others that now want them or have them. It
// returns the party's part, and the level of divideTime.
func (f *Fair) divideAmong(p *party, group int) (part, level float64) {
	f.claims = append(f.claims[:0], claim{of: &p.terms})
	for _, o := range f.parties {
		if o != p && o.on[group].sessions > 0 {
			f.claims = append(f.claims, claim{of: &o.terms})
		}
	}
	level = divideTime(f.claims)
	return f.claims[0].part, level
}

// share returns what is known of a gang's session.
func (f *Fair) share(g *Gang) *share {
	for _, s := range f.sessions {
		if s.session == g.Session {
			return s
		}
	}
	s := &share{session: g.Session, of: f.party(g), version: -1, on: make([]use, len(f.groups))}
	f.sessions = append(f.sessions, s)
	return s
}

// party returns what is known of a gang's tenant.
func (f *Fair) party(g *Gang) *party {
	p := &party{session: g.Session}
	if g.Tenant != nil {
		p.tenant, p.session = g.Tenant.ID, 0
	}
	for _, known := range f.parties {
		if known.tenant == p.tenant && known.session == p.session {
			return known
		}
	}
	p.on = make([]turns, len(f.groups))
	f.setTerms(p, termsOf(g))
	f.parties = append(f.parties, p)
	return p
}
