package command

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/openpathways/pathways/core/chain"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

func (p *program) why() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "why [SESSION]",
		Short: "show what each session waits for, down to the cause",
		Long: `Prints what each session with work in flight, or the given one, waits for: memory or devices of other sessions, its
turn behind other computations, a collective in which another worker is missing, a stopped worker, or a function of its
own client. Each indented line says what the line above waits for; the last one is the cause.

If the client runs on this machine and py-spy is installed, beside this command or on PATH, the Python stack of a
function that does not return is printed, too.`,
		Example: `  pathways why
  pathways why 4`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			only := uint64(0)
			if len(args) == 1 {
				n, err := strconv.ParseUint(args[0], 10, 32)
				if err != nil || n == 0 {
					return usage{status.New(status.InvalidArgument, "%q is not the number of a session; `pathways status` lists them",
						args[0])}
				}
				only = n
			}
			r, err := p.report(cmd)
			if err != nil {
				return err
			}
			lines, err := (&reasons{chain.Chain{Report: r, Stack: func(s *wire.Report_SessionReport) []string {
				return p.stackOf(cmd.Context(), s)
			}}}).all(uint32(only))
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
type reasons struct{ chain.Chain }

// all returns the chains of a session, or of all.
//
// Errors: NOT_FOUND.
func (w *reasons) all(only uint32) ([]string, error) {
	found := false
	if w.Report.Waits != "" {
		w.Say(0, "%s", w.Report.Waits) // it does not know what sessions have under way
		return w.Lines, nil
	}
	for _, s := range w.Report.Sessions {
		if only != 0 && s.Session != only {
			continue
		}
		found = true
		if s.UnderWay > 0 || s.Held != nil || s.Unanswered != nil || slices.ContainsFunc(w.Report.SliceWaits, isOf(s)) {
			w.session(s)
		} else if only != 0 {
			w.Say(0, "%s waits for nothing: no operation of it is under way", ownerText(s))
		}
	}
	switch {
	case !found && only != 0:
		return nil, status.New(status.NotFound, "there is no session %d; `pathways status` lists them", only)
	case len(w.Lines) == 0:
		w.Say(0, "no session waits for anything")
	}
	return w.Lines, nil
}

func isOf(s *wire.Report_SessionReport) func(*wire.Report_SliceWait) bool {
	return func(q *wire.Report_SliceWait) bool { return q.Session == s.Session }
}

func ownerText(s *wire.Report_SessionReport) string {
	return wire.Owner(s.Session, s.Name, s.User, s.Host)
}

func (w *reasons) session(s *wire.Report_SessionReport) {
	w.Say(0, "%s: %s under way", ownerText(s), status.Count(s.UnderWay, "operation"))
	said := len(w.Lines)
	w.Silents = map[uint64]bool{}
	for i, q := range w.Report.SliceWaits {
		if q.Session == s.Session {
			w.Say(1, "waits %v for a slice of %s, as number %d in the queue: %s", wire.Age(q.SinceMs),
				status.Count(q.Devices, "device"), i+1, wire.LacksText(q))
		}
	}
	if h := s.Held; h.GetOperations() > 0 {
		also := ""
		if h.Operations > 1 {
			also = ", and " + status.Count(h.Operations-1, "operation") + " behind it"
		}
		w.Say(1, "%s is held for %v%s: it waits for %s", chain.Called(h.What, h), wire.Age(h.SinceMs), also, WaitOf(h))
	}
	// Of several gangs that stand, the first may keep the others from beginning.
	gangs := map[uint64]bool{}
	for _, k := range w.Report.EachWorker() {
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
			w.Say(1, "%s after it on its devices", status.Count(len(gangs)-1, "computation"))
			break
		}
		w.Gang(s, gang)
	}
	for _, u := range s.Unanswered {
		if !w.Silents[u.Worker] {
			w.unanswered(u)
		}
	}
	if len(w.Lines) > said {
		return
	}
	w.Say(1, "no device has reported that it computes or waits for this session: it goes on, or waits for its turn")
	w.others(s)
}

// unanswered says what waits for a worker that says nothing, and for how long yet.
func (w *reasons) unanswered(u *wire.Report_Unanswered) {
	for _, k := range w.Report.EachWorker() {
		if k.Process.GetNumber() != u.Worker {
			continue
		}
		also, wait := "", "waits"
		if u.Operations > 1 {
			also, wait = fmt.Sprintf(", and %s after it,", status.Count(u.Operations-1, "operation")), "wait"
		}
		w.Say(1, "%s%s %s for %s", chain.Called(u.What, u), also, wait, k.Process.GetName())
		w.Silent(k, u.Elsewhere, 2)
	}
}

// others says what devices do for other sessions.
func (w *reasons) others(s *wire.Report_SessionReport) {
	for _, k := range w.Report.EachWorker() {
		for _, c := range k.Last.GetRunning() {
			if c.Session != s.Session {
				computes := "computes"
				if len(c.Devices) > 1 {
					computes = "compute"
				}
				w.Say(2, "%s of %s %s %s of %s for %v", chain.DeviceList(c.Devices), k.Process.GetName(), computes,
					chain.Called(c.Program, c), wire.Owner(c.Session, c.Client, c.User, c.Host), wire.Age(c.SinceMs))
			}
		}
		w.More(k, 2)
	}
}

// stackTakes bounds the time that py-spy may take.
const stackTakes = 5 * time.Second

// stackOf returns the Python stack of a session's client, by py-spy, if both are on this machine.
func (p *program) stackOf(ctx context.Context, s *wire.Report_SessionReport) []string {
	_, pid, named := strings.Cut(s.Name, ":") // clients are named HOST:PID, unless they say otherwise
	host, _ := os.Hostname()
	if _, err := strconv.Atoi(pid); !named || err != nil {
		return nil
	}
	look := "py-spy dump --pid " + pid
	if s.Host != host {
		return []string{"to see where it is, on " + s.Host + ": " + look}
	}
	tool := p.tool("py-spy")
	if tool == "" {
		return []string{"to see where it is: pip install py-spy, and " + look}
	}
	ctx, cancel := context.WithTimeout(ctx, stackTakes)
	defer cancel()
	dump := exec.CommandContext(ctx, tool, "dump", "--nonblocking", "--pid", pid)
	// It may be a script, whose own child would keep the output open.
	dump.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	dump.Cancel = func() error { return syscall.Kill(-dump.Process.Pid, syscall.SIGKILL) }
	out, err := dump.CombinedOutput()
	if err != nil {
		return []string{fmt.Sprintf("%s failed: %v: %s", look, err, strings.TrimSpace(string(out)))}
	}
	return strings.Split(strings.TrimRight(string(out), "\n"), "\n")
}

// tool returns the path of an installed tool: from beside this command's Python, whose environment need not be active,
// or from PATH. It returns "" if there is none.
func (p *program) tool(name string) string {
	if len(p.Self) > 0 && filepath.IsAbs(p.Self[0]) {
		if path, err := exec.LookPath(filepath.Join(filepath.Dir(p.Self[0]), name)); err == nil {
			return path
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return ""
	}
	return path
}
