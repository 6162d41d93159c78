// Package content sends things of any size from one process to another: program text and executables, which are too
// long for messages. The controller decides which process sends what to which other, and numbers the transfers; the
// bytes go by a transport.Exchange, never through the controller.
//
// A transfer is a header, which says how long each part of the thing is, and then its bytes in chunks. The receiver
// lets window chunks come at a time, straight into memory outside of Go's heap: so the exchange needs little memory of
// its own whatever the size, and other blocks on the link pass between chunks. The sender's bytes are read where they
// are and never copied here.
//
// # Guarantees
//
// done is called once on each side, also where the other process is lost, refuses, or gives up: then with an error on
// both. When it has been called nothing reads or writes the bytes any more. Nothing here blocks, and there is no
// goroutine: callbacks run on those of the exchange.
//
// core/client and core/worker import it.
package content

import (
	"encoding/binary"
	"io"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/transport"
)

const (
	chunkSize = 8 << 20 // long enough that a chunk's messages cost nothing beside its bytes
	window    = 4       // chunks on their way to a receiver at one time
	// MaxParts bounds the parts of a thing.
	MaxParts = 4
	// MaxSize bounds a part: XLA's own bound of a serialized program, 2 GiB.
	MaxSize = 1<<31 - 1

	headerSize = 8 * MaxParts
)

func key(transfer, part uint64) transport.Key {
	return transport.Key{Space: transport.Contents(), ID: transfer, Part: part}
}

var used atomic.Int64

// Used is how many bytes of Memory this process has outside of Go's heap, whether they have come yet or not. Those in
// files do not count.
func Used() int64 { return used.Load() }

// Memory is bytes outside of Go's heap, with a count of who uses them. The zero Memory holds none.
type Memory struct {
	Data    []byte
	users   atomic.Int32
	release func() // called when the last user releases it; may be nil
	counted int64  // bytes of used
	mapped  bool   // memory of Reserve, see Spill
}

// Bytes returns a Memory of bytes that are the caller's: nothing is done when its last user releases it.
func Bytes(data []byte) *Memory { return Own(data, nil) }

// Own returns a Memory of bytes outside of Go's heap that release takes back when its last user releases it.
func Own(data []byte, release func()) *Memory {
	m := &Memory{Data: data, release: release}
	if release != nil {
		m.counted = int64(len(data))
		used.Add(m.counted)
	}
	m.users.Store(1)
	return m
}

// Reserve returns a Memory of a size, which takes room as bytes come.
//
// Errors: RESOURCE_EXHAUSTED.
func Reserve(size int) (*Memory, error) {
	if size == 0 {
		return Bytes(nil), nil
	}
	data, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return nil, status.New(status.ResourceExhausted, "there is no memory for %d bytes of a program: %w", size, err)
	}
	m := Own(data, func() { _ = unix.Munmap(data) }) // it was mapped
	m.mapped = true
	return m, nil
}

// Read returns a Memory with a number of bytes that it reads.
//
// Errors: RESOURCE_EXHAUSTED, and the reader's, io.ErrUnexpectedEOF where it has fewer.
func Read(r io.Reader, size int) (*Memory, error) {
	m, err := Reserve(size)
	if err != nil {
		return nil, err
	}
	for at := 0; at < size; {
		n, err := io.ReadFull(r, m.Data[at:min(at+chunkSize, size)])
		if at += n; err != nil {
			m.Release()
			return nil, err
		}
	}
	return m, nil
}

// Hold adds a user. The caller is one.
func (m *Memory) Hold() { m.users.Add(1) }

// Release takes a user away. With the last one, the bytes go.
func (m *Memory) Release() {
	if m.users.Add(-1) == 0 && m.release != nil {
		used.Add(-m.counted)
		m.release()
		m.Data = nil
	}
}

// Send sends a thing of up to MaxParts parts to a process that receives the transfer. The parts stay as they are until
// done is called.
func Send(x transport.Exchange, to, transfer uint64, parts [][]byte, done func(error)) {
	header := make([]byte, headerSize)
	var chunks [][]byte
	for i, part := range parts {
		binary.LittleEndian.PutUint64(header[8*i:], uint64(len(part)))
		for at := 0; at < len(part); at += chunkSize {
			chunks = append(chunks, part[at:min(at+chunkSize, len(part))])
		}
	}
	var mu sync.Mutex
	var first error
	left := 1 + len(chunks)
	sent := func(err error) {
		mu.Lock()
		if first == nil {
			first = err
		}
		left--
		last, why := left == 0, first
		mu.Unlock()
		if last {
			done(why)
		}
	}
	x.PushBytes(to, key(transfer, 0), header, sent)
	for i, chunk := range chunks {
		x.PushBytes(to, key(transfer, uint64(i+1)), chunk, sent)
	}
}

// Refuse tells a process that receives a transfer why it gets nothing.
func Refuse(x transport.Exchange, to, transfer uint64, why error) {
	x.Push(to, key(transfer, 0), headerSize, func(_ []byte, written func(error)) { written(why) }, func(error) {})
}

// incoming is a transfer on its way here.
type incoming struct {
	x        transport.Exchange
	from     uint64
	transfer uint64
	limit    int64
	done     func([]*Memory, error)

	mu     sync.Mutex // guards the rest; never held while the exchange is called
	parts  []*Memory
	chunks [][]byte // that are yet to be expected
	next   uint64   // number of the first of them
	flying int      // that are expected
	err    error
}

// Receive receives a transfer from a process. Then done gets the parts, which are its to release, or an error: the
// sender's, UNAVAILABLE where the sender is lost, INVALID_ARGUMENT where a part is longer than MaxSize or all together
// longer than limit, RESOURCE_EXHAUSTED. GiveUp ends it earlier, with an error of the caller's.
func Receive(x transport.Exchange, from, transfer uint64, limit int64,
	done func([]*Memory, error)) (giveUp func(error)) {
	in := &incoming{x: x, from: from, transfer: transfer, limit: limit, done: done, next: 1}
	x.Expect(from, key(transfer, 0), headerSize, nil, func(b transport.Block, err error) {
		if err == nil {
			err = in.begin(b.Data)
			release(b)
		}
		in.proceed(0, err)
	})
	return func(why error) { Fail(x, transfer, why) }
}

// Fail has a transfer to or from this process fail with the caller's error, even if it begins later.
func Fail(x transport.Exchange, transfer uint64, why error) {
	x.Fail(transport.Contents(), transfer, why)
}

// release releases a block that came, or did not.
func release(b transport.Block) {
	if b.Release != nil {
		b.Release()
	}
}

// begin reads the header.
func (in *incoming) begin(header []byte) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	total := int64(0)
	for i := range MaxParts {
		n := binary.LittleEndian.Uint64(header[8*i:])
		if n > MaxSize || total+int64(n) > in.limit {
			return status.New(status.InvalidArgument, "process %d sends more than %d bytes, or a part of more than %d", in.from,
				in.limit, MaxSize)
		}
		total += int64(n)
		m, err := Reserve(int(n))
		if err != nil {
			return err
		}
		in.parts = append(in.parts, m)
		for at := 0; at < len(m.Data); at += chunkSize {
			in.chunks = append(in.chunks, m.Data[at:min(at+chunkSize, len(m.Data))])
		}
	}
	return nil
}

// proceed takes the news that some chunks have come, or why one has not, and expects the next ones.
func (in *incoming) proceed(came int, err error) {
	in.mu.Lock()
	in.flying -= came
	fails := err != nil && in.err == nil
	if fails {
		in.err, in.chunks = err, nil
	}
	n := min(len(in.chunks), window-in.flying)
	next, chunks := in.next, in.chunks[:n]
	in.chunks, in.next, in.flying = in.chunks[n:], in.next+uint64(n), in.flying+n
	over := in.flying == 0 && n == 0
	in.mu.Unlock()
	if fails { // the sender's other chunks are not wanted; those expected here come back with this error
		in.x.Fail(transport.Contents(), in.transfer, err)
	}
	for i, chunk := range chunks {
		in.x.Expect(in.from, key(in.transfer, next+uint64(i)), int64(len(chunk)), chunk,
			func(b transport.Block, err error) {
				release(b)
				in.proceed(1, err)
			})
	}
	if over {
		in.end()
	}
}

// end reports how the transfer ended. Nothing of it is on its way any more.
func (in *incoming) end() {
	if in.err == nil {
		in.done(in.parts, nil)
		return
	}
	for _, m := range in.parts {
		m.Release()
	}
	in.done(nil, in.err)
}
