package schedule

import "math"

// The line is the heads that may get a place now, in the order in which they are asked: first those that are overdue,
// then those of parties that have just come and are below their share. Next are those whose party leads no more than
// the mean of all that wait: of these, the party comes first that would lead least after another gang (earliest
// eligible virtual deadline first). If these came by their leads, as the rest do, a tenant of a large weight would wait
// until each one of a small weight has had a gang, and would then have many in a row. Where gangs wait that want other
// devices, too, all come by their leads, since the tenant that leads least has the least of its part. A party's lead is
// that on the device where it leads most. Of one party, the session that is furthest behind comes first.

// asking is a head that may get the next place, in the line.
type asking struct {
	*head
	overdue bool    // it has waited too long
	comes   bool    // as head.comes, and less than a window was placed for such heads since another one got a place
	among   float64 // the lead of its session over those of its party
	standing
}

// standing is the lead of a head's party, on the device where that is most.
type standing struct {
	at    *group  // that device's, or, where byLead is set, another one of the gang's
	lead  float64 // over the virtual time
	ahead bool    // that is more than the mean
	next  float64 // lead after another gang, unless it is ahead
}

// compare returns -1 if s comes before o, and 1 if it comes after it.
func (s *standing) compare(o *standing) int {
	ahead, lead, least := s.ahead || s.at.byLead, s.next, o.next
	if ahead {
		lead, least = s.lead, o.lead
	}
	switch is := o.ahead || o.at.byLead; {
	case ahead != is && ahead || ahead == is && lead > least:
		return 1
	case ahead != is || lead < least:
		return -1
	}
	return 0
}

// before reports whether a is asked before b. Of equal ones, the one that has waited longer comes first.
func (a *asking) before(b *asking) bool {
	switch {
	case a.overdue != b.overdue:
		return a.overdue
	case a.comes != b.comes:
		return a.comes
	}
	switch c := a.compare(&b.standing); {
	case c != 0:
		return c < 0
	case a.among != b.among:
		return a.among < b.among
	}
	return a.order < b.order
}

// line computes the lead of each head, and returns the index of the one to ask first, or -1.
func (f *Fair) line() (next int) {
	window := f.window()
	for i, at := range f.groups {
		at.settle(f.now, f.slack(at))
		at.room, at.until, at.first = window, math.MaxInt64, math.Inf(1)
		at.free = f.freeAt(at)
		at.begin = at.free
		at.most = mostHeld * float64(f.slack(at))
		at.leads, at.asking, at.byLead = 0, 0, false
		if at.parties > 0 {
			at.all = f.weights(i)
		}
	}
	f.ask()
	for _, at := range f.groups {
		at.first = max(at.first, at.virtual) // none leads where all that want it do
	}
	next = -1
	for k := range f.asking {
		f.setLead(&f.asking[k])
	}
	for k := range f.asking {
		a := &f.asking[k]
		if a.ahead = a.lead*a.at.asking > a.at.leads; !a.ahead && !a.at.byLead {
			a.next = a.lead + float64(a.of.shortest)/f.weightOf(a.of, a.groups[0])
		}
		a.overdue, a.comes = f.isOverdue(a.head), a.head.comes && a.at.came < window
		if f.crowded > 0 && a.of.heads > 1 {
			for _, i := range a.groups {
				a.among = max(a.among, a.s.on[i].finish-a.of.on[i].first)
			}
		}
		if next < 0 || a.before(&f.asking[next]) {
			next = k
		}
	}
	if f.crowded > 0 {
		f.lineBehind()
		next = f.next()
	}
	return next
}

// setLead computes the lead of a head's party, and adds it to the mean where parties do not come by their leads.
func (f *Fair) setLead(a *asking) {
	if len(a.groups) > 1 {
		a.at, a.lead = f.groups[a.groups[0]], f.leadOf(a.head)
		return
	}
	i, p := a.groups[0], a.of
	a.at = f.groups[i]
	a.lead = p.finish[i] - a.at.first
	if t := &p.on[i]; t.meant != f.pops {
		t.meant = f.pops
		weight := f.weightOf(p, i)
		a.at.leads += weight * a.lead
		a.at.asking += weight
	}
}

// leadOf returns the largest lead of a head's party on its devices: on those that count, or on all if none does.
func (f *Fair) leadOf(h *head) float64 {
	most, all := math.Inf(-1), math.Inf(-1)
	for _, i := range h.groups {
		at := f.groups[i]
		lead := h.of.finish[i] - at.first
		if all = max(all, lead); at.isContended() {
			most = max(most, lead)
		}
	}
	if most == math.Inf(-1) {
		return all
	}
	return most
}

// lineBehind moves a head behind one that shares a device with it and is of a session of the same party that is further
// behind. Leads alone would not do that: a gang of many devices has the largest lead of them, so the gangs of a session
// that uses the other devices one by one would always come before it.
func (f *Fair) lineBehind() {
	for k := range f.asking {
		if a := &f.asking[k]; a.of.heads > 1 {
			for _, i := range a.groups {
				if t := &a.of.on[i]; t.next == nil || a.among < t.next.among {
					t.next = a
				}
			}
		}
	}
	for k := range f.asking {
		if a := &f.asking[k]; a.of.heads > 1 && !a.overdue {
			for _, i := range a.groups {
				if next := a.of.on[i].next; next.among < a.among && a.compare(&next.standing) < 0 {
					a.standing = next.standing
				}
			}
		}
	}
	for k := range f.asking {
		a := &f.asking[k]
		for _, i := range a.groups {
			a.of.on[i].next = nil
		}
	}
}

// ask lists the heads that may get a place now, and finds, for each group of devices, the finish of the one that is
// furthest behind there.
func (f *Fair) ask() {
	f.asking = f.asking[:0]
	for _, h := range f.heads {
		f.locate(h)
		p := h.of
		if f.capped > 0 {
			if until := f.kept(h); until > 0 { // others need not wait for it
				f.wake(until)
				continue
			}
		}
		if f.bound > 0 {
			f.reweighHead(h)
		}
		for _, i := range h.groups {
			at := f.groups[i]
			at.first = min(at.first, p.finish[i])
			at.byLead = at.byLead || len(h.groups) > 1
		}
		if p.asked != f.pops {
			p.asked, p.shortest = f.pops, h.gang.Cost
		}
		p.shortest = min(p.shortest, h.gang.Cost)
		if f.crowded > 0 && p.heads > 1 {
			f.lineAmong(h)
		}
		f.asking = append(f.asking, asking{head: h})
	}
}

// lineAmong records, for each group of a head, the least finish there of its party's sessions that have heads.
func (f *Fair) lineAmong(h *head) {
	for _, i := range h.groups {
		t, finish := &h.of.on[i], h.s.on[i].finish
		if t.lined == f.pops {
			finish = min(finish, t.first)
		}
		t.first, t.lined = finish, f.pops
	}
}

// isOverdue reports whether a head has waited for much longer than its session's share of the devices explains.
// Otherwise a gang of several devices could wait without end: it may be far behind on one device while sessions that
// share another one with it always lead a little less there. The share is above 0, see divideTime.
func (f *Fair) isOverdue(h *head) bool {
	const (
		least    = 1e9 // nanoseconds of waiting that are never too long
		patience = 3   // times the gap between two gangs of the session
	)
	waited := f.now - h.since
	if waited < least {
		return false
	}
	for _, i := range h.groups {
		part := f.partOf(h.of, i) / float64(h.of.on[i].sessions)
		if gap := float64(max(h.gang.Cost, f.slack(f.groups[i]))) / part; float64(waited) < patience*gap {
			return false
		}
	}
	return true
}

// next returns the head to ask next, or -1.
func (f *Fair) next() (next int) {
	next = -1
	for k := range f.asking {
		if next < 0 || f.asking[k].before(&f.asking[next]) {
			next = k
		}
	}
	return next
}

// take removes a head from the line, and returns it.
func (f *Fair) take(k int) asking {
	a, end := f.asking[k], len(f.asking)-1
	f.asking[k] = f.asking[end]
	f.asking = f.asking[:end]
	return a
}
