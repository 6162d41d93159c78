package wire

import (
	"bytes"
	"testing"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
)

// FuzzFrame takes bursts apart: what comes out, written again, is what went in, and
// what is no burst is an error.
func FuzzFrame(f *testing.F) {
	f.Add(AppendFrame(AppendFrame(nil, KindRun, []byte{1, 2}), KindFree, nil))
	f.Add([]byte{1, 0, 0, 0})
	f.Add([]byte{3, 0, 0, 0, byte(KindRun), 1})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, byte(KindRun), 1})
	f.Fuzz(func(t *testing.T, burst []byte) {
		var again []byte
		for rest := burst; len(rest) > 0; {
			kind, payload, next, err := NextFrame(rest)
			if err != nil {
				statustest.Fails(t, "the error", err, status.InvalidArgument)
				return
			}
			again, rest = AppendFrame(again, kind, payload), next
		}
		if !bytes.Equal(again, burst) {
			t.Errorf("%x became %x", burst, again)
		}
	})
}
