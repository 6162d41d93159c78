package collective

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
)

// Arrays may be freed as soon as their call has failed, although a peer has still to read them.
func TestArraysThatAreNoLongerLentAreNotUsed(t *testing.T) {
	w := newWorld(t, 2, 2)
	w.lend()
	x := shape.Shape{DType: shape.F32, Dims: []int64{64 << 10}}
	s := allReduce(2, x)
	g := Gang{ID: 1, Launch: 1, Ranks: blocked(2, 2)}
	w.begin(g)
	rng := rand.New(rand.NewPCG(1, 2))
	in := bring(s, 2, rng)
	got, errs := w.enter(g, s, in, 2, rng) // the first maps the memory
	for _, err := range errs {
		statustest.OK(t, err)
	}
	same(t, s, got, twin(s, 2, in))
	enter := func(process uint64) <-chan error {
		ended := make(chan error, 1)
		w.engines[process].Enter(Call{Launch: 1, Spec: s, Operands: [][]byte{w.array(process, x.Bytes())},
			Results: [][]byte{w.array(process, x.Bytes())}, Done: func(err error) { ended <- err }})
		return ended
	}
	first := enter(1)
	w.engines[1].Abort(1, status.New(status.Aborted, "for a test"))
	statustest.Equal(t, status.CodeOf(<-first), status.Aborted, "the code at the one that was aborted")
	second := enter(2)
	select {
	case err := <-second:
		t.Fatalf("the other has ended before its gang, with %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	w.engines[2].Abort(1, status.New(status.Aborted, "for a test, too"))
	statustest.Equal(t, (<-second).Error(), "for a test, too", "the other's error")
	w.end(1)
	w.hub.clean()
	w.close()
}
