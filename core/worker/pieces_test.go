package worker_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/bubble"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/worker"
	"github.com/openpathways/pathways/device/sim"
)

// inPieces is a world of workers whose long moves go in pieces of so many bytes.
func inPieces(t testing.TB, workers, each int, piece int64, o sim.Options, programs ...sim.Program) *world {
	t.Helper()
	w := &world{script: start(t, simDrivers(t, workers, each, o), func(c *worker.Config) { c.Piece = piece })}
	for d := range workers * each {
		w.devices = append(w.devices, d)
	}
	w.all = w.of(w.devices)
	for id, p := range programs {
		statustest.OK(t, w.compile(1, uint64(id+1), p.Source(), sim.CompileOptions(w.devices),
			w.devices...).Status.Err())
	}
	return w
}

// numbers returns f32s that differ.
func numbers(n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(i)
	}
	return v
}

// copyTime is how long a long array is copied from a device, over the wire, or to a device.
const (
	longNumbers = 1 << 20
	copyTime    = 32 * time.Millisecond
	longPiece   = 128 << 10
)

// slowCopies is a world in which each of the three copies of a long array takes copyTime.
func slowCopies(t *testing.T) *world {
	t.Helper()
	const bandwidth = 4 * longNumbers * int64(time.Second/copyTime)
	w := inPieces(t, 2, 1, longPiece, sim.Options{Island: sim.NewIsland(sim.Real, 1), Bandwidth: bandwidth})
	w.hub.Bandwidth = func(uint64, uint64) float64 { return float64(bandwidth) }
	statustest.OK(t, w.wait(w.put(1, 1, 1, []int{0}, func(int) []float32 { return numbers(longNumbers) }), 0))
	return w
}

// A long array is read from its device, sent, and written to another device at the same time, and takes host memory for
// a few pieces.
func TestCopiesOfALongArrayOverlap(t *testing.T) {
	array := &wire.Array{Dtype: uint32(shape.F32), Dims: []int64{longNumbers}}
	half := &wire.Array{Dtype: uint32(shape.F32), Dims: []int64{longNumbers / 2}}
	for _, c := range []struct {
		name  string
		array *wire.Array
		move  *wire.Move
		takes time.Duration
	}{
		{"shard", array, &wire.Move{}, copyTime},
		{"region", half, &wire.Move{Start: []int64{longNumbers / 4}, Size: half.Dims, At: []int64{0}, Shard: array},
			copyTime / 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := slowCopies(t)
				c.move.Source, c.move.To = 1, 1
				before, most := w.pool.Stats().Owned[1], int64(0)
				begun := time.Now()
				moved := w.dispatch(1, wire.KindTransfer, &wire.Transfer{Op: 2, Object: 2, Array: c.array,
					Moves: []*wire.Move{c.move}}, w.all...)
				for range 8 {
					time.Sleep(c.takes / 8)
					most = max(most, w.pool.Stats().Owned[1]-before)
				}
				w.must(moved)
				took := time.Since(begun)
				if took < c.takes || took > c.takes*5/4 {
					t.Errorf("it took %v, each of the three copies takes %v", took, c.takes)
				}
				if most == 0 || most > 4*longPiece {
					t.Errorf("it had %d bytes of the host's memory, pieces have %d", most, longPiece)
				}
				got := statustest.Value(w.fetch(1, 3, 2, 1, int(c.array.Dims[0]))).OK(t)
				want := numbers(longNumbers)
				if len(c.move.Start) > 0 {
					want = want[longNumbers/4:][:longNumbers/2]
				}
				if !slices.Equal(got, want) {
					t.Error("the values are not the source's")
				}
				w.free(1, 2)
				w.empty()
			})
		})
	}
}

// tiling is an array of two dimensions on a grid of devices.
type tiling struct {
	rows, columns int64 // of the grid
	devices       []int
}

// shard returns the dimensions of a shard of an array, and where that of a device begins.
func (l tiling) shard(dims []int64, i int) (size, start []int64) {
	size = []int64{dims[0] / l.rows, dims[1] / l.columns}
	return size, []int64{int64(i) / l.columns * size[0], int64(i) % l.columns * size[1]}
}

// moves returns the regions that bring an array from one tiling to another.
func moves(source uint64, dims []int64, from, to tiling) (all []*wire.Move) {
	for i, f := range from.devices {
		have, first := from.shard(dims, i)
		for k, d := range to.devices {
			want, begin := to.shard(dims, k)
			m := &wire.Move{Source: source, From: uint32(f), To: uint32(d),
				Shard: &wire.Array{Dtype: uint32(shape.F32), Dims: have}}
			for n := range dims {
				start := max(first[n], begin[n])
				m.Size = append(m.Size, max(0, min(first[n]+have[n], begin[n]+want[n])-start))
				m.Start, m.At = append(m.Start, start-first[n]), append(m.At, start-begin[n])
			}
			if m.Size[0] > 0 && m.Size[1] > 0 {
				all = append(all, m)
			}
		}
	}
	return all
}

// Whatever the tilings and the length of pieces, each element comes to its place.
func TestArraysInPiecesComeToTheirPlaces(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	for _, piece := range []int64{4, 24, 100, 1000} {
		w := inPieces(t, 3, 2, piece, sim.Options{})
		grid := func() tiling {
			g := [][2]int64{{1, 1}, {1, 2}, {2, 1}, {2, 2}, {3, 1}, {1, 3}, {3, 2}, {6, 1}}[rng.IntN(8)]
			return tiling{g[0], g[1], rng.Perm(6)[:g[0]*g[1]]}
		}
		for op := uint64(1); op < 100; op += 10 {
			dims := []int64{6 * rng.Int64N(6), 6 * rng.Int64N(6)}
			all, from, to := numbers(int(dims[0]*dims[1])), grid(), grid()
			part := func(l tiling, d int) (some []float32) {
				size, start := l.shard(dims, slices.Index(l.devices, d))
				for r := range size[0] {
					some = append(some, all[(start[0]+r)*dims[1]+start[1]:][:size[1]]...)
				}
				return some
			}
			have, _ := from.shard(dims, 0)
			want, _ := to.shard(dims, 0)
			put := &wire.Put{Op: op, Object: op, Array: &wire.Array{Dtype: uint32(shape.F32), Dims: have}}
			gang := w.putAs(1, put, from.devices, func(d int) []float32 { return part(from, d) })
			what := fmt.Sprintf("%v from %v to %v in pieces of %d", dims, from, to, piece)
			statustest.OKf(t, w.wait(gang, w.of(from.devices)...), "%s", what)
			m := &wire.Transfer{Op: op + 1, Object: op + 1, Array: &wire.Array{Dtype: uint32(shape.F32), Dims: want},
				Moves: moves(op, dims, from, to)}
			if len(m.Moves) > 0 {
				both := w.of(append(slices.Clone(from.devices), to.devices...))
				statustest.OKf(t, w.wait(w.dispatch(1, wire.KindTransfer, m, both...), both...), "%s", what)
				for i, d := range to.devices {
					got, err := w.fetch(1, op+2+uint64(i), op+1, d, int(want[0]*want[1]))
					statustest.OKf(t, err, "%s", what)
					statustest.EqualSlices(t, got, part(to, d), "%s: device %d", what, d)
				}
			}
			w.free(op, op+1)
		}
		w.empty()
	}
}

// An array that is freed and donated behind the transfer that reads it is read before.
func TestSourceOfPiecesIsKeptUntilItIsRead(t *testing.T) {
	step := sim.Program{Name: "step", Params: []sim.Param{{DType: "f32", Dims: []int64{100}, Donated: true}},
		Results: []sim.Result{{Op: "add", Args: []int{0}, Value: 1}}}
	w := inPieces(t, 2, 1, 16, sim.Options{Latency: time.Microsecond}, step)
	w.must(w.put(1, 1, 1, w.devices, func(int) []float32 { return numbers(100) }))
	moved := w.dispatch(1, wire.KindTransfer, &wire.Transfer{Op: 2, Object: 2,
		Array: &wire.Array{Dtype: uint32(shape.F32), Dims: []int64{100}},
		Moves: []*wire.Move{{Source: 1, From: 0, To: 1}}}, w.all...)
	donated := w.run(1, 3, 1, 3, 1)
	w.free(1)
	w.must(moved, donated)
	statustest.EqualSlices(t, statustest.Value(w.fetch(1, 4, 2, 1, 100)).OK(t), numbers(100), "the copy")
	w.free(2, 3)
	w.empty()
}

// What ends a transfer while pieces are under way fails it on both workers, and nothing of it stays.
func TestTransferThatFailsBetweenPieces(t *testing.T) {
	array := &wire.Array{Dtype: uint32(shape.F32), Dims: []int64{1000}}
	gone := status.New(status.Unavailable, "the host burns")
	bad := status.New(status.DataLoss, "the link dropped it")
	for _, c := range []struct {
		name   string
		faults func(w *world, gang func() uint64)
		code   status.Code
		text   string
		lost   int // worker; -1: none
	}{
		{"read", func(w *world, gang func() uint64) {
			statustest.OK(t, w.drivers[0].(*sim.Driver).FailPiece(0, 5, bad))
			gang()
		}, status.DataLoss, "dropped it", -1},
		{"write", func(w *world, gang func() uint64) {
			statustest.OK(t, w.drivers[1].(*sim.Driver).FailPiece(0, 7, bad))
			gang()
		}, status.DataLoss, "dropped it", -1},
		{"sender lost", func(w *world, gang func() uint64) {
			gang()
			time.Sleep(20 * time.Millisecond)
			w.tellOne(1, wire.KindPeers, &wire.Peers{Gone: []uint64{firstWorker}, Why: wire.Of(gone)})
		}, status.Unavailable, "burns", 0},
		{"receiver lost", func(w *world, gang func() uint64) {
			gang()
			time.Sleep(20 * time.Millisecond)
			w.tellOne(0, wire.KindPeers, &wire.Peers{Gone: []uint64{firstWorker + 1}, Why: wire.Of(gone)})
		}, status.Unavailable, "burns", 1},
		{"aborted", func(w *world, gang func() uint64) {
			g := gang()
			time.Sleep(20 * time.Millisecond)
			w.tell(wire.KindAbort, &wire.Abort{Gang: g, Status: wire.Of(gone)})
		}, status.Unavailable, "burns", -1},
		{"device lost", func(w *world, gang func() uint64) {
			gang()
			time.Sleep(20 * time.Millisecond)
			statustest.OK(t, w.drivers[1].(*sim.Driver).Lose(0, "it melts"))
		}, status.Unavailable, "melts", -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := inPieces(t, 2, 1, 16, sim.Options{Island: sim.NewIsland(sim.Real, 1), Latency: time.Millisecond})
				statustest.OK(t, w.wait(w.put(1, 1, 1, []int{0}, func(int) []float32 { return numbers(1000) }), 0))
				var gang uint64
				c.faults(w, func() uint64 {
					gang = w.dispatch(1, wire.KindTransfer, &wire.Transfer{Op: 2, Object: 2, Array: array,
						Moves: []*wire.Move{{Source: 1, From: 0, To: 1}}}, w.all...)
					return gang
				})
				for i := range w.workers {
					if i != c.lost {
						statustest.Fails(t, fmt.Sprintf("the transfer on worker %d", i), w.wait(gang, i), c.code, c.text)
					}
				}
				if c.lost >= 0 { // as the controller would have it
					w.tellOne(c.lost, wire.KindAbort, &wire.Abort{Gang: gang, Status: wire.Of(gone)})
				}
				_ = w.wait(gang, w.all...)
				w.free(1, 2)
				if c.name != "device lost" {
					w.empty()
				}
			})
		})
	}
}
