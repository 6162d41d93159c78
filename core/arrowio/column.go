package arrowio

import (
	"encoding/binary"
	"math/bits"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
)

// maxDims is the largest number of dimensions of an array, as in the C API.
const maxDims = 32

// longest bounds lengths and offsets, so that sums of a few do not overflow.
const longest = int64(1) << 60

// column describes an array of numbers in Arrow data.
type column struct {
	batch bool   // whether it is a column of a record
	name  string // the field's

	dtype shape.DType
	lie   []int64 // dimensions in the order of memory
	order []int   // by dimension of the array: its index in lie
	data  []byte  // the elements; booleans are bits
	bit   int64   // of the first boolean
}

func (c *column) refuse(format string, args ...any) error {
	return c.fail(status.InvalidArgument, format, args...)
}

func (c *column) fail(code status.Code, format string, args ...any) error {
	who := "the Arrow data"
	if c.batch {
		who = "column '" + c.name + "'"
	}
	return status.New(code, who+" "+format, args...)
}

// wrap adds the column's name to an error.
func (c *column) wrap(err error) error {
	if !c.batch {
		return err
	}
	return status.Wrap(err, "column '%s'", c.name)
}

// types maps Arrow's types of numbers to element types.
var types = map[arrow.Type]shape.DType{
	arrow.BOOL: shape.Pred, arrow.INT8: shape.S8, arrow.INT16: shape.S16, arrow.INT32: shape.S32, arrow.INT64: shape.S64,
	arrow.UINT8: shape.U8, arrow.UINT16: shape.U16, arrow.UINT32: shape.U32, arrow.UINT64: shape.U64,
	arrow.FLOAT16: shape.F16, arrow.FLOAT32: shape.F32, arrow.FLOAT64: shape.F64,
}

// arrowTypes is the inverse of types.
var arrowTypes = map[shape.DType]arrow.DataType{
	shape.Pred: arrow.FixedWidthTypes.Boolean, shape.S8: arrow.PrimitiveTypes.Int8, shape.S16: arrow.PrimitiveTypes.Int16,
	shape.S32: arrow.PrimitiveTypes.Int32, shape.S64: arrow.PrimitiveTypes.Int64, shape.U8: arrow.PrimitiveTypes.Uint8,
	shape.U16: arrow.PrimitiveTypes.Uint16, shape.U32: arrow.PrimitiveTypes.Uint32, shape.U64: arrow.PrimitiveTypes.Uint64,
	shape.F16: arrow.FixedWidthTypes.Float16, shape.F32: arrow.PrimitiveTypes.Float32,
	shape.F64: arrow.PrimitiveTypes.Float64,
}

// ones counts the set bits among count bits from bit start.
func ones(set []byte, start, count int64) (n int64) {
	end := start + count
	for ; start < end && start%8 != 0; start++ {
		n += int64(set[start/8] >> (start % 8) & 1)
	}
	for ; start+8 <= end; start += 8 {
		n += int64(bits.OnesCount8(set[start/8]))
	}
	for ; start < end; start++ {
		n += int64(set[start/8] >> (start % 8) & 1)
	}
	return n
}

// unpack converts each bit from bit start to a byte.
func unpack(dst, set []byte, start int64) {
	i, n := int64(0), int64(len(dst))
	for ; i < n && (start+i)%8 != 0; i++ {
		dst[i] = set[(start+i)/8] >> ((start + i) % 8) & 1
	}
	for ; i+8 <= n; i += 8 {
		// Byte k keeps bit k, and becomes 1 if that is set.
		each := uint64(set[(start+i)/8]) * 0x0101010101010101 & 0x8040201008040201
		binary.LittleEndian.PutUint64(dst[i:], (each+0x007f7f7f7f7f7f7f)>>7&0x0101010101010101)
	}
	for ; i < n; i++ {
		dst[i] = set[(start+i)/8] >> ((start + i) % 8) & 1
	}
}

// pack converts each byte, which is 0 or 1, to a bit. dst must be zero.
func pack(dst, bytes []byte) {
	for ; len(bytes) >= 8; bytes, dst = bytes[8:], dst[1:] {
		// The product's highest byte gathers bit 0 of byte k as its bit k.
		dst[0] = byte((binary.LittleEndian.Uint64(bytes) & 0x0101010101010101) * 0x0102040810204080 >> 56)
	}
	for i, b := range bytes {
		dst[0] |= b & 1 << i
	}
}

// contents returns a buffer's bytes; nil if it is missing.
func contents(buffers []*memory.Buffer, i int) []byte {
	if i >= len(buffers) || buffers[i] == nil {
		return nil
	}
	return buffers[i].Bytes()
}

func (c *column) sane(a arrow.ArrayData) error {
	if length, offset := int64(a.Len()), int64(a.Offset()); length < 0 || length >= longest || offset < 0 ||
		offset >= longest {
		return c.refuse("says that it has %d elements from %d on, %d buffers and %d children", length, offset,
			len(a.Buffers()), len(a.Children()))
	}
	return nil
}

// noNulls returns an error if there are nulls among count elements from start.
func (c *column) noNulls(a arrow.ArrayData, start, count int64) error {
	valid := contents(a.Buffers(), 0)
	if a.NullN() == 0 || count == 0 || valid == nil {
		return nil
	}
	if need := (start + count + 7) / 8; int64(len(valid)) < need {
		return c.refuse("has %d elements and a bitmap of nulls of %d bytes", count, len(valid))
	}
	if nulls := count - ones(valid, start, count); nulls != 0 {
		return c.refuse("has %d nulls, which arrays cannot hold; fill them (fill_null) or drop them first", nulls)
	}
	return nil
}

// read adds Arrow data to a column: count elements from start, counted from the beginning
// of its buffers. tensor is the description of tensors in the field's metadata, or nil.
func (c *column) read(dt arrow.DataType, a arrow.ArrayData, start, count int64, tensor *string) error {
	if dt.ID() == arrow.DICTIONARY {
		return c.refuse("is dictionary-encoded; decode it first (dictionary_decode)")
	}
	if e, ok := dt.(arrow.ExtensionType); ok {
		if e.ExtensionName() == tensorName {
			told := e.Serialize()
			tensor = &told
		}
		return c.read(e.StorageType(), a, start, count, tensor)
	}
	list, nested := dt.(*arrow.FixedSizeListType)
	dtype := types[dt.ID()]
	if !nested && dtype == shape.Invalid {
		return c.refuse("has the Arrow type '%v', which is no array of numbers; expected numbers, booleans or fixed-size "+
			"lists of them (cast it first)", dt)
	}
	buffers, children := 2, 0
	if nested {
		buffers, children = 1, 1
	}
	if len(a.Buffers()) != buffers || len(a.Children()) != children || nested && a.Children()[0] == nil {
		return c.refuse("of type \"%v\" has %d buffers and %d children: expected %d and %d", dt, len(a.Buffers()),
			len(a.Children()), buffers, children)
	}
	if err := c.noNulls(a, start, count); err != nil {
		return err
	}
	if !nested {
		return c.elements(dtype, contents(a.Buffers(), 1), start, count)
	}
	size, child := int64(list.Len()), a.Children()[0]
	if err := c.sane(child); err != nil {
		return err
	}
	if hi, need := bits.Mul64(uint64(start+count), uint64(size)); size < 0 || hi != 0 || need > uint64(child.Len()) {
		return c.refuse("has more lists of %d elements than their %d are enough for", size, child.Len())
	}
	dims, order := []int64{size}, []int{0}
	if tensor != nil {
		t, err := parseTensor(*tensor)
		if err != nil || t.elements() != size {
			return c.refuse("is a tensor whose metadata does not describe its %d elements: %.200s", size, *tensor)
		}
		dims, order = t.Shape, t.order()
	}
	if len(c.lie)+len(dims) > maxDims {
		return c.refuse("has more than %d dimensions", maxDims)
	}
	for _, d := range order {
		c.order = append(c.order, len(c.lie)+d)
	}
	c.lie = append(c.lie, dims...)
	return c.read(list.Elem(), child, int64(child.Offset())+start*size, count*size, metadataTensor(list.ElemField()))
}

// elements sets the column's numbers.
func (c *column) elements(dtype shape.DType, data []byte, start, count int64) error {
	c.dtype = dtype
	if count == 0 {
		return nil
	}
	if data == nil {
		return c.refuse("has %d elements and no buffer", count)
	}
	if dtype == shape.Pred {
		if int64(len(data)) < (start+count+7)/8 {
			return c.refuse("has %d elements and a buffer of %d bytes", count, len(data))
		}
		c.data, c.bit = data, start
		return nil
	}
	size := int64(dtype.Bits() / 8)
	if start+count > int64(len(data))/size {
		return c.refuse("has %d elements and a buffer of %d bytes", count, len(data))
	}
	c.data = data[start*size : (start+count)*size]
	return nil
}

// readArray describes the array that Arrow data contains.
func readArray(a arrow.ArrayData, field *arrow.Field, c *column) error {
	if err := c.sane(a); err != nil {
		return err
	}
	c.lie, c.order = []int64{int64(a.Len())}, []int{0}
	var tensor *string
	if field != nil {
		tensor = metadataTensor(*field)
	}
	return c.read(a.DataType(), a, int64(a.Offset()), int64(a.Len()), tensor)
}

// metadataTensor returns the description of tensors in a field's metadata, for readers
// that do not know the extension; nil if there is none.
func metadataTensor(f arrow.Field) *string {
	if name, ok := f.Metadata.GetValue("ARROW:extension:name"); !ok || name != tensorName {
		return nil
	}
	told, _ := f.Metadata.GetValue("ARROW:extension:metadata")
	return &told
}

// dims returns the dimensions of the array.
func (c *column) dims() []int64 {
	dims := make([]int64, len(c.order))
	for i, d := range c.order {
		dims[i] = c.lie[d]
	}
	return dims
}

// strides returns the distance in elements between neighbors in each of the array's
// dimensions.
func (c *column) strides() []int64 {
	lie, at := make([]int64, len(c.lie)), int64(1)
	for d := len(c.lie) - 1; d >= 0; d-- {
		lie[d] = at
		at *= max(c.lie[d], 1)
	}
	strides := make([]int64, len(c.order))
	for i, d := range c.order {
		strides[i] = lie[d]
	}
	return strides
}

// together returns the number of contiguous elements of a region: those of its dimensions
// from last on.
func (c *column) together(size, strides []int64) (run int64, last int) {
	run, last = 1, len(size)
	for last > 0 && (strides[last-1] == run || size[last-1] == 1) {
		last--
		run *= size[last]
	}
	return run, last
}

// at returns the bytes of a region of the array in place, or nil if they are not
// contiguous. The region is not empty.
func (c *column) at(start, size []int64) []byte {
	strides := c.strides()
	run, last := c.together(size, strides)
	if last > 0 {
		return nil
	}
	from, element := int64(0), int64(c.dtype.Bits()/8)
	for d := range start {
		from += start[d] * strides[d]
	}
	return c.data[from*element : (from+run)*element]
}

// fill writes the dense bytes of a region of the array to dst.
func (c *column) fill(start, size []int64, dst []byte) {
	if len(dst) == 0 {
		return
	}
	strides := c.strides()
	run, last := c.together(size, strides)
	element := int64(c.dtype.Bits() / 8)
	n := run * element
	runs(start, size, strides, last, func(at int64) {
		if c.dtype == shape.Pred {
			unpack(dst[:n], c.data, c.bit+at)
		} else {
			copy(dst[:n], c.data[at*element:(at+run)*element])
		}
		dst = dst[n:]
	})
}

// runs calls do with the beginning of each run of a region in its array, in row-major
// order: a run is the part of the region in the dimensions from last on. The region is not
// empty.
func runs(start, size, strides []int64, last int, do func(at int64)) {
	at := int64(0)
	for d := range start {
		at += start[d] * strides[d]
	}
	index := make([]int64, last)
	for {
		do(at)
		d := last - 1
		for ; d >= 0; d-- {
			index[d]++
			at += strides[d]
			if index[d] < size[d] {
				break
			}
			at -= index[d] * strides[d]
			index[d] = 0
		}
		if d < 0 {
			return
		}
	}
}
