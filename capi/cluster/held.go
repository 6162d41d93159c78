package cluster

// #include "interpreter.h"
import "C"

import (
	"fmt"

	"github.com/openpathways/pathways/core/command"
	"github.com/openpathways/pathways/core/wire"
)

// tellHeld tells the user that an operation waits for other sessions, or that it goes on. It does not wait for Python.
func tellHeld(m *wire.Held) {
	go func() {
		if interrupt := tell(heldLine(m)); interrupt != nil { // which is for what waits, and that sees it by itself
			C.pw_python_drop(interrupt)
		}
	}()
}

// heldLine is what users are told.
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
