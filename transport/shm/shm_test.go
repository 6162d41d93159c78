package shm

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/transport/pages/pagestest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// get waits for a block.
func get(t testing.TB, a *Arena, size int) *Block {
	t.Helper()
	b := statustest.Value(try(a, size)).OK(t)
	return b
}

func try(a *Arena, size int) (*Block, error) { return tryFor(0, a, size) }

func tryFor(owner uint64, a *Arena, size int) (*Block, error) {
	type got struct {
		b   *Block
		err error
	}
	c := make(chan got, 1)
	a.Get(owner, size, func(b *Block, err error) { c <- got{b, err} })
	g := <-c
	return g.b, g.err
}

// mappings counts the shared memory of this process.
func mappings(t testing.TB) int {
	t.Helper()
	maps := statustest.Value(os.ReadFile("/proc/self/maps")).OK(t)
	return bytes.Count(maps, []byte("memfd:pathways"))
}

// Blocks are aligned, have their size, do not touch each other, and are counted,
// whatever the order in which they come and go.
func TestBlocksAreAlignedAndDisjoint(t *testing.T) {
	before := mappings(t)
	rapid.Check(t, func(t *rapid.T) {
		p := NewPool(Config{Limit: 64 << 20, Idle: time.Hour})
		arenas := []*Arena{p.Arena("a", true, nil), p.Arena("b", false, nil)}
		type live struct {
			b     *Block
			stamp byte
			arena int
			owner uint64
		}
		var blocks []live
		used, owned := []int64{0, 0}, map[uint64]int64{}
		own := func(owner uint64, size int) {
			if owned[owner] += int64(size); owned[owner] == 0 {
				delete(owned, owner)
			}
		}
		check := func(l live) {
			if l.b.Data[0] != l.stamp || l.b.Data[len(l.b.Data)-1] != l.stamp {
				t.Fatalf("a block of %d bytes was written over", len(l.b.Data))
			}
		}
		release := func(i int) {
			l := blocks[i]
			check(l)
			used[l.arena] -= int64(len(l.b.Data))
			own(l.owner, -len(l.b.Data))
			l.b.Release()
			blocks[i] = blocks[len(blocks)-1]
			blocks = blocks[:len(blocks)-1]
		}
		for i := range rapid.IntRange(1, 150).Draw(t, "steps") {
			if len(blocks) > 0 && (len(blocks) > 40 || rapid.Bool().Draw(t, "release")) {
				release(rapid.IntRange(0, len(blocks)-1).Draw(t, "which"))
				continue
			}
			which := rapid.IntRange(0, 1).Draw(t, "arena")
			size := rapid.OneOf(rapid.IntRange(1, 300), rapid.IntRange(1, 40_000), rapid.IntRange(1, 500_000)).Draw(t, "size")
			owner, get := rapid.Uint64Range(0, 3).Draw(t, "owner"), tryFor
			if owner == 0 {
				get = func(_ uint64, a *Arena, size int) (*Block, error) { return a.Make(size) }
			}
			b := statustest.Value(get(owner, arenas[which], size)).OK(t)
			if len(b.Data) != size || cap(b.Data) != size || uintptr(unsafe.Pointer(&b.Data[0]))%64 != 0 {
				t.Fatalf("asked for %d bytes, got %d of %d at %p", size, len(b.Data), cap(b.Data), &b.Data[0])
			}
			if (b.Segment.File != nil) != (which == 0) {
				t.Fatal("memory is shared that should not be, or the other way round")
			}
			stamp := byte(i + 1)
			for j := range b.Data {
				b.Data[j] = stamp
			}
			used[which] += int64(size)
			own(owner, size)
			blocks = append(blocks, live{b, stamp, which, owner})
			if s := p.Stats(); s.Used["a"] != used[0] || s.Used["b"] != used[1] || !maps.Equal(s.Owned, owned) ||
				s.Mapped > 64<<20 || s.Mapped < used[0]+used[1] {
				t.Fatalf("%+v, expected %v and %v", s, used, owned)
			}
		}
		for len(blocks) > 0 {
			release(0)
		}
		p.Trim()
		if s := p.Stats(); s.Mapped != 0 || len(s.Used)+len(s.Owned) != 0 {
			t.Fatalf("%+v is left", s)
		}
	})
	statustest.Equal(t, mappings(t), before, "mappings are left")
}

// What is kept for long is a part of what there is.
func TestKeptMemoryIsAShareOfAll(t *testing.T) {
	p := NewPool(Config{Limit: 16 << 20, Idle: time.Hour})
	defer p.Trim()
	a := p.Arena("a", false, nil)
	blocks := make(chan *Block, 1)
	a.Get(0, 3<<20, func(b *Block, err error) {
		statustest.Check(t, err)
		blocks <- b
	})
	b := <-blocks
	if !p.Keeps(1<<20) || p.Keeps(1<<20+1) {
		t.Errorf("with 3 of 16 MiB in use, one more may be kept: %v, more than that: %v", p.Keeps(1<<20), p.Keeps(1<<20+1))
	}
	b.Release()
	if !p.Keeps(4 << 20) {
		t.Error("what was released still counts")
	}
}

func TestBlockMayHaveNoBytes(t *testing.T) {
	a := NewPool(Config{}).Arena("a", true, nil)
	b := get(t, a, 0)
	if b.Data == nil || len(b.Data) != 0 || a.Try(0, 0) == nil {
		t.Error("a block of no bytes")
	}
	b.Release()
}

// Make takes what idle segments leave and what it may make, and does not wait.
func TestMakeDoesNotWait(t *testing.T) {
	p := NewPool(Config{Limit: 8 << 20, Idle: time.Hour})
	a, other := p.Arena("a", true, nil), p.Arena("other", false, nil)
	first := statustest.Value(other.Make(6 << 20)).OK(t)
	if b, err := a.Make(6 << 20); b != nil || status.CodeOf(err) != status.ResourceExhausted {
		t.Errorf("beside memory that is in use: %v, %v", b, err)
	}
	if b, err := a.Make(10 << 20); b != nil || status.CodeOf(err) != status.ResourceExhausted {
		t.Errorf("more than the limit: %v, %v", b, err)
	}
	waits := make(chan *Block, 1)
	a.Get(0, 6<<20, func(b *Block, err error) {
		statustest.Check(t, err)
		waits <- b
	})
	if b, err := other.Make(1 << 20); err != nil { // there is room for it, though somebody waits for more
		t.Error(err)
	} else {
		b.Release()
	}
	first.Release()
	second := <-waits
	second.Release()
	third, err := other.Make(5 << 20) // in the place of an idle segment
	statustest.OK(t, err)
	third.Release()
	other.Close(status.New(status.Cancelled, "closed"))
	if b, err := other.Make(1); b != nil || status.CodeOf(err) != status.Cancelled {
		t.Errorf("of a closed arena: %v, %v", b, err)
	}
	p.Trim()
	if s := p.Stats(); s.Mapped != 0 || len(s.Used)+len(s.Owned) != 0 {
		t.Errorf("%+v is left", s)
	}
}

// An allocation beyond what is free waits, also for memory that
// another arena does not use.
func TestAllocationWaitsForFreedMemory(t *testing.T) {
	p := NewPool(Config{Limit: 8 << 20, Idle: time.Hour})
	a, other := p.Arena("a", false, nil), p.Arena("b", false, nil)
	statustest.Fails(t, "more than the limit", statustest.Of(try(a, 9<<20)), status.ResourceExhausted,
		"half of the memory")
	first := get(t, a, 8<<20)
	if a.Try(0, 1) != nil {
		t.Error("there is more memory than allowed")
	}
	var order []int
	var mu sync.Mutex
	var all sync.WaitGroup
	for i := range 4 {
		all.Add(1)
		other.Get(0, 5<<20, func(b *Block, err error) {
			statustest.Check(t, err)
			mu.Lock()
			order = append(order, i)
			mu.Unlock()
			b.Release()
			all.Done()
		})
	}
	mu.Lock()
	if len(order) != 0 {
		t.Error("memory was given that is in use")
	}
	mu.Unlock()
	first.Release()
	all.Wait()
	if len(order) != 4 {
		t.Error(order)
	}
	p.Trim()
}

// A closed arena has no more blocks, and its memory goes with the last block.
func TestClosedArenaFreesWithItsLastBlock(t *testing.T) {
	before := mappings(t)
	p := NewPool(Config{Limit: 4 << 20, Idle: time.Hour})
	told := 0
	a := p.Arena("a", true, func(*Segment) { told++ })
	b := get(t, a, 3<<20)
	waits := make(chan error, 1)
	a.Get(0, 3<<20, func(_ *Block, err error) { waits <- err })
	gone := status.New(status.Unavailable, "the peer has gone")
	a.Close(gone)
	statustest.Equal(t, <-waits, gone, "who waited got")
	if _, err := try(a, 10); err != gone {
		t.Errorf("a closed arena returns %v", err)
	}
	if a.Try(0, 10) != nil {
		t.Error("a closed arena returns a block")
	}
	fresh := p.Arena("b", true, nil)
	next := make(chan *Block, 1)
	fresh.Get(0, 3<<20, func(b *Block, err error) { next <- b })
	b.Data[0] = 1 // it is still there
	select {
	case <-next:
		t.Fatal("memory of a closed arena was given to another")
	default:
	}
	b.Release()
	(<-next).Release()
	p.Trim()
	if told != 0 {
		t.Error("a peer that has gone was told of memory")
	}
	statustest.Equal(t, mappings(t), before, "mappings are left")
}

// Memory that is not in use goes back, and the peer is told.
func TestIdleMemoryIsReturned(t *testing.T) {
	before := mappings(t)
	p := NewPool(Config{Idle: time.Millisecond})
	told := make(chan uint32, 1)
	a := p.Arena("a", true, func(s *Segment) { told <- s.Number })
	b := get(t, a, 100)
	number := b.Segment.Number
	b.Release()
	if got := <-told; got != number {
		t.Errorf("segment %d went, the block was of %d", got, number)
	}
	statustest.Equal(t, p.Stats().Mapped, 0, "bytes that are mapped")
	b = get(t, a, 100)
	if b.Segment.Number == number {
		t.Error("a number was used twice")
	}
	b.Release()
	<-told
	statustest.Soon(t, func() int { return mappings(t) }, before, "mappings, once the peer was told")
}

func TestReleasingTwicePanics(t *testing.T) {
	p := NewPool(Config{})
	b := get(t, p.Arena("a", false, nil), 100)
	b.Release()
	defer func() {
		if recover() == nil {
			t.Error("a block was released twice")
		}
		p.Trim()
	}()
	b.Release()
}

// What is written to a mapping is in the block.
func TestMappingHasTheBlocksBytes(t *testing.T) {
	before := mappings(t)
	p := NewPool(Config{})
	b := get(t, p.Arena("a", true, nil), 100_000)
	s := b.Segment
	fd := statustest.Value(unix.Dup(int(s.File.Fd()))).OK(t)
	if err := unix.Ftruncate(fd, 4096); err == nil {
		t.Error("a segment can be cut short")
	}
	m := statustest.Value(p.Map(os.NewFile(uintptr(fd), "segment"), s.Size)).OK(t)
	dst, done, err := m.Use(b.Offset, int64(len(b.Data)))
	statustest.OK(t, err)
	m.Close()
	for i := range dst { // still mapped
		dst[i] = byte(i)
	}
	done()
	for i, v := range b.Data {
		statustest.MustEqual(t, v, byte(i), "byte %d", i)
	}
	for _, piece := range [][2]int64{{-1, 10}, {0, -1}, {s.Size, 1}, {1, s.Size}, {1 << 62, 1 << 62}, {0, 10}} {
		statustest.Fails(t, fmt.Sprint("a piece of memory that has gone: ", piece),
			statustest.Of2(m.Use(piece[0], piece[1])), status.InvalidArgument)
	}
	b.Release()
	p.Trim()
	statustest.Equal(t, mappings(t), before, "mappings are left")
}

// What processes share lies in huge pages, where it was made and at a peer's, and is not less or more for that.
func TestSharedMemoryLiesInHugePages(t *testing.T) {
	pagestest.Collapses(t)
	p := NewPool(Config{})
	b := get(t, p.Arena("a", true, nil), 5<<20)
	s := b.Segment
	fd := statustest.Value(unix.Dup(int(s.File.Fd()))).OK(t)
	m := statustest.Value(p.MapToRead(os.NewFile(uintptr(fd), "segment"), s.Size)).OK(t)
	statustest.Equal(t, pagestest.Huge(t, s.data), s.Size, "bytes of a segment in huge pages")
	statustest.Equal(t, pagestest.Huge(t, m.data), s.Size, "bytes of its mapping at a peer's in huge pages")
	statustest.Equal(t, p.Stats().Mapped, s.Size, "bytes that count")
	m.Close()
	b.Release()
	p.Trim()
}

// Devices are told of every segment, a peer's too, and of its end before it is unmapped. Nobody waits for them then.
func TestMemoryIsPinnedAsLongAsItIsMapped(t *testing.T) {
	before := mappings(t)
	pinned, busy := map[*byte]int{}, make(chan struct{})
	p := NewPool(Config{Limit: 12 * huge, Pin: func(data []byte) func() {
		at := &data[0]
		pinned[at] = len(data)
		return func() {
			<-busy
			data[0]++ // still mapped
		}
	}})
	a := p.Arena("a", true, nil)
	small, large := get(t, a, 1000), get(t, a, 3*huge)
	for _, s := range []*Segment{small.Segment, large.Segment} {
		if len(pinned) != 2 || int64(pinned[&s.data[0]]) != s.Size {
			t.Errorf("pinned: %v, of a segment of %d bytes", pinned, s.Size)
		}
	}
	fd := statustest.Value(unix.Dup(int(large.Segment.File.Fd()))).OK(t)
	m, err := p.Map(os.NewFile(uintptr(fd), "segment"), large.Segment.Size)
	statustest.OK(t, err)
	if len(pinned) != 3 {
		t.Errorf("pinned with a peer's memory: %v", pinned)
	}
	m.Close()
	small.Release()
	large.Release()
	p.Trim()
	if n := mappings(t); n < before+3 {
		t.Errorf("%d mappings are left while the devices are busy, and 3 are pinned", n-before)
	}
	statustest.Equal(t, p.Stats().Mapped, small.Segment.Size+large.Segment.Size,
		"bytes are counted while the devices are busy")
	more := make(chan *Block, 1)
	a.Get(0, 10*huge, func(b *Block, err error) { more <- b }) // has no room beside them
	select {
	case <-more:
		t.Error("there is more memory than the limit allows")
	case <-time.After(10 * time.Millisecond):
	}
	close(busy)
	(<-more).Release()
	p.Trim()
	p.Settle()
	if n := mappings(t); n != before {
		t.Errorf("%d mappings are left", n-before)
	}
}

// An arena that closes while its memory is being pinned has none: the segment goes back.
func TestArenaClosesWhileItsMemoryIsPinned(t *testing.T) {
	var a *Arena
	var pinned atomic.Int32
	p := NewPool(Config{Pin: func([]byte) func() {
		pinned.Add(1)
		a.Close(status.New(status.Cancelled, "the arena is closed"))
		return func() { pinned.Add(-1) }
	}})
	a = p.Arena("blocks", false, nil)
	statustest.Fails(t, "the block", statustest.Of(a.Make(huge)), status.Cancelled)
	p.Settle()
	if s := p.Stats(); pinned.Load() != 0 || s.Mapped != 0 {
		t.Errorf("%d segments stay pinned, %+v", pinned.Load(), s)
	}
}

func TestMapRefusesOtherFiles(t *testing.T) {
	file := func(size int64, seals int) *os.File {
		fd := statustest.Value(unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)).OK(t)
		f := os.NewFile(uintptr(fd), "test")
		statustest.OK(t, f.Truncate(size))
		statustest.OK(t, statustest.Of(unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)))
		return f
	}
	plain := statustest.Value(os.CreateTemp(t.TempDir(), "")).OK(t)
	for _, c := range []struct {
		file *os.File
		size int64
	}{{file(4096, 0), 4096}, {file(4096, unix.F_SEAL_SHRINK), 8192}, {file(4096, unix.F_SEAL_SHRINK), 0},
		{file(4096, unix.F_SEAL_SHRINK), -1}, {plain, 0}} {
		statustest.Fails(t, fmt.Sprintf("%d bytes", c.size), statustest.Of(NewPool(Config{}).Map(c.file, c.size)),
			status.InvalidArgument)
		if c.file.Close() == nil {
			t.Error("the file is still open")
		}
	}
}

func BenchmarkGet(b *testing.B) {
	p := NewPool(Config{})
	a := p.Arena("a", false, nil)
	get(b, a, 1<<20).Release()
	for b.Loop() {
		a.Get(0, 1000, func(x *Block, err error) { x.Release() })
	}
	p.Trim()
}

// When Wait returns, every request has been answered, and nothing is left of it.
func TestWaitReturnsAfterEveryCallback(t *testing.T) {
	for range 20 {
		p := NewPool(Config{})
		a := p.Arena("a", true, nil)
		var told atomic.Int32
		for range 3 {
			a.Get(0, 8<<20, func(b *Block, err error) {
				if err == nil {
					b.Release()
				}
				told.Add(1)
			})
		}
		a.Close(errors.New("closed"))
		a.Wait()
		if s := p.Stats(); told.Load() != 3 || s.Mapped != 0 {
			t.Fatalf("%d of 3 were told, %+v", told.Load(), s)
		}
	}
}

// Memory whose pages may be missing when they are read is not mapped.
func TestHugePagesOfAPeerAreRefused(t *testing.T) {
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_HUGETLB)
	if err != nil {
		t.Skip(err)
	}
	statustest.OK(t, unix.Ftruncate(fd, huge))
	statustest.OK(t, statustest.Of(unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK)))
	statustest.Fails(t, "huge pages",
		statustest.Of(NewPool(Config{}).MapToRead(os.NewFile(uintptr(fd), "test"), huge)), status.InvalidArgument)
}

// Blocks that are asked for at once share the segments that are made for them.
func TestBlocksMadeAtOnceShareSegments(t *testing.T) {
	p := NewPool(Config{})
	a := p.Arena("blocks", true, nil)
	var all sync.WaitGroup
	for range 60 {
		all.Go(func() {
			b, err := a.Make(512 << 10)
			statustest.Check(t, err)
			t.Cleanup(b.Release)
		})
	}
	all.Wait()
	if s := p.Stats(); s.Mapped > 2*s.Used["blocks"] {
		t.Errorf("%d bytes are mapped for blocks of %d", s.Mapped, s.Used["blocks"])
	}
	t.Cleanup(p.Trim)
}

// A segment that is being made is promised to as many blocks as it will have room for.
func TestSegmentIsPromisedToTheBlocksThatFit(t *testing.T) {
	for _, size := range []int{1, 100, 1000, largestCell, largestCell + 1, 9*page + 1, 100_001, 1 << 20} {
		c, promised := coming{left: huge}, 0
		for c.promise(size) {
			promised++
		}
		p := NewPool(Config{Limit: huge})
		a := p.Arena("a", false, nil)
		blocks := []*Block{get(t, a, size)}
		for b := a.Try(0, size); b != nil; b = a.Try(0, size) {
			blocks = append(blocks, b)
		}
		fits := len(blocks)
		for _, b := range blocks {
			b.Release()
		}
		p.Trim()
		if promised > fits || promised < fits*99/100 {
			t.Errorf("%d blocks of %d bytes are promised, and %d fit", promised, size, fits)
		}
	}
}
