package worker

import (
	"slices"
	"sync"

	"github.com/openpathways/pathways/core/worker/devicequeue"
)

// A queue has at most one owner at a time, and only its owner touches the queue's state
// machine and its other private fields. Everything else reaches the queue as a task, by post.
// There are three kinds of owner:
//
//   - the queue's goroutine, which sleeps while the queue is vacant;
//   - a caller of post that finds the queue vacant and has time for short work. It begins
//     what can begin quickly itself, which saves a wake-up (about 20 µs where that concerns
//     another thread);
//   - a deputy, while the owner is inside the driver. It applies tasks and begins nothing.
//     A driver may run a program inside Execute, and wait there for other workers. These
//     may wait for tasks of this queue that come meanwhile, such as the end of a part.
//
// These are all transitions:
//
//	vacant    → owned      post: the goroutine becomes the owner, by a token in wake
//	vacant    → owned      post, here: the caller becomes the owner
//	owned     → vacant     serve, goOn: no task is left, and nothing can begin
//	owned     → owned      goOn: the caller passes what is left on to the goroutine, by a token, having applied
//	                       what came meanwhile
//	owned     → lent       lend: no task is left, and the owner enters the driver
//	lent      → deputized  post of a call: a new goroutine becomes the deputy
//	deputized → lent       standIn: no task is left, or the owner wants the queue back
//	lent      → owned      reclaim: the same owner as before lend
//
// Why each task is applied once, in the order of the posts, and none is forgotten: tasks are
// taken by the owner alone, all at once and under mu. In the states in which they are not taken,
// vacant and lent, there are none when the state is entered, which is under mu, and post ends
// the state. It leaves lent as it is for parts, which a deputy could not begin: the owner finds
// them when it has the queue back. So it does with what a deputy leaves that was recalled.
//
// Why post never blocks: mu is not held while a task is applied, the driver is called, or a
// token is sent; and wake has room for the only token, since a token is the ownership.

// task is something that a queue is told: that a part has come, or a call that reports something to its state machine.
// The zero task has the queue check again what it waits for.
type task struct {
	part devicequeue.Part
	call func()
}

// ownership is whose a queue is at the moment.
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

// post hands tasks to the queue. It never blocks. If the queue is vacant and here is true, it
// applies them itself, begins those parts that can begin then and are quick, and returns true;
// the caller must then call report.flush.
func (q *queue) post(here bool, tasks ...task) (done bool) {
	b := &q.box
	b.mu.Lock()
	vacated, deputize := b.owner == vacant, b.owner == lent && !b.recalled && hasCall(tasks)
	if vacated {
		b.owner = owned
	} else if deputize {
		b.owner = deputized
	}
	done = vacated && here
	if !done {
		b.tasks = append(b.tasks, tasks...)
	}
	b.mu.Unlock()
	switch {
	case done:
		q.apply(tasks)
		q.goOn(q.advance(true))
	case vacated:
		b.wake <- struct{}{}
	case deputize:
		go q.standIn()
	}
	return done
}

func hasCall(tasks []task) bool {
	return slices.ContainsFunc(tasks, func(t task) bool { return t.call != nil })
}

// soon has the queue's owner make a call. It never blocks.
func (q *queue) soon(call func()) { q.post(false, task{call: call}) }

// now is soon, but makes the call itself if the queue is vacant.
func (q *queue) now(call func()) {
	if q.post(true, task{call: call}) {
		q.w.report.flush()
	}
}

// look has the queue check again what it waits for.
func (q *queue) look() { q.post(false, task{}) }

// inlineRounds is how often a caller of post applies tasks that came meanwhile. The first round is for work that it
// began itself: the bytes of a put may have been there. The next is for what followed from that. The number is bounded,
// so that others cannot keep the caller from its connection.
const inlineRounds = 2

// goOn ends the ownership of a caller of post, once it has applied tasks that have come
// meanwhile. The queue's goroutine goes on if there is more to begin, or if tasks keep coming.
func (q *queue) goOn(more bool) {
	b := &q.box
	b.mu.Lock()
	for i := 0; i < inlineRounds && !more && len(b.tasks) > 0; i++ {
		b.take()
		b.mu.Unlock()
		q.apply(b.taken)
		more = q.advance(true)
		b.mu.Lock()
	}
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

// add adds a part. Quick says that the goroutine that reads the connection may begin it.
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

// leave posts the parts. It never blocks. If all are quick and here is true, the caller begins
// them on vacant queues, and must then call report.flush.
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
