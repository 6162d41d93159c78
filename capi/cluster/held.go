package cluster

// #include "interpreter.h"
import "C"

import (
	"fmt"
	"sync"

	"github.com/openpathways/pathways/core/command"
	"github.com/openpathways/pathways/core/wire"
)

// tellHeld tells the user that an operation waits for other sessions, or that it goes on. It does not wait for Python.
func tellHeld(m *wire.Held) { heldLines.add(heldLine(m)) }

var heldLines = lines{say: func(line string) {
	if interrupt := tell(line); interrupt != nil { // which is for what waits, and that sees it by itself
		C.pw_python_drop(interrupt)
	}
}}

// lines has lines said in the order in which they came, by a goroutine that is there as long as there are any. Its
// methods may be called from any goroutine, and do not wait.
type lines struct {
	say func(line string) // may wait for Python

	mu     sync.Mutex // guards the rest
	next   []string
	saying bool
}

// maxLines bounds the lines that wait for Python. Of more, the oldest are not said.
const maxLines = 64

func (l *lines) add(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.next) == maxLines {
		l.next = l.next[1:]
	}
	l.next = append(l.next, line)
	if !l.saying {
		l.saying = true
		go l.sayAll()
	}
}

func (l *lines) sayAll() {
	for {
		l.mu.Lock()
		if len(l.next) == 0 {
			l.next, l.saying = nil, false
			l.mu.Unlock()
			return
		}
		line := l.next[0]
		l.next = l.next[1:]
		l.mu.Unlock()
		l.say(line)
	}
}

// heldLine returns the line that users see.
func heldLine(m *wire.Held) string {
	h := m.Held
	seconds := float64(h.SinceMs) / 1e3
	if m.GoesOn {
		return fmt.Sprintf("%s goes on after %.0f s", h.What, seconds)
	}
	line := fmt.Sprintf("%s has waited %.0f s: it needs %s, and waits for %s", h.What, seconds, command.NeedOf(h),
		command.WaitOf(h))
	if m.FailsInMs > 0 {
		line += fmt.Sprintf("; it fails in %.0f s if there is never enough", float64(m.FailsInMs)/1e3)
	}
	return line
}
