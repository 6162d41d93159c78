package worker

import (
	"sync"

	"github.com/openpathways/pathways/core/worker/devicequeue"
)

// A queue has one owner at a time, and only its owner touches what the queue has for
// itself. All that concerns the queue comes to it by post, as tasks. Three kinds of owner
// take turns:
//
//   - the queue's goroutine, which sleeps while nobody has the queue;
//   - a caller of post that finds that nobody has it and has time for what is quick: it saves
//     the 20 µs or so that waking a goroutine takes where that wakes another thread, too;
//   - a deputy, while the owner waits within the driver. It applies tasks and begins nothing.
//     A driver may run a program within Execute, and there it may wait for other workers,
//     which in turn may wait for what this queue is told meanwhile: that something has
//     failed here, or has ended.
//
// Ownership moves in these ways alone:
//
//	vacant ── post ──────────► owned, by the goroutine: wake has a token, which is the ownership
//	vacant ── post, here ────► owned, by the caller
//	owned ─── serve, goOn ───► vacant, where no task is left and nothing can begin
//	owned ─── goOn ──────────► owned, by the goroutine, where there is more than is quick
//	owned ─── lend ──────────► lent
//	lent ──── post ──────────► deputized, by a goroutine for that
//	deputized ─ standIn ─────► lent, where no task is left, or the owner wants it back
//	lent ──── reclaim ───────► owned, as before lend
//
// So each task is applied once, in the order of the posts; and none is left behind, since
// vacant and lent are entered under mu, where there is no task. Nobody holds mu while it
// applies a task, calls the driver or sends on wake: the channel has room for one token, and
// there is one only while the ownership is on its way.

// task is something that a queue is told: that a part has come, or a call that tells its
// state machine of something. The zero task has it look again at what it waits for.
type task struct {
	part devicequeue.Part
	call func()
}

// ownership says who has a queue.
type ownership uint8

const (
	vacant ownership = iota
	owned
	lent
	deputized
)

// mailbox is a queue's tasks and its ownership. Its length is bounded by the operations
// that the controller allows its sessions.
type mailbox struct {
	mu       sync.Mutex // guards owner, tasks and recalled
	owner    ownership
	tasks    []task
	recalled bool      // the owner waits for its deputy
	ended    sync.Cond // the deputy has

	wake  chan struct{} // a token is the ownership, for the goroutine
	taken []task        // of the owner: what it is applying
}

// post tells the queue of tasks. It never waits. Where nobody has the queue, and here is
// true, it applies them itself, begins what is quick of what can begin then, and returns
// true; the caller then owes report.flush.
func (q *queue) post(here bool, tasks ...task) (done bool) {
	b := &q.box
	b.mu.Lock()
	was := b.owner
	done = here && was == vacant
	switch was {
	case vacant:
		b.owner = owned
	case lent:
		b.owner = deputized
	}
	if !done {
		b.tasks = append(b.tasks, tasks...)
	}
	b.mu.Unlock()
	switch {
	case done:
		q.apply(tasks)
		q.goOn(q.advance(true))
	case was == vacant:
		b.wake <- struct{}{}
	case was == lent:
		go q.standIn()
	}
	return done
}

// soon has a call made by whoever has the queue. It never waits.
func (q *queue) soon(call func()) { q.post(false, task{call: call}) }

// now is soon, but makes the call itself where nobody has the queue.
func (q *queue) now(call func()) {
	if q.post(true, task{call: call}) {
		q.w.report.flush()
	}
}

// look has the queue look again at what it waits for.
func (q *queue) look() { q.post(false, task{}) }

// goOn ends the ownership of a caller that is not the queue's goroutine. That goes on where
// there is more to begin, or tasks have come meanwhile.
func (q *queue) goOn(more bool) {
	b := &q.box
	b.mu.Lock()
	if !more && len(b.tasks) == 0 && !q.stopping {
		b.owner = vacant
		b.mu.Unlock()
		return
	}
	b.mu.Unlock()
	b.wake <- struct{}{}
}

// serve is the queue's goroutine.
func (q *queue) serve() {
	defer close(q.stopped)
	b := &q.box
	for range b.wake {
		b.mu.Lock()
		for {
			b.take()
			b.mu.Unlock()
			q.apply(b.taken)
			q.advance(false)
			q.w.report.flush()
			b.mu.Lock()
			if len(b.tasks) == 0 {
				break
			}
		}
		if q.stopping {
			b.mu.Unlock() // and it stays owned
			q.state.Close()
			q.closeDiscarded()
			return
		}
		b.owner = vacant
		b.mu.Unlock()
	}
}

// take makes all tasks those that the owner applies next. mu is held.
func (b *mailbox) take() { b.taken, b.tasks = b.tasks, b.taken[:0] }

// lend lets a deputy have the queue until reclaim, once all tasks are applied.
func (q *queue) lend() {
	b := &q.box
	b.mu.Lock()
	for len(b.tasks) > 0 {
		b.take()
		b.mu.Unlock()
		q.apply(b.taken)
		b.mu.Lock()
	}
	b.owner = lent
	b.mu.Unlock()
}

// reclaim ends lend. It waits for the tasks that a deputy is applying.
func (q *queue) reclaim() {
	b := &q.box
	b.mu.Lock()
	b.recalled = true
	for b.owner == deputized {
		b.ended.Wait()
	}
	b.recalled = false
	b.owner = owned
	b.mu.Unlock()
}

// standIn is the deputy.
func (q *queue) standIn() {
	b := &q.box
	b.mu.Lock()
	for len(b.tasks) > 0 && !b.recalled {
		b.take()
		b.mu.Unlock()
		q.apply(b.taken)
		q.w.report.flush()
		b.mu.Lock()
	}
	b.owner = lent
	b.ended.Signal()
	b.mu.Unlock()
}

// stop ends the goroutine once the queue has done what it was told before.
func (q *queue) stop() { q.soon(func() { q.stopping = true }) }

// posts are parts that reach their queues together. The goroutine that reads the
// connection owns it.
type posts struct {
	queues []*queue
	parts  [][]task // by local device
	slow   bool     // one of them may take its time
}

// add adds a part. Quick says that it may be begun by whoever reads the connection.
func (p *posts) add(q *queue, x devicequeue.Part, quick bool) {
	for len(p.parts) <= q.local {
		p.parts = append(p.parts, nil)
	}
	if len(p.parts[q.local]) == 0 {
		p.queues = append(p.queues, q)
	}
	p.parts[q.local] = append(p.parts[q.local], task{part: x})
	p.slow = p.slow || !quick
}

// leave posts the parts. It never waits. Where all are quick and here is true, the caller
// begins them on queues that nobody has; it owes report.flush.
func (p *posts) leave(here bool) {
	here = here && !p.slow
	p.slow = false
	for _, q := range p.queues {
		parts := p.parts[q.local]
		q.post(here, parts...)
		clear(parts)
		p.parts[q.local] = parts[:0]
	}
	clear(p.queues)
	p.queues = p.queues[:0]
}
