package cluster_test

import (
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/cluster"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/device/sim"
)

// Calls that leave one by one come to the same as those that leave together.
func TestUnbatchedCallsDoTheSame(t *testing.T) {
	address, member := sockets(t)
	kind := sim.Kind{Options: sim.Options{Devices: 2, Island: sim.NewIsland(sim.Real, 1)}}
	w := member("w0", kind, 1)
	workers(t, address, 1)
	const calls = 200
	for _, value := range []string{"", "true", "false"} {
		alone, err := cluster.AloneOf(func(string) (string, bool) { return value, value != "" })
		if err != nil || alone != (value == "false") {
			t.Errorf("PATHWAYS_BATCH=%s: %v, %v", value, alone, err)
		}
		s := begin(t, func(n client.Notify) (client.Cluster, error) {
			return cluster.Connect(t.Context(), cluster.ClientConfig{
				Address: address, Name: "client", Heartbeat: 100 * time.Millisecond, Alone: alone}, n)
		})
		devices := []int{0, 1}
		add, x := s.program(addOne, devices...), s.vector(devices, ramp)
		var token uint64
		for range calls {
			before := x
			token, x = s.Start(add, x)
			s.Free([]uint64{before}) // which leaves with the next call
		}
		statustest.OK(t, s.Wait(token))
		for _, d := range devices {
			if got, err := s.read(x, d); err != nil || got[0] != ramp(d)[0]+calls {
				t.Errorf("PATHWAYS_BATCH=%s: device %d has %v, %v after %d additions to %v", value, d, got, err, calls, ramp(d))
			}
		}
		s.Close()
	}
	if _, err := cluster.AloneOf(func(string) (string, bool) {
		return "some", true
	}); status.CodeOf(err) != status.InvalidArgument {
		t.Errorf("a value that means nothing: %v", err)
	}
	statustest.Check(t, w.end())
}

// If no controller answers at an address, the error says what to do: start the cluster of `pathways up` again, or look
// at the address. A controller that was killed leaves its socket's file behind.
func TestAbsentControllerSaysWhatToDo(t *testing.T) {
	dir := t.TempDir()
	killed := filepath.Join(dir, cluster.Socket)
	l := statustest.Value(net.ListenUnix("unix", &net.UnixAddr{Name: killed, Net: "unix"})).OK(t)
	l.SetUnlinkOnClose(false)
	l.Close()
	up := "`pathways up --dir " + filepath.Dir(dir) + " --cluster " + filepath.Base(dir) + "`"
	for _, c := range []struct{ address, says string }{
		{"unix:" + killed, up},
		{"unix:" + killed, "or with the same `pathways controller`"},
		{"unix:" + filepath.Join(dir, "none", cluster.Socket), "`pathways up --dir " + dir + " --cluster none`"},
		{"unix:" + filepath.Join(dir, "other.sock"), "start it with `pathways controller`"},
		{"tcp:127.0.0.1:1", "start it with `pathways controller`"},
	} {
		_, asked := cluster.Ask(t.Context(), c.address, cluster.Secret{}, nil)
		_, begun := cluster.Connect(t.Context(), cluster.ClientConfig{Address: c.address, Name: "client"}, nil)
		for _, err := range []error{asked, begun} {
			statustest.Fails(t, c.address, err, status.Unavailable, c.says)
		}
	}
}
