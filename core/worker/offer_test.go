package worker

import (
	"runtime"
	"strings"
	"testing"

	"github.com/openpathways/pathways/device"
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
func TestFingerprint(t *testing.T) {
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
	if got, want := of("cuda", ""), "1.2, "+runtime.GOARCH; got != want { // its code runs elsewhere
		t.Errorf("the fingerprint is %q, want %q", got, want)
	}
}
