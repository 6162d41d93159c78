// Package arrowmem is the memory of transport/shm as Arrow's: an allocator for
// arrow/go, and blocks of an exchange as Arrow's buffers, without a copy.
//
// # Guarantees
//
// What an Allocator returns begins at a multiple of 64, is zero, lies outside the Go
// heap, and is counted by the pool, by purpose, beside all other memory of the
// process's exchange. Shared memory is a sealed memfd, which File names, so that
// another process can map it. Close reports what was not freed.
//
// Memory belongs to the code that allocated it until Free, which Arrow calls when a
// buffer's last reference is released; a slice of it that is used later reads
// other data, or none. The garbage collector frees none of it.
//
// # Concurrency
//
// Everything may be called from any goroutine.
//
// Programs that use Arrow import it, and core/arrowio. Nothing that is linked into
// libpathways.so does.
package arrowmem

import (
	"fmt"
	"os"
	"sync"
	"unsafe"

	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/shm"
)

// Allocator implements memory.Allocator.
//
// That interface has no errors: without memory, Allocate and Reallocate panic, as Arrow's other allocators do. Catch
// turns the panic into an error.
type Allocator struct {
	arena *shm.Arena

	mu     sync.Mutex
	blocks map[*byte]*shm.Block // by address; guarded by mu
	bytes  int64                // of them; guarded by mu
}

var _ memory.Allocator = (*Allocator)(nil)

// New makes an allocator of a pool's memory, which counts it under purpose. Shared
// reports whether other processes may map it.
func New(pool *shm.Pool, purpose string, shared bool) *Allocator {
	return &Allocator{arena: pool.Arena(purpose, shared, nil), blocks: map[*byte]*shm.Block{}}
}

// exhausted is the value with which Allocate panics.
type exhausted struct{ error }

func (e exhausted) Unwrap() error { return e.error }

// Catch is deferred by who allocates: it makes err of what an Allocator panicked
// with. Its code is RESOURCE_EXHAUSTED, or UNAVAILABLE of one that is closed.
func Catch(err *error) {
	switch p := recover().(type) {
	case nil:
	case exhausted:
		*err = p.error
	default:
		panic(p)
	}
}

// Allocate implements memory.Allocator.
func (a *Allocator) Allocate(size int) []byte {
	b := a.block(size)
	clear(b)
	return b
}

// block returns memory that is not zero.
func (a *Allocator) block(size int) []byte {
	if size == 0 {
		return []byte{}
	}
	b, err := a.arena.Make(size)
	if err != nil {
		panic(exhausted{err})
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.blocks[unsafe.SliceData(b.Data)] = b
	a.bytes += int64(size)
	return b.Data
}

// Reallocate implements memory.Allocator. Bytes that are added are zero.
func (a *Allocator) Reallocate(size int, b []byte) []byte {
	if cap(b) == 0 {
		return a.Allocate(size)
	}
	a.mu.Lock()
	have := a.find(b).Data
	a.mu.Unlock()
	// Half of a block may lie idle, so that a builder which ends does not copy.
	if size > len(have)/2 && size <= len(have) {
		if size > len(b) {
			clear(have[len(b):size])
		}
		return have[:size:size]
	}
	to := a.block(size)
	clear(to[copy(to, b):])
	a.Free(b)
	return to
}

// Free implements memory.Allocator. It panics where the memory was not allocated
// here, or was freed before.
func (a *Allocator) Free(b []byte) {
	if cap(b) == 0 {
		return
	}
	a.mu.Lock()
	block := a.find(b)
	delete(a.blocks, unsafe.SliceData(b))
	a.bytes -= int64(len(block.Data))
	a.mu.Unlock()
	block.Release()
}

// find returns the block of memory. The caller holds mu, which is free when it panics.
func (a *Allocator) find(b []byte) *shm.Block {
	block := a.blocks[unsafe.SliceData(b)]
	if block == nil {
		a.mu.Unlock()
		panic(fmt.Sprintf("arrowmem: %d bytes at %p were not allocated here, or were freed before", len(b),
			unsafe.SliceData(b)))
	}
	return block
}

// Used counts what was allocated and not freed.
func (a *Allocator) Used() (blocks int, bytes int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.blocks), a.bytes
}

// File says where allocated memory lies in shared memory: a file, which stays the
// allocator's, and an offset in it. It is nil for memory that is not shared, or not
// of this allocator. B begins where the allocated memory does.
func (a *Allocator) File(b []byte) (file *os.File, offset int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	block := a.blocks[unsafe.SliceData(b)]
	if cap(b) == 0 || block == nil {
		return nil, 0
	}
	return block.Segment.File, block.Offset
}

// Close ends the allocator: it allocates no more, and its memory goes back to the
// system as it is freed.
//
// Errors: FAILED_PRECONDITION if some of it is not freed yet.
func (a *Allocator) Close() error {
	a.arena.Close(status.New(status.Unavailable, "the allocator is closed; allocate before Close, or make another"))
	if n, bytes := a.Used(); n > 0 {
		return status.New(status.FailedPrecondition,
			"%d buffers of %d bytes were not released when their allocator was closed; release each array and record that was "+
				"made with it", n, bytes)
	}
	return nil
}

// Buffer returns memory as a buffer that cannot be resized. When the last reference to
// it is released, release is called, once.
func Buffer(data []byte, release func()) *memory.Buffer {
	return memory.NewBufferWithAllocator(data, owner(release))
}

// Received returns a block of an exchange as a buffer, which returns it to the exchange.
func Received(b transport.Block) *memory.Buffer { return Buffer(b.Data, b.Release) }

// owner is the allocator of memory that has an owner: it only frees.
type owner func()

func (o owner) Free([]byte)         { o() }
func (o owner) Allocate(int) []byte { panic("arrowmem: memory of a block cannot grow; copy it") }
func (o owner) Reallocate(size int, b []byte) []byte {
	if size <= len(b) {
		return b[:size]
	}
	return o.Allocate(size)
}
