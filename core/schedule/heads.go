package schedule

import (
	"math"
	"slices"
)

// head is a gang that waits for a place and is first in its session on all its devices.
type head struct {
	gang    *Gang
	s       *share
	of      *party // the session's
	index   int    // in Fair.heads
	order   uint64 // of becoming a head
	since   int64  // the time of that
	comes   bool   // its party has just come to its devices, and has had less there than others
	groups  []int  // those of its devices
	version int    // of Fair, for which groups are right
	paid    int64  // the latest of these groups' turns.paid, for so many of the party's takes
	takes   int
	weighed int // Fair.divides for which the party's weights there are right
	// Scratch of Pop: when it is expected to begin, and for how long one of its devices is idle before, see fits; and
	// whether it may have a place, see countRoomy.
	begin, gap int64
	roomy      bool
	full       int // of groups, before the one that had no room last
}

// follower is a gang that waits for others of its session to get their places.
type follower struct {
	gang  *Gang
	after []uint64 // the gangs that it comes after
}

// lookAhead bounds how many of a session's gangs behind its heads are examined for one that could be a head.
const lookAhead = 64

// isBehind reports whether a gang has to wait for others of its session to get their places: for those that share a
// device with it, and for those that it comes after. In the controller no gang comes after another, since its sessions'
// lines keep readers behind makers, and decide what else waits for these.
func (s *share) isBehind(g *Gang) bool {
	if len(s.heads) == 0 {
		return false // nothing of the session waits
	}
	isFirst := func(o *Gang) bool { return o.Devices.overlaps(&g.Devices.mask) || slices.Contains(g.After, o.ID) }
	return len(s.queue) >= lookAhead || slices.ContainsFunc(s.heads, func(h *head) bool { return isFirst(h.gang) }) ||
		slices.ContainsFunc(s.queue, func(q follower) bool { return isFirst(q.gang) })
}

// advance makes heads of those followers of a session that no longer have to wait for others.
func (f *Fair) advance(s *share) {
	if len(s.queue) == 0 {
		return
	}
	before := &f.ahead // the devices of all that come before
	before.low, before.high = 0, before.high[:0]
	for _, h := range s.heads {
		before.add(&h.gang.Devices.mask)
	}
	for i := 0; i < min(len(s.queue), lookAhead); {
		q := s.queue[i]
		waits := before.overlaps(&q.gang.Devices.mask) || s.isAfter(q, s.queue[:i])
		before.add(&q.gang.Devices.mask)
		if waits {
			i++
			continue
		}
		s.queue = slices.Delete(s.queue, i, i+1)
		f.newHead(s, q.gang)
	}
}

// isAfter reports whether a follower comes after one of the session's heads, or of the followers before it.
func (s *share) isAfter(q follower, before []follower) bool {
	return len(q.after) > 0 &&
		(slices.ContainsFunc(s.heads, func(h *head) bool { return slices.Contains(q.after, h.gang.ID) }) ||
			slices.ContainsFunc(before, func(o follower) bool { return slices.Contains(q.after, o.gang.ID) }))
}

// newHead makes a gang wait for its place, and begins its turn.
func (f *Fair) newHead(s *share, g *Gang) {
	var h *head
	if n := len(f.idle); n > 0 {
		h, f.idle = f.idle[n-1], f.idle[:n-1]
	} else {
		h = new(head)
	}
	f.pushed++
	*h = head{gang: g, s: s, of: s.of, index: len(f.heads), order: f.pushed, since: f.now, groups: h.groups, version: -1,
		takes: -1, weighed: -1}
	f.heads = append(f.heads, h)
	s.heads = append(s.heads, h)
	p := s.of
	if p.heads++; p.heads == 2 {
		f.crowded++
	}
	s.used = true
	f.locate(h)
	h.comes = !slices.ContainsFunc(h.groups, func(i int) bool {
		return p.on[i].sessions > 0 || p.finish[i] > f.average(i)
	})
	behind, among := f.behind(h)
	for _, i := range h.groups {
		f.begin(s, i, behind, among)
		f.set(s, i, s.on[i].gangs, true)
	}
}

// begin begins the turn of a session's gang on a group's devices. Behind and among are by how much its party, and the
// session within the party, are behind on all its devices. If nothing of its party, or of its session, is under way, it
// begins at the virtual time, or level with the party that is furthest behind there, which has its turn now. Otherwise
// it is behind by at most the slack more than that.
func (f *Fair) begin(s *share, group int, behind, among float64) {
	p, at, t, u := s.of, f.groups[group], &s.of.on[group], &s.on[group]
	begin := at.virtual
	switch {
	case t.sessions > 0: // the slack whatever its weight is above 1: otherwise it pays for what keeps it back elsewhere
		begin -= float64(f.slack(at))/min(1, f.weightOf(p, group)) + behind
	case at.parties > 0:
		for _, o := range f.parties {
			if o.on[group].sessions > 0 {
				begin = min(begin, o.finish[group])
			}
		}
	}
	p.finish[group] = max(p.finish[group], begin)
	switch begin = t.virtual; {
	case !u.known:
		u.known, begin = true, max(t.mean, t.virtual)
	case u.gangs > 0:
		begin -= float64(f.slack(at)) + among
	}
	u.finish = max(u.finish, begin)
}

// average returns the mean finish of the parties with gangs in a group, by their weights; +Inf if there are none. Those
// that have had less than their share there are below it.
func (f *Fair) average(group int) float64 {
	if f.groups[group].parties == 0 {
		return math.Inf(1)
	}
	finish, weights := 0., 0.
	for _, p := range f.parties {
		if p.on[group].sessions > 0 {
			weight := f.weightOf(p, group)
			finish, weights = finish+weight*p.finish[group], weights+weight
		}
	}
	return finish / weights
}

// leave removes a head, and makes heads of the session's next gangs.
func (f *Fair) leave(h *head) {
	s := h.s
	f.locate(h)
	for _, i := range h.groups {
		f.set(s, i, s.on[i].gangs, false)
	}
	end := len(f.heads) - 1
	f.heads[h.index] = f.heads[end]
	f.heads[h.index].index = h.index
	f.heads[end] = nil
	f.heads = f.heads[:end]
	i := slices.Index(s.heads, h)
	s.heads = slices.Delete(s.heads, i, i+1)
	if h.of.heads--; h.of.heads == 1 {
		f.crowded--
	}
	f.unqueued(h.gang)
	h.gang, h.s, h.of = nil, nil, nil
	f.idle = append(f.idle, h)
	f.advance(s)
}

// locate finds the groups of a head.
func (f *Fair) locate(h *head) {
	if h.version != f.version {
		h.groups, h.version = f.groupsOf(&h.gang.Devices.mask, h.groups[:0]), f.version
	}
}
