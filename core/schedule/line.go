package schedule

import "math"

// The line is the heads that may get a place now, in the order in which they are asked: first those that are overdue,
// then those of parties that have just come and are below their share, then those whose party leads least, on the
// device where it leads most. Of one party, the session that is furthest behind comes first.

// asking is a head that may get the next place, in the line.
type asking struct {
	*head
	lead  float64 // of its party over the virtual time, on the device where that is most; overdue, or a number
	among float64 // that of its session, over those of its party
}

// overdue is the lead of a head that has waited too long.
var overdue = math.Inf(-1)

func (a *asking) isOverdue() bool { return a.lead == overdue }

// before reports whether a is asked before b. Of equal ones, the one that has waited longer comes first.
func (a *asking) before(b *asking) bool {
	switch {
	case a.isOverdue() != b.isOverdue():
		return a.isOverdue()
	case a.comes != b.comes:
		return a.comes
	case a.lead != b.lead:
		return a.lead < b.lead
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
		a := &f.asking[k]
		if len(a.groups) == 1 {
			a.lead = a.of.finish[a.groups[0]] - f.groups[a.groups[0]].first
		} else {
			a.lead = f.leadOf(a.head)
		}
		if f.crowded > 0 && a.of.heads > 1 {
			for _, i := range a.groups {
				a.among = max(a.among, a.s.on[i].finish-a.of.on[i].first)
			}
		}
		if f.isOverdue(a.head) {
			a.lead = overdue
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
		if a := &f.asking[k]; a.of.heads > 1 && !a.isOverdue() {
			for _, i := range a.groups {
				if next := a.of.on[i].next; next.among < a.among {
					a.lead = max(a.lead, next.lead)
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
		}
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
