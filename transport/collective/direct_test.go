package collective

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/xla/spmd"
)

// Members of a board that lend each other their memory bring no block of a large collective, from its second call on. A
// fault in one's arrays fails its call, and none of the others'.
func TestLargeArraysAreReadWhereTheyLie(t *testing.T) {
	for id, op := range directly {
		t.Run(fmt.Sprint(op), func(t *testing.T) {
			w := newWorld(t, 2, 2)
			defer w.close()
			w.lend()
			for _, b := range w.boards {
				b.area.limit = 0 // so that blocks go by the exchange
			}
			x := shape.Shape{DType: shape.F32, Dims: []int64{4 << 10}}
			s := allReduce(2, x)
			s.Op = op
			switch op {
			case spmd.AllGather:
				s.Results = []shape.Shape{{DType: shape.F32, Dims: []int64{8 << 10}}}
			case spmd.ReduceScatter:
				s.Results = []shape.Shape{{DType: shape.F32, Dims: []int64{2 << 10}}}
			case spmd.CollectivePermute:
				s.Groups, s.Pairs = nil, [][2]int{{0, 1}}
			case spmd.RaggedAllToAll:
				list := shape.Shape{DType: shape.S64, Dims: []int64{2}}
				rows := shape.Shape{DType: shape.F32, Dims: []int64{10, 1 << 10}}
				s.Operands, s.Results = []shape.Shape{rows, rows, list, list, list, list}, []shape.Shape{rows}
			}
			g := Gang{ID: uint64(id + 1), Launch: 1, Ranks: blocked(2, 2)}
			w.begin(g)
			defer w.end(g.ID)
			rng := rand.New(rand.NewPCG(1, 2))
			in := bring(s, 2, rng)
			var before int64
			for range 2 {
				before = w.hub.sent.Load()
				got, errs := w.enter(g, s, in, 1, rng)
				statustest.OK(t, errors.Join(errs...))
				same(t, s, got, twin(s, 2, in))
				w.hub.clean()
			}
			statustest.Equal(t, w.hub.sent.Load(), before, "blocks that were brought before and after the second call")
			if op == spmd.RaggedAllToAll {
				put(s, in[0], 3, 1, 99) // of rows for rank 1
				_, errs := w.enter(g, s, in, 1, rng)
				statustest.OK(t, errs[0])
				statustest.Fails(t, "the call", errs[1], status.InvalidArgument, "member 0 sends rows")
			}
		})
	}
}

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
