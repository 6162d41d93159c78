package observe_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/observe"
	"github.com/openpathways/pathways/core/status/statustest"
)

// copyOf returns a copy of at most so many bytes of a recording of 100 ms, uncompressed, and what was written beside.
func copyOf(t *testing.T, most int, r observe.Recorded) (copied, beside []byte) {
	t.Helper()
	var file bytes.Buffer
	c := observe.NewCopy(most)
	statustest.OK(t, observe.WritePerfetto(io.MultiWriter(&file, c), 7, r))
	zipped := c.End(&r, 7, 100*time.Millisecond, "step.json")
	if zipped == nil {
		return nil, file.Bytes()
	}
	if len(zipped) > most {
		t.Errorf("a copy has %d bytes, want at most %d", len(zipped), most)
	}
	plain := statustest.Value(gzip.NewReader(bytes.NewReader(zipped))).OK(t)
	return statustest.Value(io.ReadAll(plain)).OK(t), file.Bytes()
}

// A copy that is too long has the first part of the recording, of all devices, and says what is missing.
func TestCopySaysWhatIsCutOff(t *testing.T) {
	const runs, devices = 2000, 4
	var r observe.Recorded
	random := rand.New(rand.NewPCG(1, 2))
	for i := range runs * devices {
		begin := int64(i/devices) * 50e3 // ns
		r.Spans = append(r.Spans, observe.Span{Program: fmt.Sprint("jit_", random.Uint64()), Gang: uint64(i/devices) + 1,
			Device: int32(i % devices), Submitted: begin, Launched: begin + 1000, End: begin + 40e3})
	}
	whole, beside := copyOf(t, 1<<20, r)
	statustest.Equal(t, string(whole), string(beside), "a copy that is short enough")

	cut, _ := copyOf(t, 64<<10, r)
	var trace struct {
		TraceEvents []struct {
			Ph, Name string
			Tid      int
			Ts       float64
		}
	}
	statustest.OK(t, json.Unmarshal(cut, &trace))
	bars, says, ends := map[int]int{}, "", 0.
	for _, e := range trace.TraceEvents {
		if e.Ph == "i" {
			says, ends = e.Name, e.Ts
		}
	}
	for _, e := range trace.TraceEvents {
		if e.Ph == "X" {
			if bars[e.Tid]++; e.Ts >= ends {
				t.Fatalf("a bar begins at %v µs, where the copy is cut off at %v", e.Ts, ends)
			}
		}
	}
	want := fmt.Sprintf("cut off here: this copy has the first %v of 100ms, since a cluster keeps 64 KiB of a trace, "+
		"compressed; all of it is in step.json", time.Duration(ends*1e3).Round(time.Millisecond))
	statustest.Equal(t, says, want, "what the copy says")
	for device := range devices {
		if n := bars[device]; n < runs/20 || n > runs/2 || n != bars[0] {
			t.Errorf("device %d has %d bars of %d, and device 0 %d", device, n, runs, bars[0])
		}
	}

	r.Devices = append(r.Devices, observe.Device{Number: 1, Worker: strings.Repeat("w", 1<<20)})
	if none, _ := copyOf(t, 64, r); none != nil {
		t.Errorf("a copy of 64 bytes is %q", none)
	}
}
