package bulk

import (
	"errors"
	"io"
	"sync"
	"testing"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/transporttest"
)

// loans returns memory that a process of a world can lend, until the test ends.
func loans(t *testing.T, w *transporttest.World) func(number, size int) []byte {
	return func(number, size int) []byte {
		arena := w.Exchanges[number-1].(*Exchange).pool.Arena("loans", true, nil)
		b := statustest.Value(arena.Make(size)).OK(t)
		t.Cleanup(func() {
			b.Release()
			arena.Close(io.EOF)
		})
		return b.Data
	}
}

func TestLending(t *testing.T) {
	for _, deaf := range []int{0, 1, 2} {
		var w transporttest.World
		transporttest.Lending(t, func(t *testing.T, n int) transporttest.World {
			w = world(t, "unix", n, func(i int) bool { return i == deaf })
			for _, x := range w.Exchanges {
				t.Cleanup(func() { x.Close() })
			}
			return w
		}, loans(t, &w))
	}
}

// What was lent to a process whose link broke stays lent until the controller says
// that the process has gone, or this side ends; what that process has stays readable.
func TestLentMemoryStaysUntilItsProcessHasGone(t *testing.T) {
	for _, told := range []bool{true, false} {
		w := world(t, "unix", 2, none)
		x, y := w.Exchanges[0].(*Exchange), w.Exchanges[1].(*Exchange)
		data := loans(t, &w)(1, 1<<20)
		data[7] = 7
		done, arrived := make(chan error, 2), make(chan transport.Block, 1)
		k := transport.Key{Space: 1, ID: 1}
		y.Expect(1, k, 1<<20, nil, func(b transport.Block, err error) {
			statustest.Check(t, err)
			arrived <- b
		})
		x.Lend(2, k, data, func(err error) { done <- err })
		b := <-arrived
		statustest.Equal(t, y.Memory().Lent, 1<<20, "bytes are lent")
		y.Close()
		lost := make(chan error, 1)
		x.Expect(2, transport.Key{Space: 1, ID: 2}, 1, nil, func(_ transport.Block, err error) { lost <- err })
		statustest.Fails(t, "the error", <-lost, status.Unavailable)
		select {
		case err := <-done:
			t.Errorf("it was given back (%v), and the receiver has it", err)
		default:
		}
		if told {
			x.Peers(nil, []uint64{2}, errors.New("process 2 was killed"))
		} else {
			x.Close()
		}
		if err := <-done; status.CodeOf(err) != status.Unavailable && status.CodeOf(err) != status.Cancelled {
			t.Error(err)
		}
		if b.Data[7] != 7 {
			t.Error("what the receiver has is no more")
		}
		b.Release()
		statustest.Equal(t, y.Memory().Lent, 0, "bytes are lent, and not read")
		x.Close()
	}
}

// Memory that others cannot read is not lent, and it is said why.
func TestMemoryThatOthersCannotReadIsNotLent(t *testing.T) {
	for kind, want := range map[string]string{"unix": "do not lie in shared memory", "tcp": "not on this host"} {
		w := world(t, kind, 2, none)
		x := w.Exchanges[0].(*Exchange)
		private, err := x.pool.Arena("private", false, nil).Make(100)
		statustest.OK(t, err)
		err = x.CanLend(2, private.Data)
		done, arrived := make(chan error, 1), make(chan error, 1)
		k := transport.Key{Space: 1, ID: 1}
		w.Exchanges[1].Expect(1, k, 100, nil, func(_ transport.Block, err error) { arrived <- err })
		x.Lend(2, k, private.Data, func(err error) { done <- err })
		for _, err := range []error{err, <-done, <-arrived} {
			statustest.Fails(t, kind, err, status.FailedPrecondition, want)
		}
		private.Release()
		if err := x.CanLend(77, nil); err == nil {
			t.Error("a process that there is not can be lent to")
		}
		for _, x := range w.Exchanges {
			x.Close()
		}
	}
}

// Blocks that were lent and given back leave nothing behind, and neither does memory
// that has gone.
func TestLendingLeavesNothingBehind(t *testing.T) {
	w := world(t, "unix", 2, none)
	x, y := w.Exchanges[0].(*Exchange), w.Exchanges[1].(*Exchange)
	var lent sync.WaitGroup
	for i := range 20 {
		arena := x.pool.Arena("loans", true, nil)
		b, err := arena.Make(64 << 10)
		statustest.OK(t, err)
		for j := range 500 {
			k := transport.Key{Space: 1, ID: uint64(i), Part: uint64(j)}
			lent.Add(1)
			y.Expect(1, k, int64(len(b.Data)), nil, func(b transport.Block, err error) {
				if err != nil {
					t.Error(err)
					return
				}
				b.Release()
			})
			x.Lend(2, k, b.Data, func(err error) {
				statustest.Check(t, err)
				lent.Done()
			})
		}
		lent.Wait()
		b.Release()
		arena.Close(io.EOF)
	}
	// What is said last is behind all that was said before.
	sent := make(chan struct{})
	k := transport.Key{Space: 2, ID: 1}
	y.Expect(1, k, 1, nil, func(transport.Block, error) { close(sent) })
	x.calls.Do(func() { x.PushBytes(2, k, []byte{1}, nil) })
	<-sent
	for side, e := range map[string]*Exchange{"the lender": x, "the borrower": y} {
		for _, p := range e.all() {
			p.mu.Lock()
			for l := range p.links {
				if n := len(l.outgoing) + len(l.incoming) + len(l.shown) + len(l.views); n != 0 {
					t.Errorf("%s has %d blocks out, %d in, %d and %d segments", side, len(l.outgoing), len(l.incoming), len(l.shown),
						len(l.views))
				}
			}
			p.mu.Unlock()
		}
		e.Close()
	}
}
