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
//	new [window=N] [share=N] [max-queued=N] [fair]
//	steps
//	submit 1 on 0-7 [after 4,5] [session 2] [weight 2]
//	launched 1 | completed 1 [time 100] | failed 1 [message] | cancel 1 [message] | closed 2
func TestTraces(t *testing.T) {
	tracetest.Run(t, func(t *testing.T, d *datadriven.TestData) tracetest.Stage {
		var c Config
		fifo := new(FIFO)
		d.MaybeScanArgs(t, "window", &fifo.Window)
		d.MaybeScanArgs(t, "share", &fifo.Share)
		d.MaybeScanArgs(t, "max-queued", &c.MaxQueued)
		if c.Policy = fifo; d.HasArg("fair") {
			f := newFair(0)
			d.MaybeScanArgs(t, "window-time", &f.window)
			c.Policy = f
		}
		return stage{New(c)}
	})
}

type stage struct{ *State }

func (s stage) Event(w *strings.Builder, line string) error {
	ev, err := parseEvent(line)
	if err != nil {
		return err
	}
	actions := s.Step(ev, nil)
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
		for ; len(rest) >= 2 && err == nil; rest = rest[2:] {
			var n uint64
			switch rest[0] {
			case "on":
				g.Devices, err = parseDevices(rest[1])
			case "after":
				for p := range strings.SplitSeq(rest[1], ",") {
					if n, err = strconv.ParseUint(p, 10, 64); err != nil {
						break
					}
					g.After = append(g.After, n)
				}
			case "session":
				n, err = strconv.ParseUint(rest[1], 10, 32)
				g.Session = uint32(n)
			case "weight":
				g.Weight, err = strconv.ParseFloat(rest[1], 64)
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

func formatActions(actions []Action) string {
	var b strings.Builder
	for _, a := range actions {
		switch a.Kind {
		case Start:
			fmt.Fprintf(&b, " start %d", a.ID)
		case Fail:
			fmt.Fprintf(&b, " fail %d (by %d, %v: %v)", a.ID, a.Cause, status.CodeOf(a.Err), a.Err)
		case Refuse:
			fmt.Fprintf(&b, " refuse %d (%v)", a.ID, status.CodeOf(a.Err))
		}
	}
	return b.String()
}

// fair shares device time by weight among sessions, and stops while the gangs that
// it placed fill a window of device time. It is here to show that Policy can say so.
type fair struct {
	window int64 // nanoseconds; 0 is no bound
	filled int64
	order  []uint32 // sessions, as they came
	queues map[uint32][]*Gang
	used   map[uint32]float64 // device time by weight
	cost   map[uint64]int64   // as placed
}

func newFair(window int64) *fair {
	return &fair{window: window, queues: map[uint32][]*Gang{}, used: map[uint32]float64{}, cost: map[uint64]int64{}}
}

func (f *fair) Push(g *Gang) {
	if _, ok := f.queues[g.Session]; !ok {
		f.order = append(f.order, g.Session)
	}
	f.queues[g.Session] = append(f.queues[g.Session], g)
}

func (f *fair) Pop() *Gang {
	if f.window > 0 && f.filled >= f.window {
		return nil
	}
	var best []*Gang
	for _, session := range f.order {
		q := f.queues[session]
		if len(q) > 0 && (best == nil || f.used[session] < f.used[best[0].Session]) {
			best = q
		}
	}
	if best == nil {
		return nil
	}
	g := best[0]
	f.queues[g.Session] = best[1:]
	f.cost[g.ID] = g.Cost
	f.filled += g.Cost
	f.used[g.Session] += float64(g.Cost) / max(g.Weight, 1)
	return g
}

func (f *fair) Remove(g *Gang) {
	q := f.queues[g.Session]
	for i := range q {
		if q[i] == g {
			f.queues[g.Session] = append(q[:i:i], q[i+1:]...)
			return
		}
	}
}

func (f *fair) Done(g *Gang, time int64) {
	cost := f.cost[g.ID]
	delete(f.cost, g.ID)
	f.filled -= cost
	f.used[g.Session] += float64(time-cost) / max(g.Weight, 1)
}
