package schedule

import (
	"slices"
)

// party is a tenant with sessions here, or a session that is a tenant of its own.
type party struct {
	tenant  uint32 // 0: it is a session's own
	session uint32 // then
	terms   Tenant // of the newest gang
	key     uint64 // of these terms, in group.set
	slot    int    // in division.parts
	shares  []*share
	heads   int       // of its sessions
	placed  int       // gangs that have not ended
	takes   int       // calls of take, by gangs
	finish  []float64 // by group: the virtual time at which its last gang there ends
	held    []float64 // by group: the virtual time since which it has not kept the devices idle; see mayBeIdle
	on      []turns   // by group
	// Scratch of Pop: the least cost of its heads, which is 0 if one of them was not measured, and the call of Pop for
	// which it is right. Such a gang is charged a window when it has its place, so it need not wait for one.
	shortest int64
	asked    uint64
}

// turns is a party's use of a group's devices.
type turns struct {
	sessions int // those that have gangs there, first in their queues or placed
	waiting  int // of these, those that have one that is not placed
	gangs    int // placed and not ended
	calls    int // of these, those that may wait for later ones
	// Sums over these gangs: what they take of the window, their estimates, and what the party was charged for them.
	cost, estimates int64
	charged         float64
	// Among its sessions: the virtual time, and the sum of the times of gangs that have ended, each divided by how many
	// sessions waited then.
	virtual, mean float64
	by            *division // that its weight was of last, nil if it was the one of its terms
	left          int64     // since when its sessions have no gangs there, where they have had some
	// The time at which the party's placed gangs will have taken no more than its maximum; 0 if it has none.
	paid int64
	// Scratch of Pop: the least finish of the heads of its sessions, and of its sessions, and the calls of Pop for which
	// these are right, and its lead is in the mean.
	first, least          float64
	lined, counted, meant uint64
	next                  *asking // of its heads, that of the session that is furthest behind; nil outside of lineBehind
}

// charge charges the estimate of a gang that gets its place.
func (p *party) charge(group int, cost, estimate int64, weight float64) {
	charge := float64(estimate) / weight
	p.finish[group] += charge
	t := &p.on[group]
	t.gangs++
	t.cost += cost
	t.estimates += estimate
	t.charged += charge
}

// correct replaces what charge has charged for a gang by the time that it took. If several gangs are placed it takes
// back an average, since weights change as others come and go.
func (p *party) correct(group int, cost, estimate, time int64, weight float64) {
	t := &p.on[group]
	charged := t.charged
	if t.estimates > estimate {
		charged *= float64(estimate) / float64(t.estimates)
	}
	t.gangs--
	t.cost -= cost
	t.estimates -= estimate
	t.charged -= charged
	p.finish[group] += float64(time)/weight - charged
}

// take counts device time that a party takes, or gives back, against its maximum. Time that it left unused before since
// is forfeited; it keeps later unused time, since it may have waited that long for another's gang to end.
func (t *turns) take(p *party, since, time int64) {
	if p.terms.AtMost > 0 {
		t.paid = max(t.paid, since) + int64(float64(time)/p.terms.AtMost)
	}
}

// kept returns until when a head is kept back because its party has reached its maximum on one of the devices; 0 if it
// is not. One window may be placed ahead.
func (f *Fair) kept(h *head) (until int64) {
	p := h.of
	if p.terms.AtMost <= 0 {
		return 0
	}
	if h.takes != p.takes {
		h.paid, h.takes = 0, p.takes
		for _, i := range h.groups {
			h.paid = max(h.paid, p.on[i].paid)
		}
	}
	if until = h.paid - f.window(); until > f.now {
		return until
	}
	return 0
}

// owes reports whether a party has had more than its maximum of the time until now.
func (f *Fair) owes(p *party) bool {
	return slices.ContainsFunc(p.on, func(t turns) bool { return t.paid > f.now })
}

// share is a session that has gangs, or has had some.
type share struct {
	session uint32
	of      *party
	heads   []*head    // no two have a device in common
	queue   []follower // behind them, in the order of submission
	on      []use      // by group
	used    bool       // since dropIdle
}

// use is a session's use of a group's devices.
type use struct {
	finish float64 // the virtual time among its party's sessions at which its last gang there ends
	gangs  int     // placed and not ended
	calls  int     // of these, those that may wait for later ones
	cost   int64   // of the gangs, estimated
	waits  bool    // one of its heads is for them
	known  bool    // it has had one before
}

func (u *use) isActive() bool { return u.gangs > 0 || u.waits }

// set sets what a session has in a group, and updates the counts of its party and of the group.
func (f *Fair) set(s *share, group, gangs int, waits bool) {
	u, p := &s.on[group], s.of
	t := &p.on[group]
	was := u.isActive()
	switch {
	case waits && !u.waits:
		t.waiting++
	case u.waits && !waits:
		t.waiting--
	}
	u.gangs, u.waits = gangs, waits
	switch is := u.isActive(); {
	case is && !was:
		if t.sessions++; t.sessions == 1 {
			f.groups[group].enter(p)
		}
	case was && !is:
		if t.sessions--; t.sessions == 0 {
			at := f.groups[group]
			at.exit(p)
			if t.left = f.now; at.away[0].p != p {
				at.away[1] = at.away[0]
			}
			at.away[0] = absence{p, f.now}
		}
	}
}

// share returns the record of a gang's session.
func (f *Fair) share(g *Gang) *share {
	if s := f.last; s != nil && s.session == g.Session {
		return s
	}
	s := f.shares[g.Session]
	if s == nil {
		s = &share{session: g.Session, of: f.party(g), on: make([]use, len(f.groups))}
		if f.shares == nil {
			f.shares = map[uint32]*share{}
		}
		f.shares[g.Session] = s
		s.of.shares = append(s.of.shares, s)
	}
	f.last = s
	return s
}

// party returns the record of a gang's tenant.
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
	if n := len(f.freeSlots); n > 0 {
		p.slot, f.freeSlots = f.freeSlots[n-1], f.freeSlots[:n-1]
	} else {
		p.slot = f.slots
		f.slots++
	}
	n := len(f.groups)
	p.on, p.finish, p.held = make([]turns, n), make([]float64, n), make([]float64, n)
	f.setTerms(p, termsOf(g))
	f.parties = append(f.parties, p)
	return p
}

// termsOf returns the terms of a gang's party: of its tenant, or of a session that is a tenant of its own.
func termsOf(g *Gang) Tenant {
	if g.Tenant != nil {
		return *g.Tenant
	}
	return Tenant{Weight: 1}
}

// SetTerms implements sharer.
func (f *Fair) SetTerms(t *Tenant) {
	for _, p := range f.parties {
		if p.tenant == t.ID {
			f.setTerms(p, *t)
		}
	}
}

// setTerms records a party's terms, and whether they say more than a weight.
func (f *Fair) setTerms(p *party, terms Tenant) {
	if p.terms == terms {
		return
	}
	for i := range p.on {
		if p.on[i].sessions > 0 {
			f.groups[i].exit(p)
		}
	}
	f.countTerms(p, -1)
	p.terms = terms
	f.countTerms(p, 1)
	f.keys++
	p.key = scatter(f.keys)
	for i := range p.on {
		if p.on[i].sessions > 0 {
			f.groups[i].enter(p)
		}
	}
}

// countTerms counts a party, times sign, by what its terms say.
func (f *Fair) countTerms(p *party, sign int) {
	if p.terms.isBound() {
		f.bound += sign
	}
	if p.terms.AtMost > 0 {
		f.capped += sign
	}
}

// isBound reports whether terms say more than a weight.
func (t *Tenant) isBound() bool { return t.Class != 0 || t.AtLeast > 0 || t.AtMost > 0 }

// weightOf returns the weight of a party that has gangs in a group, on that group's devices: the weight in its terms,
// unless classes or bounds give it a different part of the time.
func (f *Fair) weightOf(p *party, group int) float64 {
	if f.bound == 0 && p.on[group].by == nil {
		return p.terms.Weight
	}
	return f.weightNow(p, group)
}

// weightNow is weightOf if classes or bounds matter, or did.
func (f *Fair) weightNow(p *party, group int) float64 {
	t := &p.on[group]
	was, is, d := p.terms.Weight, p.terms.Weight, (*division)(nil)
	if t.by != nil {
		was = t.by.weight(p)
	}
	if f.bound > 0 {
		d = f.divisionOf(group)
		is = d.weight(p)
	}
	if t.by != d {
		t.by = d
		f.reweigh(p, group, was/is)
	}
	return is
}

// reweigh applies a party's new weight, as factor. It preserves the party's lead or lag as device time: time that it
// has had in excess takes longer to work off if its share gets smaller, but not if there are only more other parties.
func (f *Fair) reweigh(p *party, group int, factor float64) {
	virtual := f.groups[group].virtual
	p.finish[group] = virtual + (p.finish[group]-virtual)*factor
	p.on[group].charged *= factor
}

// reweighHead is reweigh on the devices of a head, if the parties there have changed.
func (f *Fair) reweighHead(h *head) {
	if h.weighed == f.divides {
		return
	}
	h.weighed = f.divides
	for _, i := range h.groups {
		f.weightOf(h.of, i)
	}
}

// partOf returns the part of a group's device time that a party with gangs there should have.
func (f *Fair) partOf(p *party, group int) float64 {
	if f.bound == 0 {
		return p.terms.Weight / f.groups[group].weights
	}
	return f.divisionOf(group).parts[p.slot]
}

// isAway reports whether a party has no gangs in a group, but had some within the last window.
func (f *Fair) isAway(p *party, group int) bool {
	t := &p.on[group]
	return t.sessions == 0 && t.left > 0 && t.left > f.now-f.window()
}

// partBeside is partOf, but counts parties that are away, too. These count only by their weights, whatever their
// classes and bounds are.
func (f *Fair) partBeside(p *party, group int) float64 {
	f.count(group)
	at := f.groups[group]
	return f.partOf(p, group) * at.weights / (at.weights + at.missing)
}

// forget starts over if nothing waits and nothing runs. Otherwise, from time to time, it drops sessions and parties
// that would be treated the same if they were new.
func (f *Fair) forget() {
	const (
		few   = 16  // groups and sessions that are kept for the next gang
		often = 256 // gangs
	)
	switch {
	case f.queued == 0 && f.placed == 0 && len(f.groups) <= few && len(f.shares) <= few:
		for _, at := range f.groups {
			at.virtual = 0
		}
		for _, p := range f.parties {
			clear(p.finish)
			clear(p.held)
			for i := range p.on {
				p.on[i] = turns{paid: p.on[i].paid}
			}
			for _, s := range p.shares {
				clear(s.on)
			}
		}
	case f.queued == 0 && f.placed == 0 && !slices.ContainsFunc(f.parties, f.owes):
		f.groups, f.shares, f.last, f.parties = nil, nil, nil, nil
		f.bound, f.capped = 0, 0
		f.divisions, f.slots, f.freeSlots = nil, 0, nil
	case f.pushed%often == 0:
		f.dropIdle()
	}
}

// dropIdle drops sessions that had no gangs since the last call, and parties without sessions that lead by no more than
// a gang or a window: they have ended, or would begin where they are.
func (f *Fair) dropIdle() {
	for _, p := range f.parties {
		p.shares = slices.DeleteFunc(p.shares, func(s *share) bool {
			drop := !s.used && len(s.heads) == 0 && !slices.ContainsFunc(s.on, func(u use) bool { return u.gangs > 0 })
			if s.used = false; drop {
				delete(f.shares, s.session)
			}
			return drop
		})
	}
	f.last = nil
	f.parties = slices.DeleteFunc(f.parties, func(p *party) bool {
		drop := len(p.shares) == 0 && !f.owes(p)
		for i, at := range f.groups {
			drop = drop && p.finish[i] <= at.virtual+float64(f.slack(at))/p.terms.Weight
		}
		if drop {
			f.freeSlots = append(f.freeSlots, p.slot)
			f.countTerms(p, -1)
		}
		return drop
	})
}
