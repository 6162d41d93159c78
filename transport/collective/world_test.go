package collective

import (
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/xla/spmd"
	"github.com/openpathways/pathways/transport/pages"
	"github.com/openpathways/pathways/transport/shm"
)

// world is some processes with an engine each.
type world struct {
	hub     *hub
	engines map[uint64]*Engine
	boards  []*Board
	near    []uint64         // the processes of boards
	heaps   map[uint64]*heap // by process, of those that lend
	ended   func(at Place)   // of each call, unless it is nil
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
			w.boards, w.near = append(w.boards, b), append(w.near, id)
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
		b.isUnused(w.hub.t)
		b.Close()
	}
	for _, h := range w.heaps {
		h.close(w.hub.t)
	}
}

// isUnused checks that calls have left nothing on a board.
func (b *Board) isUnused(t testing.TB) {
	t.Helper()
	b.area.mu.Lock()
	b.area.reclaim()
	if len(b.area.busy) > 0 {
		t.Errorf("%d blocks of an area are not free", len(b.area.busy))
	}
	b.area.mu.Unlock()
	b.lending.mu.Lock()
	if slices.Contains(b.lending.leased[:], true) {
		t.Error("a lease has not expired")
	}
	if b.lending.standIns != 0 {
		t.Errorf("%d bytes of stand-ins are left", b.lending.standIns)
	}
	for _, f := range b.lending.files {
		if f.calls != 0 {
			t.Errorf("%d calls still tell of arrays in a file", f.calls)
		}
	}
	for place, files := range b.lending.lent {
		for _, f := range files {
			if f != nil && f.users > 0 {
				t.Errorf("a file of place %d is still borrowed %d times", place, f.users)
			}
		}
	}
	b.lending.mu.Unlock()
	b.mu.Lock()
	if len(b.waits) != 0 || len(b.open) != 0 || len(b.early) != 0 || len(b.live) != 0 {
		t.Errorf("a board still has %v, %v, %v, %v", b.waits, b.open, b.early, b.live)
	}
	b.mu.Unlock()
}

// heap is memory that a member of a board lends: that of its devices, and a pool, in which operands are if it is there.
type heap struct {
	file *os.File
	data []byte
	used int64

	apart int // of so many arrays one lies elsewhere; 0 is none
	made  int // arrays

	pool   *shm.Pool
	arena  *shm.Arena
	blocks []*shm.Block
}

// put has operands lie in a pool from now on.
func (h *heap) put() { h.arena = h.pool.Arena("puts", true, nil) }

// isApart reports whether the next array lies elsewhere.
func (h *heap) isApart() bool {
	h.made++
	return h.apart > 0 && h.made%h.apart == 0
}

// empty ends what is in the pool, and returns it to the system.
func (h *heap) empty() {
	for _, b := range h.blocks {
		b.Release()
	}
	h.blocks = nil
	h.pool.Trim()
}

// close returns all of it.
func (h *heap) close(t testing.TB) {
	h.empty()
	h.file.Close()
	statustest.Check(t, pages.Unmap(h.data))
}

func newHeap(size int64) (*heap, error) {
	file, err := unix.MemfdCreate("heap", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	return heapIn(os.NewFile(uintptr(file), "heap"), size)
}

// heapIn makes a heap in a file of memory, which it closes.
func heapIn(file *os.File, size int64) (h *heap, err error) {
	h = &heap{file: file, pool: shm.NewPool(shm.Config{Limit: 64 << 20})}
	if err = h.file.Truncate(size); err == nil {
		h.data, err = pages.Map(int(file.Fd()), size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		h.file.Close()
		return nil, err
	}
	return h, nil
}

// make returns memory for an array; nil if there is no room.
func (h *heap) make(size int64) []byte {
	if h.used+size > int64(len(h.data)) {
		return nil
	}
	at := h.used
	h.used += (size + 63) &^ 63
	return h.data[at : at+size : at+size]
}

// drawHeaps has most members of the board lend memory. In some there is no room for some arrays, and some cannot be
// mapped.
func (w *world) drawHeaps(t *rapid.T) {
	w.heaps = map[uint64]*heap{}
	for i, b := range w.boards {
		if size := rapid.SampledFrom([]int64{0, 64 << 10, 1 << 20, 1 << 20, 1 << 20, 1 << 20}).Draw(t, "lent"); size > 0 {
			w.lendFrom(i, b, size)
			if rapid.IntRange(0, 2).Draw(t, "puts") == 0 {
				w.heaps[w.near[i]].put()
			}
			if rapid.IntRange(0, 9).Draw(t, "hidden") == 0 {
				word(b.fileWords(b.self, 0), fileInode).Add(1)
			}
		}
	}
}

// drawWorld makes a world that moves bytes in any ways; if it is to go directly, all share a board and lend.
func drawWorld(t testing.TB, rt *rapid.T, processes int, direct bool) *world {
	near := processes
	if !direct {
		near = rapid.IntRange(0, processes).Draw(rt, "near")
	}
	w := newWorld(t, processes, near)
	w.drawWays(rt)
	if direct {
		w.lend()
		room := rapid.SampledFrom([]int64{0, 1 << 10, standInsMax, standInsMax, standInsMax}).Draw(rt, "room for stand-ins")
		for i, process := range w.near {
			if rapid.Bool().Draw(rt, "puts") {
				w.heaps[process].put()
			}
			w.heaps[process].apart = rapid.IntRange(0, 3).Draw(rt, "apart")
			w.boards[i].lending.room = room
		}
	} else {
		w.drawHeaps(rt)
	}
	return w
}

// lend has all members of the board lend memory that has room for all, and go directly whatever the sizes.
func (w *world) lend() {
	w.heaps = map[uint64]*heap{}
	for i, b := range w.boards {
		w.lendFrom(i, b, 4<<20)
		b.sizes = sizes{block: 64, piece: 64}
	}
}

// lendFrom has the i-th member of the board lend memory.
func (w *world) lendFrom(i int, b *Board, size int64) {
	h := statustest.Value(newHeap(size)).OK(w.hub.t)
	w.heaps[w.near[i]] = h
	b.Lend(int(h.file.Fd()), h.data, h.pool)
}

// operand returns memory for an operand of a process.
func (w *world) operand(process uint64, size int64) []byte {
	if h := w.heaps[process]; h != nil && h.arena != nil && size > 0 && !h.isApart() {
		b := statustest.Value(h.arena.Make(int(size))).OK(w.hub.t)
		h.blocks = append(h.blocks, b)
		return b.Data
	}
	return w.array(process, size)
}

// array returns memory for an array of a process.
func (w *world) array(process uint64, size int64) []byte {
	if h := w.heaps[process]; h != nil && !h.isApart() {
		if a := h.make(size); a != nil {
			return a
		}
	}
	return aligned(size)
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
			results[r] = append(results[r], w.array(at.Process, x.Bytes()))
		}
		var operands [][]byte
		for _, x := range in[r] {
			operands = append(operands, w.operand(at.Process, int64(len(x))))
			copy(operands[len(operands)-1], x)
		}
		wg.Add(1)
		left := times
		var again func(error)
		c := Call{Launch: g.Launch, Local: at.Local, Spec: s, Operands: operands, Results: results[r], Done: func(err error) {
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
