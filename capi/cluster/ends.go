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

// ends completes futures, on a goroutine of its own: their callbacks may need Python's GIL, which a thread may hold
// that waits for the cluster.
type ends struct {
	mu      sync.Mutex
	queue   []C.pr_end // bounded by the operations under way
	holds   bool       // ends are held back
	held    []C.pr_end // bounded as the queue is
	untold  []func()   // the same, for ends that are reported in other ways
	closed  bool
	running bool
	wake    chan struct{} // has one if the queue or closed has changed
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

// list returns the list for an end that arrives now. Called with the lock.
func (e *ends) list() *[]C.pr_end {
	if e.holds {
		return &e.held
	}
	return &e.queue
}

// tell calls f, which reports an end itself, now or on release.
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

// hold holds back ends until release.
func (e *ends) hold() {
	e.mu.Lock()
	e.holds = true
	e.mu.Unlock()
}

// release completes what was held back.
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

// serve makes sure that a goroutine completes what is in the queue, even after close: a push may end later than its
// session. Called with the lock.
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
	for range e.wake {
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
			e.stir() // for what was added meanwhile
		}
	}
}

// A token is the address of a C future, which is even. A put's token is odd, since its data on this side must be
// released too.
const ofPut = 1

// notify is called by the cluster with operations that have ended.
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
			rows := s.puts[x.Token]
			delete(s.puts, x.Token)
			s.mu.Unlock()
			for _, p := range rows {
				p.end()
			}
		}
	}
	s.underWay.Add(-told)
	s.ends.stir()
}

// unread is how long the end of a process waits for work whose results can no longer be read. Work that is about to end
// still ends, and Ctrl-C with a full queue still ends the process within a second.
const unread = 200 * time.Millisecond

// Shutdown ends submission on every session after the operations under way have ended. It returns DEADLINE_EXCEEDED if
// that takes longer than timeout; the rest fails. Then it adds the moment MomentEnded, without a reason, so that what
// waits for moments ends.
func Shutdown(timeout time.Duration) error {
	err := shutdown(timeout, timeout, false)
	moments.add(client.Moment{Kind: client.MomentEnded, At: time.Now()})
	return err
}

// Exit is Shutdown at the end of the process, without that moment. It waits for timeout only for work that has effects
// outside of devices, and drops the rest soon, without an error. Threads that wait for what is dropped stay asleep: the
// process is about to end them. An error would wake them just as Python finalizes, where a thread that takes the GIL
// may end the whole process, and a correct script would print tracebacks.
func Exit(timeout time.Duration) error { return shutdown(timeout, min(timeout, unread), true) }

// How long waits sleep on after Exit, for work that Exit dropped: one second if the process continues, since later
// atexit functions may wait too, and at most this many seconds while Python finalizes.
const (
	asleep        = time.Second
	maxFinalizing = 30
)

// wakeLater ends the waits that Exit left asleep, if the process still lives then.
func (e *ends) wakeLater(rounds int) {
	time.AfterFunc(asleep, func() {
		if rounds > 0 && bool(C.pw_python_finalizes()) {
			e.wakeLater(rounds - 1)
			return
		}
		e.release()
	})
}

// shutdown waits for patience at most for work that has effects, and for pure for other work. If the process exits,
// waits sleep on.
func shutdown(patience, pure time.Duration, exits bool) error {
	begun := time.Now()
	left, why := int64(0), ""
	for _, s := range sessions.Open() {
		drain()
		s.cluster.SendPuts()
		wait := func() bool {
			since := time.Since(begun)
			return since < pure || since < patience && s.hasEffects()
		}
		for s.underWay.Load() > 0 && s.cluster.Lost() == nil && wait() {
			time.Sleep(time.Millisecond)
		}
		// Operations of a session that is lost end by themselves, with its error, though maybe not yet.
		if s.cluster.Lost() == nil && (pure == patience || s.hasEffects()) {
			left += s.underWay.Load()
			why = moments.away()
		}
		if exits {
			s.ends.hold()
		}
		s.close()
		if exits {
			s.ends.wakeLater(maxFinalizing)
		}
	}
	if left > 0 {
		return status.New(status.DeadlineExceeded,
			"the cluster still has %s of this process under way after %v, which are dropped%s", status.Count(left, "operation"),
			patience, why)
	}
	return nil
}

// hasEffects reports whether work under way may do something outside of devices: call a function of this process, or a
// handler that this process has registered.
func (s *session) hasEffects() bool { return s.callers.count.Load() > 0 || s.handlers.Load() }
