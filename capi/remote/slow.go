package remote

/*
#include <stdlib.h>
#include "interrupt.h"
*/
import "C"

import (
	"bytes"
	"context"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/status"
)

// How often a thread that waits for a compiler looks whether its user has pressed
// Ctrl-C, and after how long the user is told of the compile again.
const (
	lookAgain = 100 * time.Millisecond
	tellAgain = 5 * time.Second // then after twice as long each time
)

// slow is a compile that the controller says takes its time.
type slow struct {
	worker string
	begun  time.Time
}

// wait compiles on the cluster. The calling goroutine is on the thread of who asked,
// which may be Python's: that one hears how it goes and may interrupt it.
func (s *session) wait(spec client.CompileSpec) (*client.Remote, error) {
	var late atomic.Pointer[slow]
	spec.Slow = func(worker string, since time.Duration) { late.Store(&slow{worker, time.Now().Add(-since)}) }
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	var remote *client.Remote
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		remote, err = s.cluster.Compile(ctx, spec)
	}()
	t := progress{program: programName(spec.Code), next: 0}
	look := time.NewTicker(lookAgain)
	defer look.Stop()
	for {
		interrupted := false
		select {
		case <-done:
			if t.told && err == nil {
				t.tell(late.Load(), C.PR_COMPILED)
			} else if t.told {
				t.tell(late.Load(), C.PR_FAILED)
			}
			return remote, err
		case <-look.C:
			interrupted = bool(C.pr_interrupted())
		}
		l := late.Load()
		if l != nil && time.Since(l.begun) >= t.next {
			interrupted = t.tell(l, C.PR_COMPILING) || interrupted
			t.next = max(tellAgain, 2*t.next)
		}
		if !interrupted {
			continue
		}
		go func() { // it may stand behind a submission, which waits for room
			if <-done; err == nil {
				s.cluster.Forget(remote.ID)
			}
		}()
		where := "its worker goes on with it"
		if l != nil {
			if t.told {
				t.tell(l, C.PR_GIVEN_UP)
			}
			where = "worker " + l.worker + " goes on with it"
		}
		return nil, status.New(status.Cancelled, "compiling %s was interrupted; %s, since a compiler cannot be stopped midway, and what it makes is kept for the next time", t.program, where)
	}
}

// progress tells of one compile.
type progress struct {
	program string
	next    time.Duration // when to tell again
	told    bool
}

// tell reports whether who was told was interrupted.
func (t *progress) tell(l *slow, how C.int) bool {
	if l == nil || !bool(C.pr_tells_compiling()) {
		return false
	}
	t.told = true
	program, worker := C.CString(t.program), C.CString(l.worker)
	defer C.free(unsafe.Pointer(program))
	defer C.free(unsafe.Pointer(worker))
	return bool(C.pr_tell_compiling(program, worker, C.double(time.Since(l.begun).Seconds()), how))
}

// Names that JAX gives to modules begin with these.
var modulePrefixes = [][]byte{[]byte("jit_"), []byte("pmap_"), []byte("shmap_")}

// programName finds the name of a module in its text or bytecode, for people.
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
