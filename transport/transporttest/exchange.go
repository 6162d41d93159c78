package transporttest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
)

// World is processes whose exchanges know each other: 1, 2, 3 ….
type World struct {
	Exchanges []transport.Exchange
	// Used counts the bytes of blocks that were not released, in all processes.
	Used func() int64
	// Longest is the size of a block to try beyond those of some MiB; 0 is none.
	Longest int
}

// of is the exchange of a process.
func (w World) of(number int) transport.Exchange { return w.Exchanges[number-1] }

// result is what a callback was told.
type result struct {
	block transport.Block
	err   error
}

// ends counts callbacks, which come once each.
type ends struct {
	t    testing.TB
	left sync.WaitGroup
}

func (e *ends) done(want status.Code) func(error) {
	e.left.Add(1)
	var times atomic.Int32
	return func(err error) {
		if times.Add(1) > 1 {
			e.t.Error("done was called twice")
			return
		}
		statustest.Fails(e.t, "a push", err, want)
		e.left.Done()
	}
}

// expect returns a channel of what arrives.
func expect(t testing.TB, x transport.Exchange, peer uint64, key transport.Key, size int64, into []byte) <-chan result {
	arrived := make(chan result, 2)
	var times atomic.Int32
	x.Expect(peer, key, size, into, func(b transport.Block, err error) {
		if times.Add(1) > 1 {
			t.Error("arrived was called twice")
		}
		arrived <- result{b, err}
	})
	return arrived
}

func key(id, part uint64) transport.Key {
	return transport.Key{Space: transport.Transfers(1), ID: id, Part: part}
}

// Exchange checks a kind of exchange.
func Exchange(t *testing.T, world func(t *testing.T, n int) World) {
	s := exchangeSuite{world}
	t.Run("blocks of all sizes arrive as they were sent", s.sizes)
	t.Run("short blocks are posted while there is credit", s.posted)
	t.Run("short blocks need no callback", s.shortWithoutDone)
	t.Run("thousands of blocks find those that expect them", s.thousandsOfKeys)
	t.Run("a block that waits holds up no other", s.oneThatWaits)
	t.Run("a block of another size fails on both sides", s.wrongSize)
	t.Run("a block that cannot be filled fails on both sides", s.fillFails)
	t.Run("a block that is expected twice is an error", s.expectedTwice)
	t.Run("the blocks of a gang that fails end, and no others", s.failing)
	t.Run("the blocks of a peer that is lost end", s.losing)
	t.Run("regions from several peers make one array", s.parts)
}

type exchangeSuite struct {
	world func(t *testing.T, n int) World
}

// open makes a world, which the test's end closes.
func (s exchangeSuite) open(t *testing.T, n int) World {
	t.Helper()
	w := s.world(t, n)
	t.Cleanup(func() {
		for _, x := range w.Exchanges {
			statustest.Check(t, x.Close())
		}
		// Callbacks of Close, and what was under way, may still be ending.
		statustest.Soon(t, w.Used, 0, "bytes of blocks that are left")
	})
	return w
}

func (s exchangeSuite) sizes(t *testing.T) {
	sizes := []int{0, 1, 63, 64, 1000, 16 << 10, 16<<10 + 1, 100_000, 256 << 10, 1 << 20, 3<<20 + 17}
	w := s.open(t, 2)
	if w.Longest > 0 {
		sizes = append(sizes, w.Longest)
	}
	for id, size := range sizes {
		data := pattern(size, uint64(id))
		parts := []uint64{0, 3, 5, 6, 1, 2, 4, 7}
		if size > 8<<20 {
			parts = parts[:4] // each two with each other
		}
		for _, part := range parts {
			early, into, bytesAtHand := part&1 != 0, part&2 != 0, part&4 != 0
			var dst []byte
			if into {
				dst = make([]byte, size)
			}
			k := key(uint64(id), part)
			var e ends
			e.t = t
			push := func() {
				if bytesAtHand {
					w.of(1).PushBytes(2, k, data, e.done(status.OK))
					return
				}
				w.of(1).Push(2, k, int64(size), func(dst []byte, written func(error)) {
					go func() { // fill may return before it is done
						copy(dst, data)
						written(nil)
					}()
				}, e.done(status.OK))
			}
			var arrived <-chan result
			if early {
				arrived = expect(t, w.of(2), 1, k, int64(size), dst)
				push()
			} else {
				push()
				arrived = expect(t, w.of(2), 1, k, int64(size), dst)
			}
			got := <-arrived
			e.left.Wait()
			statustest.OKf(t, got.err, "%d bytes, %v %v %v", size, early, into, bytesAtHand)
			if into {
				got.block.Data = dst
			} else if size > 0 && uintptr(unsafe.Pointer(&got.block.Data[0]))%64 != 0 {
				t.Errorf("a block of %d bytes is not 64-byte aligned", size)
			}
			if !bytes.Equal(got.block.Data, data) {
				t.Fatalf("%d bytes, early %v, into %v, at hand %v: other bytes came", size, early, into, bytesAtHand)
			}
			if !into {
				got.block.Release()
			}
		}
	}
}

func (s exchangeSuite) posted(t *testing.T) {
	w := s.open(t, 2)
	if w.of(1).Post(2, key(0, 0), make([]byte, transport.PostSize+1)) {
		t.Error("a long block was posted")
	}
	if w.of(1).Post(99, key(0, 0), nil) {
		t.Error("a block was posted to no process")
	}
	gone := status.New(status.Aborted, "given up")
	w.of(1).Fail(key(1, 0).Space, 1, gone)
	if w.of(1).Post(2, key(1, 0), nil) {
		t.Error("a block was posted of what had failed")
	}
	// A link stands behind the first block at the latest. Blocks that are not taken
	// use credit up, and those that are taken give it back.
	w.of(1).PushBytes(2, key(0, 1), nil, func(error) {})
	take := func(k transport.Key, want []byte) {
		t.Helper()
		got := <-expect(t, w.of(2), 1, k, int64(len(want)), nil)
		if got.err != nil || !bytes.Equal(got.block.Data, want) {
			t.Fatalf("block %v: %v", k, got.err)
		}
		got.block.Release()
	}
	take(key(0, 1), nil)
	data := make([]byte, transport.PostSize)
	for round := range uint64(4) {
		posted := uint64(0)
		post := func() bool {
			paint(data, posted)
			return w.of(1).Post(2, key(2+round, posted), data)
		}
		statustest.Soon(t, post, true, "round %d: credit came, and a block was posted", round)
		for posted++; posted < 100 && post(); posted++ {
		}
		for i := range posted {
			take(key(2+round, i), pattern(transport.PostSize, i))
		}
	}
}

func (s exchangeSuite) shortWithoutDone(t *testing.T) {
	w := s.open(t, 2)
	data := make([]byte, 100)
	for i := range uint64(200) {
		paint(data, i)
		w.of(1).PushBytes(2, key(i, 0), data, nil)
	}
	for i := range uint64(200) {
		got := <-expect(t, w.of(2), 1, key(i, 0), 100, nil)
		if got.err != nil || !bytes.Equal(got.block.Data, pattern(100, i)) {
			t.Fatalf("block %d: %v", i, got.err)
		}
		got.block.Release()
	}
}

func (s exchangeSuite) thousandsOfKeys(t *testing.T) {
	w := s.open(t, 4)
	const each = 150 // of 12 pairs
	var all ends
	all.t = t
	size := func(k transport.Key) int { return int((k.ID*7919 + k.Part*104729) % 40_000) }
	var work sync.WaitGroup
	for from := 1; from <= 4; from++ {
		for to := 1; to <= 4; to++ {
			if from == to {
				continue
			}
			order := rand.New(rand.NewPCG(uint64(from), uint64(to)))
			pushes, expects := order.Perm(each), order.Perm(each)
			work.Go(func() {
				for _, i := range pushes {
					k := key(uint64(i), uint64(from))
					w.of(from).PushBytes(uint64(to), k, pattern(size(k), uint64(i)), all.done(status.OK))
				}
			})
			work.Go(func() {
				for _, i := range expects {
					k := key(uint64(i), uint64(from))
					all.left.Add(1)
					w.of(to).Expect(uint64(from), k, int64(size(k)), nil, func(b transport.Block, err error) {
						defer all.left.Done()
						if err != nil {
							t.Errorf("%d to %d: %v", from, to, err)
							return
						}
						if !bytes.Equal(b.Data, pattern(size(k), uint64(i))) {
							t.Errorf("%d to %d: other bytes came under %v", from, to, k)
						}
						b.Release()
					})
				}
			})
		}
	}
	work.Wait()
	all.left.Wait()
}

func (s exchangeSuite) oneThatWaits(t *testing.T) {
	w := s.open(t, 2)
	var e ends
	e.t = t
	for i := range uint64(20) { // these are not expected yet
		w.of(1).PushBytes(2, key(1, i), pattern(1<<20, i), e.done(status.OK))
		w.of(1).PushBytes(2, key(2, i), pattern(10_000, i), e.done(status.OK))
	}
	held := make(chan func(error), 1) // this one is not written for long
	w.of(1).Push(2, key(3, 0), 1<<20, func(dst []byte, written func(error)) { held <- written }, e.done(status.OK))
	slow := expect(t, w.of(2), 1, key(3, 0), 1<<20, nil)
	written := <-held
	w.of(1).PushBytes(2, key(4, 0), pattern(3<<20, 9), e.done(status.OK))
	got := <-expect(t, w.of(2), 1, key(4, 0), 3<<20, nil)
	if got.err != nil || !bytes.Equal(got.block.Data, pattern(3<<20, 9)) {
		t.Fatal("a block behind others did not come:", got.err)
	}
	got.block.Release()
	written(nil)
	(<-slow).block.Release()
	for i := range uint64(20) {
		for id, size := range map[uint64]int64{1: 1 << 20, 2: 10_000} {
			got := <-expect(t, w.of(2), 1, key(id, i), size, nil)
			if got.err != nil || !bytes.Equal(got.block.Data, pattern(int(size), i)) {
				t.Fatal(got.err)
			}
			got.block.Release()
		}
	}
	e.left.Wait()
}

func (s exchangeSuite) wrongSize(t *testing.T) {
	w := s.open(t, 2)
	for i, size := range []int{10, 100_000} {
		var e ends
		e.t = t
		w.of(1).PushBytes(2, key(uint64(i), 0), make([]byte, size), e.done(status.InvalidArgument))
		got := <-expect(t, w.of(2), 1, key(uint64(i), 0), int64(size+1), nil)
		statustest.Fails(t, fmt.Sprint("where one byte more is expected than ", size), got.err, status.InvalidArgument)
		e.left.Wait()
	}
}

func (s exchangeSuite) fillFails(t *testing.T) {
	w := s.open(t, 2)
	for i, size := range []int64{10, 100_000, 2 << 20} {
		var e ends
		e.t = t
		why := status.New(status.DataLoss, "device 3 lost power")
		w.of(1).Push(2, key(uint64(i), 0), size, func(dst []byte, written func(error)) { written(why) },
			e.done(status.DataLoss))
		got := <-expect(t, w.of(2), 1, key(uint64(i), 0), size, nil)
		statustest.Fails(t, fmt.Sprint(size, " bytes"), got.err, status.DataLoss, "device 3 lost power")
		e.left.Wait()
	}
}

func (s exchangeSuite) expectedTwice(t *testing.T) {
	w := s.open(t, 2)
	first := expect(t, w.of(2), 1, key(1, 1), 10, nil)
	second := <-expect(t, w.of(2), 1, key(1, 1), 10, nil)
	statustest.Fails(t, "a second expectation", second.err, status.AlreadyExists)
	w.of(1).PushBytes(2, key(1, 1), make([]byte, 10), nil)
	if got := <-first; got.err != nil {
		t.Error(got.err)
	} else {
		got.block.Release()
	}
}

// Processes are the descriptions of numbers 1 … n, for Peers.
func Processes(n int, addresses func(number int) []string, host func(number int) string) (all []*wire.Process) {
	for i := 1; i <= n; i++ {
		all = append(all, &wire.Process{Number: uint64(i), Name: string(rune('a' + i - 1)), Addresses: addresses(i),
			Host: host(i)})
	}
	return all
}

// ExchangeBench measures a kind of exchange between two processes: blocks one
// after the other, into blocks and into the receiver's own memory.
func ExchangeBench(b *testing.B, world func(b *testing.B, n int) World) {
	for _, c := range []struct {
		name string
		size int
		into bool
	}{{"64B", 64, false}, {"16KiB", 16 << 10, false}, {"1MiB", 1 << 20, false}, {"64MiB", 64 << 20, false},
		{"64MiB-into", 64 << 20, true}} {
		b.Run(c.name, func(b *testing.B) {
			w := world(b, 2)
			defer w.of(1).Close()
			defer w.of(2).Close()
			data := pattern(c.size, 1)
			var into []byte
			if c.into {
				into = pattern(c.size, 2)
			}
			arrived, sent := make(chan result, 1), make(chan error, 1)
			id := uint64(0)
			once := func() {
				id++
				w.of(2).Expect(1, key(id, 0), int64(c.size), into, func(block transport.Block, err error) {
					arrived <- result{block, err}
				})
				w.of(1).PushBytes(2, key(id, 0), data, func(err error) { sent <- err })
				got := <-arrived
				if err := <-sent; err != nil || got.err != nil {
					b.Fatal(err, got.err)
				}
				got.block.Release()
			}
			for range 3 {
				once() // links and memory are there
			}
			b.ReportAllocs()
			b.SetBytes(int64(c.size))
			for b.Loop() {
				once()
			}
		})
	}
}
