package collective

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/xla/spmd"
	"github.com/openpathways/pathways/transport"
)

func same(t testing.TB, s *spmd.Spec, got, want [][][]byte) {
	t.Helper()
	for r := range want {
		for i := range want[r] {
			if bytes.Equal(got[r][i], want[r][i]) {
				continue
			}
			components := int(s.Results[i].Elements()) // not the bits behind the last
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

// drawnWays are ways of which drawSpec draws too few, and any.
var drawnWays = []string{"chain", "exchanges", "direct", "direct", "any", "any", "any", "any"}

// Any collective on any spread of ranks over processes has the twin's results, also where one of them is slow.
func TestCollectivesHaveTheTwinsResults(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		ranks, processes := drawRanks(rt)
		g := Gang{ID: 1<<32 | 5, Launch: 5, Ranks: places(rt, ranks, processes)}
		if rapid.Bool().Draw(rt, "in order") {
			g.Ranks = blocked(ranks, processes)
		}
		s := drawSpec(rt, ranks)
		way := rapid.SampledFrom(drawnWays).Draw(rt, "way")
		switch way {
		case "chain":
			processes, g.Ranks, s = drawChain(rt)
		case "exchanges":
			processes, g.Ranks, s = drawExchanges(rt)
		case "direct":
			processes, g.Ranks, s = drawDirect(rt)
		}
		ranks = len(g.Ranks)
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
		in := bring(s, ranks, rng)
		w := drawWorld(t, rt, processes, way == "direct")
		defer w.close()
		slow, later := uint64(rapid.IntRange(0, processes).Draw(rt, "slow")), rapid.IntRange(0, 30).Draw(rt, "later")
		w.ended = func(at Place) {
			if at.Process == slow {
				spin(later)
			}
		}
		w.hub.comes = func(to uint64, _ transport.Key) { w.ended(Place{Process: to}) } // between its rounds, too
		w.begin(g)
		got, errs := w.enter(g, s, in, rapid.IntRange(1, 3).Draw(rt, "times"), rng)
		for r, err := range errs {
			statustest.OKf(rt, err, "%s: rank %d", s.Op, r)
		}
		same(t, s, got, twin(s, ranks, in))
		w.end(g.ID)
		w.hub.clean()
		if t.Failed() {
			rt.FailNow()
		}
	})
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
	statustest.Equal(t, w.hub.sent.Load(), 6, "blocks that three all-reduces took")
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
				statustest.Equal(t, v, [...]int64{6 + 4*n, int64(r)%2 + 2 + n, n}[(step-1)%3],
					"rank %d, step %d: got", r, step)
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

// However and whenever a gang ends, also where one of its processes has stood still before, every call ends once, with
// the error, and nothing stays.
func TestAbortAndLoss(t *testing.T) {
	boom := errors.New("a device failed")
	rapid.Check(t, func(rt *rapid.T) {
		processes := rapid.IntRange(2, 4).Draw(rt, "processes")
		ranks := rapid.IntRange(2, 8).Draw(rt, "ranks")
		g := Gang{ID: 9, Launch: 9, Ranks: places(rt, ranks, processes)}
		s := drawSpec(rt, ranks)
		way := rapid.SampledFrom(drawnWays).Draw(rt, "way")
		switch way {
		case "chain":
			processes, g.Ranks, s = drawChain(rt)
		case "exchanges":
			processes, g.Ranks, s = drawExchanges(rt)
		case "direct":
			processes, g.Ranks, s = drawDirect(rt)
		}
		ranks = len(g.Ranks)
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
		in := bring(s, ranks, rng)
		w := drawWorld(t, rt, processes, way == "direct")
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
		const times = 20
		m := drawMoment(rt, times*ranks)
		if !early {
			w.ended = func(at Place) { m.end(at.Process == dead, fail) }
			w.hub.comes = func(to uint64, _ transport.Key) { m.stand(to == dead) }
		}
		_, errs := w.enter(g, s, in, times, rng)
		if !early {
			<-m.failed
		}
		for r, err := range errs {
			if early && err == nil && (hit || !loss) {
				rt.Errorf("rank %d of an aborted gang has no error", r)
			}
			if err == nil || loss && g.Ranks[r].Process == dead {
				continue
			}
			if why := w.engines[g.Ranks[r].Process].Failure(g.ID); status.CodeOf(why) != status.CodeOf(err) {
				rt.Errorf("rank %d has %v, and its engine says %v", r, err, why)
			}
			want := status.Aborted
			if loss {
				want = status.Unavailable
				if text := fmt.Sprintf("worker %d", dead); !strings.Contains(err.Error(), text) &&
					!strings.Contains(err.Error(), "process has gone") {
					rt.Errorf("rank %d: %v does not name %s", r, err, text)
				}
			}
			statustest.Fails(rt, fmt.Sprintf("rank %d", r), err, want)
		}
		for w.hub.pushes.Load() > 0 { // blocks that are not read any more
			spin(1)
		}
		w.end(g.ID)
		if n := w.hub.blocks.Load(); n != 0 {
			rt.Errorf("%d blocks are not released", n)
		}
	})
}

// moment is when a gang fails: once so many of all its calls have ended, and a little later, in whatever phase the next
// ones are. From then on a process may stand still, between its calls and in them, until the gang has failed.
type moment struct {
	calls, later int
	stops        bool
	ended        atomic.Int64
	failed       chan struct{}
}

func drawMoment(t *rapid.T, calls int) *moment {
	return &moment{calls: rapid.IntRange(1, calls).Draw(t, "calls"), later: rapid.IntRange(0, 30).Draw(t, "later"),
		stops: rapid.Bool().Draw(t, "stops"), failed: make(chan struct{})}
}

// end is told that a call has ended. It fails the gang when that is due, and returns when the next call may begin.
func (m *moment) end(stands bool, fail func()) {
	if m.ended.Add(1) == int64(m.calls) {
		go func() {
			spin(m.later)
			fail()
			close(m.failed)
		}()
	}
	m.stand(stands)
}

// stand returns when a process that may stand still goes on.
func (m *moment) stand(stands bool) {
	if stands && m.stops && m.ended.Load() >= int64(m.calls) {
		<-m.failed
	}
}

// spin lets others go on, so often.
func spin(times int) {
	for range times {
		var wg sync.WaitGroup
		wg.Go(func() {})
		wg.Wait()
	}
}

// What is wrong with a call or a spec is told to the caller that entered.
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
			"operand 0 of collective 0 of the program (all-reduce) has 8 bytes, f32[4] has 16"},
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
			statustest.Fails(t, "the error", err, c.code, c.text)
		})
	}
}

// Small blocks of P processes take each of them log P messages, not P − 1.
func TestSmallBlocksTravelTogether(t *testing.T) {
	for processes, messages := range map[int]int64{16: 4, 19: 5} {
		w := newWorld(t, processes, 0)
		chain(t, w, Gang{ID: 1, Launch: 1, Ranks: blocked(processes, processes)},
			allReduce(processes, shape.Shape{DType: shape.F32, Dims: []int64{10}}), 3)
		statustest.Equal(t, w.hub.sent.Load(), 3*messages*int64(processes), "messages of %d processes", processes)
		w.close()
	}
}

// A process folds what has come of a large reduction, and sends it on, while the rest is on its way.
func TestFoldBeginsBeforeAllHasCome(t *testing.T) {
	w := newWorld(t, 2, 0)
	defer w.close()
	for _, e := range w.engines {
		e.ways.lane = 1 << 10
	}
	folded, late := make(chan struct{}), atomic.Int64{}
	w.hub.comes = func(to uint64, key transport.Key) {
		switch round := key.Part % roundsMax; {
		case to == 1 && round > 1: // of other lanes than the first
			late.Add(1)
			<-folded
		case to == 2 && round == 1: // what process 1 has folded of that
			close(folded)
		}
	}
	g := Gang{ID: 1, Launch: 1, Ranks: blocked(2, 2)}
	s := allReduce(2, shape.Shape{DType: shape.F32, Dims: []int64{16 << 10}})
	w.plays(t, g, s)
	if late.Load() == 0 {
		t.Error("no block came late")
	}
}

// plays has a gang of two ranks begin, enter one collective and end, and compares its results with the twin's.
func (w *world) plays(t *testing.T, g Gang, s *spmd.Spec) {
	t.Helper()
	w.begin(g)
	rng := rand.New(rand.NewPCG(1, 2))
	in := bring(s, 2, rng)
	got, errs := w.enter(g, s, in, 1, rng)
	statustest.OK(t, errors.Join(errs...))
	same(t, s, got, twin(s, 2, in))
	w.end(g.ID)
	w.hub.clean()
}

// What is only copied comes into the results, and takes no memory of the exchange.
func TestBlocksComeIntoResults(t *testing.T) {
	long := shape.Shape{DType: shape.F32, Dims: []int64{16 << 10}}
	twice := shape.Shape{DType: shape.F32, Dims: []int64{32 << 10}}
	for op, c := range map[spmd.Op]struct {
		result shape.Shape
		kept   int64
	}{spmd.AllGather: {twice, 0}, spmd.AllToAll: {long, 0}, spmd.CollectiveBroadcast: {long, 0},
		spmd.AllReduce: {long, 2}} { // the half of each that the other folds
		t.Run(fmt.Sprint(op), func(t *testing.T) {
			w := newWorld(t, 2, 0)
			defer w.close()
			g := Gang{ID: 1, Launch: 1, Ranks: blocked(2, 2)}
			s := allReduce(2, long)
			s.Op, s.Results = op, []shape.Shape{c.result}
			w.plays(t, g, s)
			statustest.Equal(t, w.hub.kept.Load(), c.kept, "blocks in memory of the exchange")
		})
	}
}
