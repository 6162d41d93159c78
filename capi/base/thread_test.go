package base_test

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/openpathways/pathways/capi/base"
)

func TestProcessorTellsWhoRunsFromWhoWaits(t *testing.T) {
	var stop atomic.Bool
	one, other, ended, waits := make(chan int32), make(chan int32), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread() // and the thread ends with the goroutine
		one <- base.Thread()
		for !stop.Load() {
			continue
		}
	}()
	go func() {
		runtime.LockOSThread()
		other <- base.Thread()
		<-waits
	}()
	until := func(what string, is func() bool) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); !is(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("never: %s", what)
			}
		}
	}
	busy, idle := <-one, <-other
	var took time.Duration
	runs := func(thread int32) (runs bool) { took, runs = base.Processor(thread); return runs }
	until("a thread that waits does not run", func() bool { return !runs(idle) })
	until("a thread that computes runs", func() bool { return runs(busy) })
	first := took
	until("it has had a processor for longer", func() bool { return runs(busy) && took > first })
	stop.Store(true)
	<-ended
	until("a thread that has ended does not run", func() bool { return !runs(busy) })
	close(waits)
}
