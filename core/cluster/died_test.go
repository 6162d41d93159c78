package cluster

import (
	"context"
	"net"
	"os/exec"
	"slices"
	"testing"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

// startDied asks whether a process has died, until the test stops it.
func startDied(h *wire.Hello) (stop func(), answer <-chan error) {
	ctx, stop := context.WithCancel(context.Background())
	said := make(chan error, 1)
	go func() { said <- ControllerConfig{}.died(ctx, h) }()
	return stop, said
}

func TestProcessOfThisMachineIsKnownToHaveEnded(t *testing.T) {
	process := exec.Command("cat")
	stdin := statustest.Value(process.StdinPipe()).OK(t)
	statustest.OK(t, process.Start())
	hello := &wire.Hello{Pid: uint32(process.Process.Pid), PidSpace: pidSpace()}
	stop, living := startDied(hello)
	stop()
	statustest.Checkf(t, <-living, "a process that lives")
	stop, ending := startDied(hello)
	defer stop()
	stdin.Close()
	statustest.Equal(t, <-ending, errKilled, "a process that has ended") // before it is waited for
	statustest.Check(t, process.Wait())
	statustest.Equal(t, ControllerConfig{}.died(t.Context(), hello), errKilled, "a process that is no more")
	words := map[int]string{process.Process.Pid: "a device is missing"}
	c := ControllerConfig{LastWords: func(pid int) string { return words[pid] }}
	statustest.Fails(t, "a process that said why", c.died(t.Context(), hello), status.Unavailable,
		errKilled.Error()[len("UNAVAILABLE: "):]+"; its last words: a device is missing")
	clear(words)
	statustest.Equal(t, c.died(t.Context(), hello), errKilled, "a process that said nothing")
}

// A worker has died when all its addresses refuse, of those that lead to it.
func TestWorkerElsewhereIsKnownToHaveEnded(t *testing.T) {
	var ports []net.Listener
	hello := &wire.Hello{Network: network(), Worker: &wire.WorkerOffer{Addresses: []string{"unix:/run/w"}}}
	for range 2 {
		l := statustest.Value(net.Listen("tcp", "127.0.0.1:0")).OK(t)
		ports = append(ports, l)
		hello.Worker.Addresses = append(hello.Worker.Addresses, "tcp:"+l.Addr().String())
	}
	ports[0].Close()
	stop, listening := startDied(hello)
	if _, err := ports[1].Accept(); err != nil { // it is asked after the one that refuses
		t.Fatal(err)
	}
	stop()
	statustest.Checkf(t, <-listening, "a worker that listens at one of two addresses")
	ports[1].Close()
	statustest.Fails(t, "a worker that listens no more", ControllerConfig{}.died(t.Context(), hello),
		status.Unavailable, ports[1].Addr().String())
	hello.Network = "another"
	statustest.Checkf(t, ControllerConfig{}.died(t.Context(), hello),
		"a worker with loopback addresses of another network")
	if got := asked([]string{"tcp:10.0.0.1:70", "tcp:host:70", "tcp:[::1]:70", "unix:x"}, false); !slices.Equal(got,
		[]string{"10.0.0.1:70", "host:70"}) {
		t.Errorf("asks at %v", got)
	}
}
