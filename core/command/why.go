package command

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/openpathways/pathways/core/cluster"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

func (p *program) why() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "why [SESSION]",
		Short: "show what each session waits for, and what that waits for itself",
		Long: `Prints for each session with work under way, or for the one whose number is given, what it waits for: memory or
devices of other sessions, its turn behind other computations, a collective in which another worker is missing, a worker
that has stopped, or a function of its own client. Each line that is indented further says what the line above waits for;
the last one is the cause.

Where the client of a session runs on this machine and py-spy is installed, the Python stack of a function that does not
return is shown, too.`,
		Example: `  pathways why
  pathways why 4`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s := settings{cmd.Flags()}
			only := uint64(0)
			if len(args) == 1 {
				n, err := strconv.ParseUint(args[0], 10, 32)
				if err != nil || n == 0 {
					return usage{status.New(status.InvalidArgument, "%q is not the number of a session; `pathways status` lists them",
						args[0])}
				}
				only = n
			}
			address, secret, err := p.reach(s)
			if err != nil {
				return err
			}
			r, err := cluster.Ask(cmd.Context(), address, secret, &wire.Ask{})
			if err != nil {
				return err
			}
			lines, err := (&reasons{r: r, stack: stackOf}).all(cmd.Context(), uint32(only))
			for _, line := range lines {
				fmt.Fprintln(p.out, line)
			}
			return err
		},
	}
	takeAsking(cmd)
	return cmd
}

// reasons finds what sessions of a report wait for.
type reasons struct {
	r     *wire.Report
	stack stackLines
	lines []string
	seen  map[partOf]bool // what has been said of the chain that is followed
}

// stackLines returns the stack of a session's client, or how to see it.
type stackLines func(ctx context.Context, s *wire.Report_SessionReport) []string

// partOf is a worker's part in a gang.
type partOf struct{ worker, gang uint64 }

// silentFor is when a worker has said nothing for suspiciously long: three of the usual heartbeats.
const silentFor = 3000

// deepest bounds a chain.
const deepest = 16

func (w *reasons) say(depth int, format string, args ...any) {
	w.lines = append(w.lines, strings.Repeat("  ", depth)+wire.Clean(fmt.Sprintf(format, args...)))
}

// all returns the chains of a session, or of all.
//
// Errors: NOT_FOUND.
func (w *reasons) all(ctx context.Context, only uint32) ([]string, error) {
	found := false
	for _, s := range w.r.Sessions {
		if only != 0 && s.Session != only {
			continue
		}
		found = true
		if s.UnderWay > 0 || s.Held != nil || slices.ContainsFunc(w.r.SliceWaits, isOf(s)) {
			w.session(ctx, s)
		} else if only != 0 {
			w.say(0, "%s waits for nothing: no operation of it is under way", ownerText(s))
		}
	}
	switch {
	case !found && only != 0:
		return nil, status.New(status.NotFound, "there is no session %d; `pathways status` lists them", only)
	case len(w.lines) == 0:
		w.say(0, "no session waits for anything")
	}
	return w.lines, nil
}

func isOf(s *wire.Report_SessionReport) func(*wire.Report_SliceWait) bool {
	return func(q *wire.Report_SliceWait) bool { return q.Session == s.Session }
}

func ownerText(s *wire.Report_SessionReport) string {
	return wire.Owner(s.Session, s.Name, s.User, s.Host)
}

func (w *reasons) session(ctx context.Context, s *wire.Report_SessionReport) {
	w.say(0, "%s: %s under way", ownerText(s), status.Count(s.UnderWay, "operation"))
	said := len(w.lines)
	for i, q := range w.r.SliceWaits {
		if q.Session == s.Session {
			w.say(1, "waits %v for a slice of %s, as number %d in the queue: %s", age(q.SinceMs),
				status.Count(q.Devices, "device"), i+1, wire.LacksText(q.Holders))
		}
	}
	if h := s.Held; h.GetOperations() > 0 {
		w.say(1, "%s is held for %v, and %s behind it: it waits for %s", called(h.What, h.Line), age(h.SinceMs),
			status.Count(h.Operations-1, "operation"), WaitOf(h))
	}
	// Of several gangs that stand, the first may keep the others from beginning.
	gangs := map[uint64]bool{}
	for _, k := range w.r.EachWorker() {
		for _, at := range k.Last.GetStanding() {
			if at.Session == s.Session {
				gangs[at.Gang] = true
			}
		}
		for _, c := range k.Last.GetRunning() {
			if c.Session == s.Session {
				gangs[c.Gang] = true
			}
		}
	}
	for i, gang := range slices.Sorted(maps.Keys(gangs)) {
		if i == 1 {
			w.say(1, "%s after it on its devices", status.Count(len(gangs)-1, "computation"))
			break
		}
		w.gang(ctx, s, gang)
	}
	if len(w.lines) > said {
		return
	}
	w.say(1, "no device has reported that it computes or waits for this session: it goes on, or waits for its turn")
	for _, k := range w.r.EachWorker() {
		w.silent(k, 2)
	}
	w.others(s, 2)
}

// gang says what a computation, or another operation, of a session does on each worker.
func (w *reasons) gang(ctx context.Context, s *wire.Report_SessionReport, gang uint64) {
	w.seen = map[partOf]bool{}
	for _, k := range w.r.EachWorker() {
		w.part(ctx, s, k, gang, 1)
	}
}

// part says what a worker does with its part of a gang, and follows what it waits for.
func (w *reasons) part(ctx context.Context, s *wire.Report_SessionReport, k *wire.Report_Worker, gang uint64,
	depth int) {
	at := partOf{k.Process.GetNumber(), gang}
	if w.seen[at] || depth > deepest {
		return
	}
	stands := slices.DeleteFunc(slices.Clone(k.Last.GetStanding()), func(m *wire.Standing) bool { return m.Gang != gang })
	runs := slices.DeleteFunc(slices.Clone(k.Last.GetRunning()), func(c *wire.Running) bool { return c.Gang != gang })
	if len(stands)+len(runs) == 0 {
		return
	}
	w.seen[at] = true
	if w.silent(k, depth) {
		depth++
	}
	for _, m := range stands {
		what := called(cmp.Or(m.Program, fmt.Sprintf("operation %d", m.Gang)), m.Line)
		if m.At == "" {
			w.say(depth, "%s has not begun on %s of %s for %v: it waits for %s", what, deviceList(m.Devices),
				k.Process.GetName(), age(m.SinceMs), m.Awaits)
		} else {
			w.say(depth, "%s is in %s on %s of %s for %v: it waits for %s", what, m.At, deviceList(m.Devices),
				k.Process.GetName(), age(m.SinceMs), m.Awaits)
		}
		for _, process := range m.Processes {
			if m.At == wire.AtFunction {
				w.client(ctx, s, depth+1)
			} else {
				w.process(ctx, s, process, gang, depth+1)
			}
		}
		for _, d := range m.Missing {
			w.device(k, gang, d, depth+1)
		}
	}
	if len(stands) == 0 {
		for _, c := range runs {
			usually := ""
			if c.UsualMs > 0 {
				usually = fmt.Sprintf(", usually %v", age(c.UsualMs))
			}
			w.say(depth, "%s computes on %s of %s for %v%s", called(c.Program, c.Line), deviceList(c.Devices),
				k.Process.GetName(), age(c.SinceMs), usually)
		}
	}
}

// process says what another worker does that a part of a gang waits for.
func (w *reasons) process(ctx context.Context, s *wire.Report_SessionReport, process, gang uint64, depth int) {
	for _, k := range w.r.EachWorker() {
		if k.Process.GetNumber() != process {
			continue
		}
		if w.seen[partOf{process, gang}] {
			return // it is said of it
		}
		before := len(w.lines)
		w.part(ctx, s, k, gang, depth)
		if len(w.lines) > before {
			return
		}
		w.seen[partOf{process, gang}] = true
		if w.silent(k, depth) {
			return
		}
		w.say(depth, "%s has not reached it", k.Process.GetName())
		w.busy(k, nil, depth+1)
		return
	}
	w.say(depth, "process %d is not there any more: the computation fails as soon as that is known everywhere", process)
}

// client says that the session's client has not returned from a function.
func (w *reasons) client(ctx context.Context, s *wire.Report_SessionReport, depth int) {
	w.say(depth, "the client has not returned from a function that the computation called: a callback, or an input that "+
		"it makes")
	for _, line := range w.stack(ctx, s) {
		w.say(depth+1, "%s", line)
	}
}

// device says what a device does that has not come to a collective.
func (w *reasons) device(k *wire.Report_Worker, gang uint64, device uint32, depth int) {
	if !w.busy(k, func(devices []uint32, g uint64) bool { return g != gang && slices.Contains(devices, device) }, depth) {
		w.say(depth, "device %d of %s has not reached it: its computation has failed there, or takes longer", device,
			k.Process.GetName())
	}
}

// busy says what a worker does otherwise, and reports whether it does anything.
func (w *reasons) busy(k *wire.Report_Worker, only func(devices []uint32, gang uint64) bool, depth int) (is bool) {
	for _, c := range k.Last.GetRunning() {
		if only == nil || only(c.Devices, c.Gang) {
			is = true
			w.say(depth, "%s is busy with %s of %s for %v", k.Process.GetName(), called(c.Program, c.Line),
				wire.Owner(c.Session, c.Client, c.User, c.Host), age(c.SinceMs))
		}
	}
	return is
}

// others says what devices do for other sessions.
func (w *reasons) others(s *wire.Report_SessionReport, depth int) {
	for _, k := range w.r.EachWorker() {
		for _, c := range k.Last.GetRunning() {
			if c.Session != s.Session {
				w.say(depth, "%s of %s computes %s of %s for %v", deviceList(c.Devices), k.Process.GetName(),
					called(c.Program, c.Line), wire.Owner(c.Session, c.Client, c.User, c.Host), age(c.SinceMs))
			}
		}
	}
}

// silent says that a worker has said nothing for long, and reports whether it has.
func (w *reasons) silent(k *wire.Report_Worker, depth int) bool {
	if k.SilentMs < silentFor {
		return false
	}
	w.say(depth, "%s has said nothing for %v: it is stopped (kill -CONT resumes it), it hangs, or its machine cannot be "+
		"reached", k.Process.GetName(), age(k.SilentMs))
	return true
}

func called(what, line string) string {
	if line == "" {
		return what
	}
	return what + " (called at " + line + ")"
}

func deviceList(devices []uint32) string {
	if len(devices) == 1 {
		return "device " + numbers(devices)
	}
	return "devices " + numbers(devices)
}

// stackTakes bounds the time that py-spy may take.
const stackTakes = 5 * time.Second

// stackOf returns the Python stack of a session's client, by py-spy, if both are on this machine.
func stackOf(ctx context.Context, s *wire.Report_SessionReport) []string {
	_, pid, named := strings.Cut(s.Name, ":") // clients are named HOST:PID, unless they say otherwise
	host, _ := os.Hostname()
	if _, err := strconv.Atoi(pid); !named || err != nil {
		return nil
	}
	look := "py-spy dump --pid " + pid
	if s.Host != host {
		return []string{"to see where it is, on " + s.Host + ": " + look}
	}
	tool, err := exec.LookPath("py-spy")
	if err != nil {
		return []string{"to see where it is: pip install py-spy, and " + look}
	}
	ctx, cancel := context.WithTimeout(ctx, stackTakes)
	defer cancel()
	out, err := exec.CommandContext(ctx, tool, "dump", "--nonblocking", "--pid", pid).CombinedOutput()
	if err != nil {
		return []string{fmt.Sprintf("%s failed: %v: %s", look, err, strings.TrimSpace(string(out)))}
	}
	return strings.Split(strings.TrimRight(string(out), "\n"), "\n")
}
