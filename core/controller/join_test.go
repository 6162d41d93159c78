package controller

import (
	"fmt"
	"strings"
	"testing"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

// tryJoin has a worker join, and returns why it is refused.
func (st *State) tryJoin(conn uint64, name string, addresses ...string) (refused error) {
	offer := &wire.WorkerOffer{Addresses: addresses, Platform: &wire.Platform{Name: "sim"}, Devices: []*wire.LocalDevice{
		{Kind: "sim"}}}
	for _, a := range st.Step(&Event{
		Kind: Join, Conn: conn, Message: &wire.Hello{Role: wire.Role_ROLE_WORKER, Name: name, Worker: offer}}, nil) {
		if a.Kind == Refuse {
			refused = a.Err
		}
	}
	return refused
}

// An address that names no host is refused when a worker joins; others are not.
func TestWorkerThatOthersCannotReach(t *testing.T) {
	st := New(Config{Cluster: "test"})
	for i, bad := range []string{"tcp:0.0.0.0:8477", "tcp:[::]:8477", "tcp::8477", "tcp:node2"} {
		err := st.tryJoin(uint64(i+1), "w0", "unix:/run/w0", bad)
		statustest.Fails(t, fmt.Sprintf("at %s", bad), err, status.InvalidArgument, bad, "worker w0")
	}
	statustest.Equal(t, len(st.Report().Islands), 0, "islands have workers that were refused")
	for i, good := range []string{"tcp:10.0.0.2:8477", "tcp:[::1]:8477", "tcp:node2:8477", "unix:/run/w1"} {
		statustest.Checkf(t, st.tryJoin(uint64(i+10), "w"+good, good), "at %s", good)
	}
}

// A unix socket is reached by processes of its host, a loopback address by those of its
// network. A worker is refused that one which is there cannot dial, or that cannot dial
// that one, and so is a client.
func TestWorkersOfOtherMachines(t *testing.T) {
	type process struct{ host, network, address string }
	join := func(st *State, conn uint64, role wire.Role, p process) (refused error) {
		h := &wire.Hello{Role: role, Name: "new", Host: p.host, Network: p.network}
		if role == wire.Role_ROLE_WORKER {
			h.Worker = &wire.WorkerOffer{Platform: &wire.Platform{Name: "sim"}, Devices: []*wire.LocalDevice{{}},
				Addresses: strings.Fields(p.address)}
		}
		for _, a := range st.Step(&Event{Kind: Join, Conn: conn, Message: h}, nil) {
			if a.Kind == Refuse {
				refused = a.Err
			}
		}
		return refused
	}
	const worker, client = wire.Role_ROLE_WORKER, wire.Role_ROLE_CLIENT
	for _, c := range []struct {
		what       string
		there      process
		role       wire.Role
		comes      process
		want       status.Code
		says, does string
	}{
		{"unix sockets of one host", process{"a", "a", "unix:/1"}, worker, process{"a", "a", "unix:/2"}, status.OK, "", ""},
		{"a unix socket of another host", process{"a", "a", "tcp:node1:1"}, worker, process{"b", "b", "unix:/2"},
			status.InvalidArgument, "unix:/2", "worker new"},
		{"beside a unix socket of another host", process{"a", "a", "unix:/1"}, worker, process{"b", "b", "tcp:node2:1"},
			status.FailedPrecondition, "unix:/1", "worker there"},
		{"loopback of one network", process{"a", "n", "tcp:127.0.0.1:1"}, worker, process{"b", "n", "tcp:[::1]:2"}, status.OK,
			"", ""},
		{"loopback of another network", process{"a", "n", "tcp:node1:1"}, worker, process{"a", "m", "tcp:localhost:2"},
			status.InvalidArgument, "tcp:localhost:2", "worker new"},
		{"loopback of a network that is not known", process{"a", "n", "tcp:127.0.0.1:1"}, worker,
			process{"b", "", "tcp:127.0.0.1:2"}, status.OK, "", ""},
		{"one address of two", process{"a", "a", "tcp:node1:1"}, worker, process{"b", "b", "unix:/2 tcp:node2:1"}, status.OK,
			"", ""},
		{"a client of the same host", process{"a", "a", "unix:/1"}, client, process{"a", "b", ""}, status.OK, "", ""},
		{"a client of another host", process{"a", "a", "unix:/1"}, client, process{"b", "b", ""}, status.FailedPrecondition,
			"unix:/1", "worker there"},
	} {
		st := New(Config{Cluster: "test"})
		there := &wire.Hello{Role: worker, Name: "there", Host: c.there.host, Network: c.there.network,
			Worker: &wire.WorkerOffer{
				Platform: &wire.Platform{Name: "sim"}, Devices: []*wire.LocalDevice{{}},
				Addresses: strings.Fields(c.there.address)}}
		st.Step(&Event{Kind: Join, Conn: 1, Message: there}, nil)
		err := join(st, 2, c.role, c.comes)
		statustest.Fails(t, c.what, err, c.want)
		for _, part := range []string{c.says, c.does, "--listen"} {
			if err != nil && !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %v does not say %q", c.what, err, part)
			}
		}
		// What is there is not in the way of others once it has gone.
		st.Step(&Event{Kind: Lost, Conn: 1, Err: status.New(status.Unavailable, "it fell over")}, nil)
		if err := join(st, 3, worker, process{"c", "c", "tcp:node3:1"}); err != nil && c.want != status.OK {
			t.Errorf("%s: after it has gone: %v", c.what, err)
		}
	}
}

// A second worker of a name is called otherwise, for as long as the first is there.
func TestWorkersOfOneName(t *testing.T) {
	st := New(Config{Cluster: "test"})
	names := func() (all []string) {
		for _, is := range st.Report().Islands {
			for _, w := range is.Workers {
				all = append(all, w.Process.Name)
			}
		}
		return all
	}
	for conn := range uint64(3) {
		statustest.OK(t, st.tryJoin(conn+1, "w0"))
	}
	statustest.Equal(t, strings.Join(names(), " "), "w0 w0-2 w0-3", "their names")
	st.Step(&Event{Kind: Lost, Conn: 1, Err: status.New(status.Unavailable, "it fell over")}, nil)
	statustest.OK(t, st.tryJoin(4, "w0"))
	if got := strings.Join(names(), " "); !strings.Contains(got+" ", "w0 ") {
		t.Errorf("one that came again is called otherwise: %s", got)
	}
}

// Devices that have no memory but their machine's share it with all others of that
// machine, of whichever worker; those that have their own keep it.
func TestClientsLearnOfMemory(t *testing.T) {
	st := New(Config{Cluster: "test"})
	join := func(conn uint64, host string, devices ...*wire.LocalDevice) {
		for i, d := range devices {
			d.Local = uint32(i)
		}
		hello := &wire.Hello{Role: wire.Role_ROLE_WORKER, Name: "w", Host: host,
			Worker: &wire.WorkerOffer{Host: host, Platform: &wire.Platform{Name: "sim"}, Devices: devices}}
		for _, a := range st.Step(&Event{Kind: Join, Conn: conn, Message: hello}, nil) {
			if a.Kind == Refuse {
				t.Fatal(a.Err)
			}
		}
	}
	const whole = 1200
	join(1, "a", &wire.LocalDevice{HostMemory: whole}, &wire.LocalDevice{HostMemory: whole})
	join(2, "a", &wire.LocalDevice{HostMemory: whole, MemoryLimit: 300}, &wire.LocalDevice{MemoryLimit: 700})
	join(3, "b", &wire.LocalDevice{HostMemory: whole, MemoryLimit: 900}, &wire.LocalDevice{})

	var got [][3]int64
	for _, a := range st.Step(&Event{Kind: Join, Conn: 4, Message: &wire.Hello{Role: wire.Role_ROLE_CLIENT}}, nil) {
		if a.Kind != Welcome {
			continue
		}
		a.Complete()
		for _, d := range a.Message.Devices {
			onHost := int64(0)
			if d.HostMemory {
				onHost = 1
			}
			got = append(got, [3]int64{d.MemoryLimit, d.MemoryShare, onHost})
		}
	}
	want := [][3]int64{{whole, 400, 1}, {whole, 400, 1}, {300, 300, 1}, {700, 700, 0}, {900, 900, 1}, {0, 0, 0}}
	statustest.EqualSlices(t, got, want, "limit, share and whether it is the machine's")

	st.Step(&Event{Kind: Lost, Conn: 2, Err: errLeft}, nil)
	join(5, "a", &wire.LocalDevice{HostMemory: whole, MemoryLimit: 800}, &wire.LocalDevice{MemoryLimit: 700})
	if st.sessions[1].offered == nil {
		t.Fatal("no worker is offered in the place of the one that was lost")
	}
	m := st.offers.m
	statustest.Equal(t, [2]int64{m.Devices[0].MemoryShare, m.Devices[1].MemoryShare}, [2]int64{400, 700},
		"shares of a worker that takes a lost one's place, beside another on its machine")
}

// A client that waits for devices asks again and again, and is logged once a wait, without a warning.
func TestClientThatWaitsIsLoggedOnce(t *testing.T) {
	const second = int64(1e9)
	st, conn, now := New(Config{Cluster: "test", Limits: Limits{Sessions: 2}}), uint64(100), second
	ask := func(name string, devices uint32) (logs []Action) {
		conn, now = conn+1, now+second
		hello := &wire.Hello{Role: wire.Role_ROLE_CLIENT, Name: name, Devices: devices}
		for _, a := range st.Step(&Event{Kind: Join, Now: now, Conn: conn, Message: hello}, nil) {
			if a.Kind == Log {
				logs = append(logs, a)
			}
		}
		return logs
	}
	expect := func(when string, logs []Action, lines int, warn bool) {
		t.Helper()
		if len(logs) != lines ||
			lines > 0 && (logs[0].Event.Warn != warn || !strings.HasPrefix(logs[0].Event.Text, "refused ")) {
			t.Errorf("%s: it logs %+v, expected %d lines, warning %v", when, logs, lines, warn)
		}
	}
	expect("first of a", ask("a", 2), 1, false)
	expect("first of b", ask("b", 2), 1, false)
	for range 100 {
		expect("a again", ask("a", 2), 0, false)
		expect("b again", ask("b", 2), 0, false)
	}
	now += 60 * second
	expect("another wait of a", ask("a", 2), 1, false)
	statustest.OK(t, st.tryJoin(1, "w0", "unix:/run/w0"))
	ask("a", 1)
	expect("a after it got devices", ask("a", 2), 1, false)
	ask("b", 1)
	expect("at the limit of sessions", ask("c", 1), 1, true)
	expect("at the limit again", ask("c", 1), 0, true)
	for i := range 2 * remembers {
		ask(fmt.Sprint(i), 1)
	}
	statustest.Equal(t, len(st.waiting), remembers, "clients that wait and that it remembers")
}
