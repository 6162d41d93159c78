package controller

import (
	"fmt"
	"slices"
	"testing"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/xla/compileoptions"
)

// A session has devices of the platforms that it asks for, or else of the accelerators'. What it lacks is of its
// platform, too.
func TestSessionHasDevicesOfItsPlatforms(t *testing.T) {
	st, conn := New(Config{Cluster: "test"}), uint64(0)
	join := func(h *wire.Hello) (welcome *wire.Welcome, refused error) {
		conn++
		for _, a := range st.Step(&Event{Kind: Join, Conn: conn, Message: h}, nil) {
			switch a.Kind {
			case Refuse:
				refused = a.Err
			case Welcome:
				if welcome = a.Message; a.Complete != nil {
					a.Complete()
				}
			}
		}
		return welcome, refused
	}
	worker := func(name, island, platform string) error {
		_, err := join(&wire.Hello{Role: wire.Role_ROLE_WORKER, Name: name, Worker: &wire.WorkerOffer{
			Island: island, Platform: &wire.Platform{Name: platform, Version: platform + " 1"},
			Devices: []*wire.LocalDevice{{Kind: platform}, {Local: 1, Kind: platform}}}})
		return err
	}
	session := func(asks *wire.Hello) (*wire.Welcome, error) {
		asks.Role, asks.Name = wire.Role_ROLE_CLIENT, "c"
		return join(asks)
	}
	has := func(asks *wire.Hello, platform string, devices int) {
		t.Helper()
		m, err := session(asks)
		if err != nil || m.Platform.Name != platform || m.Platform.Version != platform+" 1" || len(m.Devices) != devices {
			t.Fatalf("a session that asks for %v: %v, %v; want %d devices of %s", asks, m, err, devices, platform)
		}
		for _, d := range m.Devices {
			statustest.Equal(t, d.Kind, platform, "the platform of a device")
		}
		sessions := st.Report().Sessions
		statustest.EqualSlices(t, sessions[len(sessions)-1].Platforms, []string{platform},
			"the report says that the session's devices are of")
	}
	for _, w := range [][3]string{{"host", "rack", "cpu"}, {"fast", "pod", "tpu"}} {
		statustest.OK(t, worker(w[0], w[1], w[2]))
	}
	statustest.Fails(t, "a worker of another platform in an island", worker("odd", "pod", "cpu"),
		status.FailedPrecondition)
	has(&wire.Hello{}, "tpu", 2)
	has(&wire.Hello{Platforms: []string{"cpu"}}, "cpu", 2)
	has(&wire.Hello{Platforms: []string{"cpu"}, Devices: 1}, "cpu", 1)
	has(&wire.Hello{Platforms: []string{"cpu"}, Devices: 4, Elastic: true}, "cpu", 4)
	for _, asks := range []*wire.Hello{{Platforms: []string{"cuda"}},
		{Platforms: []string{"cuda"}, Devices: 2, Elastic: true}} {
		statustest.Fails(t, "a session of a platform that is not there", statustest.Of(session(asks)),
			status.ResourceExhausted, "no devices of platform cuda, and has some of cpu and tpu")
	}
	_, err := session(&wire.Hello{Platforms: []string{"tpu"}, Devices: 3})
	statustest.Fails(t, "a session of more devices than its platform has", err, status.ResourceExhausted)
	m, err := session(&wire.Hello{Platforms: []string{"tpu", "cpu"}, Devices: 1})
	if err != nil || m.Platform.Name != "tpu" || len(m.MorePlatforms) != 1 || m.MorePlatforms[0].Name != "cpu" ||
		len(m.Devices) != 2 || m.Devices[0].Platform != 0 || m.Devices[1].Platform != 1 || m.Devices[1].Kind != "cpu" {
		t.Errorf("a session of two platforms: %v, %v", m, err)
	}
	for _, asks := range []*wire.Hello{{Platforms: []string{"tpu", "tpu"}},
		{Platforms: []string{"tpu", "cpu"}, Devices: 4, Elastic: true}} {
		statustest.Fails(t, fmt.Sprintf("a session that asks for %v", asks), statustest.Of(session(asks)),
			status.InvalidArgument)
	}
}

// A program that may run on any device of its platform runs on none of another one, even if its own has no worker left.
func TestPortableProgramStaysOnItsPlatform(t *testing.T) {
	st, conn := New(Config{Cluster: "test"}), uint64(0)
	join := func(h *wire.Hello) {
		conn++
		st.Step(&Event{Kind: Join, Conn: conn, Message: h}, nil)
	}
	for _, platform := range []string{"cpu", "tpu"} {
		join(&wire.Hello{Role: wire.Role_ROLE_WORKER, Name: platform, Worker: &wire.WorkerOffer{Island: platform,
			Platform: &wire.Platform{Name: platform}, Devices: []*wire.LocalDevice{{Kind: platform}}}})
	}
	join(&wire.Hello{Role: wire.Role_ROLE_CLIENT, Name: "c", Platforms: []string{"tpu", "cpu"}})
	for _, lost := range []bool{false, true} {
		if lost {
			st.Step(&Event{Kind: Lost, Conn: 2, Err: errStopped}, nil)
		}
		for first, want := range []uint32{0, 1} {
			rows, err := st.rows(st.sessions[1], &wire.Compile{First: uint32(first)},
				compileoptions.Options{Portable: true, Replicas: 1, Partitions: 1})
			if err != nil || !slices.Equal(rows, []uint32{want}) {
				t.Errorf("a program for the platform of device %d is for %v, %v; its worker is lost: %v", first, rows, err, lost)
			}
		}
	}
}
