package schedule

// Policy decides which gang gets the next place in the island's order, and when.
// State keeps the order after that, so no policy can break it; a policy can
// only choose, and hold back what it has not placed yet.
//
// A policy that shares devices by weight keeps one queue a session, pops from
// the session that is furthest below its share, and stops while the gangs it
// has placed fill a window of device time; Done refills the window with the
// time that was measured.
//
// State calls it and is called by nothing; it is as pure as State. A Gang stays
// as it is, and its pointer valid, from Push until Remove or Done.
type Policy interface {
	// Push hands over a gang that was submitted. Its After and Reads lists are the
	// submitter's and hold until Push is back; After is gone then.
	Push(g *Gang)
	// Pop gives the gang for the next place, or nil while none may have it. A gang
	// comes after the gangs of its After list; these are of the same session, so
	// that a policy keeps to it by placing a session's gangs in the order of Push.
	Pop() *Gang
	// Remove takes out a gang that was pushed and not popped.
	Remove(g *Gang)
	// Done says that a popped gang has ended, after time nanoseconds on its devices,
	// or 0 where it never ran.
	Done(g *Gang, time int64)
}

// passer is a Policy that can tell beforehand.
type passer interface {
	// Passes says that a gang of this session which comes after no other would be
	// popped as soon as it is pushed, and that nothing is left of it once it is done.
	Passes(session uint32, collective bool) bool
}

// FIFO places gangs in the order of submission.
type FIFO struct {
	// Window bounds the gangs that are placed and have not ended; 0 is no bound.
	Window int

	// queue[head:] are the gangs held back, in order; nil where one was removed.
	queue []*Gang
	head  int
	out   int // placed and not ended
}

// Push implements Policy.
func (f *FIFO) Push(g *Gang) { f.queue = append(f.queue, g) }

// Passes says that nobody is held back, and that the window has room.
func (f *FIFO) Passes(uint32, bool) bool {
	return f.head == len(f.queue) && (f.Window <= 0 || f.out < f.Window)
}

// Pop implements Policy.
func (f *FIFO) Pop() *Gang {
	for f.head < len(f.queue) && (f.Window <= 0 || f.out < f.Window) {
		g := f.queue[f.head]
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
			f.out++
			return g
		}
	}
	return nil
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
func (f *FIFO) Done(*Gang, int64) { f.out-- }
