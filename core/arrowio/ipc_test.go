package arrowio

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/ipc"
	"github.com/apache/arrow/go/v15/arrow/memory"
	"pgregory.net/rapid"

	"github.com/openpathways/pathways/core/sharded"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/transport/arrowmem"
	"github.com/openpathways/pathways/transport/shm"
)

// written is n records of four rows in an IPC format. Row k of record i has 4i + k.
func written(t testing.TB, n int, file bool, options ...ipc.Option) []byte {
	t.Helper()
	mem := memory.NewGoAllocator()
	tensors := NewTensorType(arrow.PrimitiveTypes.Float32, []int64{2, 3})
	schema := arrow.NewSchema([]arrow.Field{{Name: "n", Type: arrow.PrimitiveTypes.Int32},
		{Name: "even", Type: arrow.FixedWidthTypes.Boolean}, {Name: "x", Type: tensors}}, nil)
	var out bytes.Buffer
	var w interface {
		Write(arrow.Record) error
		Close() error
	}
	options = append(options, ipc.WithSchema(schema))
	if file {
		f := statustest.Value(ipc.NewFileWriter(&seeker{&out}, options...)).OK(t)
		w = f
	} else {
		w = ipc.NewWriter(&out, options...)
	}
	b := array.NewRecordBuilder(mem,
		arrow.NewSchema([]arrow.Field{schema.Field(0), schema.Field(1), {Name: "x", Type: tensors.Storage}}, nil))
	for i := range n {
		for k := range 4 {
			v := 4*i + k
			b.Field(0).(*array.Int32Builder).Append(int32(v))
			b.Field(1).(*array.BooleanBuilder).Append(v%2 == 0)
			lists := b.Field(2).(*array.FixedSizeListBuilder)
			lists.Append(true)
			for j := range 6 {
				lists.ValueBuilder().(*array.Float32Builder).Append(float32(v) + float32(j)/8)
			}
		}
		r := b.NewRecord()
		columns := []arrow.Array{r.Column(0), r.Column(1), array.NewExtensionArrayWithStorage(tensors, r.Column(2))}
		statustest.OK(t, w.Write(array.NewRecord(schema, columns, 4)))
	}
	statustest.OK(t, w.Close())
	return out.Bytes()
}

// seeker lets a file be written to a buffer: the writer only asks where it is.
type seeker struct{ *bytes.Buffer }

func (s *seeker) Seek(int64, int) (int64, error) { return int64(s.Len()), nil }

// Streams and files, compressed or not, come record by record as arrays, ahead of
// the reader that asks and no further.
func TestRecordsArriveOneByOneAsArrays(t *testing.T) {
	r := open(t, 2)
	r.run()
	for name, data := range map[string][]byte{
		"stream": written(t, 5, false), "file": written(t, 5, true), "zstd": written(t, 5, false, ipc.WithZstd()),
		"lz4": written(t, 5, true, ipc.WithLZ4()), "none": written(t, 0, false),
	} {
		x, err := OpenIPC(iotest.OneByteReader(bytes.NewReader(data)), r.mem, 0)
		statustest.OKf(t, err, "%s", name)
		x.Retain()
		x.Release()
		i := 0
		for batch, err := range Batches(t.Context(), r.Session, x, BatchOptions{Layout: sharded.Rows(0, 1, 2, 3)}) {
			statustest.OKf(t, err, "%s", name)
			if len(batch) != 3 || batch[0].Name != "n" || batch[1].Name != "even" || batch[2].Name != "x" ||
				fmt.Sprint(batch[2].Array.Dims()) != "[4 2 3]" {
				t.Fatalf("%s: %+v", name, batch)
			}
			for c, want := range []string{
				fmt.Sprintf("[%d %d %d %d]", 4*i, 4*i+1, 4*i+2, 4*i+3), "[true false true false]",
				fmt.Sprintf("%v", float32(4*i)+1+3/8.),
			} {
				out := statustest.Value(Read(t.Context(), batch[c].Array, r.mem)).OK(t)
				got := fmt.Sprint(out)
				if e, ok := out.(array.ExtensionArray); ok {
					got = fmt.Sprint(e.Storage().(*array.FixedSizeList).ListValues().(*array.Float32).Value(6 + 3))
				}
				statustest.Equal(t, got, want, "%s, record %d, %s", name, i, batch[c].Name)
				out.Release()
				statustest.Check(t, batch[c].Array.Wait(t.Context())) // nothing reads its data any more
				batch[c].Array.Free()
			}
			i++
		}
		if i != map[bool]int{true: 5}[name != "none"] || x.Err() != nil || x.Next() {
			t.Errorf("%s: %d records, %v", name, i, x.Err())
		}
		x.Release()
		if n, bytes := r.mem.Used(); n != 0 {
			t.Errorf("%s: %d buffers of %d bytes are in use", name, n, bytes)
		}
	}
}

// counted counts the records that were asked for, and fails at one of them.
type counted struct {
	*IPC
	asked, fails int
}

var errBroken = errors.New("the disk is broken")

func (c *counted) Next() bool {
	c.asked++
	return c.asked != c.fails && c.IPC.Next()
}

func (c *counted) Err() error {
	if c.asked == c.fails {
		return errBroken
	}
	return c.IPC.Err()
}

// A loop that ends early, with its context, or with an error leaves nothing, and has
// read no further ahead than it was told.
func TestLoopThatEndsEarlyLeavesNothing(t *testing.T) {
	r := open(t, 1)
	r.run()
	data := written(t, 50, false)
	opened := func(fails int) *counted {
		x := statustest.Value(OpenIPC(bytes.NewReader(data), r.mem, 0)).OK(t)
		return &counted{IPC: x, fails: fails}
	}
	freed := func(batch []Named) {
		for _, a := range batch {
			a.Array.Free()
		}
	}
	for _, ahead := range []int{1, 3, 10} {
		x, n := opened(0), 0
		for batch, err := range Batches(t.Context(), r.Session, x, BatchOptions{Prefetch: ahead}) {
			statustest.OK(t, err)
			freed(batch)
			if n++; n == 5 {
				break
			}
		}
		if x.asked > 5+ahead {
			t.Errorf("%d records were read for 5, and %d ahead", x.asked, ahead)
		}
		x.Release()
	}
	x, n := opened(8), 0
	var last error
	for batch, err := range Batches(t.Context(), r.Session, x, BatchOptions{}) {
		freed(batch)
		last = err
		n++
	}
	if n != 8 || !errors.Is(last, errBroken) {
		t.Errorf("a reader that fails at its 8th record: %d, %v", n, last)
	}
	x.Release()
	x = opened(0)
	for batch, err := range Batches(t.Context(), r.Session, x,
		BatchOptions{Layout: sharded.Layout{Devices: []int{0, 1}, Tiles: []int64{1, 2}}}) {
		if batch != nil || status.CodeOf(err) != status.InvalidArgument || !strings.Contains(err.Error(), "column 'n'") {
			t.Errorf("a layout that does not fit: %v, %v", batch, err)
		}
	}
	x.Release()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	x = opened(0)
	for batch, err := range Batches(ctx, r.Session, x, BatchOptions{}) {
		freed(batch)
		cancel()
		last = err
	}
	if last != nil && status.CodeOf(last) != status.Cancelled {
		t.Errorf("after cancel: %v", last)
	}
	x.Release()
	for _, err := range Batches(t.Context(), r.Session, nil, BatchOptions{Prefetch: -1}) {
		statustest.Fails(t, "-1 records ahead", err, status.InvalidArgument)
	}
}

// table writes a flatbuffer by hand: Message{header: Schema{fields: n times the same
// field}}, and the field has itself, one further on, as its children twice.
func deepSchema(depth, width int) []byte {
	var b []byte
	u16 := func(v ...int) {
		for _, x := range v {
			b = binary.LittleEndian.AppendUint16(b, uint16(x))
		}
	}
	u32 := func(v ...int) {
		for _, x := range v {
			b = binary.LittleEndian.AppendUint32(b, uint32(x))
		}
	}
	u32(20) // root: the message's table, behind its vtable
	u16(12, 8, 0, 0, 4, 0)
	b = append(b, 0, 0, 0, 0)
	u32(16, 16) // table at 20: vtable at 4; header at +4: schema's table at 24+16
	// vtable of a schema at 28
	u16(8, 8, 0, 4)
	u32(0)
	// table at 40: vtable at 28; fields at +4: vector right behind
	u32(12, 4)
	for level := range depth {
		last := level == depth-1
		// vector of children, all the same table, which is behind it and its vtable
		n := width
		u32(n)
		at := len(b)
		table := at + 4*n + 16
		for i := range n {
			u32(table - (at + 4*i))
		}
		if last {
			u16(16, 4, 0, 0, 0, 0, 0, 0)
			u32(16)
			continue
		}
		u16(16, 8, 0, 0, 0, 0, 0, 4)
		u32(16, 4)
	}
	return b
}

// A schema whose fields are in each other many times, or deep, is refused before
// anything is made of it; what is written by hand is found by the same path.
func TestSchemasOfTooManyFieldsAreRefused(t *testing.T) {
	statustest.Checkf(t, checkSchema(deepSchema(3, 4)), "84 fields")
	for name, c := range map[string][2]int{"wide": {40, 2}, "deep": {1000, 1}} {
		statustest.Fails(t, name, checkSchema(deepSchema(c[0], c[1])), status.InvalidArgument,
			"a schema of more than 65536 fields")
	}
}

// What is no Arrow data, is cut off, or has columns that cannot be arrays is an
// error with a code, and leaves no memory behind.
func TestBadArrowDataIsAnError(t *testing.T) {
	a := arrowmem.New(shm.NewPool(shm.Config{Limit: 1 << 26}), "arrow", false)
	good := written(t, 2, false)
	for n := range len(good) {
		statustest.Checkf(t, damaged(good[:n], a), "%d of %d bytes", n, len(good))
	}
	last := bytes.LastIndex(written(t, 2, true), []byte{255, 255, 255, 255})
	for _, n := range []int{last, last + 100} {
		if err := read(written(t, 2, true)[:n], a); status.CodeOf(err) != status.InvalidArgument ||
			!errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%d bytes of a file: %v", n, err)
		}
	}
	for _, data := range []string{"PAR1 and so on, which is no Arrow data at all", "\xff\xff\xff\xff\xff\xff\xff\x7f",
		""} {
		statustest.Fails(t, fmt.Sprintf("%q", data), read([]byte(data), a), status.InvalidArgument)
	}
	schema := arrow.NewSchema([]arrow.Field{{Name: "s", Type: arrow.BinaryTypes.String}}, nil)
	var out bytes.Buffer
	statustest.OK(t, ipc.NewWriter(&out, ipc.WithSchema(schema)).Close())
	statustest.Fails(t, "the error", read(out.Bytes(), a), status.InvalidArgument,
		"column 's' has the Arrow type 'utf8'")
	out.Reset()
	schema = arrow.NewSchema([]arrow.Field{
		{Name: "d", Type: arrow.FixedSizeListOf(2, &arrow.DictionaryType{
			IndexType: arrow.PrimitiveTypes.Int8, ValueType: arrow.PrimitiveTypes.Int64})}}, nil)
	statustest.OK(t, ipc.NewWriter(&out, ipc.WithSchema(schema)).Close())
	statustest.Fails(t, "the error", read(out.Bytes(), a), status.InvalidArgument, "column 'd' is dictionary-encoded")
	x, err := OpenIPC(bytes.NewReader(good), a, 64)
	statustest.OK(t, err)
	if x.Next() || status.CodeOf(x.Err()) != status.InvalidArgument ||
		!strings.Contains(x.Err().Error(), "64 are allowed") {
		t.Errorf("a record beyond the limit: %v", x.Err())
	}
	x.Release()
	small := arrowmem.New(shm.NewPool(shm.Config{Limit: 1}), "small", false)
	if x, err = OpenIPC(bytes.NewReader(good), small, 0); err != nil {
		t.Fatal(err)
	}
	if x.Next() || status.CodeOf(x.Err()) != status.ResourceExhausted {
		t.Errorf("a record that does not fit: %v", x.Err())
	}
	x.Release()
	if _, err := OpenIPC(iotest.ErrReader(errBroken), a, 0); !errors.Is(err, errBroken) {
		t.Errorf("a reader that fails: %v", err)
	}
	statustest.Check(t, a.Close())
}

// read reads all records.
func read(data []byte, a *arrowmem.Allocator) error {
	x, err := OpenIPC(bytes.NewReader(data), a, 1<<20)
	if err != nil {
		return err
	}
	defer x.Release()
	for x.Next() {
		for i := range int(x.Record().NumCols()) {
			var c column
			f := x.Schema().Field(i)
			if readArray(x.Record().Column(i).Data(), &f, &c) != nil {
				continue
			}
			size := (tensor{Shape: c.dims()}).elements() * int64(c.dtype.Bits()/8)
			if size >= 0 && size <= 1<<22 {
				c.fill(make([]int64, len(c.lie)), c.dims(), make([]byte, size))
			}
		}
	}
	return x.Err()
}

// Bytes that were changed, cut out or put in anywhere are records or an error with a
// code, and leave no memory behind.
func TestDamagedBytesAreRecordsOrErrors(t *testing.T) {
	a := arrowmem.New(shm.NewPool(shm.Config{Limit: 1 << 26}), "arrow", false)
	var all [][]byte
	for _, file := range []bool{false, true} {
		all = append(all, written(t, 2, file), written(t, 1, file, ipc.WithZstd()), written(t, 1, file, ipc.WithLZ4()))
	}
	rapid.Check(t, func(t *rapid.T) {
		data := slices.Clone(rapid.SampledFrom(all).Draw(t, "data"))
		for range rapid.IntRange(1, 4).Draw(t, "changes") {
			at := rapid.IntRange(0, len(data)-8).Draw(t, "at")
			switch rapid.IntRange(0, 3).Draw(t, "how") {
			case 0:
				data[at] = rapid.Byte().Draw(t, "byte")
			case 1:
				binary.LittleEndian.PutUint32(data[at:],
					rapid.SampledFrom([]uint32{0, 1, 1 << 31, 1<<32 - 1, 1<<31 - 1, 64}).Draw(t, "word"))
			case 2:
				data = slices.Delete(data, at, at+rapid.IntRange(0, 8).Draw(t, "cut"))
			default:
				data = slices.Insert(data, at, rapid.SliceOfN(rapid.Byte(), 0, 8).Draw(t, "put in")...)
			}
			if len(data) < 64 {
				break
			}
		}
		statustest.OK(t, damaged(data, a))
	})
}

// damaged says what is wrong with how bytes are read.
func damaged(data []byte, a *arrowmem.Allocator) error {
	err := read(data, a)
	if n, bytes := a.Used(); n != 0 {
		return fmt.Errorf("%d buffers of %d bytes are left", n, bytes)
	}
	if err != nil && status.CodeOf(err) != status.InvalidArgument {
		return err
	}
	return nil
}

// Whatever the bytes are: records or an error with a code, and no memory is left.
func FuzzIPC(f *testing.F) {
	for _, file := range []bool{false, true} {
		f.Add(written(f, 2, file))
		f.Add(written(f, 1, file, ipc.WithZstd()))
		f.Add(written(f, 1, file, ipc.WithLZ4()))
	}
	f.Add(append([]byte{255, 255, 255, 255, 200, 0, 0, 0}, deepSchema(3, 2)...))
	a := arrowmem.New(shm.NewPool(shm.Config{Limit: 1 << 26}), "arrow", false)
	f.Fuzz(func(t *testing.T, data []byte) {
		statustest.Check(t, damaged(data, a))
	})
}

var _ io.WriteSeeker = (*seeker)(nil)
