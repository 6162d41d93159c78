package schedule

import (
	"cmp"
	"math"
	"slices"
)

// Fair is the policy that shares device time among tenants by their weights, and a tenant's share equally among its
// sessions. On each device it places the gangs of a session in the order of submission. A gang that has to wait delays
// only later gangs of its session that use one of its devices, or come after it.
//
// # Shares
//
// Time is counted on each device, by tenant: the time for which its gangs occupied the device, divided by its weight.
// Each device has a virtual time: the count at which the tenant that was served last began its turn. A tenant that
// arrives begins there, or level with the one that is furthest behind, so it has neither saved up time nor pays for
// time before (start-time fair queueing). Of the tenants that have had no more than the mean of those that wait, by
// their weights, the next place goes to the one that would have had least after its next gang. So the gangs of a tenant
// with a large weight lie between those of the others, and shares hold to within about two gangs over stretches of any
// length. Among a tenant's sessions, time is counted in the same way. So neither the number of its sessions nor their
// coming and going changes what a tenant gets. A gang is charged its estimated cost when it gets its place, and the
// difference when it has ended and was measured.
//
// A new session of a tenant begins at the average of what the tenant's sessions have had: if it began at their virtual
// time, it would come before the sessions that stay, and so would each further new one. A tenant that comes is served
// before others while it has had less than they have on average, also before those that have had even less: these have
// waited for long gangs, and it would wait for theirs. So a tenant below its share waits for one window at most. Where
// many come at a time, others are served in between, once a window.
//
// While a tenant is ahead of another one that has gangs on a device, it may have at most its share of what is placed
// there; so may a session among those of its tenant. This makes shares hold also for sessions that keep only a few
// gangs under way and wait for one to end before they submit the next: all of these together may be less than a window,
// and would otherwise be placed in any order. Each may always have two gangs and a small part of the window, so that
// the device has work until its next gangs come. The other tenant counts even if its gangs have all ended, for one
// window: otherwise a tenant that waits for its last gang before it submits more would find the window full whenever it
// comes back.
//
// # Classes, and bounds
//
// A tenant may have a class, and a minimum and a maximum part of each device; divideTime says what each then gets of a
// device that all want. A tenant whose part differs from that of its weight is charged as if its weight gave it that
// part. A tenant that has reached its maximum is kept back for some time, and does not count meanwhile: others get what
// it leaves, and if there are none, the device is idle.
//
// # The window
//
// A place cannot be taken back, so few are given ahead: on each device as many as fill Window nanoseconds by their
// estimates, and at most Gangs of them. A gang that was not measured yet, or is longer than the window, takes a whole
// window, so it waits until its devices are free. If all placed gangs are about to end, and are not many short ones,
// the next are placed already, for one more window, so that the device has them in time. Otherwise a gang that leaves
// no room for the next one, such as one of 40 ms before one of 20, would leave its device idle until the controller
// hears of its end. So a session below its share waits for one window at most, or for one longer gang and the end of
// another. If that other one takes longer than estimated, the session also waits for the rest of it, and for the gangs
// that were placed too early because of that.
//
// # Gangs of several devices
//
// A tenant's lead is that on the device where it leads most: there it gets its share, and on its other devices others
// get the rest (max-min fairness). A device that no other tenant wants, or that is idle for much of the time, limits
// nobody, and does not count. Device time that a tenant has yet to get on the device that counts is kept for it, up to
// a bound. On its other devices it is behind by at most the slack more than that, so that it does not come before their
// other users for long if its share there grows.
//
// The devices of a gang begin together, so those that are free first are idle until the last one is free. Three rules
// bound that. Other gangs come first if they end before this one is expected to begin (backfill). The gang gets its
// place only shortly before it begins, or at once after another gang on the same devices, with which it is in step. And
// it may keep a device idle that others want only for a small part of the time since its tenant last did so. Until then
// others pass it; the longer they do, the longer the gap may be, and the more gangs of its tenant follow in step once
// it begins. So tenants whose sets of devices overlap have their shares over some seconds, but not over shorter times.
//
// # Why every gang gets its place
//
// A gang that is first in line, and has to wait for a device, is passed by others only until it may keep each of its
// devices idle. Then nothing more is placed before it on the device that is free last, and on the others only gangs
// that end before that. So it waits only for gangs that were placed earlier, and these end. Every gang comes first in
// line at some time, since each gang that is placed before it puts the tenant and session of that gang further ahead.
// If devices disagree about that, an overdue gang comes first, and nothing more is placed on its devices.
//
// # Costs
//
// Devices that all gangs so far have used together form a group, and are counted as one. A step examines the groups of
// the gangs that are first in their sessions, never single devices. It examines none if no device has room, and few if
// none of these gangs has room on all of its devices; it asks gangs in line only as far as the last one that has room.
// Tenants' shares of a group are computed again only when the set of tenants that want it has changed.
type Fair struct {
	Window int64 // nanoseconds of estimated device time that are placed ahead; 0 means DefaultWindow
	Gangs  int   // placed and not ended on one device; 0 means no bound

	groups  []*group
	version int // of groups; changes when one is divided
	parties []*party
	shares  map[uint32]*share // by session
	last    *share            // that was looked for last
	heads   []*head
	queued  int
	free    int // of these, those that take nothing of the window
	placed  int
	pushed  uint64

	now, due  int64 // see timer
	bound     int   // parties whose terms say more than a weight
	capped    int   // parties that have something at most
	crowded   int   // parties with several heads
	keys      uint64
	slots     int   // of parties, in divisions
	freeSlots []int // of these, those of parties that were dropped
	divisions map[uint64]*division
	divides   int // how often a group got another one

	remaining, common mask // scratch of divide
	ahead             mask // scratch of advance
	claims            []claim
	claimants         []*party
	idle              []*head // to be used again
	passing           *Gang   // that has its place as of Push
	alone             []int   // its groups
	// Scratch of Pop:
	pops    uint64   // calls that looked at the line
	fullest int64    // the most load of a group
	busiest int      // the most gangs of one
	asking  []asking // heads that were not asked yet
}

// DefaultWindow is the device time that is placed ahead if Fair has no Window: long enough that a device has work while
// the controller hears that something has ended, and short enough that a person does not notice the wait.
const DefaultWindow = 50e6

// early is the part of the window that remains when placed gangs count as about to end. It is long enough for a worker
// to receive a large computation, and to launch it on a GPU.
const early = 1. / 10

// SetTime tells the time.
func (f *Fair) SetTime(now int64) { f.now = max(f.now, now) }

// Due returns when the next gang that was kept back may have its place, 0 if there is none.
func (f *Fair) Due() int64 { return f.due }

// Push implements Policy.
func (f *Fair) Push(g *Gang) {
	f.divide(&g.Devices.mask)
	s := f.share(g)
	f.setTerms(s.of, termsOf(g))
	if f.queued == 0 && f.isAlone(s, g) {
		f.pushed++
		f.charge(s, g, f.alone, false, false)
		f.passing = g
		return
	}
	f.queued++
	if g.Calls {
		f.free++
	}
	if s.isBehind(g) {
		s.queue = append(s.queue, follower{g, slices.Clone(g.After)})
	} else {
		f.newHead(s, g)
	}
}

// Pop implements Policy.
func (f *Fair) Pop() *Gang {
	if g := f.passing; g != nil {
		f.passing = nil
		return g
	}
	f.due = 0
	if f.queued == 0 || f.isFull() {
		return nil
	}
	roomy := f.countRoomy() // heads that were not asked, and may have a place
	if roomy == 0 {
		return nil
	}
	f.pops++
	var soon asking
	for open, next := len(f.groups), f.line(); open > 0 && roomy > 0 && next >= 0; next = f.next() { // open: groups
		a := f.take(next)
		if a.roomy {
			roomy--
		}
		switch ahead := f.aheadOn(a.head); {
		case ahead >= 0 && !a.overdue && !f.groups[ahead].byLead:
			// Those that lead more than it have to wait with it, but those that lead less do not.
			f.groups[ahead].byLead = true
			if f.asking = append(f.asking, a); a.roomy {
				roomy++
			}
		case ahead >= 0 && !a.overdue:
			if open -= f.groups[ahead].close(f.groups[ahead].load); len(a.groups) > 1 {
				open -= f.hold(&a)
			}
		case !f.fits(&a):
			open -= f.reserve(&a)
		case a.gap == 0:
			return f.place(&a)
		default: // others come first that end before it begins
			if f.beginsSoon(&a) && soon.head == nil {
				soon = a
			}
			open -= f.reserve(&a)
		}
	}
	if soon.head != nil {
		return f.place(&soon)
	}
	return nil
}

// isAlone reports whether a gang, while none waits, gets its place at once, as it would from Pop: no other session has
// a gang on its devices, and there is room. So most gangs of a session that has devices for itself need not go through
// the line.
func (f *Fair) isAlone(s *share, g *Gang) bool {
	if f.bound > 0 {
		return false
	}
	p, cost := s.of, f.cost(g)
	f.alone = f.groupsOf(&g.Devices.mask, f.alone[:0])
	for _, i := range f.alone {
		at, t := f.groups[i], &p.on[i]
		if at.parties > 1 || at.parties == 1 && t.sessions == 0 || t.sessions > 1 || t.sessions == 1 && s.on[i].gangs == 0 ||
			at.load+cost > f.window() || f.Gangs > 0 && at.gangs >= f.Gangs || at.misses(p, f.now-f.window()) {
			return false
		}
	}
	s.used = true
	for _, i := range f.alone {
		f.begin(s, i, 0, 0)
	}
	return true
}

// isFull reports whether no device has room for a gang that takes some. Most calls of Pop end here.
func (f *Fair) isFull() bool {
	full := f.free == 0
	f.fullest, f.busiest = 0, 0
	for _, at := range f.groups {
		f.fullest, f.busiest = max(f.fullest, at.load), max(f.busiest, at.gangs)
		roomy := at.load < f.window() && (f.Gangs == 0 || at.gangs < f.Gangs)
		full = full && !roomy && !f.endsSoon(at)
	}
	return full
}

// countRoomy finds the heads that have room on each of their devices, not counting reservations of others, and returns
// their number. A head that is kept back has no room. Once it has found several, it stops and counts all as having
// room: one of them will get a place soon, before many others are asked. A single head on a single group counts without
// a check, since asking it costs no more.
func (f *Fair) countRoomy() (n int) {
	const several = 4
	if len(f.heads) == 1 && len(f.groups) == 1 {
		return 1
	}
	for _, h := range f.heads {
		f.locate(h)
		if h.roomy = f.hasRoom(h); h.roomy {
			if n++; n == several {
				return len(f.heads)
			}
		}
	}
	return n
}

// hasRoom is countRoomy for one head.
func (f *Fair) hasRoom(h *head) bool {
	if until := f.kept(h); until > 0 {
		f.wake(until)
		return false
	}
	cost, window := f.cost(h.gang), f.window()
	if f.fullest+cost <= window && (f.Gangs == 0 || f.busiest < f.Gangs) {
		return true
	}
	for range h.groups {
		if h.full++; h.full >= len(h.groups) { // from the one on that had no room last
			h.full = 0
		}
		at := f.groups[h.groups[h.full]]
		if f.Gangs > 0 && at.gangs >= f.Gangs || at.load+cost > window && (at.load+cost > 2*window || !f.endsSoon(at)) {
			h.full--
			return false
		}
	}
	return true
}

// endsSoon reports whether all gangs that are left on a group's devices are about to end, by their estimates. If they
// are not yet, it schedules another look at the waiting gangs for then. It is false for many short gangs: the end of
// each makes room for the next, and each would set a timer. And it is false if a party has a maximum: a gang that is
// kept back until the end would lose its turn to one that is placed before.
func (f *Fair) endsSoon(at *group) bool {
	soon := int64(early * float64(f.window()))
	if at.takes <= int64(at.gangs)*soon || at.unknown > 0 || f.Gangs == 1 || f.capped > 0 {
		return false
	}
	then := at.since + at.takes - soon
	f.wake(then)
	return then <= f.now
}

// wake schedules another look at the waiting gangs, at a later time.
func (f *Fair) wake(then int64) {
	if then > f.now {
		f.due = cmp.Or(min(f.due, then), then)
	}
}

// aheadOn returns a group on whose devices a head has to wait for gangs of its own tenant or session to end, or -1:
// that tenant or session is ahead of another one there, and has its share of what is placed. It does not wait for gangs
// that may wait for later gangs, since one of these could be the head itself.
func (f *Fair) aheadOn(h *head) (group int) {
	const few, small = 2, 1. / 16 // gangs, and part of the window, that it has in any case
	cost, p := f.cost(h.gang), h.of
	if p.placed < few {
		return -1
	}
	for _, i := range h.groups {
		at, t, u := f.groups[i], &p.on[i], &h.s.on[i]
		missed := at.misses(p, f.now-f.window())
		if at.parties == 1 && t.sessions == 1 && !missed { // there is no other
			continue
		}
		part := f.partOf(p, i)
		if missed {
			part = f.partBeside(p, i)
		}
		load, enough := float64(at.load+cost), small*float64(f.window())
		if own := float64(t.cost + cost); t.gangs-t.calls >= few && own > enough && own > part*load &&
			p.finish[i] > f.least(i) {
			return i
		}
		own := float64(u.cost + cost)
		if u.gangs-u.calls >= few && own > enough && t.sessions > 1 && own > part/float64(t.sessions)*load &&
			u.finish > f.leastAmong(p, i) {
			return i
		}
	}
	return -1
}

// least returns the least finish of the parties that have gangs placed in a group, or are away. Other parties may be
// waiting for other devices.
func (f *Fair) least(group int) float64 {
	f.count(group)
	return f.groups[group].least
}

// count computes what least and partBeside return, once for each call of Pop.
func (f *Fair) count(group int) {
	at := f.groups[group]
	if at.counted == f.pops {
		return
	}
	at.counted, at.least, at.missing = f.pops, math.Inf(1), 0
	for _, p := range f.parties {
		isAway := f.isAway(p, group)
		if isAway {
			at.missing += p.terms.Weight
		}
		if isAway || p.on[group].gangs > 0 {
			at.least = min(at.least, p.finish[group])
		}
	}
}

// leastAmong is least for a party's sessions.
func (f *Fair) leastAmong(p *party, group int) float64 {
	t := &p.on[group]
	if t.counted != f.pops {
		t.counted, t.least = f.pops, math.Inf(1)
		for _, s := range p.shares {
			if u := &s.on[group]; u.gangs > 0 {
				t.least = min(t.least, u.finish)
			}
		}
	}
	return t.least
}

// fits reports whether a head can have its place: there is room on its devices, and it ends before the heads begin that
// were asked earlier and keep devices. It also computes when the head is expected to begin.
func (f *Fair) fits(a *asking) bool {
	cost, first := f.cost(a.gang), int64(math.MaxInt64)
	a.begin = 0
	for _, i := range a.groups {
		at := f.groups[i]
		if f.Gangs > 0 && at.gangs >= f.Gangs || at.load+cost > at.room &&
			(at.room < f.window() || at.load+cost > 2*f.window() || !f.endsSoon(at)) {
			return false
		}
		a.begin, first = max(a.begin, at.free), min(first, at.free)
	}
	end := a.begin + f.takes(a.gang)
	for _, i := range a.groups {
		if end > f.groups[i].until {
			return false
		}
	}
	if a.gap = a.begin - first; a.gap > 0 && f.areInStep(a.groups) {
		a.gap = 0
	}
	return true
}

// reserve makes heads that are asked later leave room for this one, which does not fit, or begins later. It returns the
// number of groups in which nothing may be placed any more because of that.
func (f *Fair) reserve(a *asking) (closed int) {
	if len(a.groups) > 1 {
		return f.hold(a)
	}
	at, takes := f.groups[a.groups[0]], f.takes(a.gang)
	at.begin += takes
	if at.free+takes > at.until {
		return 0 // it comes after another that waits for the devices, and shorter ones may come before both
	}
	return at.close(f.window() - f.cost(a.gang))
}

// place places a head, and charges it.
func (f *Fair) place(a *asking) *Gang {
	g := a.gang
	if len(a.groups) > 1 && !f.areInStep(a.groups) {
		f.countGaps(a)
	}
	f.charge(a.s, g, a.groups, a.overdue, a.comes)
	f.leave(a.head)
	return g
}

// charge charges a session for a gang that gets its place, on the devices of some groups.
func (f *Fair) charge(s *share, g *Gang, groups []int, overdue, comes bool) {
	p, cost, charge := s.of, f.cost(g), f.estimate(g)
	for _, i := range groups {
		at, t, u := f.groups[i], &p.on[i], &s.on[i]
		if !overdue { // otherwise others, which are behind it, would lose what they have yet to get
			at.virtual = max(at.virtual, p.finish[i])
			t.virtual = max(t.virtual, u.finish)
		}
		if at.came += cost; !comes {
			at.came = 0
		}
		at.settle(f.now, f.slack(at))
		if at.load += cost; at.gangs == 0 {
			at.since = f.now
		}
		at.last = g.ID
		at.gangs++
		at.counts(g, 1)
		p.charge(i, cost, charge, f.weightOf(p, i))
		if g.Calls {
			t.calls++
			u.calls++
		}
		u.cost += cost
		u.finish += float64(charge)
		f.set(s, i, u.gangs+1, u.waits)
		t.take(p, f.now-at.longest, cost)
	}
	p.takes++
	p.placed++
	f.placed++
}

// Remove implements Policy.
func (f *Fair) Remove(g *Gang) {
	s := f.share(g)
	if i := slices.IndexFunc(s.heads, func(h *head) bool { return h.gang == g }); i >= 0 {
		f.leave(s.heads[i])
	} else if i := slices.IndexFunc(s.queue, func(q follower) bool { return q.gang == g }); i >= 0 {
		s.queue = slices.Delete(s.queue, i, i+1)
		f.unqueued(g)
		f.advance(s)
	}
	f.forget()
}

// unqueued records that a gang no longer waits for a place.
func (f *Fair) unqueued(g *Gang) {
	f.queued--
	if g.Calls {
		f.free--
	}
}

// Left implements leaver. The gang no longer counts there, so that a device that has finished with a gang, or has
// dropped it, is not kept from others by the devices that have not.
func (f *Fair) Left(g *Gang, on DeviceSet, time int64) {
	var now mask // of these devices, those that it had until now
	if !now.intersect(&g.Devices.mask, &on.mask) || !now.remove(&g.left) {
		return
	}
	f.divide(&now)
	s := f.share(g)
	for i, at := range f.groups {
		if at.devices.overlaps(&now) {
			f.end(s, g, i, time)
		}
	}
	g.left.add(&now)
	s.of.takes++
}

// Done implements Policy.
func (f *Fair) Done(g *Gang, time int64) {
	s := f.share(g)
	p := s.of
	for i, at := range f.groups {
		if at.devices.overlaps(&g.Devices.mask) && !at.devices.overlaps(&g.left) {
			f.end(s, g, i, time)
		}
	}
	p.takes++
	p.placed--
	f.placed--
	f.forget()
}

// end removes a placed gang from a group, and corrects its charge there.
func (f *Fair) end(s *share, g *Gang, group int, time int64) {
	at, p, cost := f.groups[group], s.of, f.cost(g)
	at.settle(f.now, f.slack(at))
	at.load -= cost
	at.gangs--
	at.counts(g, -1)
	at.since = f.now
	time, expected := f.charged(p, group, g, time)
	at.longest = max(at.longest, expected)
	t, u := &p.on[group], &s.on[group]
	charge := f.estimate(g)
	p.correct(group, cost, charge, time, f.weightOf(p, group))
	if g.Calls {
		t.calls--
		u.calls--
	}
	u.cost -= cost
	u.finish += float64(time - charge)
	t.mean += float64(time) / float64(max(1, t.waiting))
	f.set(s, group, u.gangs-1, u.waits)
	t.take(p, f.now-at.longest, time-cost)
}

// charged returns what a party is charged for a gang that took some time on a group's devices, and how much of that
// could be expected. A gang that takes far longer than its program's last ones is not the party's fault: its worker
// may have stood still. So it is charged more than twice its estimate only as far as others come first for ten
// seconds, the time over which shares hold.
func (f *Fair) charged(p *party, group int, g *Gang, time int64) (charged, expected int64) {
	const (
		usual = 2    // times the estimate
		most  = 10e9 // nanoseconds for which others come first
	)
	if expected = usual * max(f.estimate(g), g.Cost); g.Cost <= 0 || time <= expected {
		return time, time
	}
	weight := f.weightOf(p, group)
	bound := most * weight / max(weight, f.weights(group)-weight)
	if p.terms.AtMost > 0 {
		bound = min(bound, most*p.terms.AtMost)
	}
	return max(expected, min(time, int64(bound))), expected
}

// estimate returns the time that a gang is charged on each device before it is measured.
func (f *Fair) estimate(g *Gang) int64 {
	if g.Calls {
		return 0
	}
	return max(f.cost(g), g.Cost)
}

// cost returns what a gang takes of the window on each device. A gang that may wait for later gangs takes nothing of
// the window, or these would have to wait for it.
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

// slack is how far a party or a session may be behind others on a group's devices, as time for a weight of 1, since one
// device may keep a gang from another.
func (f *Fair) slack(at *group) int64 { return max(f.window(), at.longest) }
