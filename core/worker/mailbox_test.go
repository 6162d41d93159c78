package worker

import (
	"sync"
	"testing"
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
