// Package chain finds what a gang waits for: on each worker what its devices wait for, which worker has not come, and
// what that one does itself, down to the cause. It goes by a report and changes nothing; `pathways why` prints its
// lines, and a gang that is aborted because it stands still has them as its error.
//
// A Chain is for one goroutine. Commands and the controller import it.
package chain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// Chain is lines about what gangs of a report wait for.
type Chain struct {
	Report *wire.Report
	Stack  func(*wire.Report_SessionReport) []string // of the session's client, or how to see it; nil: nothing is said
	Ended  map[uint64]bool                           // processes that have reported the end of their part of the gang
	Lines  []string

	Silents map[uint64]bool // processes of which lines say that they say nothing; nil: it is not recorded

	seen map[partOf]bool // what has been said of the gang
}

// partOf is a worker's part in a gang.
type partOf struct{ worker, gang uint64 }

// deepest bounds a chain.
const deepest = 16

// Quiet is how long a worker says nothing before that looks wrong, where it is to be heard of once a heartbeat: three
// of them, but no shorter than a busy machine may keep a process waiting. Both are in milliseconds.
func Quiet(heartbeat int64) int64 { return max(1000, 3*cmp.Or(heartbeat, 1000)) }

// longIdle is for how many milliseconds a process of devices that compute must be idle before that looks wrong.
const longIdle = 5000

// Say adds a line.
func (c *Chain) Say(depth int, format string, args ...any) {
	c.Lines = append(c.Lines, strings.Repeat("  ", depth)+wire.Clean(fmt.Sprintf(format, args...)))
}

// Gang says what a computation, or another operation, of a session does on each worker.
func (c *Chain) Gang(s *wire.Report_SessionReport, gang uint64) {
	c.seen = map[partOf]bool{}
	for _, k := range c.Report.EachWorker() {
		c.part(s, k, gang, 1)
	}
	for _, k := range c.Report.EachWorker() {
		c.More(k, 1)
	}
}

// More says how much a worker does of which the report does not tell, if there is anything.
func (c *Chain) More(k *wire.Report_Worker, depth int) {
	if more := k.Last.GetMoreStanding() + k.Last.GetMoreRunning(); more > 0 {
		c.Say(depth, "%s computes, or waits in, %s more, of which it does not tell", k.Process.GetName(),
			status.Count(more, "operation"))
	}
}

// part says what a worker does with its part of a gang, and follows its waits.
func (c *Chain) part(s *wire.Report_SessionReport, k *wire.Report_Worker, gang uint64, depth int) {
	at := partOf{k.Process.GetNumber(), gang}
	if c.seen[at] || depth > deepest {
		return
	}
	stands := slices.DeleteFunc(slices.Clone(k.Last.GetStanding()), func(m *wire.Standing) bool { return m.Gang != gang })
	runs := slices.DeleteFunc(slices.Clone(k.Last.GetRunning()), func(r *wire.Running) bool { return r.Gang != gang })
	if len(stands)+len(runs) == 0 {
		return
	}
	c.seen[at] = true
	if c.Silent(k, true, depth) {
		depth++
	}
	for _, m := range stands {
		what := Called(cmp.Or(m.Program, fmt.Sprintf("operation %d", m.Gang)), m)
		if m.At == "" {
			c.Say(depth, "%s has not begun on %s of %s for %v: it waits for %s", what, DeviceList(m.Devices),
				k.Process.GetName(), wire.Age(m.SinceMs), m.Awaits)
		} else {
			c.Say(depth, "%s is in %s on %s of %s for %v: it waits for %s", what, m.At, DeviceList(m.Devices),
				k.Process.GetName(), wire.Age(m.SinceMs), m.Awaits)
		}
		for _, process := range m.Processes {
			if m.At == wire.AtFunction {
				c.client(s, depth+1)
			} else {
				c.process(s, process, gang, depth+1)
			}
		}
		if m.MoreProcesses > 0 {
			c.Say(depth+1, "and for %s more", status.Count(m.MoreProcesses, "process"))
		}
		for _, d := range m.Missing {
			c.device(k, gang, d, depth+1)
		}
	}
	if len(stands) == 0 {
		for _, r := range runs {
			usually := ""
			if r.UsualMs > 0 {
				usually = fmt.Sprintf(", usually %v", wire.Age(r.UsualMs))
			}
			c.Say(depth, "%s computes on %s of %s for %v%s", Called(r.Program, r), DeviceList(r.Devices),
				k.Process.GetName(), wire.Age(r.SinceMs), usually)
			if idle := min(k.Last.GetIdleMs(), r.SinceMs); idle >= longIdle && len(k.Devices) > 1 {
				c.Say(depth+1, "%s has used hardly any processor time for %v: its devices may wait for each other in a "+
					"collective; after 60s of that, XLA ends the worker's process", k.Process.GetName(), wire.Age(idle))
			}
		}
	}
}

// process says what another worker does that a part of a gang waits for.
func (c *Chain) process(s *wire.Report_SessionReport, process, gang uint64, depth int) {
	for _, k := range c.Report.EachWorker() {
		if k.Process.GetNumber() != process {
			continue
		}
		if c.seen[partOf{process, gang}] {
			return // it is said of it
		}
		before := len(c.Lines)
		c.part(s, k, gang, depth)
		if len(c.Lines) > before {
			return
		}
		c.seen[partOf{process, gang}] = true
		switch {
		case c.Silent(k, true, depth):
		case c.Ended[process]:
			c.Say(depth, "%s has ended its part without it: devices took different ways through the program",
				k.Process.GetName())
		default:
			c.Say(depth, "%s has not reached it", k.Process.GetName())
			c.busy(k, nil, depth+1)
		}
		return
	}
	c.Say(depth, "process %d is not there any more: the computation fails as soon as that is known everywhere", process)
}

// client says that the session's client has not returned from a function.
func (c *Chain) client(s *wire.Report_SessionReport, depth int) {
	c.Say(depth, "the client has not returned from a function that the computation called: a callback, or an input that "+
		"it makes")
	if c.Stack == nil {
		return
	}
	for _, line := range c.Stack(s) {
		c.Say(depth+1, "%s", line)
	}
}

// device says what a device does that has not reached a collective. If it stands elsewhere in the same gang, a line of
// its own says where.
func (c *Chain) device(k *wire.Report_Worker, gang uint64, device uint32, depth int) {
	computes := false
	for _, m := range k.Last.GetStanding() {
		if m.Gang == gang && slices.Contains(m.Devices, device) {
			return
		}
	}
	for _, r := range k.Last.GetRunning() {
		computes = computes || r.Gang == gang && slices.Contains(r.Devices, device)
	}
	switch {
	case computes:
		c.Say(depth, "device %d of %s has not reached it yet: its part is under way there", device, k.Process.GetName())
	case c.busy(k, func(devices []uint32, g uint64) bool { return g != gang && slices.Contains(devices, device) }, depth):
	case k.Last.GetMoreStanding()+k.Last.GetMoreRunning() > 0:
		c.Say(depth, "device %d of %s has not reached it", device, k.Process.GetName())
	default:
		c.Say(depth, "device %d of %s has ended its part without it: it has failed there, or devices took different ways "+
			"through the program", device, k.Process.GetName())
	}
}

// busy says what else a worker does, and reports whether it does anything.
func (c *Chain) busy(k *wire.Report_Worker, only func(devices []uint32, gang uint64) bool, depth int) (is bool) {
	for _, r := range k.Last.GetRunning() {
		if only == nil || only(r.Devices, r.Gang) {
			is = true
			c.Say(depth, "%s is busy with %s of %s for %v", k.Process.GetName(), Called(r.Program, r),
				wire.Owner(r.Session, r.Client, r.User, r.Host), wire.Age(r.SinceMs))
		}
	}
	return is
}

// Silent says that a worker has said nothing for long, and when what waits for it ends: of elsewhere, that is something
// which waits on other workers, too. It reports whether the worker has said nothing.
func (c *Chain) Silent(k *wire.Report_Worker, elsewhere bool, depth int) bool {
	if k.SilentMs < Quiet(c.Report.HeartbeatMs) {
		return false
	}
	resume := "kill -CONT"
	if k.Pid != 0 {
		resume += fmt.Sprintf(" %d", k.Pid)
	}
	c.Say(depth, "%s has said nothing for %v: it is stopped (%s resumes it), it hangs, other work leaves it no "+
		"processor, or its machine cannot be reached", k.Process.GetName(), wire.Age(k.SilentMs), resume)
	if c.Silents != nil {
		c.Silents[k.Process.GetNumber()] = true
	}
	var ends []string
	if after := c.Report.StuckAfterMs; elsewhere && after > 0 && (k.LostInMs == 0 || after < k.SilentMs+k.LostInMs) {
		ends = append(ends, fmt.Sprintf("what stands still on other workers, too, is aborted after %v (--stuck-after)",
			wire.Age(after)))
	}
	if k.LostInMs > 0 {
		ends = append(ends, fmt.Sprintf("it is lost in %v, and what waits for it fails then", wire.Age(k.LostInMs)))
	}
	if len(ends) > 0 {
		c.Say(depth+1, "unless it goes on, %s", strings.Join(ends, "; "))
	}
	return true
}

// Called names a program, or another thing that was called, with the line that a message has of it.
func Called(what string, m interface {
	GetLine() string
	GetFirstCall() bool
}) string {
	if called := wire.Called(m.GetLine(), m.GetFirstCall()); called != "" {
		return what + " (" + called + ")"
	}
	return what
}

// DeviceList names devices of a worker.
func DeviceList(devices []uint32) string {
	if len(devices) == 1 {
		return "device " + wire.Numbers(devices)
	}
	return "devices " + wire.Numbers(devices)
}
