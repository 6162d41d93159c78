package collective

import (
	"fmt"
	"sync"
	"testing"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/xla/spmd"
)

// chain lets every rank enter an all-reduce so many times, each in Done of the
// one before.
func chain(tb testing.TB, w *world, g Gang, s *spmd.Spec, times int) {
	w.begin(g)
	var wg sync.WaitGroup
	for _, at := range g.Ranks {
		wg.Add(1)
		left := times
		c := Call{Launch: g.Launch, Local: at.Local, Spec: s}
		for i := range s.Operands {
			c.Operands, c.Results = append(c.Operands, aligned(s.Operands[i].Bytes())),
				append(c.Results, aligned(s.Results[i].Bytes()))
		}
		e := w.engines[at.Process]
		c.Done = func(err error) {
			if err != nil {
				tb.Error(err)
				left = 0
			}
			if left == 0 {
				wg.Done()
				return
			}
			left--
			e.Enter(c)
		}
		c.Done(nil)
	}
	wg.Wait()
	w.end(g.ID)
}

func allReduce(ranks int, x shape.Shape) *spmd.Spec {
	group := make([]int, ranks)
	for r := range group {
		group[r] = r
	}
	return &spmd.Spec{Op: spmd.AllReduce, Groups: [][]int{group}, Reduction: spmd.Sum, DType: x.DType,
		Operands: []shape.Shape{x}, Results: []shape.Shape{x}}
}

// BenchmarkScalar is one all-reduce of a chain of scalar ones.
func BenchmarkScalar(b *testing.B) {
	for _, processes := range []int{1, 2, 8} {
		b.Run(fmt.Sprintf("processes=%d", processes), func(b *testing.B) {
			b.ReportAllocs()
			chain(b, newWorld(b, processes, 0), Gang{ID: 1, Launch: 1, Ranks: blocked(8, processes)},
				allReduce(8, shape.Shape{DType: shape.F32}), b.N)
		})
		b.Run(fmt.Sprintf("board/processes=%d", processes), func(b *testing.B) {
			b.ReportAllocs()
			w := newWorld(b, processes, processes)
			defer w.close()
			chain(b, w, Gang{ID: 1, Launch: 1, Ranks: blocked(8, processes)}, allReduce(8, shape.Shape{DType: shape.F32}), b.N)
		})
	}
}

// BenchmarkLarge is an all-reduce of 64 MiB a rank, four ranks; bytes are those
// that the ranks bring.
func BenchmarkLarge(b *testing.B) {
	const bytes = 64 << 20
	for _, processes := range []int{1, 2, 4} {
		b.Run(fmt.Sprintf("processes=%d", processes), func(b *testing.B) {
			b.SetBytes(4 * bytes)
			chain(b, newWorld(b, processes, 0), Gang{ID: 1, Launch: 1, Ranks: blocked(4, processes)},
				allReduce(4, shape.Shape{DType: shape.F32, Dims: []int64{bytes / 4}}), b.N)
		})
	}
	b.Run("copy", func(b *testing.B) { // what this machine can move
		from, to := aligned(bytes), aligned(bytes)
		b.SetBytes(bytes)
		for b.Loop() {
			copy(to, from)
		}
	})
}
