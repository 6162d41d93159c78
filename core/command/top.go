package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/spf13/cobra"

	"github.com/openpathways/pathways/core/chain"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/watch"
	"github.com/openpathways/pathways/core/wire"
)

func (p *program) top() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "top",
		Short: "watch the sessions, workers and waits of a cluster in the terminal",
		Long: `Shows a cluster, live: the load of its devices, sessions with their load and memory, workers, and operations that
wait for memory or slices. The load counts the device time of a computation when it ends.

keys: Tab switches between sessions and workers, Up and Down select, Enter shows the running and waiting operations of
the selected one with lines of code, and the load of each device of a worker, Esc goes back, s sorts by another column,
p pauses, q quits.`,
		Example: `  pathways top
  pathways top --cluster two`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if !isTerminal(p.out) {
				return usage{status.New(status.InvalidArgument,
					"pathways top needs a terminal; for scripts there is `pathways status --json`")}
			}
			address, secret, err := p.controllerOf(settings{cmd.Flags()})
			if err != nil {
				return err
			}
			if _, err := p.ask(cmd.Context(), address, secret, watch.Recent()); err != nil {
				return err
			}
			ask := func() (*wire.Report, error) { return askAt(cmd.Context(), address, secret, watch.Recent()) }
			_, err = tea.NewProgram(newTop(ask), tea.WithContext(cmd.Context()), tea.WithoutSignalHandler(),
				tea.WithOutput(p.out)).Run()
			if errors.Is(err, tea.ErrProgramKilled) && cmd.Context().Err() != nil {
				return context.Cause(cmd.Context())
			}
			return err
		},
	}
	takeAsking(cmd)
	return cmd
}

// isTerminal reports whether a writer is a terminal.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// top is what `pathways top` shows. Update and View are all that it does: time, keys and reports come as messages.
type top struct {
	ask           func() (*wire.Report, error)
	history       *watch.History
	past          watch.Past
	uses          uses
	report        *wire.Report // nil before the first
	err           error        // of the last question
	width, height int
	workers       bool   // the list is that of workers, not of sessions
	chosen        uint64 // the session or worker that is selected; 0 is the first of the list
	order         int    // of columns of the list
	open          bool   // what is selected is shown by itself
	paused        bool
}

// answered is a report, or why there is none.
type answered struct {
	at     time.Time
	report *wire.Report
	err    error
}

// due says that it is time to ask again.
type due struct{}

func newTop(ask func() (*wire.Report, error)) *top {
	return &top{ask: ask, history: watch.NewHistory(), uses: uses{}, width: 80, height: 24}
}

// Init implements tea.Model.
func (m *top) Init() tea.Cmd { return m.look }

func (m *top) look() tea.Msg {
	r, err := m.ask()
	return answered{time.Now(), r, err}
}

// Update implements tea.Model.
func (m *top) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case answered:
		if m.err = msg.err; msg.err == nil && !m.paused {
			m.history.Add(msg.at, msg.report)
			m.uses.add(msg.report)
			m.past, m.report = m.history.Past(), msg.report
		}
		return m, tea.Tick(followEvery, func(time.Time) tea.Msg { return due{} })
	case due:
		return m, m.look
	case tea.KeyPressMsg:
		return m, m.press(msg.String())
	}
	return m, nil
}

func (m *top) press(key string) tea.Cmd {
	rows := m.rows()
	at := m.cursor(rows)
	switch key {
	case "q", "ctrl+c":
		return tea.Quit
	case "tab":
		m.workers, m.open, m.chosen, m.order = !m.workers, false, 0, 0
	case "up", "k":
		m.choose(rows, at-1)
	case "down", "j":
		m.choose(rows, at+1)
	case "enter":
		m.choose(rows, at)
		m.open = len(rows) > 0
	case "esc":
		m.open = false
	case "s":
		m.order = (m.order + 1) % len(m.columns())
	case "p":
		m.paused = !m.paused
	}
	return nil
}

// cursor returns which row is selected.
func (m *top) cursor(rows []row) int {
	return max(0, slices.IndexFunc(rows, func(r row) bool { return r.number() == m.chosen }))
}

// choose selects a row, if there is one.
func (m *top) choose(rows []row, at int) {
	if at >= 0 && at < len(rows) {
		m.chosen = rows[at].number()
	}
}

// column is a column of a list: how it sorts rows, the largest number first, and what it says.
type column struct {
	head   string
	number func(row) float64 // nil sorts by text
	text   func(row) string
}

// row is a session or a worker.
type row struct {
	session *wire.Report_SessionReport
	worker  *wire.Report_Worker
	island  string
	use     []float64 // over time: devices that are busy, or that a session keeps busy
}

func (r row) busy() float64 {
	if len(r.use) == 0 {
		return 0
	}
	return r.use[len(r.use)-1]
}

// number is the row's worker or session.
func (r row) number() uint64 {
	if r.session != nil {
		return uint64(r.session.Session)
	}
	return r.worker.Process.GetNumber()
}

const sparks = 20 // points of a session's history in its row

var busyColumn = column{"BUSY", row.busy,
	func(r row) string { return fmt.Sprintf("%5.2f %s", r.busy(), spark(r.use, sparks)) }}

// sessionColumns are those whose session it is first: what a narrow terminal has no room for is on the right.
var sessionColumns = []column{
	busyColumn,
	{"SESSION", func(r row) float64 { return -float64(r.session.Session) }, // the first one first
		func(r row) string { return fmt.Sprintf("%d %s", r.session.Session, r.session.Name) }},
	{"USER", nil, func(r row) string {
		return fmt.Sprintf("%s on %s", cmp.Or(r.session.User, "?"), cmp.Or(r.session.Host, "?"))
	}},
	{"MEMORY", func(r row) float64 { return float64(sum(r.session.Bytes)) },
		func(r row) string { return size(sum(r.session.Bytes)) }},
	{"DEVICE TIME", func(r row) float64 { return float64(r.session.DeviceNs) },
		func(r row) string { return deviceTime(r.session.DeviceNs).String() }},
	{"UNDER WAY", func(r row) float64 { return float64(r.session.UnderWay) },
		func(r row) string { return fmt.Sprint(r.session.UnderWay) }},
	{"HELD", func(r row) float64 { return float64(r.session.Held.GetOperations()) },
		func(r row) string { return fmt.Sprint(r.session.Held.GetOperations()) }},
	{"AGE", func(r row) float64 { return float64(r.session.AgeMs) },
		func(r row) string { return wire.Age(r.session.AgeMs).String() }},
}

var workerColumns = []column{
	busyColumn,
	{"WORKER", nil, func(r row) string { return r.worker.Process.GetName() }},
	{"ISLAND", nil, func(r row) string { return r.island }},
	{"GANGS", func(r row) float64 { return float64(r.worker.Gangs) },
		func(r row) string { return fmt.Sprint(r.worker.Gangs) }},
	{"MEMORY", func(r row) float64 { return float64(sum(r.worker.Last.GetMemoryInUse())) },
		func(r row) string { return size(sum(r.worker.Last.GetMemoryInUse())) }},
	{"HOST MEMORY", func(r row) float64 { return float64(r.worker.Last.GetHostBytes()) },
		func(r row) string { return size(r.worker.Last.GetHostBytes()) }},
	{"OBJECTS", func(r row) float64 { return float64(r.worker.Last.GetObjects()) },
		func(r row) string { return fmt.Sprint(r.worker.Last.GetObjects()) }},
	{"LAST HEARD", func(r row) float64 { return float64(r.worker.SilentMs) },
		func(r row) string { return wire.Age(r.worker.SilentMs).String() + " ago" }},
	{"DEVICES", func(r row) float64 { return float64(len(r.worker.Devices)) },
		func(r row) string { return fmt.Sprint(len(r.worker.Devices)) }},
}

func (m *top) columns() []column {
	if m.workers {
		return workerColumns
	}
	if len(m.report.GetTenants()) > 0 {
		return slices.Insert(slices.Clone(sessionColumns), 2, tenantColumn)
	}
	return sessionColumns
}

// tenantColumn is another column of sessions, where the cluster has tenants.
var tenantColumn = column{"TENANT", nil, func(r row) string { return r.session.Tenant }}

// maxTenants bounds the tenants that are shown above the list, so that the list has room.
const maxTenants = 8

// tenants is the table of tenants that have sessions, those first that got most.
func (m *top) tenants() []string {
	present := slices.DeleteFunc(slices.Clone(m.report.GetTenants()),
		func(t *wire.Report_Tenant) bool { return t.Sessions == 0 })
	if len(present) == 0 {
		return nil
	}
	slices.SortStableFunc(present, func(a, b *wire.Report_Tenant) int { return cmp.Compare(b.Got, a.Got) })
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	showTenants(w, &wire.Report{Tenants: present[:min(len(present), maxTenants)]})
	w.Flush()
	lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	lines[0] = bold.Render(lines[0])
	if more := len(present) - maxTenants; more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	return append(lines, "")
}

// rows returns the list that is shown, in its order.
func (m *top) rows() []row {
	var all []row
	if m.report == nil {
		return nil
	}
	if m.workers {
		for is, w := range m.report.EachWorker() {
			all = append(all, row{worker: w, island: is.Name, use: m.uses.all(w)})
		}
	} else {
		use := map[uint32][]float64{}
		for _, s := range m.past.Sessions {
			use[s.Session] = s.Use
		}
		for _, s := range m.report.Sessions {
			all = append(all, row{session: s, use: use[s.Session]})
		}
	}
	columns := m.columns()
	m.order = min(m.order, len(columns)-1) // the tenants' may have gone
	by := columns[m.order]
	slices.SortStableFunc(all, func(a, b row) int {
		if by.number == nil {
			return strings.Compare(by.text(a), by.text(b))
		}
		return cmp.Compare(by.number(b), by.number(a))
	})
	return all
}

var (
	bold     = lipgloss.NewStyle().Bold(true)
	faint    = lipgloss.NewStyle().Faint(true)
	selected = lipgloss.NewStyle().Reverse(true)
	alarm    = lipgloss.NewStyle().Foreground(lipgloss.Color("9"))
)

// View implements tea.Model.
func (m *top) View() tea.View {
	v := tea.NewView(m.text())
	v.AltScreen, v.WindowTitle = true, "pathways top"
	return v
}

// text returns the screen's contents, as many lines and columns as fit.
func (m *top) text() string {
	lines := m.head()
	rows := m.rows()
	at := m.cursor(rows)
	switch {
	case m.report == nil:
	case m.open && at < len(rows) && rows[at].number() == m.chosen:
		lines = append(lines, m.details(rows[at])...)
	default: // of one that has ended, too
		m.open = false
		if !m.workers {
			lines = append(lines, m.tenants()...)
		}
		list, waits, room := m.list(rows, at), m.waits(), m.height-1-len(lines)
		// A long list leaves room for waits, and waits for the list.
		below := min(len(waits), max(room-len(list), room/3, 0))
		lines = append(append(lines, within(list, at, room-below)...), waits[:below]...)
	}
	keys := faint.Render("Tab sessions or workers   Enter details   s sort   p pause   q quit")
	if m.open {
		keys = faint.Render("Esc back   p pause   q quit")
	}
	lines = append(lines[:min(len(lines), max(0, m.height-1))], keys)
	for i := range lines {
		lines[i] = ansi.Truncate(lines[i], m.width, "…")
	}
	return strings.Join(lines, "\n")
}

// head is the lines about the whole cluster.
func (m *top) head() []string {
	lines := []string{bold.Render("Open Pathways")}
	if r := m.report; r != nil {
		devices, workers, memory := 0, 0, int64(0)
		for _, w := range r.EachWorker() {
			devices, workers, memory = devices+len(w.Devices), workers+1, memory+sum(w.Last.GetMemoryInUse())
		}
		lines[0] += fmt.Sprintf("   cluster %s, up %v   %s of %s   %s   %s", r.Cluster, wire.Age(r.UptimeMs),
			status.Count(devices, "device"), status.Count(workers, "worker"), status.Count(len(r.Sessions), "session"),
			size(memory))
		if n := len(m.past.At); n > 0 {
			use := make([]float64, n) // of all devices
			for i := range use {
				for _, s := range m.past.Sessions {
					use[i] += s.Use[i]
				}
				use[i] /= float64(max(1, m.past.Devices[i]))
			}
			lines = append(lines, fmt.Sprintf("busy %3.0f %% %s   %.0f gangs a second", 100*min(1, use[n-1]), spark(use, 40),
				m.past.Gangs[n-1]))
		}
	}
	if waits := m.report.GetWaits(); waits != "" {
		lines = append(lines, alarm.Render(wire.Clean(waits)))
	}
	if m.err != nil {
		lines = append(lines, alarm.Render(wire.Clean(m.err.Error())))
	}
	if m.paused {
		lines = append(lines, alarm.Render("paused"))
	}
	return append(lines, "")
}

// list is the table of sessions or workers.
func (m *top) list(rows []row, at int) []string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for i, c := range m.columns() {
		head := c.head
		if i == m.order {
			head += "▾"
		}
		fmt.Fprint(w, head, "\t")
	}
	fmt.Fprintln(w)
	for _, r := range rows {
		for _, c := range m.columns() {
			fmt.Fprint(w, wire.Clean(c.text(r)), "\t")
		}
		fmt.Fprintln(w)
	}
	w.Flush()
	lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	lines[0] = bold.Render(lines[0])
	if at < len(rows) {
		lines[at+1] = selected.Render(lines[at+1])
	}
	return lines
}

// within returns the head of a list and, of its rows, those around the selected one for which n lines have room.
func within(list []string, at, n int) []string {
	rows, room := list[1:], n-2 // beside the head, and the line that says which are shown
	if len(list) <= n || room < 1 {
		return list
	}
	from := min(max(0, at-room/2), len(rows)-room)
	return append(append(list[:1:1], rows[from:from+room]...),
		faint.Render(fmt.Sprintf("%d to %d of %d", from+1, from+room, len(rows))))
}

// waits shows which operations wait for memory or slices, and for whom.
func (m *top) waits() []string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	showHeld(w, m.report)
	showQueue(w, m.report, "\n")
	w.Flush()
	return cleanLines(b.String())
}

// cleanLines cuts a text into lines that a terminal may be sent.
func cleanLines(text string) []string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = wire.Clean(lines[i])
	}
	return lines
}

// details is what a session or a worker does: the parts of `pathways status` that are about it, and of `pathways why`.
func (m *top) details(of row) []string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	var about *wire.Report
	if of.session != nil {
		about = ofSession(m.report, of.session)
		showSession(w, about, of.session)
		lines, _ := (&reasons{chain.Chain{Report: m.report}}).all(of.session.Session)
		fmt.Fprintf(w, "\n%s\n", strings.Join(lines, "\n"))
	} else {
		fmt.Fprintf(w, "worker %s of island %s: %s\n", of.worker.Process.GetName(), of.island,
			status.Count(len(of.worker.Devices), "device"))
		rows := section{w, "\nDEVICE\tBUSY\n"}
		for d := range of.worker.Devices {
			if busy := m.uses.of(of.worker.Process.GetNumber(), d); len(busy) > 0 {
				rows.printf("%d\t%3.0f %% %s\n", d, 100*busy[len(busy)-1], spark(busy, sparks))
			}
		}
		about = &wire.Report{Islands: []*wire.Report_Island{{Name: of.island, Workers: []*wire.Report_Worker{of.worker}}}}
		showMemory(w, about)
	}
	showRunning(w, about)
	showHeld(w, about)
	showSlices(w, about)
	showLinks(w, about)
	showApart(w, about)
	showWaits(w, about)
	w.Flush()
	return cleanLines(b.String())
}

// ofSession returns a report's part about one session.
func ofSession(r *wire.Report, s *wire.Report_SessionReport) *wire.Report {
	about := &wire.Report{Sessions: []*wire.Report_SessionReport{s}, Tenants: r.GetTenants()}
	for _, is := range r.Islands {
		of := &wire.Report_Island{Name: is.Name}
		for _, w := range is.Workers {
			running := slices.DeleteFunc(slices.Clone(w.Last.GetRunning()), func(x *wire.Running) bool {
				return x.Session != s.Session
			})
			of.Workers = append(of.Workers, &wire.Report_Worker{Process: w.Process, Devices: w.Devices,
				Last: &wire.Heartbeat{Running: running}})
		}
		about.Islands = append(about.Islands, of)
	}
	return about
}

// spark draws the last n values as a line of blocks, from 0 to the largest of them, at least 1.
func spark(values []float64, n int) string {
	const blocks = "▁▂▃▄▅▆▇█"
	values = values[max(0, len(values)-n):]
	most, each := 1.0, []rune(blocks)
	for _, v := range values {
		most = max(most, v)
	}
	line := strings.Repeat(" ", n-len(values))
	for _, v := range values {
		line += string(each[min(len(each)-1, int(max(0, v)/most*float64(len(each))))])
	}
	return line
}
