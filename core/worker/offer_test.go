package worker

import (
	"runtime"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/host"
)

// plain is a driver of one platform whose plugin is a file.
type plain struct {
	device.Driver
	platform, file string
}

func (p plain) Platform() string         { return p.platform }
func (p plain) PlatformVersion() string  { return "1.2" }
func (p plain) Devices() []device.Device { return nil }
func (p plain) Build() string            { return p.file }

// What compiled programs depend on is in the fingerprint, and no more.
func TestFingerprintIsWhatCompiledProgramsDependOn(t *testing.T) {
	of := func(platform, file string) string { return Offer(plain{nil, platform, file}).Fingerprint }
	one := of("cpu", "plugin.so with SHA-256 1")
	for _, want := range []string{"1.2", "plugin.so with SHA-256 1", runtime.GOARCH, " processors", features()} {
		if !strings.Contains(one, want) {
			t.Errorf("the fingerprint %q lacks %q", one, want)
		}
	}
	if runtime.GOARCH == "amd64" && !strings.Contains(" "+features()+" ", " sse2 ") {
		t.Errorf("a processor has the features %q; all of amd64 have sse2", features())
	}
	if another := of("cpu", "plugin.so with SHA-256 2"); another == one {
		t.Errorf("two files have one fingerprint, %q", one)
	}
	statustest.Equal(t, of("cuda", ""), "1.2, "+runtime.GOARCH, "the fingerprint") // its code runs elsewhere
}

// one is a driver with one device, whose memory the plugin says nothing of.
type one struct{ plain }

func (one) Devices() []device.Device { return make([]device.Device, 1) }
func (one) MemoryStats(int) (device.MemoryStats, error) {
	return device.MemoryStats{Limit: -1}, nil
}

func TestDevicesWithoutMemoryOfTheirOwnOfferTheMachines(t *testing.T) {
	for platform, want := range map[string]int64{"cpu": host.Memory(), "sim_fast": host.Memory(), "cuda": 0} {
		d := Offer(one{plain{nil, platform, "plugin.so"}}).Devices[0]
		if d.HostMemory != want || d.MemoryLimit != 0 {
			t.Errorf("%s: %d bytes of the machine's and a limit of %d, want %d and none", platform, d.HostMemory, d.MemoryLimit,
				want)
		}
	}
}

func TestWhatDevicesOfAKindDifferInIsNotOffered(t *testing.T) {
	got := kinds([]device.Device{
		{Kind: "H100", Attributes: map[string]any{"compute_capability": "9.0", "core_count": int64(132), "uuid": "1"}},
		{Kind: "H100", Attributes: map[string]any{"compute_capability": "9.0", "core_count": int64(132), "uuid": "2",
			"odd": true}},
		{Kind: "L4", Attributes: map[string]any{"compute_capability": "8.9"}},
		{Kind: "silent"},
	})
	want := []*wire.DeviceKind{
		{Kind: "H100", Strings: map[string]string{"compute_capability": "9.0"}, Ints: map[string]int64{"core_count": 132}},
		{Kind: "L4", Strings: map[string]string{"compute_capability": "8.9"}},
	}
	if !slices.EqualFunc(got, want, func(a, b *wire.DeviceKind) bool { return proto.Equal(a, b) }) {
		t.Errorf("offered %v, want %v", got, want)
	}
}

func TestMemoriesAreOfferedWithoutTheirNumbers(t *testing.T) {
	got := memoryNames([]device.Device{
		{Memories: []device.Memory{{ID: 0, Kind: "device", Text: "Memory(id=0, process_index=0)", Debug: "CPU_DEVICE_0"},
			{ID: 1, Kind: "silent"}}},
		{Memories: []device.Memory{
			{ID: 2, Kind: "device", Text: "another", Debug: "another"}, {ID: 3, Kind: "host", Text: "V13 of 3", Debug: "3"}}},
	})
	want := []*wire.MemoryName{{Kind: "device", Text: "Memory(id={id}, process_index=0)", Debug: "CPU_DEVICE_{id}"},
		{Kind: "host", Text: "V13 of {id}", Debug: "{id}"}}
	if !slices.EqualFunc(got, want, func(a, b *wire.MemoryName) bool { return proto.Equal(a, b) }) {
		t.Errorf("offered are %v, want %v", got, want)
	}
}
