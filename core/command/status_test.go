package command

import (
	"io"
	"strings"
	"testing"

	"github.com/openpathways/pathways/core/wire"
)

// shows checks what one part of the status of a cluster shows of a report.
func shows(t *testing.T, show func(io.Writer, *wire.Report), r *wire.Report, want string) {
	t.Helper()
	var out strings.Builder
	if show(&out, r); out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

// Slices are shown by their workers' names and the devices there.
func TestStatusShowsSlices(t *testing.T) {
	shows(t, showSlices, &wire.Report{
		Islands: []*wire.Report_Island{
			{Workers: []*wire.Report_Worker{
				{Process: &wire.Process{Number: 1, Name: "w0"}}, {Process: &wire.Process{Number: 2, Name: "w1"}}}}},
		Sessions: []*wire.Report_SessionReport{
			{Session: 7, Slices: []*wire.Report_Slice{
				{Slice: 1, Devices: []*wire.Span{{Worker: 1, Local: 2, Count: 2}, {Worker: 2, Count: 1}}}}},
			{Session: 8},
			{Session: 9, Slices: []*wire.Report_Slice{
				{Slice: 3, Exclusive: true, Devices: []*wire.Span{{Worker: 5, Local: 1, Count: 1}}}}},
		},
	}, "\nSESSION\tSLICE\tDEVICES\n7\t1\t3: w0/2-3, w1/0\n9\t3\t1: a lost worker/1 (exclusive)\n")
	shows(t, showSlices, &wire.Report{Sessions: []*wire.Report_SessionReport{{Session: 1}}}, "")
}

// What a worker's devices wait for stands beside its name.
func TestStatusShowsWhatDevicesWaitFor(t *testing.T) {
	worker := func(name string, stands ...*wire.Standing) *wire.Report_Worker {
		return &wire.Report_Worker{Process: &wire.Process{Name: name}, Last: &wire.Heartbeat{Standing: stands,
			MoreStanding: uint32(max(0, len(stands)-1))}}
	}
	shows(t, showWaits, &wire.Report{Islands: []*wire.Report_Island{
		{Workers: []*wire.Report_Worker{worker("w0",
			&wire.Standing{Devices: []uint32{0, 1}, Gang: 9, Program: "jit_f", Line: "f.py:1",
				At:     "collective 0 (all-reduce)",
				Awaits: "w1 (process 3)", SinceMs: 7000},
			&wire.Standing{Devices: []uint32{2}, Gang: 8, Program: "jit_g", Line: "f.py:2", FirstCall: true,
				At:     "collective 1 (all-reduce)",
				Awaits: "device 0 of this worker", SinceMs: 8000}), worker("w1")}},
		{Workers: []*wire.Report_Worker{worker("w2", &wire.Standing{Devices: []uint32{3}, Gang: 7,
			Awaits: "bytes of w1", SinceMs: 61_000})}},
	}}, "\nWORKER\tWAITS\n"+
		"w0\tdevices 0-1 have waited for 7s in collective 0 (all-reduce) "+
		"of jit_f (operation 9, called at f.py:1) for w1 (process 3)\n"+
		"w0\tdevice 2 has waited for 8s in collective 1 (all-reduce) "+
		"of jit_g (operation 8, first called at f.py:2) for device 0 of "+
		"this worker\nw0\tand 1 more\n"+
		"w2\tdevice 3 has stood for 1m1s at operation 7, which waits for bytes of w1\n")
	shows(t, showWaits, &wire.Report{
		Islands: []*wire.Report_Island{{Workers: []*wire.Report_Worker{worker("w1")}}}}, "")
}

// What devices compute stands beside their worker: what, whose, called where, and since
// when.
func TestStatusShowsWhatDevicesCompute(t *testing.T) {
	report := func(running ...*wire.Running) *wire.Report {
		return &wire.Report{Islands: []*wire.Report_Island{{Workers: []*wire.Report_Worker{
			{Process: &wire.Process{Name: "w0"}, Last: &wire.Heartbeat{Running: running}}}}}}
	}
	shows(t, showRunning, report(
		&wire.Running{Devices: []uint32{0, 1, 2, 5, 7, 8}, Session: 3, Client: "node1:99", Program: "jit_spin",
			Line: "train.py:7", SinceMs: 75_000, UsualMs: 1200, Gone: true, Behind: 2},
		&wire.Running{Devices: []uint32{9}, Session: 5, Client: "notebook", User: "bob", Host: "node2", Program: "jit_step",
			SinceMs: 400},
		&wire.Running{Devices: []uint32{6}, Session: 4, Client: "node1:98", User: "ada", Host: "node1", Program: "jit_step",
			SinceMs: 500},
	), "\nWORKER\tDEVICES\tRUNS\tOF\tFOR\n"+
		"w0\t0-2, 5, 7-8\tjit_spin, called at train.py:7 (and 2 queued)\tsession 3, node1:99, which has ended\t1m15s "+
		"(usually 1.2s)\n"+
		"w0\t9\tjit_step\tsession 5, notebook of bob on node2\t400ms\n"+
		"w0\t6\tjit_step\tsession 4, node1:98 of ada\t500ms\n")
	shows(t, showRunning, report(), "")
}

// Memory stands beside its worker: of each device, equal ones together, and of the machine by kind.
func TestStatusShowsMemory(t *testing.T) {
	worker := func(name string, limit int64, host *wire.HostMemory, inUse ...int64) *wire.Report_Worker {
		w := &wire.Report_Worker{Process: &wire.Process{Name: name}, Last: &wire.Heartbeat{MemoryInUse: inUse, Host: host}}
		for range inUse {
			w.Devices = append(w.Devices, &wire.LocalDevice{MemoryLimit: limit})
		}
		return w
	}
	shows(t, showMemory, &wire.Report{Islands: []*wire.Report_Island{{Workers: []*wire.Report_Worker{
		worker("w0", 4<<30, &wire.HostMemory{Blocks: 1 << 20, Collectives: 512, Assembling: 2 << 20, Programs: 3 << 20,
			Free: 4 << 20, Limit: 1 << 30, Lent: 5 << 20}, 1<<30, 1<<30, 3<<30, 1<<30),
		worker("w1", 0, nil, 1<<20, 0),
		worker("w2", 4<<30, &wire.HostMemory{Limit: 1 << 30}, 0, 0),
		worker("w3", 0, &wire.HostMemory{Programs: 10}, 0),
		{Process: &wire.Process{Name: "it has said nothing yet"}},
		func() *wire.Report_Worker {
			w := worker("w4", 4<<30, nil, 3<<20, 3<<20, 0)
			w.ArrayBytes, w.ProgramBytes, w.TempBytes = []int64{1 << 20, 1 << 20, 0}, []int64{512, 512, 512}, []int64{2, 2, 0}
			return w
		}(),
	}}}}, "\nWORKER\tMEMORY OF DEVICES\tMEMORY OF ITS HOST\n"+
		"w0\t0-1: 1.0 GiB of 4.0 GiB, 2: 3.0 GiB of 4.0 GiB, 3: 1.0 GiB of 4.0 GiB\t1.0 MiB arrays, 512 B collectives, "+
		"2.0 MiB transfers, 3.0 MiB programs, 4.0 MiB reusable, 5.0 MiB lent by clients\n"+
		"w1\t0: 1.0 MiB, 1: 0 B\t-\n"+
		"w3\t-\t10 B programs\n"+
		"w4\t0-1: 3.0 MiB of 4.0 GiB (admitted: 1.0 MiB arrays, 512 B programs, 2 B temporary), "+
		"2: 0 B of 4.0 GiB (admitted: 512 B programs)\t-\n")
}

func TestStatusShowsPrograms(t *testing.T) {
	shows(t, showPrograms, &wire.Report{Programs: []*wire.Report_Program{
		{Name: "jit_step", Devices: 8, Runs: 12, UsualNs: 1_234_567_890, DeviceNs: 75_000_000_000},
		{Name: "jit_add", Devices: 1, Runs: 1, UsualNs: 12_345, DeviceNs: 12_345},
	}}, "\nPROGRAM\tDEVICES\tRUNS\tUSUALLY\tDEVICE TIME\n"+
		"jit_step\t8\t12\t1.23s\t1m15s\n"+
		"jit_add\t1\t1\t12.3µs\t12.3µs\n")
	shows(t, showPrograms, &wire.Report{}, "")
}

func TestStatusShowsHeldOperations(t *testing.T) {
	held := func(session uint32, waitsFor string, holders ...*wire.Report_Holder) *wire.Report_SessionReport {
		return &wire.Report_SessionReport{Session: session, Held: &wire.Report_Held{Operations: 3, What: "jit_step",
			Need: 4 << 30, WorkerName: "w0", Local: 1, SinceMs: 12_300, WaitsFor: waitsFor, Holders: holders}}
	}
	ada := &wire.Report_Holder{Session: 7, Client: "node1:99", User: "ada", Host: "node1", Bytes: 3 << 30}
	bob := &wire.Report_Holder{Session: 8, Client: "notebook", User: "bob", Host: "node2", Bytes: 1 << 20}
	r := &wire.Report{Sessions: []*wire.Report_SessionReport{held(1, "memory", ada, bob), held(2, "client"),
		held(2, "client", bob),
		held(3, "work"), held(4, "turn", ada), held(5, "frees", ada), {Session: 6}, {Session: 7, Held: &wire.Report_Held{}},
		held(8, "host-quota"), held(9, "host-quota", ada)}}
	r.Sessions[0].Held.Line = "train.py:7"
	want := "\nSESSION\tHELD\tOLDEST\tNEEDS\tFOR\tWAITS FOR\n" +
		"1\t3 operations\tjit_step, called at train.py:7\t4.0 GiB on device 1 of w0\t12.3s\tmemory of session 7, " +
		"node1:99 of ada (3.0 GiB); session 8, notebook of bob on node2 (1.0 MiB)\n" +
		"2\t3 operations\tjit_step\t4.0 GiB on device 1 of w0\t12.3s\tbytes on their way from its client to a device\n" +
		"2\t3 operations\tjit_step\t4.0 GiB on device 1 of w0\t12.3s\tbytes on their way from its client to a device " +
		"that computes for session 8, notebook of bob on node2\n" +
		"3\t3 operations\tjit_step\t4.0 GiB on device 1 of w0\t12.3s\tcomputations under way to end\n" +
		"4\t3 operations\tjit_step\t4.0 GiB on device 1 of w0\t12.3s\tits turn behind session 7, node1:99 of ada\n" +
		"5\t3 operations\tjit_step\t4.0 GiB on device 1 of w0\t12.3s\tfrees of session 7, node1:99 of ada (3.0 GiB)\n" +
		"8\t3 operations\tjit_step\t4.0 GiB of w0's machine\t12.3s\tits tenant's quota of host memory: " +
		"its own earlier operations\n" +
		"9\t3 operations\tjit_step\t4.0 GiB of w0's machine\t12.3s\tits tenant's quota of host memory: " +
		"session 7, node1:99 of ada (3.0 GiB)\n"
	shows(t, showHeld, r, want)
	shows(t, showHeld, &wire.Report{}, "")
}

func TestStatusShowsOperationsWithoutMemory(t *testing.T) {
	r := &wire.Report{Islands: []*wire.Report_Island{{Workers: []*wire.Report_Worker{
		{Process: &wire.Process{Name: "w0"}, Refused: 2, LastRefused: &wire.Report_Refusal{What: "jit_step", Session: 3,
			Client: "node1:99", User: "ada", Host: "node1", SinceMs: 12_300, Why: "no room [jit_step, called at train.py:7]"}},
		{Process: &wire.Process{Name: "w1"}},
	}}}}
	want := "\nWORKER\tNO MEMORY FOR\tLAST\tOF\tAGO\n" +
		"w0\t2 operations\tjit_step\tsession 3, node1:99 of ada\t12.3s\n"
	shows(t, showRefused, r, want)
	shows(t, showRefused, &wire.Report{}, "")
}

// Processes that a worker cannot reach stand beside its name, with the reason.
func TestStatusShowsWhomAWorkerCannotReach(t *testing.T) {
	r := &wire.Report{Islands: []*wire.Report_Island{{Workers: []*wire.Report_Worker{
		{Process: &wire.Process{Name: "w0"}, Last: &wire.Heartbeat{
			Apart: []*wire.Apart{{Process: 2, Name: "w1", SinceMs: 12_300, Why: "no route"},
				{Process: 9, SinceMs: 2000, Why: "silent"}}}},
		{Process: &wire.Process{Name: "w1"}},
	}}}}
	want := "\nWORKER\tCANNOT REACH\tFOR\tWHY\nw0\tw1\t12.3s\tno route\nw0\tprocess 9\t2s\tsilent\n"
	shows(t, showApart, r, want)
	shows(t, showApart, &wire.Report{}, "")
}

// Connections to the controller that broke are shown with their state; those that never did are not.
func TestStatusShowsConnectionsThatBroke(t *testing.T) {
	r := &wire.Report{
		Islands: []*wire.Report_Island{{Workers: []*wire.Report_Worker{
			{Process: &wire.Process{Name: "w0"}, Link: &wire.Report_Link{LeaseMs: 10_000, Cuts: 1, CutMs: 3000, LastMs: 3000,
				Why: "connection reset"}},
			{Process: &wire.Process{Name: "w1"}, Link: &wire.Report_Link{LeaseMs: 10_000}},
			{Process: &wire.Process{Name: "w2"}},
			{Process: &wire.Process{Name: "w3"}, Link: &wire.Report_Link{LeaseMs: 10_000, Cuts: 1, LastMs: 3000,
				Why: "reset"}}}}},
		Sessions: []*wire.Report_SessionReport{{Session: 3, Name: "train", User: "ada", Link: &wire.Report_Link{
			LeaseMs: 10_000, Cuts: 2, LastMs: 60_000, BackMs: 12, Why: "end of file"}}},
	}
	want := "\nWORKER OR SESSION\tCONNECTION TO THE CONTROLLER\tBROKE\tLAST\tWHY\n" +
		"w0\tnone for 3s, at most 10s\t1 time\t3s ago\tconnection reset\n" +
		"w3\tconnected, after 1ms without\t1 time\t3s ago\treset\n" +
		"session 3, train of ada\tconnected, after 12ms without\t2 times\t1m0s ago\tend of file\n"
	shows(t, showLinks, r, want)
	shows(t, showLinks, &wire.Report{}, "")
}

// The lists of workers and sessions say of each connection whether it is up, and when it broke last.
func TestShowSaysTheStateOfEachConnection(t *testing.T) {
	r := &wire.Report{
		Islands: []*wire.Report_Island{{Name: "a", Platform: "cpu", Workers: []*wire.Report_Worker{
			{Process: &wire.Process{Name: "w0"}, Pid: 4711,
				Link: &wire.Report_Link{LeaseMs: 10_000, Cuts: 1, CutMs: 3000, LastMs: 3000},
				Last: &wire.Heartbeat{Connected: 2}},
			{Process: &wire.Process{Name: "w1"}, Link: &wire.Report_Link{LeaseMs: 10_000}},
			{Process: &wire.Process{Name: "w2"}}}}},
		Sessions: []*wire.Report_SessionReport{{Name: "train", Link: &wire.Report_Link{LeaseMs: 10_000, Cuts: 2,
			LastMs: 60_000, BackMs: 12}}},
	}
	want := "ISLAND\tWORKER\tPID\tDEVICES\tMEMORY IN USE\tOBJECTS\tGANGS\tLAST HEARD\tCONNECTION\tTO OTHERS\n" +
		"a (cpu)\tw0\t4711\t0 × \t0 B\t0\t0\t0s ago\tnone for 3s\t2 up\n" +
		"a (cpu)\tw1\t?\t0 × \t0 B\t0\t0\t0s ago\tup\t0 up\n" +
		"a (cpu)\tw2\t?\t0 × \t0 B\t0\t0\t0s ago\tup\t0 up\n"
	shows(t, showWorkers, r, want)
	want = "SESSION\tCLIENT\tUSER\tHOST\tDEVICES\tOBJECTS\tMEMORY\tHOST MEMORY\tPROGRAMS\tUNDER WAY\tDEVICE TIME\tAGE" +
		"\tCONNECTION\n0\ttrain\t?\t?\t0\t0\t0 B\t0 B\t0\t0\t0s\t0s\tup, broke 1m0s ago\n"
	shows(t, showSessions, r, want)
}

// Connections between workers, and to clients, that broke are shown with their state, those of two workers once.
func TestShowPeerLinks(t *testing.T) {
	broke := func(process uint64, name string) *wire.PeerLink {
		return &wire.PeerLink{Process: process, Name: name, Cuts: 2, LastMs: 60_000, BackMs: 12, Why: "end of file"}
	}
	r := &wire.Report{Islands: []*wire.Report_Island{{Workers: []*wire.Report_Worker{
		{Process: &wire.Process{Number: 1, Name: "w0"}, Last: &wire.Heartbeat{Links: []*wire.PeerLink{broke(2, "w1"),
			{Process: 9, Cuts: 1, CutMs: 3000, LastMs: 3000, Why: "connection reset"}}}},
		{Process: &wire.Process{Number: 2, Name: "w1"}, Last: &wire.Heartbeat{
			Links: []*wire.PeerLink{broke(1, "w0"), broke(3, "w2")}, MoreLinks: 7}},
		{Process: &wire.Process{Number: 3, Name: "w2"}}}}}}
	want := "\nWORKER\tCONNECTION TO\tSTATE\tBROKE\tLAST\tWHY\n" +
		"w0\tw1\tconnected, after 12ms without\t2 times\t1m0s ago\tend of file\n" +
		"w0\tprocess 9\tnone for 3s\t1 time\t3s ago\tconnection reset\n" +
		"w1\tw2\tconnected, after 12ms without\t2 times\t1m0s ago\tend of file\n" +
		"w1\tand 7 more\n"
	shows(t, showPeerLinks, r, want)
	shows(t, showPeerLinks, &wire.Report{}, "")
}

func TestPlaceAtFindsTheClusterOfASocket(t *testing.T) {
	c := place{dir: "/run/pathways/here", cluster: "here"}
	if got, ok := placeAt(c.address()); !ok || got != c {
		t.Errorf("placeAt(%q) is %v, %v; expected %v", c.address(), got, ok, c)
	}
	for _, address := range []string{"", "tcp:127.0.0.1:80", "unix:", "unix:/run/other.sock", "unix:controller.sock"} {
		if got, ok := placeAt(address); ok && got.dir != "." {
			t.Errorf("placeAt(%q) is %v; expected none", address, got)
		}
	}
}

// Requests for slices are shown in their order, with who has the devices.
func TestQueueShowsRequestsInOrder(t *testing.T) {
	queue := func(w io.Writer, r *wire.Report) { showQueue(w, r, "") }
	r := &wire.Report{
		Sessions: []*wire.Report_SessionReport{{Session: 7, Tenant: "red", Name: "notebook", User: "ada"}, {Session: 8}},
		SliceWaits: []*wire.Report_SliceWait{
			{Session: 7, Devices: 4, Exclusive: true, Priority: 5, SinceMs: 4000, LeftMs: 26000, Lacks: 3,
				Holders: []*wire.Report_Holder{{Session: 9, User: "bob", Devices: 2, How: wire.HasUse},
					{Session: 10, Devices: 1, How: wire.HasExclusive}}},
			{Session: 8, Devices: 1, Island: "x", Kind: "k", LeftMs: -1},
			{Session: 8, Devices: 2, LeftMs: -1, Holders: []*wire.Report_Holder{
				{Session: 7, User: "ada", Devices: 2, How: wire.HasTurn}}}}}
	shows(t, queue, r,
		"PLACE\tWAITS FOR A SLICE\tOF\tPRIORITY\tSINCE\tAT MOST\tDEVICES\n"+
			"1\tsession 7, notebook of ada\t4 devices, exclusive\t5\t4s\t30s\t"+
			"2 are in use by session 9 of bob; 1 is in an exclusive slice of session 10\n"+
			"2\tsession 8\t1 device, island x, k\t0\t0s\tno limit\tdevices are reserved for requests that come before it\n"+
			"3\tsession 8\t2 devices\t0\t0s\tno limit\t2 are reserved for an earlier request of session 7 of ada\n")
	r.Tenants, r.SliceWaits = []*wire.Report_Tenant{{Name: "red"}}, r.SliceWaits[:1]
	shows(t, queue, r, "PLACE\tWAITS FOR A SLICE\tTENANT\tOF\tPRIORITY\tSINCE\tAT MOST\tDEVICES\n"+
		"1\tsession 7, notebook of ada\tred\t4 devices, exclusive\t5\t4s\t30s\t"+
		"2 are in use by session 9 of bob; 1 is in an exclusive slice of session 10\n")
}
