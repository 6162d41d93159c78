package schedule

import "slices"

// Policy decides which gang gets the next place in the island's order, and when.
// State keeps the order after that, so no policy can break it: a policy only chooses
// the next gang, and delays those that it has not placed yet.
//
// A policy that shares devices by weight keeps one queue per session, pops from
// the session that is furthest below its share, and stops while the gangs that it
// has placed fill a window of device time; Done corrects the window by the time that
// was measured.
//
// Only State calls a Policy, which calls nothing back and is as pure as State. A Gang
// does not change, and its pointer stays valid, from Push until Remove or Done.
type Policy interface {
	// Push adds a gang that was submitted. Its After and Reads lists belong to the
	// submitter and are valid until Push returns; State then clears After.
	Push(g *Gang)
	// Pop returns the gang for the next place, or nil if no gang may have it now. A gang
	// must come after the gangs of its After list. These are of the same session, so a
	// policy that places a session's gangs in the order of Push complies.
	Pop() *Gang
	// Remove removes a gang that was pushed and not popped.
	Remove(g *Gang)
	// Done reports that a popped gang has ended, after time nanoseconds on its devices,
	// or 0 if it never ran.
	Done(g *Gang, time int64)
}

// passer is a Policy that can say beforehand what it would do with a gang.
type passer interface {
	// CanPass reports whether a gang of this session that comes after no other would be
	// popped as soon as it is pushed, and would leave no trace once it is done.
	CanPass(session uint32, collective bool) bool
}

// leaver is a Policy that counts what it has placed by device.
type leaver interface {
	// Left reports that a popped gang has ended on some of its devices, after time nanoseconds there. Done then reports
	// the others.
	Left(g *Gang, on DeviceSet, time int64)
}

// sharer is a Policy that shares devices by the terms of tenants.
type sharer interface {
	// SetTerms applies a tenant's new terms, also to its gangs that wait. Later gangs are pushed with these terms.
	SetTerms(t *Tenant)
}

// timer is a Policy that keeps gangs back for some time.
type timer interface {
	// SetTime tells the time, before each other call.
	SetTime(now int64)
	// Due returns when Pop may return a gang that it has just kept back, 0 if it has not.
	Due() int64
}

// FIFO is the policy that places gangs in the order of submission. A gang that is beyond its session's share lets
// those of other sessions pass.
type FIFO struct {
	// Window bounds the gangs that are placed and have not ended; 0 means no bound.
	Window int
	// Share bounds those of one session while another one has a place, or waits for one; 0 means no bound.
	Share int

	// queue[head:] are the gangs that wait for a place, in order; nil if one was removed.
	queue []*Gang
	head  int
	out   int            // placed and not ended
	by    map[uint32]int // of these, by session; nil without Share
}

// Push implements Policy.
func (f *FIFO) Push(g *Gang) { f.queue = append(f.queue, g) }

// CanPass reports whether no gang waits for a place and the window has room.
func (f *FIFO) CanPass(uint32, bool) bool {
	return f.Share == 0 && f.head == len(f.queue) && (f.Window <= 0 || f.out < f.Window)
}

// Pop implements Policy.
func (f *FIFO) Pop() *Gang {
	for f.head < len(f.queue) && (f.Window <= 0 || f.out < f.Window) {
		g := f.queue[f.head]
		if g != nil && f.Share > 0 && !f.inShare(g) {
			return f.popBehind()
		}
		f.queue[f.head] = nil
		f.head++
		switch {
		case f.head == len(f.queue):
			f.queue, f.head = f.queue[:0], 0
		case f.head > len(f.queue)/2: // at most as many moved as were popped since
			n := copy(f.queue, f.queue[f.head:])
			clear(f.queue[n:])
			f.queue, f.head = f.queue[:n], 0
		}
		if g != nil {
			f.place(g)
			return g
		}
	}
	return nil
}

// popBehind returns the first gang of another session than those at the head of the queue that may have a place.
func (f *FIFO) popBehind() *Gang {
	for i := f.head + 1; i < len(f.queue); i++ {
		if g := f.queue[i]; g != nil && f.inShare(g) {
			f.queue[i] = nil
			f.place(g)
			return g
		}
	}
	return nil
}

func (f *FIFO) place(g *Gang) {
	f.out++
	if f.Share > 0 {
		if f.by == nil {
			f.by = map[uint32]int{}
		}
		f.by[g.Session]++
	}
}

// inShare reports whether a gang's session may have another place: it has less than its share, or is alone.
func (f *FIFO) inShare(g *Gang) bool {
	n := f.by[g.Session]
	return n < f.Share || n == f.out && !slices.ContainsFunc(f.queue[f.head:],
		func(o *Gang) bool { return o != nil && o.Session != g.Session })
}

// Remove implements Policy.
func (f *FIFO) Remove(g *Gang) {
	for i := f.head; i < len(f.queue); i++ {
		if f.queue[i] == g {
			f.queue[i] = nil
			return
		}
	}
}

// Done implements Policy.
func (f *FIFO) Done(g *Gang, _ int64) {
	f.out--
	if f.Share == 0 {
		return
	}
	if f.by[g.Session]--; f.by[g.Session] == 0 {
		delete(f.by, g.Session)
	}
}
