package transporttest

import (
	"errors"
	"strings"
	"testing"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/transport"
)

var errGang5 = status.New(status.Aborted, "gang 5 failed elsewhere")

func checkGang5(t *testing.T, got result) {
	t.Helper()
	statustest.Fails(t, "a block of gang 5", got.err, status.Aborted, "gang 5")
}

func (s exchangeSuite) failing(t *testing.T) {
	for _, size := range []int64{100, 100_000, 4 << 20} {
		t.Run("the receiver, before the push", func(t *testing.T) { s.failsBeforePush(t, size) })
		t.Run("the receiver, while it is written", func(t *testing.T) { s.failsWhileWritten(t, size) })
		t.Run("the sender", func(t *testing.T) { s.senderFails(t, size) })
		t.Run("the sender, before it is expected", func(t *testing.T) { s.senderFailsFirst(t, size) })
	}
}

func (s exchangeSuite) failsBeforePush(t *testing.T, size int64) {
	w := s.open(t, 2)
	var e ends
	e.t = t
	arrived := expect(t, w.of(2), 1, key(5, 0), size, nil)
	w.of(2).Fail(key(5, 0).Space, 5, errGang5)
	checkGang5(t, <-arrived)
	checkGang5(t, <-expect(t, w.of(2), 1, key(5, 1), size, nil)) // and what comes later
	w.of(1).Push(2, key(5, 0), size, func(dst []byte, written func(error)) { written(nil) }, func(err error) {})
	// Others go on.
	w.of(1).PushBytes(2, key(6, 0), make([]byte, size), e.done(status.OK))
	got := <-expect(t, w.of(2), 1, key(6, 0), size, nil)
	statustest.OK(t, got.err)
	got.block.Release()
	e.left.Wait()
}

func (s exchangeSuite) failsWhileWritten(t *testing.T, size int64) {
	for _, into := range []bool{false, true} {
		w := s.open(t, 2)
		filling := make(chan func(error), 1)
		done := make(chan error, 1)
		w.of(1).Push(2, key(5, 0), size, func(dst []byte, written func(error)) {
			filling <- func(err error) {
				paint(dst, 1) // the memory is still there
				written(err)
			}
		}, func(err error) { done <- err })
		var dst []byte
		if into {
			dst = make([]byte, size)
		}
		arrived := expect(t, w.of(2), 1, key(5, 0), size, dst)
		written := <-filling
		go w.of(2).Fail(key(5, 0).Space, 5, errGang5)
		written(nil)
		got := <-arrived // either came first
		if got.err != nil {
			checkGang5(t, got)
		} else if !into {
			got.block.Release()
		}
		<-done
	}
}

func (s exchangeSuite) senderFails(t *testing.T, size int64) {
	w := s.open(t, 2)
	var e ends
	e.t = t
	begun := expect(t, w.of(2), 1, key(7, 0), 10, nil)
	w.of(1).PushBytes(2, key(7, 0), make([]byte, 10), nil)
	(<-begun).block.Release()
	failed := make(chan error, 1)
	w.of(1).Push(2, key(5, 0), size, func(dst []byte, written func(error)) {
		w.of(1).Fail(key(5, 0).Space, 5, errGang5)
		written(errGang5)
	}, func(err error) { failed <- err })
	checkGang5(t, <-expect(t, w.of(2), 1, key(5, 0), size, nil))
	checkGang5(t, result{err: <-failed})
	w.of(1).PushBytes(2, key(5, 1), make([]byte, size), e.done(status.Aborted))
	checkGang5(t, <-expect(t, w.of(2), 1, key(5, 1), size, nil))
	e.left.Wait()
}

func (s exchangeSuite) senderFailsFirst(t *testing.T, size int64) {
	if size < 100_000 {
		return // it may have gone by then
	}
	w := s.open(t, 2)
	var e ends
	e.t = t
	w.of(1).PushBytes(2, key(7, 0), make([]byte, 10), e.done(status.OK))
	got := <-expect(t, w.of(2), 1, key(7, 0), 10, nil)
	got.block.Release()
	done := make(chan error, 1)
	w.of(1).Push(2, key(5, 0), size, func(dst []byte, written func(error)) {}, func(err error) { done <- err })
	w.of(1).Fail(key(5, 0).Space, 5, errGang5)
	checkGang5(t, <-expect(t, w.of(2), 1, key(5, 0), size, nil))
	e.left.Wait()
}

// checkLost2 checks that an error says that process 2 is lost.
func checkLost2(t *testing.T, err error) {
	t.Helper()
	statustest.Fails(t, "a block of process 2", err, status.Unavailable, "process 2")
}

func (s exchangeSuite) losing(t *testing.T) {
	t.Run("a peer that closes is lost", func(t *testing.T) {
		s.losingPeer(t, func(w World) { go w.of(2).Close() })
	})
	t.Run("a peer is lost when the controller says so", func(t *testing.T) {
		s.losingPeer(t, func(w World) { w.of(1).Peers(nil, []uint64{2}, errors.New("process 2 was killed")) })
	})
	t.Run("a push to a peer that there is not fails", func(t *testing.T) {
		w := s.open(t, 1)
		done := make(chan error, 1)
		w.of(1).PushBytes(77, key(1, 0), make([]byte, 10), func(err error) { done <- err })
		if err := <-done; err == nil || !strings.Contains(err.Error(), "process 77") {
			t.Errorf("a push to no process: %v", err)
		}
	})
	t.Run("nothing arrives at a closed exchange", func(t *testing.T) {
		w := s.open(t, 2)
		arrived := expect(t, w.of(1), 2, key(1, 0), 10, nil)
		w.of(1).Close()
		if got := <-arrived; got.err == nil {
			t.Error("a block arrived at a closed exchange")
		}
		if got := <-expect(t, w.of(1), 2, key(2, 0), 10, nil); got.err == nil {
			t.Error("a block arrived at a closed exchange")
		}
		done := make(chan error, 1)
		w.of(1).PushBytes(2, key(3, 0), make([]byte, 10), func(err error) { done <- err })
		if err := <-done; err == nil {
			t.Error("a block was sent by a closed exchange")
		}
	})
}

// meet sends a block from each process to the other, so that they are joined.
func (w World) meet(t *testing.T, a, b int, k transport.Key) {
	t.Helper()
	for _, ends := range [][2]int{{a, b}, {b, a}} {
		w.of(ends[0]).PushBytes(uint64(ends[1]), k, make([]byte, 10), nil)
		got := <-expect(t, w.of(ends[1]), uint64(ends[0]), k, 10, nil)
		statustest.OK(t, got.err)
		got.block.Release()
	}
}

// losingPeer has process 1 lose process 2 in the middle of blocks both ways. Lose returns at once.
func (s exchangeSuite) losingPeer(t *testing.T, lose func(World)) {
	w := s.open(t, 3)
	w.meet(t, 1, 2, key(1, 0))
	push := func(id uint64, size int) <-chan error {
		done := make(chan error, 1)
		w.of(1).PushBytes(2, key(id, 0), make([]byte, size), func(err error) { done <- err })
		return done
	}
	failed := []<-chan error{
		push(2, 100_000), // of which 2 knows, or will, but does not expect it
		push(3, 20<<20),
	}
	waiting := []<-chan result{
		expect(t, w.of(1), 2, key(4, 0), 10, nil),
		expect(t, w.of(1), 2, key(5, 0), 1<<20, nil),
		expect(t, w.of(1), 2, key(6, 0), 1<<20, make([]byte, 1<<20)),
	}
	other := expect(t, w.of(1), 3, key(7, 0), 10, nil)
	filling := make(chan func(error), 1) // 2 dies while it writes
	w.of(2).Push(1, key(5, 0), 1<<20, func(dst []byte, written func(error)) {
		filling <- func(err error) {
			paint(dst, 3)
			written(err)
		}
	}, func(error) {})
	written := <-filling
	lose(w)
	late := make(chan struct{})
	go func() { defer close(late); written(nil) }()
	for i, c := range waiting {
		got := <-c
		if i == 1 && got.err == nil { // it was written in time
			got.block.Release()
			continue
		}
		checkLost2(t, got.err)
	}
	<-late
	for i, c := range failed {
		if err := <-c; err != nil || i > 0 { // a short one may have gone over
			checkLost2(t, err)
		}
	}
	checkLost2(t, <-push(8, 10))
	checkLost2(t, (<-expect(t, w.of(1), 2, key(9, 0), 10, nil)).err)
	// Others go on.
	w.of(3).PushBytes(1, key(7, 0), make([]byte, 10), nil)
	if got := <-other; got.err != nil {
		t.Errorf("a process that is there: %v", got.err)
	} else {
		got.block.Release()
	}
}
