package schedule

import (
	"slices"
)

// group is a set of devices of which each gang so far has used all or none.
type group struct {
	// Scratch of Pop, for each head:
	room  int64   // the load up to which gangs may be placed
	free  int64   // when what is placed is expected to have ended
	begin int64   // when the next is expected to begin behind those that were asked, and wait
	until int64   // when what is placed now has to have ended, for one of these
	first float64 // the virtual time, or the least finish of those that wait, if that is later
	all   float64 // Fair.weights
	// Of the parties that have heads of no other group: the sum of their leads by weight, and that of their weights.
	leads, asking float64
	byLead        bool    // parties come by their leads, whether ahead of the mean or not
	most          float64 // the device time after which a gap may be of any length

	devices mask
	load    int64   // estimated cost of what is placed and has not ended, in nanoseconds on each device
	gangs   int     // placed and not ended
	unknown int     // of these, those that were not measured, or may wait for later ones
	calls   int     // of these, those that may wait for later ones
	takes   int64   // what the others take by their estimates
	since   int64   // from when the oldest of these can have run: the last end there, or its own placement
	longest int64   // of those that have ended lately; see settle
	virtual float64 // virtual time, in nanoseconds for a weight of 1
	last    uint64  // the gang that was placed there last
	came    int64   // estimated cost of those that were placed because their parties had just come, since another one
	unused  int64   // time of its devices lately; see settle
	spare   bool    // that is much
	settled int64   // the time for which these are right
	// Of the parties that have gangs, first in their sessions or placed: their number, the sum of their weights, and that
	// of their keys, which says which ones they are.
	parties int
	weights float64
	set     uint64
	away    [2]absence // the last two of these that have none any more, the last one first
	divided *division  // nil, or that of a set
	// What count found: the least finish of the parties that have gangs placed, or are away, the sum of the weights of
	// those that are away, and the call of Pop for which these are right.
	least, missing float64
	counted        uint64
}

// absence is a party that has no gangs any more, since a time.
type absence struct {
	p     *party
	since int64
}

// misses reports whether a party other than p has had gangs there since a time, even if it has none now.
func (at *group) misses(p *party, since int64) bool {
	last := at.away[0]
	if last.p == p {
		last = at.away[1]
	}
	return last.p != nil && last.since > since
}

// enter records that a party has gangs there now.
func (at *group) enter(p *party) {
	at.parties++
	at.weights += p.terms.Weight
	at.set += p.key
}

// exit records that a party has no gangs there any more.
func (at *group) exit(p *party) {
	at.parties--
	at.weights -= p.terms.Weight
	at.set -= p.key
	if at.parties == 0 {
		at.weights = 0 // sums of fractions are not exact
	}
}

// counts adds a gang to the counts of what placed gangs take of the window, times n.
func (at *group) counts(g *Gang, n int) {
	if g.Calls {
		at.calls += n
	}
	if g.Calls || g.Cost <= 0 {
		at.unknown += n
	} else {
		at.takes += int64(n) * g.Cost
	}
}

// close lowers the room of a group to a load, and returns 1 if nothing more may be placed there because of that,
// otherwise 0.
func (at *group) close(room int64) int {
	was := at.room > at.load
	if at.room = min(at.room, room); was && at.room <= at.load {
		return 1
	}
	return 0
}

// divide splits groups so that each is inside or outside of the set, and makes a group of the set's devices that are in
// none.
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
		if f.common.covers(&at.devices) {
			continue // the set has all of the group
		}
		inside := mask{f.common.low, slices.Clone(f.common.high)}
		outside := mask{at.devices.low, slices.Clone(at.devices.high)}
		outside.remove(&inside)
		rest := *at
		rest.devices = outside
		at.devices = inside
		f.groups = append(f.groups, &rest)
		for _, p := range f.parties {
			p.on, p.finish = append(p.on, p.on[i]), append(p.finish, p.finish[i])
			p.held = append(p.held, p.held[i])
			for _, s := range p.shares {
				s.on = append(s.on, s.on[i])
			}
		}
		f.version++
	}
	if some {
		f.groups = append(f.groups, &group{devices: mask{left.low, slices.Clone(left.high)}})
		for _, p := range f.parties {
			p.on, p.finish, p.held = append(p.on, turns{}), append(p.finish, 0), append(p.held, 0)
			for _, s := range p.shares {
				s.on = append(s.on, use{})
			}
		}
		f.version++
	}
}

// groupsOf appends the groups that make up a set. Push has divided the groups by it.
func (f *Fair) groupsOf(set *mask, to []int) []int {
	for i, at := range f.groups {
		if at.devices.overlaps(set) {
			to = append(to, i)
		}
	}
	return to
}

// division is what each party of a set gets of a device's time.
type division struct {
	set   uint64
	parts []float64 // by slot
	level float64   // of divideTime
}

// weight returns the weight of a party of the set.
func (d *division) weight(p *party) float64 {
	const least = 1e-6 // of a device, so that sums of time by weight stay numbers
	return max(d.parts[p.slot], least) / max(d.level, least)
}

// divisionOf returns how the parties with gangs in a group divide its devices' time. Groups with the same parties share
// a division.
func (f *Fair) divisionOf(group int) *division {
	at := f.groups[group]
	if at.divided != nil && at.divided.set == at.set {
		return at.divided
	}
	f.divides++
	at.divided = f.divisions[at.set]
	if at.divided == nil {
		at.divided = f.newDivision(group)
	}
	return at.divided
}

// newDivision is divisionOf for a new set of parties.
func (f *Fair) newDivision(group int) *division {
	const spare = 64 // divisions that are kept beside those that groups have now
	f.claims, f.claimants = f.claims[:0], f.claimants[:0]
	for _, p := range f.parties {
		if p.on[group].sessions > 0 {
			f.claims, f.claimants = append(f.claims, claim{of: &p.terms}), append(f.claimants, p)
		}
	}
	d := &division{set: f.groups[group].set, parts: make([]float64, f.slots), level: divideTime(f.claims)}
	for i, p := range f.claimants {
		d.parts[p.slot] = f.claims[i].part
	}
	if f.divisions == nil || len(f.divisions) > 2*len(f.groups)+spare {
		f.divisions = map[uint64]*division{}
	}
	f.divisions[d.set] = d
	return d
}

// scatter returns a number that looks random for each n, so that sums of different ones differ (splitmix64).
func scatter(n uint64) uint64 {
	n *= 0x9e3779b97f4a7c15
	n = (n ^ n>>30) * 0xbf58476d1ce4e5b9
	n = (n ^ n>>27) * 0x94d049bb133111eb
	return n ^ n>>31
}
