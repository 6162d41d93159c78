package collective

import (
	"math/rand/v2"
	"os"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/openpathways/pathways/core/xla/spmd"
)

// world is some processes with an engine each.
type world struct {
	hub     *hub
	engines map[uint64]*Engine
	boards  []*Board
	ended   func(at Place) // of each call, unless it is nil
}

// newWorld makes engines for processes 1, 2, 3 …, of which the first so many
// share a board.
func newWorld(t testing.TB, processes, near int) *world {
	w := &world{hub: newHub(t, processes), engines: map[uint64]*Engine{}}
	var f *os.File
	if near > 0 {
		var err error
		if f, err = CreateBoard(near + 3); err != nil {
			t.Fatal(err)
		}
		defer f.Close()
	}
	for id, n := range w.hub.nodes {
		var b *Board
		if id <= uint64(near) {
			var err error
			if b, err = OpenBoard(f, int(id)+1); err != nil {
				t.Fatal(err)
			}
			for other := range near {
				b.Meet(uint64(other+1), other+2)
			}
			w.boards = append(w.boards, b)
		}
		w.engines[id] = New(n, 7, b)
	}
	return w
}

// close checks that nothing is left.
func (w *world) close() {
	w.hub.t.Helper()
	for _, e := range w.engines {
		if len(e.gangs) != 0 || len(e.launches) != 0 {
			w.hub.t.Errorf("an engine still knows %v, %v", e.gangs, e.launches)
		}
	}
	for _, b := range w.boards {
		b.arrive() // of gangs that are over
	}
	for _, b := range w.boards {
		b.area.mu.Lock()
		b.area.reclaim()
		if len(b.area.busy) > 0 {
			w.hub.t.Errorf("%d blocks of an area are not free", len(b.area.busy))
		}
		b.area.mu.Unlock()
		b.mu.Lock()
		if len(b.waits) != 0 || len(b.open) != 0 || len(b.early) != 0 || len(b.live) != 0 {
			w.hub.t.Errorf("a board still has %v, %v, %v, %v", b.waits, b.open, b.early, b.live)
		}
		b.mu.Unlock()
		b.Close()
	}
}

func (w *world) begin(g Gang) {
	for _, e := range w.engines {
		e.Begin(g)
	}
}

func (w *world) end(id uint64) {
	for _, e := range w.engines {
		e.End(id)
	}
}

// drawWays draws how bytes go among the members of the board, and between others.
func (w *world) drawWays(t *rapid.T) {
	together := sizes{
		block:    rapid.SampledFrom([]int64{64, 4 << 10, usualSizes.block}).Draw(t, "block"),
		piece:    rapid.SampledFrom([]int64{64, usualSizes.piece}).Draw(t, "piece"),
		foldEach: rapid.SampledFrom([]int64{0, usualSizes.foldEach}).Draw(t, "fold each"),
	}
	room := rapid.SampledFrom([]int{0, 1, 3, granules}).Draw(t, "area") // without room blocks go by the exchange
	for _, b := range w.boards {
		b.sizes, b.area.limit = together, room
	}
	between := rapid.SampledFrom([]ways{{0, 64, 9, 0, 64}, {2 << 10, 1 << 10, 2, 1 << 20, 1 << 10}, usualWays}).
		Draw(t, "between hosts")
	for _, e := range w.engines {
		e.ways = between
	}
}

// enter lets all ranks enter one collective so many times, each again when its
// call is done, in any order, and returns the results of the last time and each
// rank's error.
func (w *world) enter(g Gang, s *spmd.Spec, in [][][]byte, times int, rng *rand.Rand) (results [][][]byte,
	errs []error) {
	results, errs = make([][][]byte, len(g.Ranks)), make([]error, len(g.Ranks))
	var wg sync.WaitGroup
	for _, r := range rng.Perm(len(g.Ranks)) {
		at := g.Ranks[r]
		for _, x := range s.Results {
			results[r] = append(results[r], aligned(x.Bytes()))
		}
		wg.Add(1)
		left := times
		var again func(error)
		c := Call{Launch: g.Launch, Local: at.Local, Spec: s, Operands: in[r], Results: results[r], Done: func(err error) {
			again(err)
		}}
		again = func(err error) {
			if w.ended != nil {
				w.ended(at)
			}
			if left--; err != nil || left == 0 {
				errs[r] = err
				wg.Done()
				return
			}
			w.engines[at.Process].Enter(c)
		}
		go w.engines[at.Process].Enter(c)
	}
	wg.Wait()
	return results, errs
}
