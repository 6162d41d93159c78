package command

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/chain"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

// chains returns what `pathways why` prints of a report.
func chains(t *testing.T, r *wire.Report, only uint32) string {
	t.Helper()
	w := &reasons{chain.Chain{Report: r, Stack: func(*wire.Report_SessionReport) []string {
		return []string{"sleep (a.py:3)"}
	}}}
	lines := statustest.Value(w.all(only)).OK(t)
	return strings.Join(lines, "\n") + "\n"
}

func working(number uint64, name string, last *wire.Heartbeat) *wire.Report_Worker {
	return &wire.Report_Worker{Process: &wire.Process{Number: number, Name: name}, Last: last}
}

func TestWhySaysForWhomAControllerWaits(t *testing.T) {
	r := &wire.Report{Waits: "the controller waits", Sessions: []*wire.Report_SessionReport{{Session: 4}}}
	if said := chains(t, r, 0); said != "the controller waits\n" {
		t.Error(said)
	}
}

func TestWhyFollowsACollectiveToTheCause(t *testing.T) {
	sessions := []*wire.Report_SessionReport{{Session: 4, Name: "node1:4711", User: "ada", Host: "node1", UnderWay: 3},
		{Session: 5, UnderWay: 1}, {Session: 6}}
	inReduce := func(process ...uint64) *wire.Standing {
		return &wire.Standing{Devices: []uint32{0, 1}, Gang: 9, Session: 4, Program: "jit_step", Line: "train.py:88",
			At: "collective 0 (all-reduce)", Awaits: "worker-1 (process 2)", Processes: process, SinceMs: 7000}
	}
	for _, c := range []struct {
		name  string
		first *wire.Standing
		other *wire.Report_Worker
		want  string
	}{
		{"a worker that is silent", inReduce(2),
			&wire.Report_Worker{Process: &wire.Process{Number: 2, Name: "w1"}, Pid: 4711, SilentMs: 6200, LostInMs: 13800},
			"    w1 has said nothing for 6.2s: it is stopped (kill -CONT 4711 resumes it), it hangs, other work leaves " +
				"it no processor, or its machine cannot be reached\n" +
				"      unless it goes on, it is lost in 13.8s, and what waits for it fails then\n"},
		{"a worker that is late", inReduce(2),
			&wire.Report_Worker{Process: &wire.Process{Number: 2, Name: "w1"}, SilentMs: 5900},
			"    w1 has not reached it\n"},
		{"a worker that is busy", inReduce(2), working(2, "w1", &wire.Heartbeat{Running: []*wire.Running{
			{Devices: []uint32{0}, Gang: 8, Session: 5, Client: "a client", Program: "jit_long", SinceMs: 30000}}}),
			"    w1 has not reached it\n      w1 is busy with jit_long of session 5, a client for 30s\n"},
		{"a worker that computes", inReduce(2), working(2, "w1", &wire.Heartbeat{Running: []*wire.Running{
			{Devices: []uint32{0}, Gang: 9, Session: 4, Program: "jit_step", SinceMs: 7000, UsualMs: 200}}}),
			"    jit_step computes on device 0 of w1 for 7s, usually 200ms\n"},
		{"a client that does not return", inReduce(2), working(2, "w1", &wire.Heartbeat{Standing: []*wire.Standing{
			{Devices: []uint32{0}, Gang: 9, Session: 4, Program: "jit_step", At: "a function of its client",
				Awaits: "a function of its client, c (process 5)", Processes: []uint64{5}, SinceMs: 8000}}}),
			"    jit_step is in a function of its client on device 0 of w1 for 8s: it waits for a function of its client, " +
				"c (process 5)\n" +
				"      the client has not returned from a function that the computation called: a callback, or an input that " +
				"it makes\n        sleep (a.py:3)\n"},
		{"workers that wait for each other", inReduce(2), working(2, "w1", &wire.Heartbeat{
			Standing: []*wire.Standing{inReduce(1)}}),
			"    jit_step (called at train.py:88) is in collective 0 (all-reduce) " +
				"on devices 0-1 of w1 for 7s: it waits for worker-1 " +
				"(process 2)\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			workers := []*wire.Report_Worker{working(1, "w0", &wire.Heartbeat{Standing: []*wire.Standing{c.first}}), c.other}
			got := chains(t, &wire.Report{HeartbeatMs: 2000, Sessions: sessions,
				Islands: []*wire.Report_Island{{Workers: workers}}}, 4)
			want := "session 4, node1:4711 of ada: 3 operations under way\n" +
				"  jit_step (called at train.py:88) is in collective 0 (all-reduce) " +
				"on devices 0-1 of w0 for 7s: it waits for worker-1 " +
				"(process 2)\n" + c.want
			if got != want {
				t.Errorf("got\n%swant\n%s", got, want)
			}
		})
	}
}

// Devices that compute use processor time. Those that wait for each other inside XLA do not.
func TestWhySaysThatAWorkerWhichComputesIsIdle(t *testing.T) {
	const idle = "    w0 has used hardly any processor time for 12s: its devices may wait for each other in a " +
		"collective; after 60s of that, XLA ends the worker's process\n"
	for _, c := range []struct {
		devices         int // of the worker
		idleMs, sinceMs int64
		want            string
	}{
		{2, 12_000, 30_000, idle}, {2, 30_000, 12_000, idle},
		{2, 4_000, 12_000, ""}, {2, 12_000, 4_000, ""}, {2, 0, 12_000, ""}, {1, 12_000, 30_000, ""},
	} {
		w := working(1, "w0", &wire.Heartbeat{IdleMs: c.idleMs,
			Running: []*wire.Running{{Gang: 9, Session: 4, Program: "f", Devices: []uint32{0}, SinceMs: c.sinceMs}}})
		w.Devices = make([]*wire.LocalDevice, c.devices)
		got := chains(t, &wire.Report{
			Sessions: []*wire.Report_SessionReport{{Session: 4, Name: "a", UnderWay: 1}},
			Islands:  []*wire.Report_Island{{Workers: []*wire.Report_Worker{w}}}}, 4)
		want := fmt.Sprintf("session 4, a: 1 operation under way\n  f computes on device 0 of w0 for %v\n%s",
			wire.Age(c.sinceMs), c.want)
		if got != want {
			t.Errorf("got\n%swant\n%s", got, want)
		}
	}
}

// Of a device that another one of its worker waits for, only what is known is said.
func TestWhySaysWhatIsKnownOfADeviceThatIsMissing(t *testing.T) {
	const gang = 9
	waits := &wire.Standing{Devices: []uint32{0}, Gang: gang, Session: 4, Program: "f", At: "collective 0 (all-reduce)",
		Awaits: "device 1 of this worker", Missing: []uint32{1}, SinceMs: 3000}
	on := func(gang uint64, devices ...uint32) *wire.Running {
		return &wire.Running{Gang: gang, Session: 5, Client: "b", Program: "g", Devices: devices, SinceMs: 4000}
	}
	const first = "session 4, a: 1 operation under way\n" +
		"  f is in collective 0 (all-reduce) on device 0 of w0 for 3s: it waits for device 1 of this worker\n"
	for _, c := range []struct {
		name string
		last *wire.Heartbeat
		want string
	}{
		{"it is under way", &wire.Heartbeat{Running: []*wire.Running{on(gang, 0, 1)}},
			"    device 1 of w0 has not reached it yet: its part is under way there\n"},
		{"it is in a function", &wire.Heartbeat{Running: []*wire.Running{on(gang, 0, 1)}, Standing: []*wire.Standing{
			{Devices: []uint32{1}, Gang: gang, Session: 4, Program: "f", At: wire.AtFunction, Awaits: "its client",
				Processes: []uint64{7}, SinceMs: 3000}}},
			"  f is in a function of its client on device 1 of w0 for 3s: it waits for its client\n" +
				"    the client has not returned from a function that the computation called: a callback, or an input that " +
				"it makes\n      sleep (a.py:3)\n"},
		{"it has something else", &wire.Heartbeat{Running: []*wire.Running{on(gang, 0), on(8, 1)}},
			"    w0 is busy with g of session 5, b for 4s\n"},
		{"it has ended", &wire.Heartbeat{Running: []*wire.Running{on(gang, 0)}},
			"    device 1 of w0 has ended its part without it: it has failed there, or devices took different ways through " +
				"the program\n"},
		{"not all is told", &wire.Heartbeat{Running: []*wire.Running{on(gang, 0)}, MoreRunning: 1},
			"    device 1 of w0 has not reached it\n" +
				"  w0 computes, or waits in, 1 operation more, of which it does not tell\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.last.Standing = append([]*wire.Standing{waits}, c.last.Standing...)
			got := chains(t, &wire.Report{
				Sessions: []*wire.Report_SessionReport{{Session: 4, Name: "a", UnderWay: 1}},
				Islands:  []*wire.Report_Island{{Workers: []*wire.Report_Worker{working(1, "w0", c.last)}}}}, 4)
			if got != first+c.want {
				t.Errorf("got\n%swant\n%s", got, first+c.want)
			}
		})
	}
}

// What waits for a worker that says nothing, and for no other, is told of it, too, and when the wait ends.
func TestWhySaysForHowLongASilentWorkerIsWaitedFor(t *testing.T) {
	const silent = "session 1, a: 3 operations under way\n" +
		"  jit_f (called at f.py:1), and 2 operations after it, wait for w1\n" +
		"    w1 has said nothing for 6.2s: it is stopped (kill -CONT resumes it), it hangs, other work leaves it no " +
		"processor, or its machine cannot be reached\n"
	for _, c := range []struct {
		lostIn, stuckAfter int64
		elsewhere          bool
		ends               string
	}{
		{0, 0, true, ""},
		{13800, 19000, false, "it is lost in 13.8s, and what waits for it fails then"},
		{13800, 0, true, "it is lost in 13.8s, and what waits for it fails then"},
		{13800, 20000, true, "it is lost in 13.8s, and what waits for it fails then"},
		{13800, 19000, true, "what stands still on other workers, too, is aborted after 19s (--stuck-after); it is lost in " +
			"13.8s, and what waits for it fails then"},
		{0, 60000, true, "what stands still on other workers, too, is aborted after 1m0s (--stuck-after)"},
	} {
		want := silent
		if c.ends != "" {
			want += "      unless it goes on, " + c.ends + "\n"
		}
		got := chains(t, &wire.Report{StuckAfterMs: c.stuckAfter,
			Sessions: []*wire.Report_SessionReport{{Session: 1, Name: "a", UnderWay: 3, Unanswered: []*wire.Report_Unanswered{
				{Worker: 2, Operations: 3, What: "jit_f", Line: "f.py:1", Elsewhere: c.elsewhere}}}},
			Islands: []*wire.Report_Island{{Workers: []*wire.Report_Worker{working(1, "w0", nil),
				{Process: &wire.Process{Number: 2, Name: "w1"}, SilentMs: 6200, LostInMs: c.lostIn}}}}}, 0)
		if got != want {
			t.Errorf("got\n%swant\n%s", got, want)
		}
	}
}

// spy writes a py-spy of shell commands into a new directory, and returns the directory.
func spy(t *testing.T, does string) string {
	t.Helper()
	dir := t.TempDir()
	statustest.OK(t, os.WriteFile(filepath.Join(dir, "py-spy"), []byte("#!/bin/sh\n"+does+"\n"), 0o700))
	return dir
}

// A py-spy beside this Python is taken before one of PATH, and is found where that environment is not active.
func TestWhyTakesTheStackByThePySpyBesideItsPython(t *testing.T) {
	host := statustest.Value(os.Hostname()).OK(t)
	beside, onPath := spy(t, "echo beside"), spy(t, "echo on PATH")
	none := t.TempDir()
	for _, c := range []struct{ self, path, want string }{
		{filepath.Join(beside, "python"), onPath, "beside"},
		{filepath.Join(beside, "python"), none, "beside"},
		{filepath.Join(none, "python"), onPath, "on PATH"},
		{"python", onPath, "on PATH"},
		{filepath.Join(none, "python"), none, "to see where it is: pip install py-spy, and py-spy dump --pid 4711"},
	} {
		t.Setenv("PATH", c.path)
		p := &program{Env: Env{Self: []string{c.self}}}
		said := p.stackOf(t.Context(), &wire.Report_SessionReport{Name: host + ":4711", Host: host})
		if len(said) != 1 || said[0] != c.want {
			t.Errorf("with %s and PATH %s it says %q; expected %q", c.self, c.path, said, c.want)
		}
	}
}

// A py-spy that hangs, as a script whose child does, is not waited for.
func TestWhyEndsWithoutAStackWhereToolsHang(t *testing.T) {
	dir, host := spy(t, "echo $0 \"$@\"\nsleep 20"), statustest.Value(os.Hostname()).OK(t)
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	begun := time.Now()
	said := new(program).stackOf(ctx, &wire.Report_SessionReport{Name: host + ":4711", Host: host})
	if took := time.Since(begun); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
	if len(said) != 1 || !strings.HasPrefix(said[0], "py-spy dump --pid 4711 failed: ") {
		t.Errorf("it says %q", said)
	}
}

func TestWhyNamesWhatOtherSessionsHave(t *testing.T) {
	holders := []*wire.Report_Holder{{Session: 2, Client: "notebook", Devices: 2, How: wire.HasExclusive, Bytes: 1 << 30}}
	r := &wire.Report{
		Sessions: []*wire.Report_SessionReport{
			{Session: 1, Name: "a", UnderWay: 4, Held: &wire.Report_Held{Operations: 3, What: "jit_f", Line: "f.py:1",
				WaitsFor: "memory", Holders: holders, SinceMs: 5000}},
			{Session: 2, Name: "notebook"},
			{Session: 3, Name: "c"},
			{Session: 4, Name: "d", UnderWay: 1}},
		SliceWaits: []*wire.Report_SliceWait{{Session: 3, Devices: 4, SinceMs: 1000, Holders: holders}},
		Islands: []*wire.Report_Island{{Workers: []*wire.Report_Worker{working(1, "w0", &wire.Heartbeat{
			MoreStanding: 1, MoreRunning: 2, Running: []*wire.Running{
				{Devices: []uint32{0}, Gang: 3, Session: 1, Client: "a client", Program: "jit_g", SinceMs: 2000}}})}}}}
	want := `session 1, a: 4 operations under way
  jit_f (called at f.py:1) is held for 5s, and 2 operations behind it: it waits for memory of session 2, notebook (1.0 GiB)
  jit_g computes on device 0 of w0 for 2s
  w0 computes, or waits in, 3 operations more, of which it does not tell
session 3, c: 0 operations under way
  waits 1s for a slice of 4 devices, as number 1 in the queue: 2 are in an exclusive slice of session 2, notebook
session 4, d: 1 operation under way
  no device has reported that it computes or waits for this session: it goes on, or waits for its turn
    device 0 of w0 computes jit_g of session 1, a client for 2s
    w0 computes, or waits in, 3 operations more, of which it does not tell
`
	if got := chains(t, r, 0); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	statustest.Equal(t, chains(t, r, 2), "session 2, notebook waits for nothing: no operation of it is under way\n",
		"of a session without work")
	statustest.Fails(t, "of a session that is not there", statustest.Of((&reasons{chain.Chain{Report: r}}).all(7)),
		status.NotFound)
	statustest.Equal(t, chains(t, new(wire.Report), 0), "no session waits for anything\n", "without sessions")
}
