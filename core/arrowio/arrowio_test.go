package arrowio

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/memory"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/openpathways/pathways/core/cluster/clustertest"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/sharded"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/transport/arrowmem"
	"github.com/openpathways/pathways/transport/shm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Numbers of every type come back with the same bytes: none, one and many, from an
// offset on, at any address, cut or not.
func TestNumbersOfEveryTypeComeBack(t *testing.T) {
	r := open(t, 2)
	r.run()
	for id, dtype := range types {
		at := arrowTypes[dtype]
		if at.ID() != id {
			t.Errorf("%v is %v, and back %v", id, dtype, at)
		}
		for _, count := range []int{0, 1, 4, 100, 1000} {
			for _, offset := range []int{0, 3, 64} {
				for _, skew := range []int{0, 1} {
					in := r.made(at, offset, count, skew)
					for _, l := range []sharded.Layout{
						{}, {Devices: []int{2, 1}}, sharded.Rows(0, 1, 2, 3), {Devices: []int{3, 2, 1, 0}, Tiles: []int64{2}}} {
						if len(l.Tiles) > 0 && int64(count)%l.Tiles[0] != 0 {
							continue
						}
						a, err := Put(r.Session, in, l)
						statustest.OKf(t, err, "%v, %d from %d on", at, count, offset)
						out, err := Read(t.Context(), a, r.mem)
						statustest.OKf(t, err, "%v, %d from %d on", at, count, offset)
						if !arrow.TypeEqual(out.DataType(), at) || !bytes.Equal(bytesOf(out), bytesOf(in)) {
							t.Errorf("%v, %d from %d on, %+v: other values", at, count, offset, l)
						}
						chunks := statustest.Value(Chunks(t.Context(), a, r.mem)).OK(t)
						var all []byte
						for _, c := range chunks.Chunks() {
							all = append(all, bytesOf(c)...)
						}
						if !bytes.Equal(all, bytesOf(in)) {
							t.Errorf("%v, %d from %d on, %+v: other chunks", at, count, offset, l)
						}
						chunks.Release()
						out.Release()
						a.Free()
					}
					in.Release()
				}
			}
		}
	}
}

// Lists, lists of lists and tensors with any permutation, with offsets at every
// level, cut in any way, are what a loop over all indices makes of them.
func TestTensorsBecomeWhatALoopMakesOfThem(t *testing.T) {
	r := open(t, 2)
	r.run()
	rapid.Check(t, func(t *rapid.T) {
		dims := rapid.SliceOfN(rapid.Int64Range(1, 4), 1, 3).Draw(t, "shape")
		order := rapid.Permutation(clustertest.UpTo(len(dims))).Draw(t, "permutation")
		dtype := rapid.SampledFrom([]shape.DType{shape.U8, shape.Pred, shape.F32}).Draw(t, "type")
		tiles := []int64{rapid.Int64Range(1, 2).Draw(t, "rows")}
		n := tiles[0] * rapid.Int64Range(0, 3).Draw(t, "n")
		offset, inner := rapid.IntRange(0, 3).Draw(t, "offset"), rapid.IntRange(0, 9).Draw(t, "inner offset")
		each := (tensor{Shape: dims}).elements()
		elements := r.made(arrowTypes[dtype], inner, (offset+int(n))*int(each), 0)
		defer elements.Release()
		values := bytesOf(elements)
		at := NewTensorType(arrowTypes[dtype], dims)
		at.told.Permutation = order
		in := lists(elements, at, int(n), offset)
		defer in.Release()
		meant := []int64{n}
		strides, stride := make([]int64, len(dims)), int64(1)
		for d := len(dims) - 1; d >= 0; d-- {
			strides[d] = stride
			stride *= dims[d]
		}
		for _, d := range order {
			meant = append(meant, dims[d])
		}
		for _, d := range meant[1:] {
			tile := int64(1)
			if d%2 == 0 && tiles[0] == 1 && rapid.Bool().Draw(t, "cut") {
				tile = 2
			}
			if slices.Max(append(tiles, 1)) > 1 {
				tile = 1
			}
			tiles = append(tiles, tile)
		}
		var want []byte
		size := int64(dtype.Bits() / 8)
		for i := range n * each {
			at, left := int64(0), i%each
			for k := len(order) - 1; k >= 0; k-- {
				at += left % meant[1+k] * strides[order[k]]
				left /= meant[1+k]
			}
			at += (int64(offset) + i/each) * each
			want = append(want, values[at*size:(at+1)*size]...)
		}
		a := statustest.Value(Put(r.Session, in, sharded.Layout{Devices: []int{3, 0}, Tiles: tiles})).OK(t)
		defer a.Free()
		statustest.MustEqualSlices(t, a.Dims(), meant, "dimensions")
		out := statustest.Value(Read(context.Background(), a, r.mem)).OK(t)
		defer out.Release()
		if got := bytesOf(out); !bytes.Equal(got, want) {
			t.Fatalf("%v by %v cut into %v: %v, expected %v", dims, order, tiles, got, want)
		}
		if wanted := "extension<arrow.fixed_shape_tensor"; !strings.HasPrefix(fmt.Sprint(out.DataType()), wanted) {
			t.Fatalf("the type is %v", out.DataType())
		}
		if tiles[0] == 1 && slices.Max(tiles) == 2 {
			statustest.Fails(t, "chunks of columns", statustest.Of(Chunks(context.Background(), a, r.mem)),
				status.FailedPrecondition)
		}
	})
}

// Fixed-size lists in one another are more dimensions, and a tensor is found by its
// field's metadata, too.
func TestNestedListsAreMoreDimensions(t *testing.T) {
	r := open(t, 1)
	r.run()
	elements := r.made(arrow.PrimitiveTypes.Int16, 0, 48, 0)
	defer elements.Release()
	rows := lists(elements, arrow.FixedSizeListOf(2, arrow.PrimitiveTypes.Int16), 24, 0)
	defer rows.Release()
	in := lists(rows, arrow.FixedSizeListOf(3, rows.DataType()), 7, 1)
	defer in.Release()
	told := arrow.MetadataFrom(map[string]string{
		"ARROW:extension:name": tensorName, "ARROW:extension:metadata": `{"shape":[3,1],"permutation":[1,0]}`})
	schema := arrow.NewSchema([]arrow.Field{
		{Name: "plain", Type: in.DataType()}, {Name: "tensor", Type: in.DataType(), Metadata: told}}, nil)
	record := array.NewRecord(schema, []arrow.Array{in, in}, 7)
	defer record.Release()
	arrays := statustest.Value(PutRecord(r.Session, record, sharded.Layout{})).OK(t)
	for i, want := range []struct {
		name string
		dims []int64
	}{{"plain", []int64{7, 3, 2}}, {"tensor", []int64{7, 1, 3, 2}}} {
		a := arrays[i]
		if a.Name != want.name || !slices.Equal(a.Array.Dims(), want.dims) || a.Array.DType() != shape.S16 {
			t.Errorf("%s: %s %v, expected %+v", a.Name, a.Array.DType(), a.Array.Dims(), want)
		}
		out := statustest.Value(Read(t.Context(), a.Array, r.mem)).OK(t)
		if !bytes.Equal(bytesOf(out), bytesOf(elements)[12:96]) {
			t.Errorf("%s: %v", a.Name, out)
		}
		out.Release()
		a.Array.Free()
	}
}

// What cannot be an array is refused with what to do, by name, and leaves nothing.
func TestWhatCannotBeAnArrayIsRefused(t *testing.T) {
	r := open(t, 1)
	r.run()
	ints := array.NewInt32Builder(r.mem)
	defer ints.Release()
	ints.AppendValues([]int32{1, 2, 3, 4}, []bool{true, false, true, true})
	nulls := ints.NewInt32Array()
	defer nulls.Release()
	texts := array.NewStringBuilder(r.mem)
	defer texts.Release()
	texts.AppendValues([]string{"a", "b"}, nil)
	words := texts.NewStringArray()
	defer words.Release()
	codes := r.made(arrow.PrimitiveTypes.Int8, 0, 0, 0)
	defer codes.Release()
	dictionary := array.NewDictionaryArray(&arrow.DictionaryType{
		IndexType: arrow.PrimitiveTypes.Int8, ValueType: arrow.BinaryTypes.String}, codes, words)
	defer dictionary.Release()
	data := func(t arrow.DataType, n, offset, nulls int, valid []byte, bytes int,
		children ...arrow.ArrayData) arrow.Array {
		buffers := []*memory.Buffer{nil}
		if valid != nil {
			buffers[0] = memory.NewBufferBytes(valid)
		}
		if len(children) == 0 && !arrow.IsNested(t.ID()) {
			buffers = append(buffers, memory.NewBufferBytes(make([]byte, bytes)))
		}
		return lying{data: array.NewData(t, n, buffers, children, nulls, offset)}
	}
	few := array.NewData(arrow.PrimitiveTypes.Int32, 5, []*memory.Buffer{nil, memory.NewBufferBytes(make([]byte, 20))},
		nil, 0, 0)
	some := array.NewSlice(nulls, 2, 4)
	defer some.Release()
	badTensor := func(told string) arrow.Array {
		return data(saying{NewTensorType(arrow.PrimitiveTypes.Int32, []int64{5}), told}, 1, 0, 0, nil, 0, few)
	}
	i32, pred := arrow.PrimitiveTypes.Int32, arrow.FixedWidthTypes.Boolean
	for _, c := range []struct {
		name string
		a    arrow.Array
		want string // "" where it is taken
	}{
		{"nulls", nulls, "the Arrow data has 1 nulls, which arrays cannot hold; fill them (fill_null) or drop them first"},
		{"no nulls in a slice", some, ""},
		{"no nulls, not counted", data(i32, 8, 0, array.UnknownNullCount, []byte{255}, 32), ""},
		{"nulls, not counted", data(i32, 3, 5, array.UnknownNullCount, []byte{0b10111111}, 32), "has 1 nulls"},
		{"nulls of lists", data(arrow.FixedSizeListOf(2, i32), 2, 0, 1, []byte{1}, 0, few), "has 1 nulls"},
		{"dictionary", dictionary, "the Arrow data is dictionary-encoded; decode it first (dictionary_decode)"},
		{"strings", words, "the Arrow data has the Arrow type 'utf8', which is no array of numbers; expected numbers, " +
			"booleans or fixed-size lists of them (cast it first)"},
		{"few bytes", data(i32, 9, 0, 0, nil, 32), "has 9 elements and a buffer of 32 bytes"},
		{"few bytes after an offset", data(i32, 4, 5, 0, nil, 32), "has 4 elements and a buffer of 32 bytes"},
		{"few bits", data(pred, 4, 5, 0, nil, 1), "has 4 elements and a buffer of 1 bytes"},
		{"few bits of nulls", data(i32, 4, 5, 1, []byte{0}, 64), "has 4 elements and a bitmap of nulls of 1 bytes"},
		{"a length that lies", data(i32, -1, 0, 0, nil, 32),
			"says that it has -1 elements from 0 on, 2 buffers and 0 children"},
		{"an offset that lies", data(i32, 1, -4, 0, nil, 32), "says that it has 1 elements from -4 on"},
		{"much that lies", data(i32, 1<<59, 1<<59, 0, nil, 32), "elements and a buffer of 32 bytes"},
		{"few elements of lists", data(arrow.FixedSizeListOf(2, i32), 2, 1, 0, nil, 0, few),
			"has more lists of 2 elements than their 5 are enough for"},
		{"many lists", data(arrow.FixedSizeListOf(1<<30, i32), 1<<40, 0, 0, nil, 0, few),
			"has more lists of 1073741824 elements"},
		{"lists without elements", data(arrow.FixedSizeListOf(2, i32), 2, 0, 0, nil, 0),
			"has 1 buffers and 0 children: expected 1 and 1"},
		{"a tensor", badTensor(`{"shape": [5]}`), ""},
		{"a tensor of other elements", badTensor(`{"shape": [2, 3]}`),
			"is a tensor whose metadata does not describe its 5 elements: {\"shape\": [2, 3]}"},
		{"a tensor of many elements", badTensor(`{"shape": [4294967296, 4294967296]}`), "is a tensor whose metadata"},
		{"a tensor of -5 elements", badTensor(`{"shape": [-1, -5]}`), "is a tensor whose metadata"},
		{"a tensor without a shape", badTensor(`{}`), "is a tensor whose metadata"},
		{"a tensor in pieces", badTensor(`{"shape": [5]`), "is a tensor whose metadata"},
		{"a permutation that is none", badTensor(`{"shape": [5, 1], "permutation": [1, 1]}`), "is a tensor whose metadata"},
		{"a short permutation", badTensor(`{"shape": [5, 1], "permutation": [0]}`), "is a tensor whose metadata"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, err := Put(r.Session, c.a, sharded.Layout{})
			switch {
			case c.want == "" && err != nil:
				t.Error(err)
			case c.want == "":
				statustest.Check(t, a.Wait(t.Context()))
				a.Free()
			case status.CodeOf(err) != status.InvalidArgument || !strings.Contains(err.Error(), c.want):
				t.Errorf("%v, expected %q", err, c.want)
			}
		})
	}
	good := r.made(i32, 0, 4, 0)
	defer good.Release()
	record := array.NewRecord(arrow.NewSchema([]arrow.Field{
		{Name: "x", Type: i32}, {Name: "y", Type: i32, Nullable: true}}, nil), []arrow.Array{good, nulls}, 4)
	defer record.Release()
	statustest.Fails(t, "a record with nulls", statustest.Of(PutRecord(r.Session, record, sharded.Layout{})),
		status.InvalidArgument, "column 'y' has 1 nulls")
	for name, l := range map[string]sharded.Layout{"parts": {Devices: []int{0, 1, 2}, Tiles: []int64{3}},
		"devices": sharded.Rows(0, 0), "no device": sharded.Rows(7), "tiles": {Tiles: []int64{1, 1}},
		"too few devices": {Tiles: []int64{2}}, "none": {Devices: []int{}}, "no parts": {Tiles: []int64{0}}} {
		statustest.Fails(t, name, statustest.Of(Put(r.Session, good, l)), status.InvalidArgument)
	}
}

// lying is an array whose data was never looked at.
type lying struct {
	arrow.Array
	data *array.Data
}

func (l lying) Data() arrow.ArrayData { return l.data }

// saying is a tensor with metadata of its own.
type saying struct {
	*TensorType
	told string
}

func (s saying) Serialize() string { return s.told }

// What Arrow does not have cannot be shown.
func TestTypesThatArrowLacksAreRefused(t *testing.T) {
	for want, c := range map[string]shape.Shape{
		"Arrow has no scalars: expected at least one dimension": {DType: shape.F32},
		"Arrow has no type for elements of type bf16; read the bytes of each shard": {
			DType: shape.BF16, Dims: []int64{3}},
		"Arrow's lists cannot contain tensors of [0]; expected 1 to 2147483647 elements": {
			DType: shape.F32, Dims: []int64{3, 0}},
		"Arrow's lists cannot contain tensors of [65536 65536]; expected 1 to 2147483647 ": {
			DType: shape.U8, Dims: []int64{0, 1 << 16, 1 << 16}},
	} {
		statustest.Fails(t, fmt.Sprint(c), statustest.Of(TypeOf(c.DType, c.Dims)), status.InvalidArgument, want)
	}
}

// Data is retained until it has been read; what comes lies in the block that has
// come, as long as a slice of it lives.
func TestArraysStayInTheBlocksThatTheyCameIn(t *testing.T) {
	r := open(t, 1)
	in := r.made(arrow.PrimitiveTypes.Float32, 0, 1<<18, 4) // which devices cannot share
	a := statustest.Value(Put(r.Session, in, sharded.Rows(0, 1))).OK(t)
	want := slices.Clone(bytesOf(in))
	in.Release() // the session has it
	if n, _ := r.mem.Used(); n != 1 {
		t.Errorf("%d buffers are in use while one is to be read", n)
	}
	r.run()
	statustest.OK(t, a.Wait(t.Context()))
	if n, _ := r.mem.Used(); n != 0 {
		t.Errorf("%d buffers are in use after the array is there", n)
	}
	used := r.Pool().Stats().Used["arrow"]
	for i := range 2 {
		out := statustest.Value(Shard(t.Context(), a, i, r.mem)).OK(t)
		got := bytesOf(out)
		if !r.taps.received[unsafe.SliceData(got)] || uintptr(unsafe.Pointer(unsafe.SliceData(got)))%64 != 0 {
			t.Error("an array does not lie in the block that has come")
		}
		if !bytes.Equal(got, want[i<<19:(i+1)<<19]) || r.Pool().Stats().Used["arrow"] != used {
			t.Error("a shard has other bytes, or was copied")
		}
		out.Retain()
		s := array.NewSlice(out, 10, 20)
		out.Release()
		out.Release()
		if r.taps.held.Load() != 1 || !bytes.Equal(bytesOf(s), want[i<<19+40:i<<19+80]) {
			t.Error("a slice does not keep its block")
		}
		s.Release()
		if r.taps.held.Load() != 0 {
			t.Error("a block was not given back with the last slice")
		}
	}
	a.Free()
	a.Free()
	statustest.Fails(t, "after Free", statustest.Of(Shard(t.Context(), a, 0, r.mem)), status.FailedPrecondition)
}

// Arrays outlive their session, data that was to be put is released when it ends,
// and what is pending fails with its word.
func TestArraysOutliveTheirSession(t *testing.T) {
	r := open(t, 1)
	in := r.made(arrow.PrimitiveTypes.Int64, 0, 1000, 0)
	late := statustest.Value(Put(r.Session, in, sharded.Layout{Devices: []int{1}})).OK(t)
	given, cancel := context.WithCancel(t.Context())
	cancel()
	statustest.Fails(t, "a wait that was given up", late.Wait(given), status.Cancelled)
	statustest.Fails(t, "a read that was given up", statustest.Of(Shard(given, late, 0, r.mem)), status.Cancelled)
	r.run()
	a := statustest.Value(Put(r.Session, in, sharded.Layout{})).OK(t)
	out := statustest.Value(Shard(t.Context(), a, 0, r.mem)).OK(t)
	statustest.OK(t, r.Session.Close())
	r.local.Close()
	if !array.Equal(out, in) {
		t.Error("an array has other values after its session has ended")
	}
	out.Release()
	statustest.Fails(t, "reading after Close", statustest.Of(Read(t.Context(), a, r.mem)), status.Unavailable)
	statustest.Fails(t, "putting after Close", statustest.Of(Put(r.Session, in, sharded.Layout{})), status.Unavailable)
	statustest.Fails(t, "a session that was closed", r.Lost(), status.Unavailable)
	a.Free()
	in.Release()
}

// A put that the end of its session cuts short releases its data.
func TestPutThatIsCutShortReleasesItsData(t *testing.T) {
	r := open(t, 1)
	in := r.made(arrow.PrimitiveTypes.Int64, 0, 1000, 0)
	a := statustest.Value(Put(r.Session, in, sharded.Rows(0, 1))).OK(t)
	in.Release()
	closed := make(chan error)
	go func() { closed <- r.Session.Close() }()
	r.run()
	statustest.Check(t, <-closed)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := a.Wait(ctx); err != nil && status.CodeOf(err) != status.Unavailable {
		t.Errorf("a put that was under way at the end: %v", err)
	}
}

// If an allocator has no room, reading is an error.
func TestReadFailsWhereItsAllocatorHasNoRoom(t *testing.T) {
	r := open(t, 1)
	r.run()
	in := r.made(arrow.FixedWidthTypes.Boolean, 0, 64<<20, 0)
	defer in.Release()
	a := statustest.Value(Put(r.Session, in, sharded.Rows(0, 1))).OK(t)
	small := arrowmem.New(shm.NewPool(shm.Config{Limit: 2 << 20, Idle: time.Hour}), "small", false)
	for name, read := range map[string]func() (arrow.Array, error){
		"Read":  func() (arrow.Array, error) { return Read(t.Context(), a, small) },
		"Shard": func() (arrow.Array, error) { return Shard(t.Context(), a, 0, small) },
	} {
		statustest.Fails(t, name, statustest.Of(read()), status.ResourceExhausted)
	}
	a.Free()
	statustest.Check(t, small.Close())
}
