package command

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/openpathways/pathways/core/cluster"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

func (p *program) status() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "show the islands, workers, devices and sessions of a cluster",
		Long: `Prints what a cluster has and does now: its workers with their devices and memory, its tenants, its sessions with
their arrays, memory and device time, the programs that have taken most device time, and the computations that run.
Further tables appear when there is something to show: operations that wait for memory, slices and the requests for
them, broken connections, and devices that have been waiting for long.

Memory in use is what the device's plugin reports. Admitted memory is what the controller counts, from the admission of
an operation until its arrays are freed; it may exceed the memory in use while operations wait for their turn.`,
		Example: `  pathways status
  pathways status --json | jq '.sessions[] | .name'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			s := settings{cmd.Flags()}
			address, secret, err := p.controllerOf(s)
			if err != nil {
				return err
			}
			report, err := p.ask(cmd.Context(), address, secret, nil)
			if err != nil {
				return err
			}
			if c, ok := placeAt(address); ok {
				report.Supervisor = c.report()
			}
			if s.flag("json") {
				return p.printJSON(json.RawMessage(wire.AppendJSON(nil, report)))
			}
			return p.show(report, address)
		},
	}
	takeAsking(cmd, "json")
	return cmd
}

func (p *program) address() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "address",
		Short: "print the address of a cluster that `pathways up` started, for PATHWAYS_ADDRESS",
		Long: `Prints the address of a cluster on this machine, and fails if there is none. Scripts that find it in
PATHWAYS_ADDRESS use the cluster's devices.`,
		Example: `  export PATHWAYS_ADDRESS=$(pathways address)
  PATHWAYS_ADDRESS=$(pathways address --cluster two) python train.py`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := p.placeOf(settings{cmd.Flags()})
			if err != nil {
				return err
			}
			if err := c.found(); err != nil {
				return err
			}
			fmt.Fprintln(p.out, c.address())
			return nil
		},
	}
	take(cmd, "cluster", "dir")
	return cmd
}

// reach returns the controller's address and the credentials for it.
func (p *program) reach(s settings) (string, cluster.Secret, error) {
	c, err := p.placeOf(s)
	if err != nil {
		return "", cluster.Secret{}, err
	}
	address := s.text("address")
	if address == "" {
		address = c.address()
	}
	secret, err := p.secret(s, c)
	return address, secret, err
}

// controllerOf is reach for a command that asks a controller.
//
// Errors: NOT_FOUND if the options name a cluster of this machine that is not there.
func (p *program) controllerOf(s settings) (string, cluster.Secret, error) {
	address, secret, err := p.reach(s)
	if c, ok := placeAt(address); err == nil && ok && s.text("address") == "" {
		err = c.found()
	}
	return address, secret, err
}

// report asks the controller that a command's options name for its report.
func (p *program) report(cmd *cobra.Command) (*wire.Report, error) {
	address, secret, err := p.controllerOf(settings{cmd.Flags()})
	if err != nil {
		return nil, err
	}
	return p.ask(cmd.Context(), address, secret, &wire.Ask{})
}

// platformOf returns what follows the number of a session's devices: their platform, where the cluster has several.
func platformOf(r *wire.Report, s *wire.Report_SessionReport) string {
	if slices.ContainsFunc(r.Islands, func(i *wire.Report_Island) bool { return i.Platform != r.Islands[0].Platform }) {
		return " × " + strings.Join(s.Platforms, ", ")
	}
	return ""
}

func (p *program) show(r *wire.Report, address string) error {
	fmt.Fprintf(p.out, "cluster %s at %s, up %v, %s so far\n\n", r.Cluster, address, wire.Age(r.UptimeMs),
		status.Count(r.Gangs, "gang"))
	if r.Waits != "" {
		fmt.Fprintf(p.out, "%s. Until then, it does not know what they have.\n\n", wire.Clean(r.Waits))
	}
	w := p.table()
	showWorkers(w, r)
	showSupervisor(w, r.Supervisor)
	fmt.Fprintln(w)
	if len(r.Tenants) > 0 {
		showTenants(w, r)
		fmt.Fprintln(w)
	}
	if len(r.Sessions) == 0 {
		fmt.Fprintln(w, "no sessions")
	}
	showSessions(w, r)
	if r.Compiled > 0 {
		fmt.Fprintf(w, "\n%s compiled: %s kept by the controller, %s by workers\n", status.Count(r.Compiled, "program"),
			size(r.CompiledBytes), size(r.ArtifactBytes))
	}
	showPrograms(w, r)
	showHeld(w, r)
	showMemory(w, r)
	showRefused(w, r)
	showSlices(w, r)
	showLacks(w, r)
	showQueue(w, r, "\n")
	showRunning(w, r)
	showLinks(w, r)
	showPeerLinks(w, r)
	showApart(w, r)
	showWaits(w, r)
	return w.Flush()
}

// showWorkers prints the islands and their workers.
func showWorkers(w io.Writer, r *wire.Report) {
	fmt.Fprintln(w, "ISLAND\tWORKER\tPID\tDEVICES\tMEMORY IN USE\tOBJECTS\tGANGS\tLAST HEARD\tCONNECTION\tTO OTHERS")
	for i, k := range r.EachWorker() {
		kind := ""
		if len(k.Devices) > 0 {
			kind = k.Devices[0].Kind
		}
		fmt.Fprintf(w, "%s (%s)\t%s\t%s\t%d × %s\t%s\t%d\t%d\t%v ago\t%s\t%d up\n", i.Name, i.Platform,
			k.Process.GetName(), pidOf(k), len(k.Devices), kind, size(sum(k.Last.GetMemoryInUse())), k.Last.GetObjects(),
			k.Gangs, wire.Age(k.SilentMs), stateOf(k.Link), k.Last.GetConnected())
	}
	if len(r.Islands) == 0 {
		fmt.Fprintln(w, "no workers yet")
	}
}

// pidOf returns the number of a worker's process on its machine; "?" if it did not say.
func pidOf(k *wire.Report_Worker) string {
	if k.Pid == 0 {
		return "?"
	}
	return fmt.Sprint(k.Pid)
}

// showSessions prints the sessions, if there are any.
func showSessions(w io.Writer, r *wire.Report) {
	head, tenant := tenantsColumn(r)
	rows := section{w, "SESSION\tCLIENT\tUSER\tHOST" + head + "\t" + sessionUse + "\tAGE\tCONNECTION\n"}
	for _, s := range r.Sessions {
		rows.printf("%d\t%s\t%s\t%s%s\t%s\t%v\t%s\n", s.Session, s.Name, cmp.Or(s.User, "?"), cmp.Or(s.Host, "?"),
			tenant(s), useOf(r, s), wire.Age(s.AgeMs), stateOf(s.Link))
	}
}

// showSession prints one session in two tables, each of which fits on a terminal of 80 columns.
func showSession(w io.Writer, r *wire.Report, s *wire.Report_SessionReport) {
	head, tenant := tenantsColumn(r)
	fmt.Fprintf(w, "SESSION\tCLIENT\tUSER\tHOST%s\tAGE\tCONNECTION\n%d\t%s\t%s\t%s%s\t%v\t%s\n", head,
		s.Session, s.Name, cmp.Or(s.User, "?"), cmp.Or(s.Host, "?"), tenant(s), wire.Age(s.AgeMs), stateOf(s.Link))
	fmt.Fprintf(w, "\n%s\n%s\n", sessionUse, useOf(r, s))
}

// sessionUse is the head of the columns that useOf fills: what a session has and has used.
const sessionUse = "DEVICES\tOBJECTS\tMEMORY\tHOST MEMORY\tPROGRAMS\tUNDER WAY\tDEVICE TIME"

func useOf(r *wire.Report, s *wire.Report_SessionReport) string {
	return fmt.Sprintf("%d%s\t%d\t%s\t%s\t%d\t%d\t%v", len(s.Bytes), platformOf(r, s), s.Objects, size(sum(s.Bytes)),
		size(s.HostBytes), s.Programs, s.UnderWay, deviceTime(s.DeviceNs))
}

// tenantsColumn returns the head of a column with sessions' tenants, and its cells. Both are empty where the
// cluster has no file of tenants.
func tenantsColumn(r *wire.Report) (head string, cell func(*wire.Report_SessionReport) string) {
	if len(r.Tenants) == 0 {
		return "", func(*wire.Report_SessionReport) string { return "" }
	}
	return "\tTENANT", func(s *wire.Report_SessionReport) string { return "\t" + s.Tenant }
}

// shownPrograms is how many programs the text shows: on most clusters, those that matter.
const shownPrograms = 8

// showPrograms prints the programs that have taken most device time, if any have run.
func showPrograms(w io.Writer, r *wire.Report) {
	if len(r.Programs) == 0 {
		return
	}
	fmt.Fprintln(w, "\nPROGRAM\tDEVICES\tRUNS\tUSUALLY\tDEVICE TIME")
	for _, p := range r.Programs[:min(shownPrograms, len(r.Programs))] {
		fmt.Fprintf(w, "%s\t%d\t%d\t%v\t%v\n", p.Name, p.Devices, p.Runs, short(p.UsualNs), deviceTime(p.DeviceNs))
	}
	if more := len(r.Programs) - shownPrograms + int(r.MorePrograms); more > 0 {
		fmt.Fprintf(w, "and %d more\n", more)
	}
}

// deviceTime writes the time that many computations have taken together for people.
func deviceTime(ns int64) time.Duration {
	if ns < int64(time.Second) {
		return short(ns)
	}
	return wire.Age(ns / 1e6)
}

// short writes the time of a computation for people, with three digits.
func short(ns int64) time.Duration {
	d := time.Duration(ns)
	unit := time.Duration(1)
	for d/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit)
}

// showMemory prints what workers have of their devices' and their machines' memory, if anything.
func showMemory(w io.Writer, r *wire.Report) {
	rows := section{w, "\nWORKER\tMEMORY OF DEVICES\tMEMORY OF ITS HOST\n"}
	for _, k := range r.EachWorker() {
		devices, host := memoryOfDevices(k), memoryOfHost(k.Last.GetHost())
		if devices == "" && host == "" {
			continue
		}
		rows.printf("%s\t%s\t%s\n", k.Process.GetName(), cmp.Or(devices, "-"), cmp.Or(host, "-"))
	}
}

// memoryOfDevices says how much of each device's memory is in use, and of how much if that is known, such as
// "0-2: 1.0 GiB of 4.0 GiB, 3: 2.0 GiB of 4.0 GiB"; "" if nothing is. What the controller counts follows: it counts
// from admission, so that may be more than is in use.
func memoryOfDevices(k *wire.Report_Worker) string {
	inUse := k.Last.GetMemoryInUse()
	if sum(inUse)+sum(k.ArrayBytes)+sum(k.ProgramBytes)+sum(k.TempBytes) == 0 {
		return ""
	}
	said := func(d int) string {
		text := size(max(inUse[d], 0))
		if d < len(k.Devices) && k.Devices[d].MemoryLimit > 0 {
			text += " of " + size(k.Devices[d].MemoryLimit)
		}
		var kinds []string
		for _, kind := range []struct {
			name  string
			bytes []int64
		}{{"arrays", k.ArrayBytes}, {"programs", k.ProgramBytes}, {"temporary", k.TempBytes}} {
			if d < len(kind.bytes) && kind.bytes[d] > 0 {
				kinds = append(kinds, size(kind.bytes[d])+" "+kind.name)
			}
		}
		if len(kinds) > 0 {
			text += " (admitted: " + strings.Join(kinds, ", ") + ")"
		}
		return text
	}
	var parts []string
	for d := 0; d < len(inUse); {
		var same []uint32
		for first := d; d < len(inUse) && said(d) == said(first); d++ {
			same = append(same, uint32(d))
		}
		parts = append(parts, wire.Numbers(same)+": "+said(d-1))
	}
	return strings.Join(parts, ", ")
}

// memoryOfHost says what a worker has of its machine's memory, by kind; "" if nothing.
func memoryOfHost(m *wire.HostMemory) string {
	var parts []string
	for _, kind := range []struct {
		bytes int64
		name  string
	}{{m.GetBlocks(), "arrays"}, {m.GetCollectives(), "collectives"}, {m.GetAssembling(), "transfers"},
		{m.GetPrograms(), "programs"}, {m.GetFree(), "reusable"}, {m.GetLent(), "lent by clients"}} {
		if kind.bytes > 0 {
			parts = append(parts, size(kind.bytes)+" "+kind.name)
		}
	}
	return strings.Join(parts, ", ")
}

// showHeld prints the operations that wait for admission, if any, and what for.
func showHeld(w io.Writer, r *wire.Report) {
	rows := section{w, "\nSESSION\tHELD\tOLDEST\tNEEDS\tFOR\tWAITS FOR\n"}
	for _, s := range r.Sessions {
		h := s.Held
		if h.GetOperations() == 0 {
			continue
		}
		what := h.What
		if called := wire.Called(h.Line, h.FirstCall); called != "" {
			what += ", " + called
		}
		rows.printf("%d\t%s\t%s\t%s\t%v\t%s\n", s.Session, status.Count(h.Operations, "operation"),
			what, NeedOf(h), wire.Age(h.SinceMs), WaitOf(h))
	}
}

// hostQuota is what waits_for of a report says of operations that wait for their tenant's quota of host memory.
const hostQuota = "host-quota"

// NeedOf says what a held operation needs.
func NeedOf(h *wire.Report_Held) string {
	if h.WaitsFor == hostQuota {
		return fmt.Sprintf("%s of %s's machine", size(h.Need), cmp.Or(h.WorkerName, "a lost worker"))
	}
	return fmt.Sprintf("%s on device %d of %s", size(h.Need), h.Local, cmp.Or(h.WorkerName, "a lost worker"))
}

// WaitOf says what a held operation waits for.
func WaitOf(h *wire.Report_Held) string {
	var all []string
	for _, x := range h.Holders {
		text := wire.Owner(x.Session, cmp.Or(x.Client, "a client"), x.User, x.Host)
		if h.WaitsFor != "turn" && h.WaitsFor != "client" {
			text += " (" + size(x.Bytes) + ")"
		}
		all = append(all, text)
	}
	whose := strings.Join(all, "; ")
	switch h.WaitsFor {
	case "client":
		if whose == "" {
			return "bytes on their way from its client to a device"
		}
		return "bytes on their way from its client to a device that computes for " + whose
	case "program":
		return "workers to load its program"
	case "work":
		return "computations under way to end"
	case "turn":
		return "its turn behind " + whose
	case "frees":
		return "frees of " + whose
	case "quota":
		return "its tenant's quota of memory: " + whose
	case hostQuota:
		return "its tenant's quota of host memory: " + cmp.Or(whose, "its own earlier operations")
	}
	return "memory of " + whose
}

// showRefused prints which workers had no memory for operations that had been admitted, if any.
func showRefused(w io.Writer, r *wire.Report) {
	rows := section{w, "\nWORKER\tNO MEMORY FOR\tLAST\tOF\tAGO\n"}
	for _, k := range r.EachWorker() {
		if k.Refused == 0 {
			continue
		}
		last := k.LastRefused
		rows.printf("%s\t%s\t%s\t%s\t%v\n", k.Process.GetName(), status.Count(k.Refused, "operation"),
			last.GetWhat(), wire.Owner(last.GetSession(), cmp.Or(last.GetClient(), "a client"), last.GetUser(), last.GetHost()),
			wire.Age(last.GetSinceMs()))
	}
}

// stateOf says in a word or two whether there is a connection to the controller, and when it broke last. A process
// without a lease, whose l is nil, is lost with its connection, so it has one.
func stateOf(l *wire.Report_Link) string {
	switch {
	case l.GetCutMs() > 0:
		return fmt.Sprintf("none for %v", wire.Age(l.CutMs))
	case l.GetCuts() > 0:
		return fmt.Sprintf("up, broke %v ago", wire.Age(l.LastMs))
	}
	return "up"
}

// broken is a connection that has broken.
type broken interface {
	GetCuts() uint64
	GetCutMs() int64
	GetLastMs() int64
	GetBackMs() int64
	GetWhy() string
}

// link prints a row about a connection. Without is the text for a connection that is not there now.
func (s *section) link(whose string, l broken, without string) {
	state := fmt.Sprintf("connected, after %v without", time.Duration(max(1, l.GetBackMs()))*time.Millisecond)
	if l.GetCutMs() > 0 {
		state = fmt.Sprintf("none for %v%s", wire.Age(l.GetCutMs()), without)
	}
	s.printf("%s\t%s\t%s\t%v ago\t%s\n", whose, state, status.Count(l.GetCuts(), "time"), wire.Age(l.GetLastMs()),
		l.GetWhy())
}

// showLinks prints how often and why connections to the controller have broken that were kept, if any.
func showLinks(w io.Writer, r *wire.Report) {
	rows := section{w, "\nWORKER OR SESSION\tCONNECTION TO THE CONTROLLER\tBROKE\tLAST\tWHY\n"}
	show := func(who string, l *wire.Report_Link) {
		if l.GetCuts() > 0 {
			rows.link(who, l, fmt.Sprintf(", at most %v", wire.Age(l.LeaseMs)))
		}
	}
	for _, k := range r.EachWorker() {
		show(k.Process.GetName(), k.Link)
	}
	for _, s := range r.Sessions {
		show(ownerText(s), s.Link)
	}
}

// showPeerLinks prints the connections of workers to each other and to clients that have broken, if any. Of two workers
// that both report theirs, it shows one's.
func showPeerLinks(w io.Writer, r *wire.Report) {
	rows := section{w, "\nWORKER\tCONNECTION TO\tSTATE\tBROKE\tLAST\tWHY\n"}
	shown := map[[2]uint64]bool{} // one and the other
	for _, k := range r.EachWorker() {
		for _, l := range k.Last.GetLinks() {
			if shown[[2]uint64{l.Process, k.Process.GetNumber()}] {
				continue
			}
			shown[[2]uint64{k.Process.GetNumber(), l.Process}] = true
			rows.link(k.Process.GetName()+"\t"+cmp.Or(l.Name, fmt.Sprint("process ", l.Process)), l, "")
		}
		showMore(w, k, k.Last.GetMoreLinks())
	}
}

// showMore prints how many entries a worker left out of its report, if any.
func showMore(w io.Writer, k *wire.Report_Worker, more uint32) {
	if more > 0 {
		fmt.Fprintf(w, "%s\tand %d more\n", k.Process.GetName(), more)
	}
}

// showApart prints the processes that cannot reach each other, if any.
func showApart(w io.Writer, r *wire.Report) {
	rows := section{w, "\nWORKER\tCANNOT REACH\tFOR\tWHY\n"}
	for _, k := range r.EachWorker() {
		for _, a := range k.Last.GetApart() {
			rows.printf("%s\t%s\t%v\t%s\n", k.Process.GetName(), cmp.Or(a.Name, fmt.Sprint("process ", a.Process)),
				wire.Age(a.SinceMs), a.Why)
		}
		showMore(w, k, k.Last.GetMoreApart())
	}
}

// showRunning prints the computations that run on devices, if any.
func showRunning(w io.Writer, r *wire.Report) {
	rows := section{w, "\nWORKER\tDEVICES\tRUNS\tOF\tFOR\n"}
	for _, k := range r.EachWorker() {
		for _, c := range k.Last.GetRunning() {
			program := c.Program
			if called := wire.Called(c.Line, c.FirstCall); called != "" {
				program += ", " + called
			}
			if c.Behind > 0 {
				program += fmt.Sprintf(" (and %d queued)", c.Behind)
			}
			of := wire.Owner(c.Session, cmp.Or(c.Client, "a client"), c.User, c.Host)
			if c.Gone {
				of += ", which has ended"
			}
			since := fmt.Sprint(wire.Age(c.SinceMs))
			if c.UsualMs > 0 {
				since += fmt.Sprintf(" (usually %v)", wire.Age(c.UsualMs))
			}
			rows.printf("%s\t%s\t%s\t%s\t%s\n", k.Process.GetName(), wire.Numbers(c.Devices), program, of, since)
		}
		showMore(w, k, k.Last.GetMoreRunning())
	}
}

// showWaits prints what devices have been waiting for for long, if anything.
func showWaits(w io.Writer, r *wire.Report) {
	rows := section{w, "\nWORKER\tWAITS\n"}
	for _, k := range r.EachWorker() {
		for _, m := range k.Last.GetStanding() {
			rows.printf("%s\t%s\n", k.Process.GetName(), m.WaitText())
		}
		showMore(w, k, k.Last.GetMoreStanding())
	}
}

// showSlices prints the slices of the sessions, if any.
func showSlices(w io.Writer, r *wire.Report) {
	names := map[uint64]string{}
	for _, k := range r.EachWorker() {
		names[k.Process.GetNumber()] = k.Process.GetName()
	}
	rows := section{w, "\nSESSION\tSLICE\tDEVICES\n"}
	for _, s := range r.Sessions {
		for _, slice := range s.Slices {
			n := uint32(0)
			var where []string
			for _, span := range slice.Devices {
				n += span.Count
				last := ""
				if span.Count > 1 {
					last = fmt.Sprintf("-%d", span.Local+span.Count-1)
				}
				where = append(where, fmt.Sprintf("%s/%d%s", cmp.Or(names[span.Worker], "a lost worker"), span.Local, last))
			}
			alone := ""
			if slice.Exclusive {
				alone = " (exclusive)"
			}
			rows.printf("%d\t%d\t%d: %s%s\n", s.Session, slice.Slice, n, strings.Join(where, ", "), alone)
		}
	}
}

// showLacks prints which sessions have devices without a worker, if any.
func showLacks(w io.Writer, r *wire.Report) {
	rows := section{w, "\nSESSION\tLACKS DEVICES\n"}
	for _, s := range r.Sessions {
		if s.Lacks != "" {
			rows.printf("%d\t%s\n", s.Session, s.Lacks)
		}
	}
}

func sum(all []int64) (total int64) {
	for _, b := range all {
		total += max(b, 0)
	}
	return total
}

// size formats bytes for people.
func size(bytes int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	v, u := float64(bytes), 0
	for ; v >= 1024 && u < len(units)-1; u++ {
		v /= 1024
	}
	if u == 0 {
		return fmt.Sprintf("%d B", bytes)
	}
	return fmt.Sprintf("%.1f %s", v, units[u])
}
