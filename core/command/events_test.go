package command

import (
	"bytes"
	"strings"
	"testing"

	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

// A reason of several lines, such as what a computation waited for that stood still, is shown on as many.
func TestEventsShowReasonsLineByLine(t *testing.T) {
	var out bytes.Buffer
	p := &program{out: &out}
	statustest.OK(t, p.showEvent(&wire.Report_Event{Kind: wire.EventStuck, Warn: true, Text: "aborted jit_step",
		Reason: "DEADLINE_EXCEEDED: it stood still\n  it waits for w1\x1b[2J"}, false))
	lines := strings.Split(out.String(), "\n")
	margin := strings.Repeat(" ", 33)
	if len(lines) != 4 || !strings.HasSuffix(lines[0], "stuck    aborted jit_step") ||
		lines[1] != margin+"DEADLINE_EXCEEDED: it stood still" || lines[2] != margin+"  it waits for w1·[2J" {
		t.Errorf("it shows\n%s", out.String())
	}
}
