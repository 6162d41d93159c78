package cluster

/*
#include "cluster.h"
#include "interpreter.h"
*/
import "C"

import (
	"sync"
	"time"
	"unsafe"

	"github.com/openpathways/pathways/capi/base"
	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/status"
)

// idle is how long objects that nobody holds any more may wait for company, where
// nothing else goes to the cluster.
const idle = 100 * time.Millisecond

// ends fires futures, on a goroutine of its own: their callbacks may want
// Python's GIL, which a thread may hold that waits for the cluster.
type ends struct {
	mu      sync.Mutex
	queue   []C.pr_end // bounded by the operations under way
	holds   bool       // what ends is held back
	held    []C.pr_end // bounded as the queue is
	untold  []func()   // the same, of ends that are told of by other ways
	closed  bool
	running bool
	wake    chan struct{} // holds one where the queue or closed has changed
}

func newEnds() *ends {
	e := &ends{running: true, wake: make(chan struct{}, 1)}
	go e.run()
	return e
}

// end makes an entry of the queue.
func end(token uint64, err error) C.pr_end {
	out := C.pr_end{token: C.uint64_t(token)}
	out.code = C.int32_t(base.Fail(err, &out.message))
	return out
}

func (e *ends) add(batch ...C.pr_end) {
	e.mu.Lock()
	to := e.list()
	*to = append(*to, batch...)
	e.serve()
	e.mu.Unlock()
	e.stir()
}

// list returns where an end goes that comes now. Called with the lock.
func (e *ends) list() *[]C.pr_end {
	if e.holds {
		return &e.held
	}
	return &e.queue
}

// tell calls f, which tells of an end by itself, now or on release.
func (e *ends) tell(f func()) {
	e.mu.Lock()
	holds := e.holds
	if holds {
		e.untold = append(e.untold, f)
	}
	e.mu.Unlock()
	if !holds {
		f()
	}
}

// hold holds back what ends from now on, until release.
func (e *ends) hold() {
	e.mu.Lock()
	e.holds = true
	e.mu.Unlock()
}

// release fires what was held back.
func (e *ends) release() {
	e.mu.Lock()
	held, untold := e.held, e.untold
	e.holds, e.held, e.untold = false, nil, nil
	e.mu.Unlock()
	for _, f := range untold {
		f()
	}
	e.add(held...)
}

// serve sees to it that what is in the queue is fired, also where that is told of
// behind the close: a push may end later than its session. Called with the lock.
func (e *ends) serve() {
	if !e.running {
		e.running = true
		go e.run()
	}
}

func (e *ends) stir() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

func (e *ends) close() {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	e.stir()
}

func (e *ends) run() {
	var batch []C.pr_end
	flush := time.NewTicker(idle)
	defer flush.Stop()
	for {
		select {
		case <-e.wake:
		case <-flush.C:
			drain()
			continue
		}
		e.mu.Lock()
		batch, e.queue = e.queue, batch[:0]
		closed := e.closed && len(batch) == 0
		e.running = !closed
		e.mu.Unlock()
		if closed {
			return
		}
		if len(batch) > 0 {
			C.pr_fire(unsafe.SliceData(batch), C.size_t(len(batch)))
			clear(batch)
			e.stir() // what came meanwhile
		}
	}
}

// A token is the address of a C future, which is even; of a put it is odd, since
// something is to be done on this side too.
const ofPut = 1

// notify is told by the cluster of operations that have ended.
func (s *session) notify(ended []client.Ended) {
	told := int64(0)
	s.ends.mu.Lock()
	to := s.ends.list()
	for _, x := range ended {
		if x.Token == 0 {
			continue
		}
		told++
		if x.Token&ofPlay != 0 {
			*to = s.plays.end(x.Token, x.Err, *to)
			continue
		}
		s.callers.end(x.Token)
		*to = append(*to, end(x.Token&^ofPut, x.Err))
	}
	s.ends.serve()
	s.ends.mu.Unlock()
	for _, x := range ended {
		if x.Token&(ofPut|ofPlay) == ofPut {
			s.mu.Lock()
			p := s.puts[x.Token]
			delete(s.puts, x.Token)
			s.mu.Unlock()
			if p != nil {
				p.end()
			}
		}
	}
	s.underWay.Add(-told)
	s.ends.stir()
}

// free gives objects back to their clusters.
func free(names *C.pw_name, n C.size_t) {
	list := unsafe.Slice(names, n)
	for len(list) > 0 {
		id, numbers := list[0].session, make([]uint64, 0, len(list))
		rest := list[:0]
		for _, o := range list {
			if o.session == id {
				numbers = append(numbers, uint64(o.number))
			} else {
				rest = append(rest, o)
			}
		}
		if s := get(id); s != nil && !s.closed.Load() {
			s.cluster.Free(numbers)
		}
		list = rest
	}
}

// drain gives back all objects that nobody holds any more.
func drain() {
	var names [C.PW_FREED]C.pw_name
	for {
		n := C.pr_freed(&names[0], C.PW_FREED, true)
		if n == 0 {
			return
		}
		free(&names[0], n)
	}
}

//export prGoFlush
func prGoFlush() { drain() }

// unread is how long the end of a process waits for work whose results nobody can read
// any more. What is about to end does so, as it would have a moment before, and Ctrl-C
// in front of a full queue still ends the process within a second.
const unread = 200 * time.Millisecond

// Shutdown ends submission on every session once what is under way has ended.
// DEADLINE_EXCEEDED where that takes longer than timeout: what is left fails.
func Shutdown(timeout time.Duration) error { return shutdown(timeout, timeout, false) }

// Exit is Shutdown at the end of the process. Only work that does something outside of
// devices is worth timeout; the rest is dropped soon, without an error. Threads that
// wait for that rest go on sleeping: the process is about to end them. An error would
// wake them just as Python finalizes, where a thread that takes the GIL may end the
// whole process, and would print tracebacks of a script that is right.
func Exit(timeout time.Duration) error { return shutdown(timeout, min(timeout, unread), true) }

// How long waits sleep on behind Exit, for work that Exit dropped: a second where the
// process goes on, since functions of atexit that come later may wait too, and while
// Python finalizes so many seconds at most.
const (
	asleep        = time.Second
	maxFinalizing = 30
)

// wakeLater ends the waits that Exit left asleep, where the process still lives then.
func (e *ends) wakeLater(rounds int) {
	time.AfterFunc(asleep, func() {
		if rounds > 0 && bool(C.pw_python_finalizes()) {
			e.wakeLater(rounds - 1)
			return
		}
		e.release()
	})
}

// shutdown waits at most patience for work that has effects, and pure for other work.
// Where the process exits, waits for pure work sleep on.
func shutdown(patience, pure time.Duration, exits bool) error {
	begun := time.Now()
	left := int64(0)
	for _, s := range sessions.Open() {
		drain()
		wait := func() bool {
			since := time.Since(begun)
			return since < pure || since < patience && s.hasEffects()
		}
		for s.underWay.Load() > 0 && s.cluster.Lost() == nil && wait() {
			time.Sleep(time.Millisecond)
		}
		if pure == patience || s.hasEffects() {
			left += s.underWay.Load()
		}
		holds := exits && !s.hasEffects() // JAX waits for effects next, on the main thread
		if holds {
			s.ends.hold()
		}
		s.close()
		if holds {
			s.ends.wakeLater(maxFinalizing)
		}
	}
	if left > 0 {
		return status.New(status.DeadlineExceeded,
			"the cluster still has %s of this process under way after %v, which are cut off", status.Count(left, "operation"),
			patience)
	}
	return nil
}

// hasEffects reports whether what is under way may do something outside of devices: call
// a function of this process, or a handler that this process has registered.
func (s *session) hasEffects() bool { return s.callers.count.Load() > 0 || s.handlers.Load() }
