package command

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

// topReport is a cluster of two workers and two sessions, after so many seconds, of which session 2 has used both
// devices of w1.
func topReport(seconds int64) *wire.Report {
	return &wire.Report{Cluster: "c0ffee", UptimeMs: seconds * 1000, Gangs: uint64(100 * seconds),
		Islands: []*wire.Report_Island{{Name: "default", Workers: []*wire.Report_Worker{
			{Process: &wire.Process{Number: 1, Name: "w0"}, Devices: []*wire.LocalDevice{{}, {}}, Gangs: 1,
				Last: &wire.Heartbeat{MemoryInUse: []int64{1 << 20, 0}, DeviceNs: []int64{seconds * 1e9 / 4, 0},
					Running: []*wire.Running{{Devices: []uint32{0}, Session: 1, Program: "jit_step", Line: "train.py:7",
						SinceMs: 3000}}}},
			{Process: &wire.Process{Number: 2, Name: "w1"}, Devices: []*wire.LocalDevice{{}, {}}, Gangs: 2},
		}}},
		Tenants: []*wire.Report_Tenant{{Name: "research", Weight: 3, AtMost: 1, Promised: 0.75, Got: 0.7, Sessions: 1,
			Class: "normal"}, {Name: "idle", Weight: 1, AtMost: 1}, {Name: "students", Weight: 1, AtMost: 0.5, Promised: 0.25,
			Got: 0.8, Sessions: 1, MaxSessions: 4, Class: "low"}},
		Sessions: []*wire.Report_SessionReport{
			{Session: 1, Tenant: "research", Name: "ann\x1b[2J", User: "ann", Host: "h", Bytes: []int64{5 << 20}},
			{Session: 2, Name: "bob", User: "bob", Host: "h", DeviceNs: seconds * 2e9, Slices: []*wire.Report_Slice{
				{Slice: 4, Devices: []*wire.Span{{Worker: 2, Count: 2}}}}},
		},
		SliceWaits: []*wire.Report_SliceWait{{Session: 2, Devices: 4, Exclusive: true, LeftMs: -1,
			Holders: []*wire.Report_Holder{{Session: 1, Devices: 2, How: wire.HasUse}}}}}
}

// What is shown follows from the answers of the cluster and the keys alone.
func TestTopFollowsAnswersAndKeys(t *testing.T) {
	m, at := newTop(nil), time.Unix(1000, 0)
	look := func(seconds int64, err error) {
		r := topReport(seconds)
		if seconds == 40 {
			r.Waits = "waits for w\x1b[2J"
		}
		if err != nil {
			r = nil
		}
		if _, cmd := m.Update(answered{at.Add(time.Duration(seconds) * time.Second), r, err}); cmd == nil {
			t.Error("it does not ask again")
		}
	}
	press := func(keys ...tea.KeyPressMsg) {
		for _, key := range keys {
			m.Update(key)
		}
	}
	key := func(r rune) tea.KeyPressMsg { return tea.KeyPressMsg{Code: r, Text: string(r)} }
	tab, down := tea.KeyPressMsg{Code: tea.KeyTab}, tea.KeyPressMsg{Code: tea.KeyDown}
	enter, escape := tea.KeyPressMsg{Code: tea.KeyEnter}, tea.KeyPressMsg{Code: tea.KeyEscape}
	// shows looks for parts of the screen, in their order.
	shows := func(when string, parts ...string) {
		t.Helper()
		text := m.text()
		for _, part := range parts {
			_, after, ok := strings.Cut(text, part)
			if !ok {
				t.Errorf("%s: %q is not shown, or not in its place, in\n%s", when, part, m.text())
				return
			}
			text = after
		}
	}
	m.Update(tea.WindowSizeMsg{Width: 120, Height: 20})
	shows("before the first answer", "Open Pathways", "q quit")
	look(10, nil)
	look(20, nil)
	shows("at first", "cluster c0ffee, up 20s", "4 devices of 2 workers", "2 sessions", "1.0 MiB", "busy  50 %",
		"100 gangs a second", "students  low     1       0-50 %  25 %      80 %  1 of 4", "research  normal  3       -",
		"BUSY▾", "TENANT", " 2.00 ", "█", "2 bob", "1 ann·[2J", "research", "ann on h",
		"WAITS FOR A SLICE", "session 2, bob", "4 devices, exclusive", "2 are in use by session 1")
	if strings.Contains(m.text(), "\x1b[2J") {
		t.Error("a session's name reaches the terminal as a command")
	}
	press(key('s'), key('s'), key('s'), key('s'))
	shows("sorted by memory", "MEMORY▾", "1 ann", "2 bob")
	press(enter)
	m.Update(tea.WindowSizeMsg{Width: 80, Height: 20})
	shows("a session", "TENANT", "1        ann·[2J", "research", "UNDER WAY", "DEVICE TIME", "session 1, ann",
		"waits for nothing", "jit_step, called at train.py:7", "Esc back")
	m.Update(tea.WindowSizeMsg{Width: 120, Height: 20})
	press(escape, down, enter)
	shows("the other session", "session 2, bob", "w1/0-1")
	press(tab)
	shows("workers", "BUSY▾", " 0.25 ", "w0", "default", " 0.00 ", "w1")
	press(enter)
	shows("a worker", "worker w0 of island default: 2 devices", "DEVICE", "0 ", " 25 %", "1 ", "  0 %",
		"MEMORY OF DEVICES", "jit_step")
	press(key('s'))
	shows("a worker that is no longer the first", "worker w0 of")
	press(escape, key('p'))
	look(30, nil)
	shows("paused", "up 20s", "paused")
	press(key('p'))
	look(40, nil)
	look(50, errors.New("the controller does not answer"))
	shows("where the controller is away", "up 40s", "waits for w·[2J", "the controller does not answer", "w0")
	m.Update(tea.WindowSizeMsg{Width: 30, Height: 5})
	statustest.Equal(t, len(strings.Split(m.text(), "\n")), 5, "on a screen of 5 lines it shows")
	if cmd := m.press("q"); cmd == nil || cmd() != tea.Quit() {
		t.Error("q does not quit")
	}
}

// Without a terminal top says what else there is.
func TestTopNeedsATerminal(t *testing.T) {
	call(t, nil, "top", "--address", "unix:/nowhere").ends(t, ExitUsage, "pathways status --json")
}

// What is selected is shown, however long the list is and however small the terminal, and some of what waits.
func TestTopShowsWhatIsSelected(t *testing.T) {
	m, r := newTop(nil), topReport(10)
	for n := uint32(3); n <= 40; n++ {
		r.Sessions = append(r.Sessions, &wire.Report_SessionReport{Session: n, Name: "more"})
	}
	m.Update(answered{time.Unix(1000, 0), r, nil})
	m.Update(tea.WindowSizeMsg{Width: 80, Height: 20})
	for n := 1; n <= 40; n++ {
		text := m.text()
		for _, want := range []string{fmt.Sprintf(" %d ", n), " of 40", "4 devices, exclusive", "q quit"} {
			if !strings.Contains(text, want) {
				t.Fatalf("session %d is selected, and %q is not shown in\n%s", n, want, text)
			}
		}
		if lines := strings.Count(text, "\n") + 1; lines > 20 {
			t.Fatalf("20 lines fit, and there are %d", lines)
		}
		m.Update(tea.KeyPressMsg{Code: tea.KeyDown})
	}
}
