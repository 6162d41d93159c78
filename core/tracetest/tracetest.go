// Package tracetest runs scripts against state machines: each line of a script is an event, and what
// follows from it stands beside or below. Tests alone import it.
package tracetest

import (
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// Stage is a state machine with what surrounds it in a test.
type Stage interface {
	// Event has the event of a line happen, and writes the line with what follows from it.
	Event(w *strings.Builder, line string) error
	// End writes what stands behind the last line.
	End(w *strings.Builder)
}

// Run runs all scripts of testdata/traces. Their command "new" makes a stage with its arguments,
// and "steps" has events happen on it. `go test -run TestTraces -args -rewrite` writes the scripts
// again, with what follows now.
func Run(t *testing.T, open func(t *testing.T, d *datadriven.TestData) Stage) {
	datadriven.Walk(t, "testdata/traces", func(t *testing.T, path string) {
		var s Stage
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "new":
				s = open(t, d)
				return ""
			case "steps":
				var w strings.Builder
				for line := range strings.SplitSeq(d.Input, "\n") {
					if err := s.Event(&w, line); err != nil {
						d.Fatalf(t, "%q: %v", line, err)
					}
				}
				s.End(&w)
				return w.String()
			}
			d.Fatalf(t, "unknown command %q", d.Cmd)
			return ""
		})
	})
}
