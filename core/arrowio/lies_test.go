package arrowio

import (
	"bytes"
	"testing"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/memory"
	"pgregory.net/rapid"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
)

// lies draws Arrow data whose lengths, offsets, counts, buffers, children and metadata
// have little to do with each other.
func lies(t *rapid.T, depth int) *array.Data {
	number := rapid.SampledFrom([]int{0, 0, 1, 2, 3, 8, 64, -1, 1 << 31, 1<<59 + 1, 1<<62 - 1, -1 << 63})
	small := rapid.IntRange(0, 9)
	count := func(name string) int {
		if rapid.Bool().Draw(t, name+" is small") {
			return small.Draw(t, name)
		}
		return number.Draw(t, name)
	}
	buffers := make([]*memory.Buffer, rapid.IntRange(0, 3).Draw(t, "buffers"))
	for i := range buffers {
		if rapid.IntRange(0, 3).Draw(t, "buffer") > 0 {
			buffers[i] = memory.NewBufferBytes(rapid.SliceOfN(rapid.Byte(), 0, 80).Draw(t, "bytes"))
		}
	}
	var dt arrow.DataType = rapid.SampledFrom([]arrow.DataType{arrow.PrimitiveTypes.Int8, arrow.PrimitiveTypes.Float64,
		arrow.FixedWidthTypes.Boolean, arrow.BinaryTypes.String}).Draw(t, "type")
	var children []arrow.ArrayData
	if depth > 0 && rapid.IntRange(0, 3).Draw(t, "nested") > 0 {
		child := lies(t, depth-1)
		size := rapid.SampledFrom([]int32{1, 2, 3, 1 << 30}).Draw(t, "size")
		dt = arrow.FixedSizeListOf(size, child.DataType())
		if rapid.Bool().Draw(t, "tensor") {
			told := rapid.SampledFrom([]string{"", "{}", `{"shape":[2]}`, `{"shape":[1,3],"permutation":[1,0]}`,
				`{"shape":[4294967296,4294967296]}`, `{"shape":[-1,-2]}`, `{"shape":[2],"permutation":[7]}`}).Draw(t, "metadata")
			dt = saying{&TensorType{ExtensionBase: arrow.ExtensionBase{Storage: dt}}, told}
		}
		if rapid.IntRange(0, 5).Draw(t, "orphan") > 0 {
			children, buffers = []arrow.ArrayData{child}, buffers[:min(1, len(buffers))]
		}
	}
	return array.NewData(dt, count("length"), buffers, children,
		rapid.SampledFrom([]int{array.UnknownNullCount, 0, 1, 7}).Draw(t, "nulls"), count("offset"))
}

// An array with false metadata is an error with a code, or is read within its buffers; if it can be shared, the shared
// bytes are those of a copy.
func believed(t *rapid.T) {
	data := lies(t, 3)
	var c column
	if err := readArray(data, nil, &c); err != nil {
		statustest.Fails(t, "the error", err, status.InvalidArgument)
		return
	}
	dims := c.dims()
	size := shape.Shape{DType: c.dtype, Dims: dims}.HostBytes()
	if size < 0 || size > 1<<16 {
		t.Fatalf("an array of %v of %v was made of buffers of 80 bytes", dims, c.dtype)
	}
	all, start := make([]byte, size), make([]int64, len(dims))
	c.fill(start, dims, all)
	if size > 0 && c.dtype != shape.Pred {
		if at := c.at(start, dims); at != nil && !bytes.Equal(at, all) {
			t.Fatalf("%v is shared as %v and copied as %v", data, at, all)
		}
	}
}

func TestDamagedArraysAreRefusedOrReadInBounds(t *testing.T) { rapid.Check(t, believed) }

func FuzzLies(f *testing.F) { f.Fuzz(rapid.MakeFuzz(believed)) }
