package worker

import "sync"

// note is something for a queue to do: begin a part, or a call. The zero note has
// it look again at what it waits for.
type note struct {
	part part
	call func()
	// early: the call may be made before the notes in front of it, while the queue's
	// goroutine waits in a computation. It does not touch the list of parts.
	early bool
}

// mailbox brings notes to a queue's goroutine. Its length is bounded by the
// operations that the controller allows its sessions.
//
// A driver may run a program within Execute, and there it may wait for other
// workers. They may wait for what this queue is told meanwhile: that something has
// failed here, or has ended. So while the goroutine is away another makes the early
// calls, in order, and begins nothing.
type mailbox struct {
	mu     sync.Mutex // guards the rest
	notes  []note
	early  int // of notes, calls that may be made early
	seen   int // of notes, up to here there are none
	asleep bool
	away   bool // the goroutine is in a computation
	deputy bool // another makes calls; the queue is its own until then
	wake   chan struct{}
	ended  sync.Cond // the deputy has
}

// post hands a note to the queue. It never waits.
func (q *queue) post(n note) {
	b := &q.box
	b.mu.Lock()
	b.notes = append(b.notes, n)
	begin := false
	if n.early {
		b.early++
		begin = b.away && !b.deputy
		b.deputy = b.deputy || begin
	}
	asleep := b.asleep
	b.asleep = false
	b.mu.Unlock()
	if asleep {
		b.wake <- struct{}{}
	}
	if begin {
		go q.standIn()
	}
}

// borrow makes the caller the queue's goroutine, where that sleeps, until giveBack.
func (q *queue) borrow() bool {
	b := &q.box
	b.mu.Lock()
	defer b.mu.Unlock()
	asleep := b.asleep
	b.asleep = false // what is posted meanwhile wakes nobody
	return asleep
}

// giveBack ends borrow.
func (q *queue) giveBack() {
	b := &q.box
	b.mu.Lock()
	b.asleep = len(b.notes) == 0
	wake := !b.asleep
	b.mu.Unlock()
	if wake {
		b.wake <- struct{}{}
	}
}

// postParts hands parts to the queue together. It never waits.
func (q *queue) postParts(parts []note) {
	b := &q.box
	b.mu.Lock()
	b.notes = append(b.notes, parts...)
	asleep := b.asleep
	b.asleep = false
	b.mu.Unlock()
	if asleep {
		b.wake <- struct{}{}
	}
}

// soon has a call made by whoever has the queue. It never waits.
func (q *queue) soon(call func()) { q.post(note{call: call, early: true}) }

// now is soon, but where the queue sleeps, the caller makes the call, and begins what is
// quick of the parts that waited for it: that takes less time than to wake a goroutine.
func (q *queue) now(call func()) {
	if !q.borrow() {
		q.soon(call)
		return
	}
	call()
	for q.head < len(q.todo) {
		p := q.todo[q.head]
		if !p.g.quick() {
			q.post(note{}) // it looks whether that can begin
			break
		}
		if !q.begin(p) {
			break
		}
		q.next()
	}
	q.giveBack()
	q.w.report.flush()
}

// take waits for notes and makes all there are the batch.
func (q *queue) take() {
	clear(q.batch)
	q.batch, q.at = q.batch[:0], 0
	b := &q.box
	for {
		b.mu.Lock()
		if len(b.notes) > 0 {
			q.batch, b.notes = b.notes, q.batch
			q.early, b.early, b.seen = b.early, 0, 0
			b.mu.Unlock()
			return
		}
		b.asleep = true
		b.mu.Unlock()
		<-b.wake // a note comes at the latest from stop
	}
}

// first takes the first early call out of notes; there is one.
func first(notes []note, from *int) (call func()) {
	for ; call == nil; *from++ {
		if n := &notes[*from]; n.early {
			call = n.call
			*n = note{}
		}
	}
	return call
}

// away makes the early calls that have come, and from now on lets another make
// them, until back.
func (q *queue) away() {
	q.goesOn()
	for from := q.at; q.early > 0; q.early-- {
		first(q.batch, &from)()
	}
	b := &q.box
	b.mu.Lock()
	for b.early > 0 {
		b.early--
		call := first(b.notes, &b.seen)
		b.mu.Unlock()
		call()
		b.mu.Lock()
	}
	b.away = true
	b.mu.Unlock()
}

// back takes the queue back. It waits for the call that is being made.
func (q *queue) back() {
	b := &q.box
	b.mu.Lock()
	b.away = false
	for b.deputy {
		b.ended.Wait()
	}
	b.mu.Unlock()
}

// standIn makes early calls while the queue's goroutine is away.
func (q *queue) standIn() {
	b := &q.box
	b.mu.Lock()
	for b.away && b.early > 0 {
		b.early--
		call := first(b.notes, &b.seen)
		last := b.early == 0
		b.mu.Unlock()
		call()
		if last {
			q.w.report.flush()
		}
		b.mu.Lock()
	}
	b.deputy = false
	b.ended.Signal()
	b.mu.Unlock()
}
