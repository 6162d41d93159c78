package arrowmem

import (
	"bytes"
	"os"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/apache/arrow/go/v15/arrow/memory"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/shm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pool makes a pool that keeps no memory after the test.
func pool(t testing.TB, limit int64) *shm.Pool {
	p := shm.NewPool(shm.Config{Limit: limit, Idle: time.Hour})
	t.Cleanup(p.Trim)
	return p
}

// Whatever is allocated, made longer or shorter and freed: it keeps its bytes, is
// zero where it is new, begins at a multiple of 64, and is counted.
func TestBlocksKeepTheirBytesAndAreCounted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := shm.NewPool(shm.Config{Limit: 64 << 20, Idle: time.Hour})
		defer p.Trim()
		a := New(p, "arrow", rapid.Bool().Draw(t, "shared"))
		var live, want [][]byte
		check := func(i int) {
			if !bytes.Equal(live[i], want[i]) {
				t.Fatalf("%d bytes were changed", len(live[i]))
			}
			if len(live[i]) > 0 && uintptr(unsafe.Pointer(&live[i][0]))%64 != 0 {
				t.Fatalf("%d bytes at %p", len(live[i]), &live[i][0])
			}
		}
		size := rapid.OneOf(rapid.IntRange(0, 200), rapid.IntRange(0, 100<<10))
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			n := size.Draw(t, "size")
			k := 0
			if len(live) > 0 {
				k = rapid.IntRange(0, len(live)-1).Draw(t, "which")
			}
			switch step := rapid.IntRange(0, 2).Draw(t, "step"); {
			case step == 0 || len(live) == 0:
				live, want = append(live, a.Allocate(n)), append(want, make([]byte, n))
				k = len(live) - 1
			case step == 1:
				live[k] = a.Reallocate(n, live[k])
				grown := make([]byte, n)
				copy(grown, want[k])
				want[k] = grown
			default:
				check(k)
				a.Free(live[k])
				live[k], want[k] = live[len(live)-1], want[len(want)-1]
				live, want = live[:len(live)-1], want[:len(want)-1]
				continue
			}
			check(k)
			for i := range live[k] {
				live[k][i], want[k][i] = byte(i+k+1), byte(i+k+1)
			}
		}
		total, some := int64(0), 0
		for i := range live {
			check(i)
			if total += int64(len(live[i])); len(live[i]) > 0 {
				some++
			}
		}
		n, used := a.Used()
		if n != some || used < total || used > 2*total+int64(some) || p.Stats().Used["arrow"] != used {
			t.Fatalf("%d blocks of %d bytes are in use, the allocator counts %d of %d, the pool %v", some, total, n, used,
				p.Stats().Used)
		}
		for _, b := range live {
			a.Free(b)
		}
		if err := a.Close(); err != nil || p.Stats().Mapped != 0 {
			t.Fatalf("after everything was freed: %v, %d bytes are mapped", err, p.Stats().Mapped)
		}
	})
}

// What was not freed is found when the allocator is closed; freeing it then works,
// and returns its memory.
func TestCloseReportsUnfreedMemory(t *testing.T) {
	p := pool(t, 1<<24)
	a := New(p, "arrow", true)
	b := memory.NewResizableBuffer(a)
	b.Resize(1000)
	c := memory.SliceBuffer(b, 64, 100)
	b.Release()
	statustest.Fails(t, "a buffer whose slice lives", a.Close(), status.FailedPrecondition, "1 buffers of 1024 bytes")
	c.Bytes()[0] = 1
	c.Release()
	if s := p.Stats(); s.Mapped != 0 || len(s.Used) != 0 {
		t.Errorf("after the last release: %+v", s)
	}
	if n, bytes := a.Used(); n != 0 || bytes != 0 {
		t.Errorf("after the last release: %d buffers of %d bytes", n, bytes)
	}
}

// If there is no memory, an allocation is an error with a code, and what is there stays.
func TestAllocationWithoutMemoryIsAnError(t *testing.T) {
	p := pool(t, 4<<20)
	a := New(p, "arrow", false)
	allocate := func(n int, of []byte) (b []byte, err error) {
		defer Catch(&err)
		return a.Reallocate(n, of), nil
	}
	b, err := allocate(3<<20, nil)
	statustest.OK(t, err)
	b[3<<20-1] = 7
	statustest.Fails(t, "more than the limit", statustest.Of(allocate(3<<20, nil)), status.ResourceExhausted, "4194304")
	statustest.Fails(t, "longer than the limit", statustest.Of(allocate(8<<20, b)), status.ResourceExhausted)
	if b[3<<20-1] != 7 {
		t.Error("an allocation that failed has changed what it was to replace")
	}
	a.Free(b)
	if b, err = allocate(3<<20, nil); err != nil {
		t.Errorf("after room was made: %v", err)
	}
	a.Free(b)
	statustest.Check(t, a.Close())
	statustest.Fails(t, "after Close", statustest.Of(allocate(1, nil)), status.Unavailable)
	if !panics(func() {
		var err error
		defer Catch(&err)
		panic("another")
	}) {
		t.Error("another panic was caught")
	}
}

func panics(f func()) (did bool) {
	defer func() { did = recover() != nil }()
	f()
	return false
}

// Memory of somebody else, and memory that was freed, is not taken for the
// allocator's.
func TestForeignAndFreedMemoryIsRefused(t *testing.T) {
	a, other := New(pool(t, 1<<24), "a", true), New(pool(t, 1<<24), "b", true)
	b := a.Allocate(100)
	for name, f := range map[string]func(){
		"another's":             func() { other.Free(b) },
		"the middle":            func() { a.Free(b[64:]) },
		"the heap":              func() { a.Free(make([]byte, 10)) },
		"the heap, made longer": func() { a.Reallocate(20, make([]byte, 10)) },
	} {
		if !panics(f) {
			t.Errorf("%s was freed", name)
		}
	}
	a.Free(b)
	if !panics(func() { a.Free(b) }) {
		t.Error("memory was freed twice")
	}
	for _, a := range []*Allocator{a, other} {
		a.Free(a.Allocate(0))
		a.Free(nil)
		statustest.Check(t, a.Close())
	}
}

// Goroutines allocate and free at once; the counts are right in the end.
func TestCountsAgreeUnderConcurrency(t *testing.T) {
	p := pool(t, 1<<28)
	a := New(p, "arrow", true)
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			var live [][]byte
			for i := range 400 {
				b := a.Allocate(1 + (i*7919+g*104729)%50000)
				b[0], b[len(b)-1] = byte(g), byte(g)
				if live = append(live, b); len(live) > 10 {
					if live[0][0] != byte(g) || live[0][len(live[0])-1] != byte(g) {
						t.Error("two goroutines have the same memory")
					}
					a.Free(live[0])
					live = live[1:]
				}
			}
			for _, b := range live {
				a.Free(b)
			}
		})
	}
	all.Wait()
	if err := a.Close(); err != nil || p.Stats().Mapped != 0 {
		t.Errorf("%v, %d bytes are mapped", err, p.Stats().Mapped)
	}
}

// Shared memory can be mapped by its file, and has the same bytes; other memory has
// no file.
func TestSharedMemoryIsMappedByItsFile(t *testing.T) {
	a, private := New(pool(t, 1<<24), "arrow", true), New(pool(t, 1<<24), "arrow", false)
	first, b := a.Allocate(100), a.Allocate(5000)
	copy(b, "columns")
	file, offset := a.File(b)
	if file == nil {
		t.Fatal("shared memory without a file")
	}
	in := offset % int64(os.Getpagesize())
	data, err := unix.Mmap(int(file.Fd()), offset-in, int(in)+len(b), unix.PROT_READ, unix.MAP_SHARED)
	statustest.OK(t, err)
	if !bytes.Equal(data[in:], b) {
		t.Error("the file has other bytes")
	}
	statustest.Check(t, unix.Munmap(data))
	p := private.Allocate(100)
	for name, of := range map[string]func() (*os.File, int64){
		"private": func() (*os.File, int64) { return private.File(p) }, "another's": func() (*os.File, int64) {
			return a.File(p)
		},
		"none": func() (*os.File, int64) { return a.File(nil) },
	} {
		if f, _ := of(); f != nil {
			t.Errorf("%s memory has a file", name)
		}
	}
	private.Free(p)
	a.Free(first)
	a.Free(b)
}

// A block is a buffer where it lies; the last reference of whatever kind gives it
// back, once.
func TestLastReferenceReturnsTheBlock(t *testing.T) {
	for _, data := range [][]byte{[]byte("bytes"), {}} {
		released := 0
		b := Received(transport.Block{Data: data, Release: func() { released++ }})
		if b.Len() != len(data) || unsafe.SliceData(b.Bytes()) != unsafe.SliceData(data) || b.Mutable() {
			t.Errorf("a buffer of %d bytes at %p of %d at %p", b.Len(), unsafe.SliceData(b.Bytes()), len(data),
				unsafe.SliceData(data))
		}
		b.Retain()
		s := memory.SliceBuffer(b, 0, len(data)/2)
		b.Release()
		b.Release()
		if released != 0 {
			t.Error("a block was given back while a slice of it lives")
		}
		s.Release()
		statustest.Equal(t, released, 1, "how often a block was given back")
	}
	b := Buffer(make([]byte, 10), func() {})
	if !panics(func() { b.Resize(100) }) {
		t.Error("a block has grown")
	}
}

func BenchmarkAllocate(b *testing.B) {
	a := New(pool(b, 1<<28), "arrow", false)
	for _, size := range []int{64, 4096, 1 << 20} {
		b.Run(map[int]string{64: "64 B", 4096: "4 KiB", 1 << 20: "1 MiB"}[size], func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				a.Free(a.Allocate(size))
			}
		})
	}
}
