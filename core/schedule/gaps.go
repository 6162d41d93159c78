package schedule

import "math"

// The devices of a gang begin together, so those that are free before the last one are idle until then: that is a gap.
// This file computes how long gaps are expected to be, and whether a head may keep the devices idle meanwhile.

// The bounds of gaps. Since devices are idle during gaps, tenants miss at most mostIdle of a device's time for each
// tenant with wider gangs. Tenants with wider gangs wait for up to mostHeld for a short gap, and are behind meanwhile.
const (
	mostIdle = 1. / 32 // of a device's time: for the gaps of one tenant's gangs
	leastGap = 1. / 16 // of the window: what a gap counts at least, since estimates are not exact
	mostHeld = 8       // times the slack: the device time after which a gap may be of any length
)

// freeAt returns when the gangs placed on a group's devices are expected to have ended. If they are late, they are
// expected to be late by twice as much in the end. A gang that may wait for later gangs does not count, since nothing
// waits for its end.
func (f *Fair) freeAt(at *group) int64 {
	if at.gangs == 0 || at.calls > 0 {
		return f.now
	}
	then := at.since + at.takes + int64(at.unknown)*f.window()
	return max(then, 2*f.now-then)
}

// takes returns how long a gang is expected to take.
func (f *Fair) takes(g *Gang) int64 { return max(f.cost(g), g.Cost) }

// areInStep reports whether the same gang was placed last on the devices of all these groups. Then they are free at the
// same time, whenever that is.
func (f *Fair) areInStep(groups []int) bool {
	for _, i := range groups {
		if f.groups[i].last != f.groups[groups[0]].last {
			return false
		}
	}
	return true
}

// beginsSoon reports whether a head is about to begin. If it is not yet, it schedules another look for then.
func (f *Fair) beginsSoon(a *asking) bool {
	then := a.begin - int64(early*float64(f.window()))
	f.wake(then)
	return then <= f.now
}

// hold requires heads that are asked later to end before this one is expected to begin, on the devices that it may keep
// idle. It returns the number of groups in which nothing may be placed any more because of that.
func (f *Fair) hold(a *asking) (closed int) {
	begin, free := int64(0), int64(0)
	for _, i := range a.groups {
		begin, free = max(begin, f.groups[i].begin), max(free, f.groups[i].free)
	}
	inStep, overdue, held := begin == free && f.areInStep(a.groups), a.overdue, a.of.held
	next, least := begin+f.takes(a.gang), leastGap*float64(f.window())
	for _, i := range a.groups {
		at := f.groups[i]
		if !inStep && !overdue && !at.mayBeIdle(max(float64(begin-at.free), least), held[i]) {
			continue
		}
		if at.gangs == 0 {
			f.wake(f.now + int64(early*float64(f.window()))) // it may take longer, and then others pass
		}
		at.until = min(at.until, begin)
		if inStep || overdue { // it waits for nothing else, or what comes between would end that
			at.until = f.now
		}
		if at.begin = next; at.until <= at.free {
			closed += at.close(at.load)
		}
	}
	return closed
}

// mayBeIdle reports whether a party's gangs may keep a group's devices idle for the time of a gap. That depends on the
// device time that all parties have had there since held, the virtual time at which this party last did so.
func (at *group) mayBeIdle(gap, held float64) bool {
	had := at.all * (at.virtual - held)
	return had >= at.most || gap <= mostIdle*had
}

// gapCost returns the device time that must pass so that a gap is the part of it that may be idle.
func (f *Fair) gapCost(at *group, gap int64) float64 {
	return min(max(float64(gap), leastGap*float64(f.window()))/mostIdle, mostHeld*float64(f.slack(at)))
}

// countGaps counts the gaps before a head that gets its place against the time that its party may keep devices idle.
func (f *Fair) countGaps(a *asking) {
	for _, i := range a.groups {
		at, p := f.groups[i], a.of
		from, weights := at.free, f.weights(i)
		if at.gangs == 0 {
			from = max(at.since, a.since)
		}
		held := max(p.held[i], at.virtual-mostHeld*float64(f.slack(at))/weights)
		p.held[i] = min(at.virtual, held+f.gapCost(at, a.begin-from)/weights)
	}
}

// weights returns the sum of the weights of the parties that have gangs in a group.
func (f *Fair) weights(group int) float64 {
	if f.bound == 0 {
		return f.groups[group].weights
	}
	const least = 1e-6 // as division.weight
	return 1 / max(f.divisionOf(group).level, least)
}

// behind returns by how much a head's party is behind, on the device where that is least, of those that count; and the
// same for its session within the party. Both are bounded by what gangs that passed it can have caused.
func (f *Fair) behind(h *head) (party, session float64) {
	if len(f.groups) == 1 {
		return 0, 0 // nothing but its turn keeps a gang back
	}
	party, session = math.Inf(1), math.Inf(1)
	for _, i := range h.groups {
		at, t := f.groups[i], &h.of.on[i]
		if t.sessions > 0 {
			most := mostHeld * float64(f.slack(at))
			party, session = min(party, most/f.weights(i)), min(session, most/float64(t.sessions))
		}
		if len(h.groups) == 1 || at.isContended() {
			party = min(party, max(0, at.virtual-h.of.finish[i]))
		}
		if len(h.groups) == 1 || t.sessions > 1 && !at.spare {
			session = min(session, max(0, t.virtual-h.s.on[i].finish))
		}
	}
	return party, session
}

// settle updates for how long a group's devices were idle lately: it adds idle time, and subtracts an eighth of the
// time for which they were in use. If the result is more than the slack, they have time to spare. And it forgets the
// longest gang within 64 times its length: it would loosen all bounds for good, though its program may never run again.
func (at *group) settle(now, slack int64) {
	const spent, forgets = 8, 64
	d := now - at.settled
	if at.gangs == 0 {
		at.unused += d
	} else {
		at.unused -= d / spent
	}
	at.longest -= min(at.longest, d/forgets)
	at.unused = min(max(0, at.unused), 2*slack)
	at.spare, at.settled = at.unused > slack, now
}

// isContended reports whether several parties want a group's devices, and these have no time to spare.
func (at *group) isContended() bool { return at.parties > 1 && !at.spare }
