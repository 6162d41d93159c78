package collective

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/xla/spmd"
)

// Any regions are read, however many runs they have; memory that is not there is an error.
func TestRegionsOfAnotherProcessAreRead(t *testing.T) {
	w := newWorld(t, 1, 1)
	defer w.close()
	p := w.boards[0].probe(w.boards[0].self)
	memory := make([]byte, 1<<20)
	for i := range memory {
		memory[i] = byte(rand.Uint32())
	}
	for _, c := range []struct{ to, from region }{
		{dense(3, 1<<19), dense(0, 1<<19)},
		{region{0, 16, 32, 3000}, dense(0, 48000)},
		{dense(0, 48000), region{0, 16, 17, 3000}},
		{region{5, 16, 32, 3000}, region{0, 16, 24, 3000}},
		{dense(0, 0), dense(0, 0)},
	} {
		got, want := make([]byte, 1<<20), make([]byte, 1<<20)
		statustest.OK(t, remote{p, address(&memory[7])}.read(got, c.to, c.from))
		move(want, c.to, memory[7:], c.from, plainly)
		if !bytes.Equal(got, want) {
			t.Errorf("%v into %v are other bytes", c.from, c.to)
		}
	}
	statustest.Fails(t, "what reads memory that is not there", remote{p, 8}.read(memory, dense(0, 8), dense(0, 8)),
		status.Unavailable, "cannot be read")
}

// A long block is read where it lies once its reader has tried that. If it cannot be tried, blocks go by the areas. If
// a block cannot be read after all, its reader's calls end with an error.
func TestLongBlocksAreReadWhereTheyLie(t *testing.T) {
	const size = 32 << 20
	const half = size / 8
	x := shape.Shape{DType: shape.F32, Dims: []int64{2, half}}
	spec := &spmd.Spec{Op: spmd.AllToAll, Groups: [][]int{{0, 1}}, Operands: []shape.Shape{x}, Results: []shape.Shape{x}}
	for _, c := range []struct {
		name             string
		hidden, vanishes bool
	}{{name: "read"}, {name: "not to be tried", hidden: true}, {name: "gone", vanishes: true}} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, 2, 2)
			defer w.close()
			owner := w.boards[0].self - 2 // its rank
			if c.hidden {
				w.boards[0].probe(w.boards[0].self).address.Store(8)
			}
			g := Gang{ID: 1, Launch: 1, Ranks: blocked(2, 2)}
			w.begin(g)
			in := [][][]byte{{aligned(size)}, {aligned(size)}}
			for r := range in {
				for i := range elements[float32](in[r][0]) {
					elements[float32](in[r][0])[i] = float32(1000*(i/half) + 100*r + i%100)
				}
			}
			rng := rand.New(rand.NewPCG(1, 1))
			for range 2 {
				results, errs := w.enter(g, spec, in, 1, rng)
				for r := range results {
					statustest.Check(t, errs[r])
					for i, v := range elements[float32](results[r][0]) {
						if want := float32(1000*r + 100*(i/half) + (r*half+i%half)%100); v != want {
							t.Fatalf("rank %d has %v at %d, want %v", r, v, i, want)
						}
					}
				}
			}
			readers := w.boards[0].probe(w.boards[0].self).readers.Load()
			statustest.Equal(t, readers, map[bool]uint64{false: 1 << w.boards[1].self}[c.hidden], "readers of the first member")
			if c.vanishes {
				w.boards[0].probe(w.boards[0].self).process.Store(1 << 30)
				w.ended = func(Place) { // as where a device's program fails
					for _, e := range w.engines {
						e.Abort(1, status.New(status.Aborted, "the program has failed elsewhere"))
					}
				}
				_, errs := w.enter(g, spec, in, 1, rng)
				statustest.Fails(t, "its reader", errs[1-owner], status.Unavailable, "cannot be read")
				statustest.Fails(t, "the other", errs[owner], status.Aborted)
			}
			w.end(1)
		})
	}
}
