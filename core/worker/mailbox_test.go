package worker

import (
	"sync"
	"testing"
	"time"
)

// A queue does what it is told once and in order, also where others borrow it.
func TestBorrow(t *testing.T) {
	q := &queue{w: &Worker{}, stays: true, stopped: make(chan struct{})}
	q.box.wake = make(chan struct{}, 1)
	go q.serve()
	const posters, each = 3, 2000
	done, borrowed := 0, 0 // of whoever has the queue
	var posting sync.WaitGroup
	for range posters {
		posting.Go(func() {
			last := -1
			for i := range each {
				q.soon(func() {
					if last != i-1 {
						t.Errorf("call %d comes behind %d", i, last)
					}
					last = i
					done++
				})
			}
		})
	}
	borrowing := make(chan struct{})
	go func() {
		defer close(borrowing)
		for n := 0; n < 1000; {
			if q.borrow() {
				n++
				borrowed++
				q.giveBack()
			} else {
				q.post(note{}) // it is awake
			}
		}
	}()
	posting.Wait()
	<-borrowing
	q.stop()
	<-q.stopped
	if done != posters*each || borrowed != 1000 {
		t.Errorf("%d of %d calls were made, and it was borrowed %d times", done, posters*each, borrowed)
	}
}

// now makes a call where it is made where the queue sleeps, and has begun what was quick
// behind it; elsewhere the queue makes it.
func TestNow(t *testing.T) {
	w := &Worker{}
	q := &queue{w: w, stays: true, stopped: make(chan struct{})}
	q.box.wake = make(chan struct{}, 1)
	go q.serve()
	for !q.borrow() {
	}
	late := make(chan struct{})
	q.now(func() { close(late) })
	select {
	case <-late:
		t.Error("a call was made while another had the queue")
	default:
	}
	q.giveBack()
	<-late
	for !q.borrow() {
	}
	q.todo = []part{{g: &gang{w: w, work: leave{}}}, {g: &gang{w: w, work: leave{}}}} // which wait for nothing
	q.giveBack()
	made := false
	q.now(func() { made = true }) // nobody else does: a race otherwise
	if !made || len(q.todo) != 0 {
		t.Errorf("the call was made: %v; %d parts wait behind it, want none", made, len(q.todo))
	}
	q.stop()
	<-q.stopped
}

// Execute is quick until it was slow several times in a row.
func TestQuick(t *testing.T) {
	p := new(program)
	slow, fast := quickTime, quickTime-1
	for i, c := range []struct {
		took  time.Duration
		quick bool
	}{{slow, false}, {fast, true}, {slow, true}, {fast, true}, {slow, true}, {slow, false}, {slow, false}, {fast, true}} {
		p.took(c.took)
		if got := p.quick.Load() > 0; got != c.quick {
			t.Errorf("run %d: quick is %v, want %v", i, got, c.quick)
		}
	}
}

// What is posted to a queue that is borrowed is done when it is given back.
func TestPostToBorrowed(t *testing.T) {
	q := &queue{w: &Worker{}, stays: true, stopped: make(chan struct{})}
	q.box.wake = make(chan struct{}, 1)
	go q.serve()
	for !q.borrow() { // until it sleeps
	}
	if q.borrow() {
		t.Error("it was borrowed twice")
	}
	did := make(chan struct{})
	q.soon(func() { close(did) })
	q.giveBack()
	<-did
	q.stop()
	<-q.stopped
}
