package cluster

/*
#include "interpreter.h"
*/
import "C"

import (
	"bytes"
	"context"
	"fmt"
	"time"
	"unsafe"

	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/status"
)

// The user is told about a slow compile after this time, if the controller confirms it, and again each time it has
// taken twice as long.
const tellAgain = 5 * time.Second

// How often a waiting thread checks for Ctrl-C.
const lookAgain = 100 * time.Millisecond

// at is a worker, and since when it has been compiling.
type at struct {
	worker string
	since  time.Time
}

// wait compiles on the cluster and reports to the user if that takes long. Some versions of jaxlib call it on a thread
// of their own, and abandon the thread when the user interrupts; others call it on the user's thread, which checks for
// Ctrl-C here.
func (s *session) wait(spec client.CompileSpec) (*client.Remote, error) {
	slow, done := make(chan at, 1), make(chan error, 1)
	spec.Slow = func(worker string, since time.Duration) {
		select {
		case slow <- at{worker, time.Now().Add(-since)}:
		default: // the previous report is still in the channel
		}
	}
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	var remote *client.Remote
	go func() {
		var err error
		remote, err = s.cluster.Compile(ctx, spec)
		done <- err
	}()
	var now at
	next := tellAgain
	again := time.NewTimer(time.Hour)
	defer again.Stop()
	look := time.NewTicker(lookAgain)
	defer look.Stop()
	program := programName(spec.Code)
	var exception unsafe.Pointer
	say := func() {
		exception = tellCompiling(program, now, "%.0f s …")
		for next < time.Since(now.since)+time.Second { // if this one came late, the next is not due at once
			next *= 2
		}
		again.Reset(time.Until(now.since.Add(next)))
	}
	for exception == nil {
		select {
		case now = <-slow:
			say()
		case <-again.C:
			if now.worker != "" {
				say()
			}
		case <-look.C:
			exception = C.pw_python_interrupted()
		case err := <-done:
			how := "done after %.0f s"
			if err != nil {
				how = "failed after %.0f s"
			}
			over(program, now, how, nil)
			return remote, err
		}
	}
	go func() { // it may block behind a submission that waits for room
		if <-done == nil {
			s.cluster.Forget(remote.ID)
		}
	}()
	over(program, now, "given up after %.0f s", exception)
	return nil, status.New(status.Cancelled,
		"compiling %s was interrupted; its worker continues, since a compiler cannot be stopped midway, and keeps the "+
			"result for the next time", program)
}

// tellCompiling tells the user how a compile is doing; how has a verb for the seconds. It returns what tell does.
func tellCompiling(program string, now at, how string) unsafe.Pointer {
	return tell(fmt.Sprintf("compiling %s on %s: "+how, program, now.worker, time.Since(now.since).Seconds()))
}

// over reports the end of something that was reported, and has Python raise an exception unless it is nil.
func over(program string, now at, how string, exception unsafe.Pointer) {
	if now.worker != "" {
		if again := tellCompiling(program, now, how); exception == nil {
			exception = again
		} else if again != nil {
			C.pw_python_drop(again)
		}
	}
	if exception != nil {
		C.pw_python_raise(exception)
	}
}

// Prefixes of the names of modules that JAX makes.
var modulePrefixes = [][]byte{[]byte("jit_"), []byte("pmap_"), []byte("shmap_")}

// programName returns the name of a module, for people, from its text or bytecode.
func programName(code []byte) string {
	for _, prefix := range modulePrefixes {
		i := bytes.Index(code, prefix)
		if i < 0 {
			continue
		}
		n := len(prefix)
		for i+n < len(code) && n < 100 && nameByte(code[i+n]) {
			n++
		}
		return string(code[i : i+n])
	}
	return "a program"
}

func nameByte(c byte) bool {
	return c == '_' || c == '.' || c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z'
}
