package base_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/openpathways/pathways/capi/base"
)

func TestProcessorTellsWhoRunsFromWhoWaits(t *testing.T) {
	threads, stop := make(chan int32), make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread() // and the thread ends with the goroutine
		threads <- base.Thread()
		for {
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	busy := <-threads
	until := func(what string, is func() bool) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); !is(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("never: %s", what)
			}
		}
	}
	var first time.Duration
	until("a thread that computes runs", func() (runs bool) { first, runs = base.Processor(busy); return runs })
	until("it has had a processor for longer", func() bool { took, _ := base.Processor(busy); return took > first })
	go func() {
		runtime.LockOSThread()
		threads <- base.Thread()
		<-stop
	}()
	idle := <-threads
	until("a thread that waits does not run", func() bool { _, runs := base.Processor(idle); return !runs })
	close(stop)
	<-ended
	until("a thread that has ended does not run", func() bool { _, runs := base.Processor(busy); return !runs })
}
