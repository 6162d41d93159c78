package collective

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/xla/spmd"
)

// counts has large blocks of a collective that are not read where they lie go by the exchange.
func (w *world) counts() {
	for _, b := range w.boards {
		b.area.limit, b.sizes = 0, sizes{block: 4 << 10, piece: 4 << 10}
	}
}

// blocks has two ranks enter a collective, compares the results with the twin's, and returns how many blocks came.
func (w *world) blocks(g Gang, s *spmd.Spec, in [][][]byte, rng *rand.Rand) int64 {
	w.hub.t.Helper()
	before := w.hub.sent.Load()
	got, errs := w.enter(g, s, in, 1, rng)
	statustest.OK(w.hub.t, errors.Join(errs...))
	same(w.hub.t, s, got, twin(s, 2, in))
	w.hub.clean()
	return w.hub.sent.Load() - before
}

// Members of a board that lend each other their memory bring no block of a large collective, from its second call on. A
// fault in one's arrays fails its call, and none of the others'.
func TestLargeArraysAreReadWhereTheyLie(t *testing.T) {
	for id, op := range directly {
		t.Run(fmt.Sprint(op), func(t *testing.T) {
			w := newWorld(t, 2, 2)
			defer w.close()
			w.lend()
			w.counts()
			x := shape.Shape{DType: shape.F32, Dims: []int64{16 << 10}}
			s := allReduce(2, x)
			s.Op = op
			switch op {
			case spmd.AllGather:
				s.Results = []shape.Shape{{DType: shape.F32, Dims: []int64{32 << 10}}}
			case spmd.ReduceScatter:
				s.Results = []shape.Shape{{DType: shape.F32, Dims: []int64{8 << 10}}}
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
			if w.blocks(g, s, in, rng) == 0 {
				t.Fatal("the first call brought no block")
			}
			statustest.Equal(t, w.blocks(g, s, in, rng), 0, "blocks of the second call")
			if op == spmd.RaggedAllToAll {
				put(s, in[0], 3, 1, 99) // of rows for rank 1
				_, errs := w.enter(g, s, in, 1, rng)
				statustest.OK(t, errs[0])
				statustest.Fails(t, "the call", errs[1], status.InvalidArgument, "member 0 sends rows")
			}
		})
	}
}

// Arrays in segments of a pool are read where they lie as long as the segments last. Then their memory goes back to the
// system, although peers have mapped it, and the peers unmap it when they come to know.
func TestSegmentsAreLentWhileTheyLast(t *testing.T) {
	w := newWorld(t, 2, 2)
	defer w.close()
	w.lend()
	w.counts()
	for _, h := range w.heaps {
		h.put()
	}
	s := allReduce(2, shape.Shape{DType: shape.F32, Dims: []int64{16 << 10}})
	g := Gang{ID: 1, Launch: 1, Ranks: blocked(2, 2)}
	w.begin(g)
	defer w.end(g.ID)
	rng := rand.New(rand.NewPCG(1, 2))
	blocks := func() int64 { return w.blocks(g, s, bring(s, 2, rng), rng) }
	one, other := w.boards[0], w.boards[1]
	borrowed := func() *lender { // the first segment of one
		other.lending.mu.Lock()
		defer other.lending.mu.Unlock()
		return other.lending.lent[one.self][1]
	}
	for range 2 {
		if blocks() == 0 {
			t.Fatal("a call with a new segment brought no block")
		}
		statustest.Equal(t, blocks(), 0, "blocks of a call with a segment that is mapped")
		had := borrowed()
		segment := w.heaps[w.near[0]].blocks[0].Segment
		file := statustest.Value(os.Open(fmt.Sprintf("/proc/self/fd/%d", segment.File.Fd()))).OK(t)
		defer file.Close()
		for _, h := range w.heaps {
			h.empty()
		}
		var info unix.Stat_t
		statustest.OK(t, unix.Fstat(int(file.Fd()), &info))
		if len(had.data) == 0 || info.Blocks > 0 {
			t.Errorf("of a segment that has gone a peer has mapped %d bytes, and %d KiB are left", len(had.data), info.Blocks/2)
		}
		other.lending.learn(one.self)
		if had.data != nil || borrowed() != nil {
			t.Error("a segment that has gone is still mapped")
		}
	}
	for slot := 1; slot < filesMax; slot++ {
		one.lending.publish(slot, int(w.heaps[w.near[0]].file.Fd()), int64(len(w.heaps[w.near[0]].data)))
	}
	for range 2 {
		if blocks() == 0 {
			t.Error("a segment is lent beyond the most that a member lends")
		}
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
