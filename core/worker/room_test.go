package worker_test

import (
	"slices"
	"sync"
	"testing"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/worker"
	"github.com/openpathways/pathways/device/sim"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/shm"
)

// asked is an exchange that says when it is asked for room. Full, its memory is in use.
type asked struct {
	transport.Mover
	full bool
	look func()
}

func (x asked) Room(space uint64, size int64, peers []uint64) (transport.Block, bool) {
	x.look()
	if x.full {
		return transport.Block{}, false
	}
	return x.Mover.Room(space, size, peers)
}

// A hundred concurrent transfers, each of which assembles shards from all devices, leave memory in use for their
// results only. While they are under way, each device has at most a single copy of a source beside these if the
// exchange has no room for them; if it has, each byte of the results is there at most twice.
func TestTransfersAtOnceTakeMemoryForTheirResults(t *testing.T) {
	for name, isFull := range map[string]bool{"with room in the exchange": false, "without room": true} {
		t.Run(name, func(t *testing.T) {
			const n, transfers = 96 << 8, 100 // floats of a shard, of which a region has a quarter
			var mu sync.Mutex
			var most int64
			var w *script
			look := func() {
				mu.Lock()
				most = max(most, w.hostMemory())
				mu.Unlock()
			}
			w = start(t, simDrivers(t, 2, 2, sim.Options{}), func(c *worker.Config) {
				c.Exchange = asked{c.Exchange, isFull, look}
			})
			devices, workers := []int{0, 1, 2, 3}, []int{0, 1}
			value := func(d int) []float32 {
				v := make([]float32, n)
				for i := range v {
					v[i] = float32(d*n + i)
				}
				return v
			}
			w.done(w.put(1, 1, 1, devices, value))
			before := w.hostMemory()
			var gangs []uint64
			var objects []uint64
			for k := range uint64(transfers) {
				array := &wire.Array{Dtype: uint32(shape.F32), Dims: []int64{n}}
				m := &wire.Transfer{Op: 2 + k, Object: 2 + k, Array: array}
				for from := range uint32(4) {
					for to := range uint32(4) {
						m.Moves = append(m.Moves, &wire.Move{Source: 1, From: from, To: to, Start: []int64{int64(to) * n / 4},
							Size: []int64{n / 4}, At: []int64{int64(from) * n / 4}, Shard: array})
					}
				}
				gangs, objects = append(gangs, w.dispatch(1, wire.KindTransfer, m, workers...)), append(objects, 2+k)
			}
			w.done(gangs...)
			want := int64(transfers * 4 * n * 4)
			statustest.Equal(t, w.hostMemory()-before, want, "bytes of %d transfers, those of their results", transfers)
			bound := want + 4*n*4
			if !isFull {
				bound += want
			}
			if most > before+bound {
				t.Errorf("they took %d bytes, want %d at most", most-before, bound)
			}
			for _, d := range devices {
				got, err := w.fetch(1, uint64(1000+d), 1+transfers, d, n)
				var want []float32
				for from := range 4 {
					want = append(want, value(from)[d*n/4:(d+1)*n/4]...)
				}
				if err != nil || !slices.Equal(got, want) {
					t.Errorf("device %d has other numbers: %v", d, err)
				}
			}
			w.dispatch(1, wire.KindFree, &wire.Free{Objects: append(objects, 1)}, workers...)
			w.empty()
		})
	}
}

// However many arrays devices read in place, in the memory in which their bytes arrived, room is left for more bytes.
func TestArraysThatStayLeaveRoomForBytes(t *testing.T) {
	const n, arrays, limit = 1 << 18, 24, 8 << 20 // floats of an array; bytes for blocks
	w := startIn(t, shm.NewPool(shm.Config{Limit: limit}), simDrivers(t, 1, 1, sim.Options{}), nil)
	value := func(object int) []float32 { return slices.Repeat([]float32{float32(object)}, n) }
	var all []uint64
	for object := 1; object <= arrays; object++ {
		all = append(all, uint64(object))
		g := w.put(1, uint64(object), uint64(object), []int{0}, func(int) []float32 { return value(object) })
		statustest.OK(t, w.wait(g, 0))
	}
	if kept := w.hostMemory(); kept == 0 || kept > limit/2 {
		t.Errorf("%d arrays have %d bytes of %d for blocks", arrays, kept, limit)
	}
	for object := 1; object <= arrays; object++ {
		got, err := w.fetch(1, uint64(100+object), uint64(object), 0, n)
		if err != nil || !slices.Equal(got, value(object)) {
			t.Errorf("array %d has other numbers: %v", object, err)
		}
	}
	w.dispatch(1, wire.KindFree, &wire.Free{Objects: all}, 0)
	w.empty()
}

// done waits for gangs of two workers.
func (s *script) done(gangs ...uint64) {
	s.t.Helper()
	for _, g := range gangs {
		statustest.OK(s.t, s.wait(g, 0, 1))
	}
}

// hostMemory returns how many bytes of host memory the workers use for arrays that arrive or are assembled.
func (s *script) hostMemory() (bytes int64) {
	for _, used := range s.pool.Stats().Used {
		bytes += used
	}
	for _, w := range s.workers {
		bytes += w.HostMemory().Assembling
	}
	return bytes
}
