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
	return worldOf(t, workers, each, o, func(c *worker.Config) { c.Piece = piece }, programs...)
}

// numbers returns f32s that differ.
func numbers(n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(i)
	}
	return v
}

// copyTime is how long a long array, of so many rows and columns, is copied from a device, over the wire, or to a
// device.
const (
	copyTime  = 32 * time.Millisecond
	longSide  = 1 << 10
	longPiece = 128 << 10
)

// slowCopies is a world in which each of the three copies of a long array takes copyTime.
func slowCopies(t *testing.T) *world {
	t.Helper()
	const bandwidth = 4 * longSide * longSide * int64(time.Second/copyTime)
	w := inPieces(t, 2, 1, longPiece, sim.Options{Island: sim.NewIsland(sim.Real, 1), Bandwidth: bandwidth})
	w.hub.Bandwidth = func(uint64, uint64) float64 { return float64(bandwidth) }
	put := &wire.Put{Op: 1, Object: 1, Array: f32s(longSide, longSide)}
	gang := w.putAs(1, put, []int{0}, func(int) []float32 { return numbers(longSide * longSide) })
	statustest.OK(t, w.wait(gang, 0))
	return w
}

func f32s(dims ...int64) *wire.Array { return &wire.Array{Dtype: uint32(shape.F32), Dims: dims} }

// A long array is read from its device, sent, and written to another device at the same time, and takes host memory for
// a few pieces.
func TestCopiesOfALongArrayOverlap(t *testing.T) {
	const half, quarter = longSide / 2, longSide / 4
	for _, c := range []struct {
		name        string
		start, size []int64
		takes       time.Duration // the longest of the copies
		pieces      int64         // in host memory
	}{
		{"shard", []int64{0, 0}, []int64{longSide, longSide}, copyTime, 4},
		{"rows", []int64{quarter, 0}, []int64{half, longSide}, copyTime / 2, 4},
		{"columns", []int64{0, quarter}, []int64{longSide, half}, copyTime, 4 + 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w := slowCopies(t)
				before, most := w.pool.Stats().Owned[1], int64(0)
				begun := time.Now()
				move := &wire.Move{Source: 1, To: 1, Start: c.start, Size: c.size, At: []int64{0, 0},
					Shard: f32s(longSide, longSide)}
				moved := w.dispatch(1, wire.KindTransfer, &wire.Transfer{Op: 2, Object: 2, Array: f32s(c.size...),
					Moves: []*wire.Move{move}}, w.all...)
				for range 8 {
					time.Sleep(c.takes / 8)
					most = max(most, w.pool.Stats().Owned[1]-before)
				}
				w.must(moved)
				if took := time.Since(begun); took < c.takes*15/16 || took > c.takes*5/4 {
					t.Errorf("it took %v, the longest of its copies takes %v", took, c.takes)
				}
				if most == 0 || most > c.pieces*longPiece {
					t.Errorf("it had %d bytes of the host's memory, pieces have %d", most, longPiece)
				}
				all, want := numbers(longSide*longSide), []float32(nil)
				for row := range c.size[0] {
					want = append(want, all[(c.start[0]+row)*longSide+c.start[1]:][:c.size[1]]...)
				}
				if got := statustest.Value(w.fetch(1, 3, 2, 1, len(want))).OK(t); !slices.Equal(got, want) {
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
				Shard: f32s(have...)}
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
			put := &wire.Put{Op: op, Object: op, Array: f32s(have...)}
			gang := w.putAs(1, put, from.devices, func(d int) []float32 { return part(from, d) })
			what := fmt.Sprintf("%v from %v to %v in pieces of %d", dims, from, to, piece)
			statustest.OKf(t, w.wait(gang, w.of(from.devices)...), "%s", what)
			m := &wire.Transfer{Op: op + 1, Object: op + 1, Array: f32s(want...),
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
		Array: f32s(100),
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
	whole := []*wire.Move{{Source: 1, From: 0, To: 1}}
	var columns []*wire.Move
	for half := range int64(2) {
		columns = append(columns, &wire.Move{Source: 1, From: 0, To: 1, Start: []int64{0, 5 * half}, Size: []int64{100, 5},
			At: []int64{0, 5 * (1 - half)}, Shard: f32s(100, 10)})
	}
	gone := status.New(status.Unavailable, "the host burns")
	bad := status.New(status.DataLoss, "the link dropped it")
	for _, c := range []struct {
		name     string
		faults   func(w *world, gang func() uint64)
		code     status.Code
		text     string
		lost     int  // worker; -1: none
		onDevice bool // of the destination
	}{
		{"read", func(w *world, gang func() uint64) {
			statustest.OK(t, w.drivers[0].(*sim.Driver).FailPiece(0, 5, bad))
			gang()
		}, status.DataLoss, "dropped it", -1, false},
		{"write", func(w *world, gang func() uint64) {
			statustest.OK(t, w.drivers[1].(*sim.Driver).FailPiece(0, 7, bad))
			gang()
		}, status.DataLoss, "dropped it", -1, true},
		{"sender lost", func(w *world, gang func() uint64) {
			gang()
			time.Sleep(20 * time.Millisecond)
			w.tellOne(1, wire.KindPeers, &wire.Peers{Gone: []uint64{firstWorker}, Why: wire.Of(gone)})
		}, status.Unavailable, "burns", 0, false},
		{"receiver lost", func(w *world, gang func() uint64) {
			gang()
			time.Sleep(20 * time.Millisecond)
			w.tellOne(0, wire.KindPeers, &wire.Peers{Gone: []uint64{firstWorker + 1}, Why: wire.Of(gone)})
		}, status.Unavailable, "burns", 1, false},
		{"aborted", func(w *world, gang func() uint64) {
			g := gang()
			time.Sleep(20 * time.Millisecond)
			w.tell(wire.KindAbort, &wire.Abort{Gang: g, Status: wire.Of(gone)})
		}, status.Unavailable, "burns", -1, false},
		{"device lost", func(w *world, gang func() uint64) {
			gang()
			time.Sleep(20 * time.Millisecond)
			statustest.OK(t, w.drivers[1].(*sim.Driver).Lose(0, "it melts"))
		}, status.Unavailable, "melts", -1, true},
	} {
		for _, moves := range [][]*wire.Move{whole, columns} {
			if c.onDevice && len(moves) > 1 {
				continue // the shard is put together on the host
			}
			t.Run(fmt.Sprint(c.name, " ", len(moves)), func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					w := inPieces(t, 2, 1, 16, sim.Options{Island: sim.NewIsland(sim.Real, 1), Latency: time.Millisecond})
					put := &wire.Put{Op: 1, Object: 1, Array: f32s(100, 10)}
					statustest.OK(t, w.wait(w.putAs(1, put, []int{0}, func(int) []float32 { return numbers(1000) }), 0))
					var gang uint64
					c.faults(w, func() uint64 {
						gang = w.dispatch(1, wire.KindTransfer, &wire.Transfer{Op: 2, Object: 2, Array: f32s(100, 10), Moves: moves},
							w.all...)
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
}
