package assembly

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/tracetest"
)

// TestTraces runs the scripts of testdata/traces. Each line of "steps" is an event, and the action
// that answers it stands beside it.
//
//	new [sends=N] [here=N] [away=N]
//	steps
//	begin | refuse | came | came away | failed MESSAGE | failed away MESSAGE | ended [MESSAGE]
func TestTraces(t *testing.T) {
	tracetest.Run(t, func(t *testing.T, d *datadriven.TestData) tracetest.Stage {
		var sends, here, away int
		d.MaybeScanArgs(t, "sends", &sends)
		d.MaybeScanArgs(t, "here", &here)
		d.MaybeScanArgs(t, "away", &away)
		return &stage{New(sends, here, away)}
	})
}

type stage struct{ part Part }

func (s *stage) Event(w *strings.Builder, line string) error {
	word, rest, _ := strings.Cut(line, " ")
	var e Event
	switch word {
	case "begin":
		e.Kind = Begin
	case "refuse":
		e.Kind = Refuse
	case "came", "failed":
		e.Kind = Came
		after, ok := strings.CutPrefix(rest, "away")
		e.Away, rest = ok, strings.TrimSpace(after)
	case "ended":
		e.Kind = Ended
	default:
		return status.New(status.InvalidArgument, "no such event")
	}
	if rest != "" {
		e.Err = status.New(status.Internal, "%s", rest)
	}
	a := s.part.Step(e)
	fmt.Fprintf(w, "%-30s →%s", line, names[a])
	switch {
	case a == Fail:
		fmt.Fprintf(w, ": %v", s.part.Spoilt())
	case a == End && s.part.Err() != nil:
		fmt.Fprintf(w, ": %v", s.part.Err())
	}
	w.WriteString("\n")
	return nil
}

func (s *stage) End(*strings.Builder) {}

var names = map[Action]string{None: "", Expect: " expect", Make: " make", Fail: " fail", Drop: " drop", End: " end"}
