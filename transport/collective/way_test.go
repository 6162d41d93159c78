package collective

import (
	"slices"
	"testing"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/xla/spmd"
)

// Calls are told the way of their bytes, and are counted by it.
func TestWaysAreToldAndCounted(t *testing.T) {
	usual := func(*world) {}
	for _, c := range []struct {
		name                   string
		processes, near, ranks int
		elements               int64
		change                 func(*world)
		want                   []Way // of one call after the other
	}{
		{"one worker", 1, 0, 2, 10, usual, []Way{OneWorker}},
		{"small, one host", 2, 2, 4, 10, usual, []Way{Letters}},
		{"large, one host", 2, 2, 2, 64 << 10, usual, []Way{Areas}},
		{"large, lent", 2, 2, 2, 64 << 10, (*world).lend, []Way{Letters, Direct, Direct}}, // by areas in blocks of 64 bytes
		{"small, hosts", 2, 0, 4, 10, usual, []Way{OneExchange}},
		{"small, many hosts", 16, 0, 16, 10, usual, []Way{Doubling}},
		{"large, hosts", 2, 0, 2, 16 << 10, usual, []Way{TwoExchanges}},
		{"large, part of them on a host", 3, 2, 3, 16 << 10, usual, []Way{TwoExchanges}},
		{"large, hosts, in parts", 2, 0, 2, 16 << 10, func(w *world) { w.goBy(ways{lane: 1 << 10}) }, []Way{Lanes}},
		{"large, hosts, many ranks", 2, 0, 8, 16 << 10, func(w *world) { w.goBy(ways{chainChunk: 1 << 10, lane: 1 << 20}) },
			[]Way{Chain}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, c.processes, c.near)
			defer w.close()
			c.change(w)
			s := allReduce(c.ranks, shape.Shape{DType: shape.F32, Dims: []int64{c.elements}})
			g := Gang{ID: 1, Launch: 1, Ranks: blocked(c.ranks, c.processes)}
			size, each := 4*c.elements, c.ranks/c.processes
			w.begin(g)
			var counted []Count
			for _, want := range c.want {
				told, ended := make([]Way, c.ranks), make(chan error, c.ranks)
				for r, at := range g.Ranks {
					w.engines[at.Process].Enter(Call{Launch: 1, Local: at.Local, Spec: s,
						Operands: [][]byte{w.array(at.Process, size)}, Results: [][]byte{w.array(at.Process, size)},
						Way: &told[r], Done: func(err error) { ended <- err }})
				}
				for range g.Ranks {
					statustest.OK(t, <-ended)
				}
				statustest.EqualSlices(t, told, slices.Repeat([]Way{want}, c.ranks), "the ways that calls are told")
				if n := len(counted); n == 0 || counted[n-1].Way != want {
					counted = append(counted, Count{Op: spmd.AllReduce, Way: want})
				}
				last := &counted[len(counted)-1]
				last.Calls, last.Bytes = last.Calls+uint64(each), last.Bytes+uint64(int64(each)*size)
			}
			for _, e := range w.engines {
				statustest.EqualSlices(t, e.Counts(), counted, "the counts of an engine")
			}
			w.end(1)
		})
	}
}

// goBy has bytes between hosts go otherwise.
func (w *world) goBy(ways ways) {
	for _, e := range w.engines {
		e.ways = ways
	}
}
