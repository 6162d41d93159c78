package bulk

import (
	"errors"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/transporttest"
)

// linked is a world in which process 1 has had a block for each other one.
func linked(t *testing.T, kind string, n int) transporttest.World {
	w := world(t, kind, n, none)
	x := w.Exchanges[0]
	for i := 2; i <= n; i++ {
		got, k := make(chan error, 1), transport.Key{Space: 9, ID: 9}
		w.Exchanges[i-1].Expect(1, k, 3, nil, func(b transport.Block, err error) {
			if err == nil {
				b.Release()
			}
			got <- err
		})
		x.PushBytes(uint64(i), k, []byte("yes"), func(error) {})
		if err := <-got; err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { w.Exchanges[i-1].Close() })
	}
	t.Cleanup(func() { x.Close() })
	return w
}

type brought struct {
	transport.Block
	err error
}

// share has process 1 share a block with the others, and returns what they get.
func share(w transporttest.World, k transport.Key, size int, fill func([]byte) error) (
	got []chan brought, done chan bool,
) {
	var peers []uint64
	for i, x := range w.Exchanges[1:] {
		all := make(chan brought, 2)
		got, peers = append(got, all), append(peers, uint64(i+2))
		x.Expect(1, k, int64(size), nil, func(b transport.Block, err error) { all <- brought{b, err} })
	}
	done = make(chan bool, 2)
	w.Exchanges[0].(transport.Sharer).Share(peers, k, int64(size), fill, func() { done <- true })
	return got, done
}

// Several peers read one block, which is written once, and its memory comes back with the last of them.
func TestShareIsWrittenOnceAndReadByAll(t *testing.T) {
	for _, size := range []int{20 << 10, 3 << 20} {
		w := linked(t, "unix", 4)
		x := w.Exchanges[0].(*Exchange)
		before, fills := Copied(), 0
		got, done := share(w, transport.Key{Space: 1, ID: 1}, size, func(dst []byte) error {
			fills++
			for i := range dst {
				dst[i] = byte(i * 7)
			}
			return nil
		})
		<-done
		if fills != 1 || Copied() != before {
			t.Errorf("%d bytes were written %d times, and %d copied", size, fills, Copied()-before)
		}
		for i, all := range got {
			b := <-all
			if b.err != nil || !b.Lent || len(b.Data) != size || b.Data[size-1] != byte((size-1)*7) {
				t.Fatalf("process %d got %d bytes, lent %v, %v", i+2, len(b.Data), b.Lent, b.err)
			}
			if used := x.Memory().Used[0]; used != int64(size) {
				t.Errorf("%d bytes are in use, and %d processes have yet to read %d", used, len(got)-i, size)
			}
			b.Release()
		}
		for deadline := time.Now().Add(time.Minute); x.Memory().Used[0] != 0; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%d bytes stay in use", x.Memory().Used[0])
			}
		}
	}
}

// Where there is no memory for a block that all read, each gets one of its own.
func TestShareWithoutMemoryPushes(t *testing.T) {
	w := linked(t, "unix", 3)
	x := w.Exchanges[0].(*Exchange)
	x.shared.Close(errors.New("there is no memory"))
	const size = 3 << 20
	got, done := share(w, transport.Key{Space: 1, ID: 1}, size, func(dst []byte) error {
		dst[0], dst[size-1] = 1, 2
		return nil
	})
	for _, one := range got {
		b := <-one
		if b.err != nil || b.Lent || b.Data[0] != 1 || b.Data[size-1] != 2 {
			t.Fatalf("lent %v, %v", b.Lent, b.err)
		}
		b.Release()
	}
	<-done
}

// An error of what is to be written is the error that all get.
func TestShareThatIsNotWrittenFails(t *testing.T) {
	w := linked(t, "unix", 3)
	got, done := share(w, transport.Key{Space: 1, ID: 1}, 64<<10, func([]byte) error {
		return status.New(status.Aborted, "there is nothing to share")
	})
	<-done
	for _, one := range got {
		if b := <-one; status.CodeOf(b.err) != status.Aborted {
			t.Error(b.err)
		}
	}
}

// Only peers that are connected, and on this host, share.
func TestWhoShares(t *testing.T) {
	for _, kind := range []string{"unix", "tcp"} {
		w := linked(t, kind, 2)
		x := w.Exchanges[0].(transport.Sharer)
		if got := x.Shares(2); got != (kind == "unix") {
			t.Errorf("%s: shares %v", kind, got)
		}
		if x.Shares(77) {
			t.Error("a process that there is not shares")
		}
	}
	w := world(t, "unix", 2, none)
	if w.Exchanges[0].(transport.Sharer).Shares(2) {
		t.Error("a process that is not connected shares")
	}
	for _, x := range w.Exchanges {
		x.Close()
	}
}
