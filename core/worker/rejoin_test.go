package worker

import (
	"strings"
	"testing"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport/inproc"
)

// A worker tells a controller that has started again of any number of failures, however long their errors are.
func TestWorkerRejoinsWithManyLongErrors(t *testing.T) {
	near, remote := inproc.Pair("controller", "worker")
	w := &Worker{conn: remote}
	why := wire.Of(status.New(status.Internal, "%s", strings.Repeat("x", 1<<20)))
	h := &wire.Holding{Session: 1, Programs: []uint64{7}}
	const many = 5000
	for i := range uint64(many) {
		h.Arrays = append(h.Arrays, &wire.HeldArray{Object: i, Failed: why})
		h.Gangs = append(h.Gangs, &wire.HeldGang{Gang: i, Ended: true, Failed: why})
	}
	sent := make(chan error, 1)
	go func() { sent <- w.sendRejoin(map[uint32]*wire.Holding{1: h}) }()
	arrays, gangs, programs := 0, 0, 0
	for m := (&wire.Rejoin{More: true}); m.More; {
		kind, payload, err := near.Recv()
		statustest.OK(t, err)
		m = new(wire.Rejoin)
		statustest.OK(t, wire.Decode(kind, payload, m))
		for _, one := range m.Holdings {
			arrays, gangs, programs = arrays+len(one.Arrays), gangs+len(one.Gangs), programs+len(one.Programs)
		}
	}
	statustest.Check(t, <-sent)
	if arrays != many || gangs != many || programs != 1 {
		t.Errorf("%d arrays, %d gangs and %d programs are told of, want %d, %d and 1", arrays, gangs, programs, many, many)
	}
}
