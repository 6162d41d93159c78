package match

import (
	"sync"
	"testing"

	"github.com/openpathways/pathways/core/status/statustest"
)

// Calls are made once, in order and one at a time, on any goroutine.
func TestCallsRunOnceAndInOrder(t *testing.T) {
	var c Calls
	const posters, each = 4, 2000
	made := 0 // by the one goroutine that makes them: a race otherwise
	var all, ended sync.WaitGroup
	ended.Add(posters * each)
	for range posters {
		all.Go(func() {
			last := -1
			for i := range each {
				took := i%3 == 0 && c.Take()
				c.Do(func() {
					statustest.Equal(t, last, i-1, "call %d is made behind", i)
					last = i
					made++
					ended.Done()
				})
				if took {
					c.Run()
				}
			}
		})
	}
	all.Wait()
	ended.Wait()
	if made != posters*each {
		t.Errorf("%d calls were made, of %d", made, posters*each)
	}
}

// The goroutine that has taken the calls makes them, and no more than there were.
func TestTakerMakesTheCalls(t *testing.T) {
	var c Calls
	if !c.Take() || c.Take() {
		t.Fatal("calls are taken by one")
	}
	here, later := false, make(chan struct{})
	c.Do(func() {
		here = true
		c.Do(func() { close(later) })
	})
	if here {
		t.Error("a call was made while they were taken")
	}
	c.Run()
	if !here {
		t.Error("Run made no call")
	}
	<-later
}
