package resume

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"pgregory.net/rapid"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

// Whatever is lost with a connection, the receiver gets each frame once and in
// order, and the sender keeps little more than what was not acknowledged.
func TestFramesArriveOnceInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s Sent
		var r Received
		var line [][]byte // what is on its way
		var sent, got int
		ack, acks := uint64(0), false // on its way back
		deliver := func(n int) {
			for ; n > 0 && len(line) > 0; n-- {
				if want := fmt.Sprint(got); !bytes.HasPrefix(line[0], []byte(want+".")) {
					t.Fatalf("got %.20q, want frame %d", line[0], got)
				}
				got++
				if r.Add(len(line[0]), false) {
					ack, acks = r.Count(), true
				}
				line = line[1:]
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"send": func(t *rapid.T) {
				for range rapid.IntRange(1, 300).Draw(t, "frames") {
					payload := append(fmt.Appendf(nil, "%d.", sent),
						make([]byte, rapid.SampledFrom([]int{0, 10, 5000}).Draw(t, "bytes"))...)
					s.Add(wire.KindBulk, payload)
					line = append(line, bytes.Clone(payload))
					sent++
				}
			},
			"deliver": func(t *rapid.T) { deliver(rapid.IntRange(1, 400).Draw(t, "frames")) },
			"acknowledge": func(t *rapid.T) {
				if acks {
					statustest.OK(t, s.Ack(ack))
					acks = false
				}
			},
			"break": func(t *rapid.T) {
				line, acks = nil, false
				statustest.OK(t, s.Ack(r.Count()))
				statustest.OK(t, s.Again(func(kind wire.Kind, payload []byte, f *os.File) error {
					if kind != wire.KindBulk || f != nil {
						t.Fatalf("a frame of kind %d with file %v", kind, f)
					}
					line = append(line, bytes.Clone(payload))
					return nil
				}))
			},
			"": func(t *rapid.T) {
				statustest.MustEqual(t, sent, got+len(line),
					"frames were sent, %d came and %d are on their way", got, len(line))
			},
		})
		deliver(sent)
		if err := s.Ack(r.Count()); err != nil || s.Bytes() != 0 {
			t.Fatalf("%d bytes are kept of what was received, %v", s.Bytes(), err)
		}
	})
}

func TestAckOfWhatWasNotSent(t *testing.T) {
	var s Sent
	s.Add(wire.KindBulk, nil)
	s.Add(wire.KindBulk, nil)
	for _, bad := range []uint64{3, 1 << 63} {
		statustest.Fails(t, fmt.Sprintf("an acknowledgment of %d frames", bad), s.Ack(bad), status.InvalidArgument)
	}
	statustest.Check(t, s.Ack(2))
	statustest.Fails(t, "an acknowledgment that goes back", s.Ack(1), status.InvalidArgument)
}

// A file is sent again with its frame, also where its owner has closed it, and is
// closed when the peer has it.
func TestFileIsSentAgainWithItsFrame(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	statustest.OK(t, os.WriteFile(path, []byte("bytes"), 0o600))
	f := statustest.Value(os.Open(path)).OK(t)
	var s Sent
	s.Add(wire.KindBulk, []byte("a"))
	statustest.OK(t, s.AddFile(wire.KindBulk, []byte("b"), f))
	f.Close()
	var kept *os.File
	frames := ""
	if err := s.Again(func(_ wire.Kind, payload []byte, f *os.File) error {
		frames += string(payload)
		if f != nil {
			kept = f
			frames += "+"
		}
		return nil
	}); err != nil || frames != "ab+" {
		t.Fatalf("%q, %v", frames, err)
	}
	got := make([]byte, 5)
	if _, err := kept.ReadAt(got, 0); err != nil || string(got) != "bytes" {
		t.Fatalf("%q, %v", got, err)
	}
	statustest.OK(t, s.Ack(2))
	if _, err := kept.Stat(); err == nil {
		t.Error("the file is open after the peer has it")
	}
	var r Received
	if r.Add(1, false) || !r.Add(1, true) {
		t.Error("a frame with a file is acknowledged at once, a short one is not")
	}
}

// The buffer of a sender that keeps so much at all times is not much longer, and that of an idle one is short.
func TestMemoryOfABusyAndOfAnIdleSender(t *testing.T) {
	const keeps, rounds = 768 << 10, 1_000
	for _, size := range []int{20, 200, 2000} {
		var s Sent
		payload, most := make([]byte, size), 0
		for range rounds {
			for s.Bytes() < keeps {
				s.Add(wire.KindRun, payload)
			}
			most = max(most, cap(s.frames))
			statustest.Check(t, s.Ack(s.Acked()+1+rand.Uint64N(ackFrames)))
		}
		if most > keeps*9/4 {
			t.Errorf("of %d bytes that are not acknowledged, in frames of %d, the buffer has %d", keeps, size, most)
		}
		statustest.Check(t, s.Ack(s.Count()))
		if n := cap(s.frames); n > 4*ackBytes {
			t.Errorf("nothing is kept, in a buffer of %d bytes", n)
		}
	}
}
