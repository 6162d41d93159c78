package collective

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/xla/spmd"
)

// world is some processes with an engine each.
type world struct {
	hub     *hub
	engines map[uint64]*Engine
	boards  []*Board
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

// drawWays draws how bytes go among the members of the board.
func (w *world) drawWays(t *rapid.T) {
	ways := sizes{
		block:    rapid.SampledFrom([]int64{64, 4 << 10, usualSizes.block}).Draw(t, "block"),
		piece:    rapid.SampledFrom([]int64{64, usualSizes.piece}).Draw(t, "piece"),
		foldEach: rapid.SampledFrom([]int64{0, usualSizes.foldEach}).Draw(t, "fold each"),
	}
	room := rapid.SampledFrom([]int{0, 1, 3, granules}).Draw(t, "area") // without room blocks go by the exchange
	for _, b := range w.boards {
		b.sizes, b.area.limit = ways, room
	}
}

// places spreads ranks over processes.
func places(t *rapid.T, ranks, processes int) []Place {
	out, next := make([]Place, ranks), map[uint64]int{}
	for r := range out {
		p := uint64(rapid.IntRange(1, processes).Draw(t, "process"))
		out[r] = Place{p, next[p]}
		next[p]++
	}
	return out
}

// blocked spreads ranks evenly, in order.
func blocked(ranks, processes int) []Place {
	out := make([]Place, ranks)
	each := (ranks + processes - 1) / processes
	for r := range out {
		out[r] = Place{uint64(r/each + 1), r % each}
	}
	return out
}

// drawSpec draws a collective and how large its arrays are.
func drawSpec(t *rapid.T, ranks int) *spmd.Spec {
	s := &spmd.Spec{Op: rapid.SampledFrom([]spmd.Op{
		spmd.AllReduce, spmd.AllReduce, spmd.AllGather, spmd.ReduceScatter, spmd.AllToAll, spmd.CollectivePermute,
		spmd.CollectiveBroadcast, spmd.RaggedAllToAll, spmd.PartitionID, spmd.ReplicaID}).Draw(t, "op"), Parts: 1}
	order := rapid.Permutation(slices.Collect(func(yield func(int) bool) {
		for r := range ranks {
			if !yield(r) {
				return
			}
		}
	})).Draw(t, "order")
	var divisors []int
	for n := 1; n <= ranks; n++ {
		if ranks%n == 0 {
			divisors = append(divisors, n)
		}
	}
	n := rapid.SampledFrom(divisors).Draw(t, "group size")
	if s.Op == spmd.PartitionID || s.Op == spmd.ReplicaID {
		s.Site = -1
	} else if s.Op != spmd.CollectivePermute {
		for g := range slices.Chunk(order, n) {
			s.Groups = append(s.Groups, slices.Clone(g))
		}
	}
	large := rapid.IntRange(0, 7).Draw(t, "large") == 0
	drawShape := func(kind []shape.DType) shape.Shape {
		x := shape.Shape{DType: rapid.SampledFrom(kind).Draw(t, "dtype")}
		for range rapid.IntRange(0, 3).Draw(t, "dims") {
			x.Dims = append(x.Dims, rapid.Int64Range(0, 5).Draw(t, "dim"))
		}
		if large {
			x.Dims = append(x.Dims, rapid.Int64Range(9000, 20000).Draw(t, "dim"))
			if len(x.Dims) > 2 {
				x.Dims = x.Dims[len(x.Dims)-2:]
			}
		}
		return x
	}
	splits := func(x *shape.Shape, times int64) {
		if len(x.Dims) == 0 {
			x.Dims = []int64{3}
		}
		s.Dim = min(s.Dim, len(x.Dims)-1)
		x.Dims[s.Dim] *= times
	}
	switch s.Op {
	case spmd.AllReduce, spmd.ReduceScatter:
		var kind []shape.DType
		s.Reduction = rapid.SampledFrom(reductions).Draw(t, "reduction")
		for _, d := range dtypes {
			if _, err := kernelOf(d, s.Reduction); err == nil {
				kind = append(kind, d)
			}
		}
		s.Dim = rapid.IntRange(0, 2).Draw(t, "along")
		for range rapid.IntRange(1, 3).Draw(t, "operands") {
			x := drawShape(kind)
			if s.Op == spmd.ReduceScatter {
				splits(&x, 1)
			}
			res := shape.Shape{DType: x.DType, Dims: slices.Clone(x.Dims)}
			if s.Op == spmd.ReduceScatter {
				x.Dims[s.Dim] *= int64(n)
			}
			s.Operands, s.Results = append(s.Operands, x), append(s.Results, res)
		}
		if s.Op == spmd.ReduceScatter { // one dimension for all
			for i := range s.Operands {
				x := shape.Shape{DType: s.Operands[i].DType, Dims: slices.Clone(s.Results[i].Dims)}
				for len(x.Dims) <= s.Dim {
					x.Dims = append(x.Dims, 2)
				}
				s.Results[i] = shape.Shape{DType: x.DType, Dims: slices.Clone(x.Dims)}
				x.Dims[s.Dim] *= int64(n)
				s.Operands[i] = x
			}
		}
		s.DType = s.Operands[0].DType
	case spmd.AllGather:
		s.Dim = rapid.IntRange(0, 1).Draw(t, "along")
		for range rapid.IntRange(1, 2).Draw(t, "operands") {
			x := drawShape(dtypes)
			for len(x.Dims) <= s.Dim {
				x.Dims = append(x.Dims, 2)
			}
			res := shape.Shape{DType: x.DType, Dims: slices.Clone(x.Dims)}
			res.Dims[s.Dim] *= int64(n)
			s.Operands, s.Results = append(s.Operands, x), append(s.Results, res)
		}
	case spmd.AllToAll:
		if x := drawShape(dtypes); n > 1 && rapid.Bool().Draw(t, "tuple") {
			for range n {
				s.Operands, s.Results = append(s.Operands, x), append(s.Results, x)
			}
		} else {
			s.Dim = rapid.IntRange(0, 2).Draw(t, "along")
			splits(&x, int64(n))
			s.Operands, s.Results = []shape.Shape{x}, []shape.Shape{x}
		}
	case spmd.CollectivePermute:
		targets := rapid.Permutation(order).Draw(t, "targets")
		for i := range rapid.IntRange(0, ranks).Draw(t, "pairs") {
			s.Pairs = append(s.Pairs, [2]int{order[i], targets[i]})
		}
		x := drawShape(dtypes)
		s.Operands, s.Results = []shape.Shape{x}, []shape.Shape{x}
	case spmd.CollectiveBroadcast:
		s.Groups = s.Groups[:rapid.IntRange(0, len(s.Groups)).Draw(t, "groups")]
		x := drawShape(dtypes)
		s.Operands, s.Results = []shape.Shape{x}, []shape.Shape{x}
	case spmd.RaggedAllToAll:
		updates := rapid.Int64Range(1, 2).Draw(t, "updates")
		list := shape.Shape{DType: rapid.SampledFrom([]shape.DType{shape.S32, shape.S64}).Draw(t, "offsets"),
			Dims: []int64{int64(n) * updates}}
		in := shape.Shape{DType: shape.F32, Dims: []int64{10, 3}}
		out := shape.Shape{DType: shape.F32, Dims: []int64{int64(n) * updates * 2, 3}}
		s.Operands, s.Results = []shape.Shape{in, out, list, list, list, list}, []shape.Shape{out}
	default:
		s.Groups = nil
		s.Parts = rapid.SampledFrom(divisors).Draw(t, "parts")
		s.Replicas = ranks / s.Parts
		s.Results = []shape.Shape{{DType: shape.U32}}
	}
	return s
}

// bring makes the operands of all ranks.
func bring(s *spmd.Spec, ranks int, rng *rand.Rand) [][][]byte {
	out := make([][][]byte, ranks)
	for r := range out {
		for _, x := range s.Operands {
			b := aligned(x.Bytes())
			for i := range b {
				b[i] = byte(rng.Uint32())
				if x.DType == shape.Pred {
					b[i] &= 1
				}
			}
			out[r] = append(out[r], b)
		}
	}
	if s.Op != spmd.RaggedAllToAll {
		return out
	}
	for _, g := range s.Groups {
		k := int(s.Operands[2].Dims[0]) / len(g)
		for place, r := range g {
			for i := range k * len(g) {
				// To every member, a place of its own for this one: two rows an update.
				put(s, out[r], 2, i, int64(rng.IntN(9)))
				put(s, out[r], 3, i, int64(rng.IntN(2)))
				put(s, out[r], 4, i, int64(place*k*2+i%k*2))
			}
		}
	}
	return out
}

func put(s *spmd.Spec, ops [][]byte, operand, i int, v int64) {
	if s.Operands[operand].DType == shape.S64 {
		elements[int64](ops[operand])[i] = v
		return
	}
	elements[int32](ops[operand])[i] = int32(v)
}

// enter lets all ranks enter one collective so many times, each again when its
// call is done, in any order, and gives the results of the last time and each
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

func same(t testing.TB, s *spmd.Spec, got, want [][][]byte) {
	t.Helper()
	for r := range want {
		for i := range want[r] {
			if bytes.Equal(got[r][i], want[r][i]) {
				continue
			}
			components := len(want[r][i]) * 8 / s.Results[i].DType.Bits()
			if d := s.Results[i].DType; d == shape.C64 || d == shape.C128 {
				components *= 2
			}
			for j := range components {
				if g, w := component(s.Results[i].DType, got[r][i], j), component(s.Results[i].DType, want[r][i], j); g != w {
					t.Fatalf("%s %v along %d: rank %d, result %d, element %d: got %s, want %s", s.Op, s.Operands, s.Dim, r, i, j, g, w)
				}
			}
		}
	}
}

// Any collective on any spread of ranks over processes gives what the twin does.
func TestTwin(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		processes := rapid.IntRange(1, 5).Draw(rt, "processes")
		ranks := rapid.IntRange(1, 9).Draw(rt, "ranks")
		g := Gang{ID: 1<<32 | 5, Launch: 5, Ranks: places(rt, ranks, processes)}
		s := drawSpec(rt, ranks)
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
		in := bring(s, ranks, rng)
		w := newWorld(t, processes, rapid.IntRange(0, processes).Draw(rt, "near"))
		w.drawWays(rt)
		defer w.close()
		w.begin(g)
		got, errs := w.enter(g, s, in, rapid.IntRange(1, 3).Draw(rt, "times"), rng)
		for r, err := range errs {
			if err != nil {
				rt.Fatalf("%s: rank %d: %v", s.Op, r, err)
			}
		}
		same(t, s, got, twin(s, ranks, in))
		w.end(g.ID)
		w.hub.clean()
		if t.Failed() {
			rt.FailNow()
		}
	})
}

// Many ranks on many processes, all of which, some or none share a board.
func TestSixtyFourRanks(t *testing.T) {
	x := shape.Shape{DType: shape.F32, Dims: []int64{64, 4}}
	part := shape.Shape{DType: shape.F32, Dims: []int64{1, 4}}
	for _, near := range []int{9, 16} {
		for op, result := range map[spmd.Op]shape.Shape{spmd.AllReduce: x, spmd.AllToAll: x, spmd.ReduceScatter: part,
			spmd.AllGather: {DType: shape.F32, Dims: []int64{64 * 64, 4}}} {
			w := newWorld(t, 16, near)
			for _, b := range w.boards {
				b.sizes = sizes{block: 2 << 10, piece: 1 << 10}
			}
			g := Gang{ID: 1, Launch: 1, Ranks: blocked(64, 16)}
			s := allReduce(64, x)
			s.Op, s.Results = op, []shape.Shape{result}
			w.begin(g)
			rng := rand.New(rand.NewPCG(1, uint64(op)))
			in := bring(s, 64, rng)
			got, errs := w.enter(g, s, in, 1, rng)
			if err := errors.Join(errs...); err != nil {
				t.Fatal(err)
			}
			same(t, s, got, twin(s, 64, in))
			w.end(g.ID)
			w.hub.clean()
			w.close()
		}
	}
}

// One block goes from a process to another, however many ranks they have.
func TestOneBlockForAllRanks(t *testing.T) {
	w := newWorld(t, 2, 0)
	g := Gang{ID: 1, Launch: 1, Ranks: blocked(8, 2)}
	x := shape.Shape{DType: shape.F32, Dims: []int64{4}}
	s := &spmd.Spec{Op: spmd.AllReduce, Groups: [][]int{{0, 1, 2, 3, 4, 5, 6, 7}}, Reduction: spmd.Sum, DType: shape.F32,
		Operands: []shape.Shape{x}, Results: []shape.Shape{x}}
	w.begin(g)
	rng := rand.New(rand.NewPCG(1, 2))
	w.enter(g, s, bring(s, 8, rng), 3, rng)
	w.end(1)
	w.hub.clean()
	if n := w.hub.sent.Load(); n != 6 {
		t.Errorf("three all-reduces took %d blocks, want 2 each", n)
	}
}

// A device that goes on from one collective to the next in Done is no recursion,
// and devices that run far ahead of others meet the right ones.
func TestChainOfCollectivesDoesNotRecurse(t *testing.T) {
	for _, near := range []int{0, 2} {
		t.Run(fmt.Sprintf("near=%d", near), func(t *testing.T) { testChain(t, near) })
	}
}

func testChain(t *testing.T, near int) {
	const length = 10_000
	w := newWorld(t, 2, near)
	defer w.close()
	g := Gang{ID: 3, Launch: 3, Ranks: blocked(4, 2)}
	w.begin(g)
	x := shape.Shape{DType: shape.S64}
	specs := []*spmd.Spec{
		{Op: spmd.AllReduce, Site: 0, Groups: [][]int{{0, 1, 2, 3}}, Reduction: spmd.Sum, Operands: []shape.Shape{x},
			Results: []shape.Shape{x}},
		{Op: spmd.AllReduce, Site: 1, Groups: [][]int{{0, 2}, {1, 3}}, Reduction: spmd.Max, Operands: []shape.Shape{x},
			Results: []shape.Shape{x}},
		{Op: spmd.CollectiveBroadcast, Site: 2, Groups: [][]int{{0, 1, 2, 3}}, Operands: []shape.Shape{x},
			Results: []shape.Shape{x}},
	}
	var wg sync.WaitGroup
	for r, at := range g.Ranks {
		wg.Add(1)
		in, out := aligned(8), aligned(8)
		elements[int64](in)[0] = int64(r)
		step := 0
		var next func(error)
		next = func(err error) {
			if err != nil {
				t.Error(err)
				wg.Done()
				return
			}
			if step > 0 {
				v := elements[int64](out)[0]
				n := int64(step - 1)
				if want := [...]int64{6 + 4*n, int64(r)%2 + 2 + n, n}[(step-1)%3]; v != want {
					t.Errorf("rank %d, step %d: got %d, want %d", r, step, v, want)
				}
			}
			if step == length {
				wg.Done()
				return
			}
			elements[int64](in)[0] = int64(r + step)
			s := specs[step%3]
			step++
			w.engines[at.Process].Enter(Call{Launch: 3, Local: at.Local, Spec: s, Operands: [][]byte{in}, Results: [][]byte{out},
				Done: next})
		}
		next(nil)
	}
	wg.Wait()
	w.end(3)
	w.hub.clean()
}

// However a gang ends, every call ends once, with the error, and nothing stays.
func TestAbortAndLoss(t *testing.T) {
	boom := errors.New("a device failed")
	rapid.Check(t, func(rt *rapid.T) {
		processes := rapid.IntRange(2, 4).Draw(rt, "processes")
		ranks := rapid.IntRange(2, 8).Draw(rt, "ranks")
		g := Gang{ID: 9, Launch: 9, Ranks: places(rt, ranks, processes)}
		s := drawSpec(rt, ranks)
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
		in := bring(s, ranks, rng)
		w := newWorld(t, processes, rapid.IntRange(0, processes).Draw(rt, "near"))
		w.drawWays(rt)
		defer w.close()
		loss := rapid.Bool().Draw(rt, "loss")
		dead := uint64(rapid.IntRange(1, processes).Draw(rt, "dead"))
		hit := slices.ContainsFunc(g.Ranks, func(p Place) bool { return p.Process == dead })
		early := rapid.Bool().Draw(rt, "early")
		fail := func() {
			for id, e := range w.engines {
				switch {
				case !loss:
					e.Abort(g.ID, status.Wrap(status.New(status.Aborted, "%w", boom), "gang %d", g.ID))
				case id == dead:
					e.Close()
				default:
					gone := fmt.Errorf("worker %d is gone: %w", dead, boom)
					w.hub.nodes[id].Peers(nil, []uint64{dead}, gone)
					e.Lost(dead, gone)
				}
			}
		}
		if early && loss { // a worker may be lost before a gang is told of
			fail()
		}
		w.begin(g)
		if early && !loss {
			fail()
		}
		var wg sync.WaitGroup
		if !early {
			after := rapid.IntRange(0, 30).Draw(rt, "after")
			wg.Go(func() {
				for range after {
					spin()
				}
				fail()
			})
		}
		_, errs := w.enter(g, s, in, 20, rng)
		wg.Wait()
		for r, err := range errs {
			if early && err == nil && (hit || !loss) {
				rt.Errorf("rank %d of an aborted gang has no error", r)
			}
			if err == nil || loss && g.Ranks[r].Process == dead {
				continue
			}
			want := status.Aborted
			if loss {
				want = status.Unavailable
				if text := fmt.Sprintf("worker %d", dead); !strings.Contains(err.Error(), text) &&
					!strings.Contains(err.Error(), "process has gone") {
					rt.Errorf("rank %d: %v does not name %s", r, err, text)
				}
			}
			if status.CodeOf(err) != want {
				rt.Errorf("rank %d: %v has code %s, want %s", r, err, status.CodeOf(err), want)
			}
		}
		for w.hub.pushes.Load() > 0 { // blocks that nobody reads any more
			spin()
		}
		w.end(g.ID)
		if n := w.hub.blocks.Load(); n != 0 {
			rt.Errorf("%d blocks are not released", n)
		}
	})
}

func spin() {
	var n atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() { n.Add(1) })
	wg.Wait()
}

// What is wrong with a call or a spec is told to whoever entered.
func TestBadCallsAndSpecsAreRefused(t *testing.T) {
	x := shape.Shape{DType: shape.F32, Dims: []int64{4}}
	good := func() *spmd.Spec {
		return &spmd.Spec{Op: spmd.AllReduce, Groups: [][]int{{0}}, Reduction: spmd.Sum, DType: shape.F32,
			Operands: []shape.Shape{x}, Results: []shape.Shape{x}}
	}
	w := newWorld(t, 1, 0)
	g := Gang{ID: 1, Launch: 1, Ranks: []Place{{1, 0}}}
	for _, c := range []struct {
		name string
		make func(s *spmd.Spec, c *Call)
		code status.Code
		text string
	}{
		{"launch", func(_ *spmd.Spec, c *Call) { c.Launch = 8 }, status.FailedPrecondition, "launch 8"},
		{"device", func(_ *spmd.Spec, c *Call) { c.Local = 3 }, status.FailedPrecondition, "device 3"},
		{"short operand", func(_ *spmd.Spec, c *Call) { c.Operands[0] = c.Operands[0][:8] }, status.InvalidArgument,
			"operand 0 of all-reduce 0 has 8 bytes, f32[4] has 16"},
		{"no result", func(_ *spmd.Spec, c *Call) { c.Results = nil }, status.InvalidArgument, "1 results, the call 1 and 0"},
		{"no group", func(s *spmd.Spec, _ *Call) { s.Groups = nil }, status.InvalidArgument, "rank 0 is in no group"},
		{"unknown rank", func(s *spmd.Spec, _ *Call) { s.Groups = [][]int{{0, 1}} }, status.InvalidArgument, "rank 1 of 1"},
		{"type", func(s *spmd.Spec, _ *Call) { s.Reduction = spmd.And }, status.Unimplemented, "and of f32"},
		{"site", func(s *spmd.Spec, _ *Call) { s.Site = 1 << 20 }, status.Unimplemented, "65536"},
		{"op", func(s *spmd.Spec, _ *Call) { s.Op = 77 }, status.InvalidArgument, "77"},
		{"dimension", func(s *spmd.Spec, _ *Call) { s.Op, s.Dim = spmd.AllGather, 4 }, status.InvalidArgument, "dimension 4"},
		{"ragged", func(s *spmd.Spec, _ *Call) { s.Op = spmd.RaggedAllToAll }, status.InvalidArgument, "four lists"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w.begin(g)
			defer w.end(1)
			s, got := good(), make(chan error, 1)
			call := Call{Launch: 1, Spec: s, Operands: [][]byte{aligned(16)}, Results: [][]byte{aligned(16)},
				Done: func(err error) { got <- err }}
			c.make(s, &call)
			w.engines[1].Enter(call)
			err := <-got
			if status.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.text) {
				t.Errorf("got %v (%s), want %s with %q", err, status.CodeOf(err), c.code, c.text)
			}
		})
	}
}
