package controller

import (
	"slices"
	"strings"
	"testing"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// tryJoin has a worker join, and returns why it is refused.
func (st *State) tryJoin(conn uint64, name string, addresses ...string) (refused error) {
	offer := &wire.WorkerOffer{Addresses: addresses, Platform: &wire.Platform{Name: "sim"}, Devices: []*wire.LocalDevice{{Kind: "sim"}}}
	for _, a := range st.Step(Event{Kind: Join, Conn: conn, Message: &wire.Hello{Role: wire.Role_ROLE_WORKER, Name: name, Worker: offer}}, nil) {
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
		if status.CodeOf(err) != status.InvalidArgument || !strings.Contains(err.Error(), bad) || !strings.Contains(err.Error(), "worker w0") {
			t.Errorf("at %s: %v, expected INVALID_ARGUMENT that names the worker and the address", bad, err)
		}
	}
	if n := len(st.Report().Islands); n != 0 {
		t.Errorf("%d islands have workers that were refused", n)
	}
	for i, good := range []string{"tcp:10.0.0.2:8477", "tcp:[::1]:8477", "tcp:node2:8477", "unix:/run/w1"} {
		if err := st.tryJoin(uint64(i+10), "w"+good, good); err != nil {
			t.Errorf("at %s: %v", good, err)
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
		if err := st.tryJoin(conn+1, "w0"); err != nil {
			t.Fatal(err)
		}
	}
	if got := strings.Join(names(), " "); got != "w0 w0-2 w0-3" {
		t.Errorf("they are called %s", got)
	}
	st.Step(Event{Kind: Lost, Conn: 1, Err: status.New(status.Unavailable, "it fell over")}, nil)
	if err := st.tryJoin(4, "w0"); err != nil {
		t.Fatal(err)
	}
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
		for _, a := range st.Step(Event{Kind: Join, Conn: conn, Message: hello}, nil) {
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
	for _, a := range st.Step(Event{Kind: Join, Conn: 4, Message: &wire.Hello{Role: wire.Role_ROLE_CLIENT}}, nil) {
		if a.Kind != Welcome {
			continue
		}
		for _, d := range a.Message.Devices {
			onHost := int64(0)
			if d.HostMemory {
				onHost = 1
			}
			got = append(got, [3]int64{d.MemoryLimit, d.MemoryShare, onHost})
		}
	}
	want := [][3]int64{{whole, 400, 1}, {whole, 400, 1}, {300, 300, 1}, {700, 700, 0}, {900, 900, 1}, {0, 0, 0}}
	if !slices.Equal(got, want) {
		t.Errorf("limit, share and whether it is the machine's: %v, want %v", got, want)
	}
}
