package resume

import (
	"encoding/binary"
	"os"
	"testing"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

// FuzzSent has a peer acknowledge whatever it likes between frames of some lengths. An acknowledgment that cannot be is
// refused, and forgets nothing; what is sent again is always what is not acknowledged.
func FuzzSent(f *testing.F) {
	ack := func(script []byte, count uint64) []byte {
		return binary.LittleEndian.AppendUint64(append(script, 0), count)
	}
	for _, count := range []uint64{0, 1, 2, 3, 4, 1 << 63, 1<<64 - 1} {
		f.Add(ack([]byte{5, 1, 200}, count))
		f.Add(ack(append(ack([]byte{255, 255}, 1), 9, 1), count))
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		var s Sent
		defer s.Close()
		var sizes []int // of all that were sent
		for len(script) > 0 {
			op := script[0]
			script = script[1:]
			if op > 0 {
				size := int(op) * 64
				s.Add(wire.KindRun, make([]byte, size))
				sizes = append(sizes, size)
				continue
			}
			var count [8]byte
			script = script[copy(count[:], script):]
			acked, n := s.Acked(), binary.LittleEndian.Uint64(count[:])
			if err := s.Ack(n); n < acked || n > uint64(len(sizes)) {
				statustest.Fails(t, "an impossible acknowledgment", err, status.InvalidArgument)
			} else if acked = n; err != nil {
				t.Errorf("of %d frames, %d: %v", len(sizes), n, err)
			}
			statustest.MustEqual(t, s.Acked(), acked, "acknowledged")
			again, bytes := sizes[acked:], 0
			statustest.OK(t, s.Again(func(_ wire.Kind, payload []byte, _ *os.File) error {
				statustest.MustEqual(t, len(payload), again[0], "the length of what is sent again")
				again, bytes = again[1:], bytes+wire.Header+len(payload)
				return nil
			}))
			statustest.MustEqual(t, len(again), 0, "frames that are not sent again")
			statustest.MustEqual(t, s.Bytes(), bytes, "bytes kept")
		}
	})
}
