package transporttest

import (
	"bytes"
	"testing"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/transport"
)

// Lending checks a kind of exchange that lends memory, which memory returns: shared, of
// a process of the world that was made last.
func Lending(t *testing.T, world func(t *testing.T, n int) World, memory func(number, size int) []byte) {
	s := lendSuite{world, memory}
	t.Run("a block that is lent arrives in the lender's memory", s.sameMemory)
	t.Run("a block that is lent is copied into memory that the receiver names", s.into)
	t.Run("a block that is lent ends where its sender fails", s.failedBySender)
	t.Run("a block that is lent is given back where its receiver fails", s.failedByReceiver)
}

type lendSuite struct {
	world  func(t *testing.T, n int) World
	memory func(number, size int) []byte
}

type borrowed struct {
	data []byte
	done chan error
}

func (s lendSuite) lend(w World, k transport.Key, size int) borrowed {
	b := borrowed{s.memory(1, size), make(chan error, 2)}
	copy(b.data, pattern(size, k.ID))
	w.of(1).(transport.Lender).Lend(2, k, b.data, func(err error) { b.done <- err })
	return b
}

// still checks that the end of what was lent was not told: what both sides have
// said is behind two blocks each way.
func (s lendSuite) still(t *testing.T, w World, id uint64, b borrowed) {
	t.Helper()
	for i := range uint64(2) {
		w.meet(t, 1, 2, key(id, 100+i))
	}
	select {
	case err := <-b.done:
		t.Errorf("it was given back (%v), and the receiver has it", err)
	default:
	}
}

func (s lendSuite) take(t *testing.T, w World, k transport.Key, size int, into []byte) transport.Block {
	t.Helper()
	got := <-expect(t, w.of(2), 1, k, int64(size), into)
	statustest.OK(t, got.err)
	return got.block
}

func (s lendSuite) sameMemory(t *testing.T) {
	w := s.world(t, 2)
	for i, size := range []int{1, 64, 5000, 20 << 10, 3 << 20} {
		id := uint64(i + 1)
		b := s.lend(w, key(id, 0), size)
		got := s.take(t, w, key(id, 0), size, nil)
		if !got.Lent || !bytes.Equal(got.Data, pattern(size, id)) {
			t.Fatalf("%d bytes: lent %v, or other bytes", size, got.Lent)
		}
		b.data[size/2] ^= 255
		if got.Data[size/2] != b.data[size/2] {
			t.Errorf("%d bytes: what came is a copy", size)
		}
		s.still(t, w, id, b)
		got.Release()
		statustest.Check(t, <-b.done)
	}
}

func (s lendSuite) into(t *testing.T) {
	w := s.world(t, 2)
	into := make([]byte, 1<<20)
	b := s.lend(w, key(1, 0), len(into))
	s.take(t, w, key(1, 0), len(into), into).Release()
	if err := <-b.done; err != nil || !bytes.Equal(into, pattern(len(into), 1)) {
		t.Errorf("%v, or other bytes", err)
	}
}

func (s lendSuite) failedBySender(t *testing.T) {
	w := s.world(t, 2)
	b := s.lend(w, key(5, 0), 4096)
	w.of(1).Fail(key(5, 0).Space, 5, errGang5)
	statustest.Fails(t, "lending", <-b.done, status.Aborted)
	statustest.Fails(t, "expecting", (<-expect(t, w.of(2), 1, key(5, 0), 4096, nil)).err, status.Aborted)
	// It is too late when the receiver has it.
	b = s.lend(w, key(6, 0), 4096)
	got := s.take(t, w, key(6, 0), 4096, nil)
	w.of(1).Fail(key(6, 0).Space, 6, errGang5)
	s.still(t, w, 7, b)
	got.Release()
	<-b.done
}

func (s lendSuite) failedByReceiver(t *testing.T) {
	w := s.world(t, 2)
	first := expect(t, w.of(2), 1, key(5, 0), 4096, nil)
	w.of(2).Fail(key(5, 0).Space, 5, errGang5)
	statustest.Fails(t, "expecting", (<-first).err, status.Aborted)
	statustest.Fails(t, "lending", <-s.lend(w, key(5, 0), 4096).done, status.Aborted)
	other := expect(t, w.of(2), 1, key(8, 0), 200, nil) // of another size
	statustest.Fails(t, "lending another size", <-s.lend(w, key(8, 0), 100).done, status.InvalidArgument)
	statustest.Fails(t, "expecting another size", (<-other).err, status.InvalidArgument)
}
