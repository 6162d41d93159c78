package schedule

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/tracetest"
)

// TestTraces runs the scripts of testdata/traces. Each line of "steps" is an event, and the
// answer is the same line with the actions that follow from it beside it:
//
//	new [window=N] [share=N] [max-queued=N] [fair | threads=N [apart]]
//	steps
//	submit 1 [collective] on 0-7 [reads 4,5] [after 4,5] [session 2] [weight 2]
//	launched 1 | completed 1 [time 100] | failed 1 [message] | cancel 1 [message] | closed 2
//
// With threads, gangs are launched as they start.
func TestTraces(t *testing.T) {
	tracetest.Run(t, func(t *testing.T, d *datadriven.TestData) tracetest.Stage {
		var c Config
		fifo := new(FIFO)
		d.MaybeScanArgs(t, "window", &fifo.Window)
		d.MaybeScanArgs(t, "share", &fifo.Share)
		d.MaybeScanArgs(t, "max-queued", &c.MaxQueued)
		if c.Policy = fifo; d.HasArg("fair") {
			f := new(Fair)
			d.MaybeScanArgs(t, "window-time", &f.Window)
			c.Policy = f
		}
		threads := &Threads{Apart: d.HasArg("apart")}
		if d.MaybeScanArgs(t, "threads", &threads.Pool) {
			c.Policy = threads
		}
		return stage{New(c), threads.Pool > 0}
	})
}

type stage struct {
	*State
	launches bool
}

func (s stage) Event(w *strings.Builder, line string) error {
	ev, err := parseEvent(line)
	if err != nil {
		return err
	}
	actions := s.Step(ev, nil)
	clear(ev.Gang.Reads) // the caller's, which Step does not keep
	for s.More() {
		actions = s.Step(Event{Kind: Resume}, actions)
	}
	for i := 0; s.launches && i < len(actions); i++ {
		if actions[i].Kind == Start {
			actions = s.Step(Event{Kind: Launched, ID: actions[i].ID}, actions)
		}
	}
	s.check()
	fmt.Fprintf(w, "%-38s →%s\n", line, formatActions(actions))
	return nil
}

func (s stage) End(w *strings.Builder) {
	fmt.Fprintf(w, "queued %d, running %d\n", s.Queued(), s.Running())
}

func parseEvent(line string) (Event, error) {
	words := strings.Fields(line)
	if len(words) < 2 {
		return Event{}, errors.New("want an event and its gang or session")
	}
	id, err := strconv.ParseUint(words[1], 10, 64)
	if err != nil {
		return Event{}, err
	}
	ev := Event{ID: id}
	kinds := map[string]EventKind{"submit": Submit, "launched": Launched, "completed": Completed, "failed": Failed,
		"cancel": Cancel, "closed": SessionClosed}
	kind, ok := kinds[words[0]]
	if !ok {
		return ev, errors.New("no such event")
	}
	rest := words[2:]
	switch ev.Kind = kind; kind {
	case SessionClosed:
		ev.Session = uint32(id)
	case Failed, Cancel:
		if len(rest) > 0 {
			ev.Err = status.New(status.Unavailable, "%s", strings.Join(rest, " "))
		}
	case Completed:
		if len(rest) == 2 && rest[0] == "time" {
			ev.Time, err = strconv.ParseInt(rest[1], 10, 64)
		}
	case Submit:
		g := Gang{ID: id, Session: 1}
		if len(rest) > 0 && rest[0] == "collective" {
			g.Collective, rest = true, rest[1:]
		}
		for ; len(rest) >= 2 && err == nil; rest = rest[2:] {
			var n uint64
			switch rest[0] {
			case "on":
				g.Devices, err = parseDevices(rest[1])
			case "after":
				g.After, err = parseGangs(rest[1])
			case "reads":
				g.Reads, err = parseGangs(rest[1])
			case "session":
				n, err = strconv.ParseUint(rest[1], 10, 32)
				g.Session = uint32(n)
			case "weight":
				g.Tenant = &Tenant{ID: g.Session}
				g.Tenant.Weight, err = strconv.ParseFloat(rest[1], 64)
			case "cost":
				g.Cost, err = strconv.ParseInt(rest[1], 10, 64)
			default:
				err = fmt.Errorf("no such word: %q", rest[0])
			}
		}
		ev.Gang = g
	}
	return ev, err
}

func parseGangs(list string) (gangs []uint64, err error) {
	for p := range strings.SplitSeq(list, ",") {
		n, err := strconv.ParseUint(p, 10, 64)
		if err != nil {
			return nil, err
		}
		gangs = append(gangs, n)
	}
	return gangs, nil
}

func formatActions(actions []Action) string {
	var b strings.Builder
	for _, a := range actions {
		switch a.Kind {
		case Start:
			fmt.Fprintf(&b, " start %d", a.ID)
		case Fail:
			fmt.Fprintf(&b, " fail %d (%v: %v)", a.ID, status.CodeOf(a.Err), a.Err)
		case Refuse:
			fmt.Fprintf(&b, " refuse %d (%v)", a.ID, status.CodeOf(a.Err))
		}
	}
	return b.String()
}
