package bulk

import (
	"bytes"
	"runtime"
	"strings"
	"testing"

	"github.com/openpathways/pathways/core/shape/strided"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/transport"
)

// A region that a peer has placed is copied when the other peers have placed theirs, or will not: they refuse them, are
// lost, or have granted other memory, which they need for others.
func TestRegionsOfAnArrayAreCopiedTogether(t *testing.T) {
	const size = 2 * longPass
	id := transport.Key{Space: transport.Transfers(1), ID: 1}
	dims := []int64{1 << 10, size >> 10}
	column := func(k int64) strided.Layout {
		return strided.Of(dims, []int64{0, k * dims[1] / 2}, []int64{dims[0], dims[1] / 2}, 1)
	}
	source := make([]byte, size)
	fill(source, 3)
	for name, other := range map[string]func(t *testing.T, from, to *Exchange){
		"placed": func(t *testing.T, _, to *Exchange) {
			room, ok := to.Room(id.Space, size, []uint64{1})
			if !ok {
				t.Fatal("there is no room")
			}
			to.ExpectPart(1, id, transport.Part{Data: room.Data, At: column(1)}, func(error) { room.Release() })
		},
		"granted": func(_ *testing.T, _, to *Exchange) {
			to.Expect(1, id, size/2, nil, func(b transport.Block, _ error) { b.Release() })
		},
		"refused": func(_ *testing.T, _, to *Exchange) {
			to.Fail(id.Space, id.ID, status.New(status.Aborted, "given up"))
		},
		"lost": func(_ *testing.T, from, _ *Exchange) { from.Peers(nil, []uint64{3}, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			w := world(t, "unix", 3, none)
			from, to := w.Exchanges[0].(*Exchange), w.Exchanges[1].(*Exchange)
			for _, x := range w.Exchanges {
				defer x.Close()
			}
			room, ok := to.Room(id.Space, size, []uint64{1})
			if !ok {
				t.Fatal("there is no room")
			}
			defer room.Release()
			clear(room.Data)
			for _, peer := range []uint64{2, 3} {
				linked, none := make(chan error), transport.Key{Space: id.Space}
				from.PushBytes(peer, none, nil, func(err error) { linked <- err })
				w.Exchanges[peer-1].Expect(1, none, 0, nil, func(b transport.Block, _ error) { b.Release() })
				statustest.OK(t, <-linked)
			}
			arrived := make(chan error, 1)
			to.ExpectPart(1, id, transport.Part{Data: room.Data, At: column(0)}, func(err error) { arrived <- err })
			ended := make(chan error, 2)
			for _, peer := range []uint64{3, 2} { // the one that waits for the other is the second
				from.PushPart(peer, id, transport.Part{Data: source, At: column(int64(peer) % 2)}, func(err error) { ended <- err })
			}
			for !waits(&from.copies) {
				runtime.Gosched()
			}
			other(t, from, w.Exchanges[2].(*Exchange))
			statustest.OK(t, <-arrived)
			for range 2 {
				<-ended
			}
			want := make([]byte, size)
			strided.Copy(want, column(0), source, column(0))
			if !bytes.Equal(room.Data, want) {
				t.Error("other bytes came")
			}
			from.copies.mu.Lock()
			defer from.copies.mu.Unlock()
			if n := len(from.copies.awaits); n > 0 {
				t.Errorf("%d arrays are awaited", n)
			}
		})
	}
}

// waits reports whether one of two regions of an array waits for the other.
func waits(c *copies) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.awaits {
		if p.awaited == 1 && len(p.blocks) == 1 {
			return true
		}
	}
	return false
}

// A long block is copied in pieces, by as many goroutines as there are processors.
func TestLongBlockIsCopiedByAllProcessors(t *testing.T) {
	const processors = 3
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(processors))
	x := new(Exchange)
	x.copies.mu.Lock()
	x.start(&pass{bytes: (processors + 1) * passPiece})
	n := x.copies.running
	x.copies.mu.Unlock()
	x.running.Wait()
	statustest.Equal(t, n, processors, "goroutines copy")
}

// A short block waits for a piece of each longer one's length, not for all of them; nor do long ones wait until there
// are no short ones.
func TestPassesOfAllLengthsTakeTurns(t *testing.T) {
	x := new(Exchange)
	c := &x.copies
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running = runtime.GOMAXPROCS(0) // so that no goroutine copies what is begun here
	names := map[*pass]string{}
	for _, length := range []struct {
		name  string
		bytes int64
	}{{"long", 2 * passPiece}, {"middle", passPiece}, {"short", longCopy}} {
		for range 3 {
			p := &pass{bytes: length.bytes}
			names[p] = length.name
			x.start(p)
		}
	}
	var order []string
	for p, _ := c.next(); p != nil; p, _ = c.next() {
		order = append(order, names[p])
	}
	statustest.Equal(t, strings.Join(order, " "), "middle long short middle long short middle long short long long long",
		"pieces are copied in the order")
}
