package worker

import (
	"testing"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport/content"
)

func TestNothingIsKeptOfAProgramThatCannotBeDescribedToTheController(t *testing.T) {
	for _, c := range []struct{ size, kept int }{{10, 1}, {wire.MaxFrame, 0}} {
		w := new(Worker)
		w.artifacts.init(t.Context())
		w.artifacts.add(7, &artifact{code: content.Bytes(nil)})
		var m wire.Compiled
		payload := w.encoded(&wire.Compiled{Op: 7, Info: &wire.ProgramInfo{Optimized: make([]byte, c.size)}})
		statustest.OK(t, wire.Decode(wire.KindCompiled, payload, &m))
		if c.kept == 0 {
			statustest.Fails(t, "the answer", m.Status.Err(), status.InvalidArgument, "cannot be sent")
		}
		statustest.Equal(t, m.Op, 7, "the answer is for")
		statustest.Equal(t, len(w.artifacts.kept), c.kept, "with %d bytes, programs that are kept", c.size)
	}
}
