package arrowio

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/ipc"
	"github.com/apache/arrow/go/v15/arrow/memory"
	flatbuffers "github.com/google/flatbuffers/go"

	"github.com/openpathways/pathways/core/status"
)

const (
	maxHeader  = 16 << 20 // bytes of a message's metadata
	maxFields  = 1 << 16  // of a schema, with those of lists
	maxText    = 16 << 20 // bytes of a schema's names and metadata together
	perRecord  = 1 << 30  // default bound on the bytes of memory for a record
	continues  = 0xFFFFFFFF
	fileMagic  = "ARROW1"
	fileHeader = 64
)

// IPC reads records of numbers from Arrow's IPC formats, stream and file. It is an
// array.RecordReader.
//
// The bytes need not be trusted: malformed bytes are an error, and leak no memory.
// arrow/go's reader reads them after the checks in this file.
type IPC struct {
	refs     atomic.Int64
	reader   *ipc.Reader
	messages *messages
	scope    *scope
	err      error
}

var _ array.RecordReader = (*IPC)(nil)

// OpenIPC reads the schema of a stream, or of a file from its beginning. Records are in
// memory of mem. limit bounds the bytes that reading a record takes; 0 means 1 GiB.
//
// Errors: INVALID_ARGUMENT for data that is not Arrow data, for columns that cannot become
// arrays, and for errors of r, which it wraps.
func OpenIPC(r io.Reader, mem memory.Allocator, limit int64) (*IPC, error) {
	if limit == 0 {
		limit = perRecord
	}
	b := bufio.NewReaderSize(r, 64<<10)
	file := false
	// A file is a stream between its magic number, padded with zeros to a multiple of 8 or
	// of 64, and its footer.
	for at := 0; at < fileHeader; at += 8 {
		head, err := b.Peek(8)
		if err != nil || at == 0 && string(head[:len(fileMagic)]) != fileMagic || at > 0 &&
			binary.LittleEndian.Uint64(head) != 0 {
			break
		}
		_, _ = b.Discard(8)
		file = true
	}
	x := &IPC{scope: &scope{mem: mem, limit: limit, live: map[*byte]bool{}}}
	x.refs.Store(1)
	x.messages = &messages{from: b, mem: x.scope, file: file}
	err := x.scope.try(func() (err error) {
		x.reader, err = ipc.NewReaderFromMessageReader(x.messages, ipc.WithAllocator(x.scope))
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, f := range x.reader.Schema().Fields() {
		c := column{batch: true, name: f.Name}
		if err := c.readable(f.Type); err != nil {
			x.Release()
			return nil, err
		}
	}
	return x, nil
}

// readable returns an error for types that cannot become arrays, before any data is read.
func (c *column) readable(t arrow.DataType) error {
	for {
		switch of := t.(type) {
		case arrow.ExtensionType:
			t = of.StorageType()
		case *arrow.FixedSizeListType:
			t = of.Elem()
		case *arrow.DictionaryType:
			return c.read(t, nil, 0, 0, nil)
		default:
			if types[t.ID()] == 0 {
				return c.read(t, nil, 0, 0, nil)
			}
			return nil
		}
	}
}

// Schema implements array.RecordReader.
func (x *IPC) Schema() *arrow.Schema { return x.reader.Schema() }

// Next implements array.RecordReader.
func (x *IPC) Next() bool {
	if x.err != nil {
		return false
	}
	more := false
	x.err = x.scope.try(func() error {
		more = x.reader.Next()
		x.messages.drop() // the record has copies
		return x.reader.Err()
	})
	return more && x.err == nil
}

// Record implements array.RecordReader. The record is valid until Next, unless it is
// retained.
func (x *IPC) Record() arrow.Record { return x.reader.Record() }

// Err implements array.RecordReader.
func (x *IPC) Err() error { return x.err }

// Retain implements array.RecordReader.
func (x *IPC) Retain() { x.refs.Add(1) }

// Release implements array.RecordReader. It does not close the underlying reader.
func (x *IPC) Release() {
	if x.refs.Add(-1) == 0 {
		x.reader.Release()
	}
}

// scope is the allocator for a reader that may fail halfway: if a call fails, scope frees
// everything that the call has allocated.
type scope struct {
	mem   memory.Allocator
	limit int64

	mu     sync.Mutex // guards the rest
	live   map[*byte]bool
	fresh  [][]byte // allocated by the call
	taken  int64    // bytes of them
	failed error    // an allocation
}

// try calls f, and turns its panics and failed allocations into errors.
func (s *scope) try(f func() error) (err error) {
	s.mu.Lock()
	s.fresh, s.taken, s.failed = nil, 0, nil
	s.mu.Unlock()
	defer func() {
		p := recover()
		s.mu.Lock()
		fresh, failed := s.fresh, s.failed
		s.fresh = nil
		s.mu.Unlock()
		switch {
		case failed != nil:
			err = failed
		case p != nil:
			err = status.New(status.InvalidArgument, "the Arrow data is damaged: %v", p)
		case err != nil && status.CodeOf(err) != status.InvalidArgument:
			err = status.New(status.InvalidArgument, "the Arrow data cannot be read: %w", err)
		}
		if err != nil {
			for _, b := range fresh {
				s.Free(b)
			}
		}
	}()
	return f()
}

// Allocate implements memory.Allocator.
func (s *scope) Allocate(size int) []byte {
	if size == 0 {
		return []byte{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if size < 0 || int64(size) > s.limit-s.taken {
		s.failed = status.New(status.InvalidArgument,
			"a record of the Arrow data needs %d bytes or more, and %d are allowed; raise the limit or write smaller batches",
			size, s.limit)
		panic(s.failed)
	}
	b := s.allocate(size)
	s.live[unsafe.SliceData(b)] = true
	s.fresh = append(s.fresh, b)
	s.taken += int64(size)
	return b
}

func (s *scope) allocate(size int) []byte {
	defer func() {
		if p := recover(); p != nil {
			if err, ok := p.(error); ok {
				s.failed = err
			}
			panic(p)
		}
	}()
	return s.mem.Allocate(size)
}

// Reallocate implements memory.Allocator.
func (s *scope) Reallocate(size int, b []byte) []byte {
	to := s.Allocate(size)
	copy(to, b)
	s.Free(b)
	return to
}

// Free implements memory.Allocator. Memory that was freed with a failed call may be freed
// again.
func (s *scope) Free(b []byte) {
	if cap(b) == 0 {
		return
	}
	s.mu.Lock()
	had := s.live[unsafe.SliceData(b)]
	delete(s.live, unsafe.SliceData(b))
	for i, f := range s.fresh {
		if unsafe.SliceData(f) == unsafe.SliceData(b) { // a later allocation may have the same address
			s.fresh[i] = s.fresh[len(s.fresh)-1]
			s.fresh = s.fresh[:len(s.fresh)-1]
			break
		}
	}
	s.mu.Unlock()
	if had {
		s.mem.Free(b)
	}
}

// messages is an ipc.MessageReader that checks all lengths.
type messages struct {
	from  io.Reader
	mem   *scope
	file  bool // whether a footer may end it
	last  *ipc.Message
	later bool // whether the schema has been read
	mark  bool // whether messages begin with the marker of formats since 2019
}

func (m *messages) Retain()  {}
func (m *messages) Release() { m.drop() }

func (m *messages) drop() {
	if m.last != nil {
		m.last.Release()
		m.last = nil
	}
}

// Message implements ipc.MessageReader. The message is valid until the next.
func (m *messages) Message() (*ipc.Message, error) {
	m.drop()
	var head [4]byte
	if _, err := io.ReadFull(m.from, head[:]); err != nil {
		if m.file {
			err = short(err)
		}
		return nil, err // io.EOF if nothing follows
	}
	size := binary.LittleEndian.Uint32(head[:])
	if m.file && m.mark && size != continues {
		return nil, io.EOF
	}
	if m.mark = size == continues; m.mark {
		if _, err := io.ReadFull(m.from, head[:]); err != nil {
			return nil, short(err)
		}
		size = binary.LittleEndian.Uint32(head[:])
	}
	if size == 0 {
		return nil, io.EOF
	}
	if size < 8 || size > maxHeader {
		return nil, status.New(status.InvalidArgument,
			"this is not Arrow IPC data: a message has metadata of %d bytes; expected 8 to %d", size, maxHeader)
	}
	header, err := readAll(m.from, int(size))
	if err != nil {
		return nil, err
	}
	if !m.later {
		if err := checkSchema(header); err != nil {
			return nil, err
		}
		m.later = true
	}
	meta := memory.NewBufferBytes(header)
	length := ipc.NewMessage(meta, memory.NewBufferBytes(nil)).BodyLen()
	if length < 0 || length > m.mem.limit {
		return nil, status.New(status.InvalidArgument,
			"a record of the Arrow data has %d bytes by its header, and %d are allowed; raise the limit or write smaller "+
				"batches", length, m.mem.limit)
	}
	body := memory.NewResizableBuffer(m.mem)
	defer body.Release()
	body.Resize(int(length))
	if _, err := io.ReadFull(m.from, body.Bytes()); err != nil {
		return nil, short(err)
	}
	m.last = ipc.NewMessage(meta, body)
	return m.last, nil
}

// short turns an end of file in the middle of a message into an error.
func short(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// readAll reads size bytes, and allocates only as much memory as bytes arrive.
func readAll(r io.Reader, size int) ([]byte, error) {
	var b bytes.Buffer
	n, err := io.CopyN(&b, r, int64(size))
	if n < int64(size) {
		return nil, short(err)
	}
	return b.Bytes(), nil
}

// The slots of the fields of a Message, a Schema and a Field that are checked here, from
// Arrow's Message.fbs and Schema.fbs.
const (
	messageHeader   = 8
	schemaFields    = 6
	schemaMetadata  = 8
	fieldName       = 4
	fieldChildren   = 14
	fieldMetadata   = 16
	keyValueKey     = 4
	keyValueValue   = 6
	deepestOfSchema = 64
)

// schemaCheck bounds the size of a schema in memory: tables of flatbuffers may contain each
// other many times, and at any depth.
type schemaCheck struct{ fields, text int }

// checkSchema returns an error for a schema that would take much more memory than its bytes.
func checkSchema(header []byte) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = status.New(status.InvalidArgument, "this is not Arrow IPC data: the schema is damaged (%v)", p)
		}
	}()
	message := flatbuffers.Table{Bytes: header, Pos: flatbuffers.GetUOffsetT(header)}
	var schema flatbuffers.Table
	o := message.Offset(messageHeader)
	if o == 0 {
		return status.New(status.InvalidArgument, "this is not Arrow IPC data: the first message has no schema")
	}
	message.Union(&schema, flatbuffers.UOffsetT(o))
	c := schemaCheck{maxFields, maxText}
	return errors.Join(c.metadata(&schema, schemaMetadata), c.children(&schema, schemaFields, 0))
}

// tables calls f for each table of a vector.
func tables(t *flatbuffers.Table, slot flatbuffers.VOffsetT, f func(*flatbuffers.Table) error) error {
	o := flatbuffers.UOffsetT(t.Offset(slot))
	if o == 0 {
		return nil
	}
	at := t.Vector(o)
	for i := range t.VectorLen(o) {
		if err := f(&flatbuffers.Table{Bytes: t.Bytes, Pos: t.Indirect(at + flatbuffers.UOffsetT(i)*4)}); err != nil {
			return err
		}
	}
	return nil
}

func (c *schemaCheck) children(t *flatbuffers.Table, slot flatbuffers.VOffsetT, depth int) error {
	return tables(t, slot, func(field *flatbuffers.Table) error {
		if c.fields--; c.fields < 0 || depth == deepestOfSchema {
			return status.New(status.InvalidArgument,
				"the Arrow data has a schema of more than %d fields, or of more than %d nested ones", maxFields, deepestOfSchema)
		}
		if err := c.string(field, fieldName); err != nil {
			return err
		}
		if err := c.metadata(field, fieldMetadata); err != nil {
			return err
		}
		return c.children(field, fieldChildren, depth+1)
	})
}

func (c *schemaCheck) metadata(t *flatbuffers.Table, slot flatbuffers.VOffsetT) error {
	return tables(t, slot, func(pair *flatbuffers.Table) error {
		c.text -= 64
		return errors.Join(c.string(pair, keyValueKey), c.string(pair, keyValueValue))
	})
}

func (c *schemaCheck) string(t *flatbuffers.Table, slot flatbuffers.VOffsetT) error {
	if o := flatbuffers.UOffsetT(t.Offset(slot)); o != 0 {
		c.text -= len(t.ByteVector(o + t.Pos))
	}
	if c.text < 0 {
		return status.New(status.InvalidArgument, "the Arrow data has a schema with more than %d bytes of names and metadata",
			maxText)
	}
	return nil
}
