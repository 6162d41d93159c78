package schedule

import (
	"slices"
)

// group is a set of devices that each gang so far has used all of, or none of.
type group struct {
	devices mask
	load    int64   // estimated cost of what is placed and has not ended, in nanoseconds on each device
	gangs   int     // placed and not ended
	longest int64   // of those that have ended
	virtual float64 // virtual time, in nanoseconds for a weight of 1
	// Scratch of Pop:
	first float64 // the least finish of the heads
	least float64 // the least finish of the sessions that have gangs, waiting or placed
	room  int64   // the load up to which gangs may be placed
}

// close bounds the room of a group by a load, and returns 1 if nothing more may be placed there because of that.
func (at *group) close(room int64) int {
	was := at.room > at.load
	if at.room = min(at.room, room); was && at.room <= at.load {
		return 1
	}
	return 0
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
		for _, p := range f.parties {
			p.on = append(p.on, p.on[i])
		}
		f.version++
	}
	if some {
		f.groups = append(f.groups, &group{devices: mask{left.low, slices.Clone(left.high)}})
		for _, s := range f.sessions {
			s.on = append(s.on, use{})
		}
		for _, p := range f.parties {
			p.on = append(p.on, turns{})
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
