package transporttest

import (
	"bytes"
	"sync"
	"testing"

	"github.com/openpathways/pathways/core/shape/strided"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/transport"
)

// parts has two processes send an array's parts to a third, where each is to lie between the other's.
func (s exchangeSuite) parts(t *testing.T) {
	w := s.open(t, 3)
	id := uint64(0)
	for _, dims := range [][]int64{{2, 2}, {8, 500}, {64, 1 << 10}, {600, 3000}, {40, 64 << 10}, {0, 8}} {
		for _, place := range []string{"early", "late", "filled", "elsewhere"} {
			id++
			s.partsOf(t, w, id, dims, place)
		}
	}
}

func (s exchangeSuite) partsOf(t *testing.T, w World, id uint64, dims []int64, place string) {
	t.Helper()
	size := dims[0] * dims[1]
	source := pattern(int(size), id)
	to := w.of(3).(transport.Mover)
	room, ok := transport.Block{Data: make([]byte, size), Release: func() {}}, place == "elsewhere"
	if !ok {
		if room, ok = to.Room(transport.Transfers(1), size, []uint64{1, 2}); !ok {
			t.Fatalf("there is no room for %d bytes", size)
		}
	}
	clear(room.Data)
	var e ends
	e.t = t
	var arrived sync.WaitGroup
	expect := func(from uint64, at strided.Layout) {
		arrived.Add(1)
		to.ExpectPart(from, key(id, from), transport.Part{Data: room.Data, At: at}, func(err error) {
			statustest.Checkf(t, err, "%v %s, from %d", dims, place, from)
			arrived.Done()
		})
	}
	half := dims[1] / 2
	for from := uint64(1); from <= 2; from++ {
		at := strided.Of(dims, []int64{0, int64(from-1) * half}, []int64{dims[0], half}, 1)
		if place == "early" {
			expect(from, at)
		}
		if place == "filled" {
			w.of(int(from)).Push(3, key(id, from), at.Bytes(), func(dst []byte, written func(error)) {
				strided.Copy(dst, strided.Dense(at.Bytes()), source, at)
				written(nil)
			}, e.done(status.OK))
		} else {
			w.of(int(from)).(transport.Mover).PushPart(3, key(id, from), transport.Part{Data: source, At: at}, e.done(status.OK))
		}
		if place != "early" {
			expect(from, at)
		}
	}
	arrived.Wait()
	e.left.Wait()
	if !bytes.Equal(room.Data, source) {
		t.Errorf("%v %s: other bytes came", dims, place)
	}
	room.Release()
}
