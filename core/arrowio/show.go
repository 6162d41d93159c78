package arrowio

import (
	"context"
	"sync"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/sharded"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/arrowmem"
)

// TypeOf returns the Arrow type of arrays of these elements and dimensions.
//
// Errors: INVALID_ARGUMENT for a scalar, for element types that Arrow does not have, and
// for tensors that its lists cannot contain: of no elements, or of more than 2³¹ - 1.
func TypeOf(dtype shape.DType, dims []int64) (arrow.DataType, error) {
	element := arrowTypes[dtype]
	switch {
	case element == nil:
		return nil, status.New(status.InvalidArgument,
			"Arrow has no type for elements of type %v; read the bytes of each shard", dtype)
	case len(dims) == 0:
		return nil, status.New(status.InvalidArgument, "Arrow has no scalars: expected at least one dimension")
	case len(dims) == 1:
		return element, nil
	}
	if n := (tensor{Shape: dims[1:]}).elements(); n < 1 || n > 1<<31-1 {
		return nil, status.New(status.InvalidArgument,
			"Arrow's lists cannot contain tensors of %v; expected 1 to %d elements", dims[1:], 1<<31-1)
	}
	return NewTensorType(element, dims[1:]), nil
}

// show makes Arrow data from dense bytes in a buffer, which it retains. It packs booleans
// into memory of mem.
func show(t arrow.DataType, dtype shape.DType, dims []int64, b *memory.Buffer, mem memory.Allocator) (_ arrow.Array,
	err error) {
	defer arrowmem.Catch(&err)
	count := int(shape.Shape{DType: dtype, Dims: dims}.Elements())
	if dtype == shape.Pred {
		bits := memory.NewResizableBuffer(mem)
		defer bits.Release()
		bits.Resize((count + 7) / 8)
		clear(bits.Bytes())
		pack(bits.Bytes(), b.Bytes())
		b = bits
	}
	data := array.NewData(arrowTypes[dtype], count, []*memory.Buffer{nil, b}, nil, 0, 0)
	if len(dims) > 1 {
		elements := data
		data = array.NewData(t, int(dims[0]), []*memory.Buffer{nil}, []arrow.ArrayData{elements}, 0, 0)
		elements.Release()
	}
	defer data.Release()
	return array.MakeFromData(data), nil
}

// Shard returns one shard: numbers or booleans if the array has one dimension, else
// tensors. The data is in the block that arrived, except for booleans, which are packed
// into memory of mem.
//
// Errors: those of TypeOf and sharded.Array.Shard; RESOURCE_EXHAUSTED of an
// arrowmem.Allocator.
func Shard(ctx context.Context, a *sharded.Array, i int, mem memory.Allocator) (arrow.Array, error) {
	return shard(ctx, a, i, a.Shard, mem)
}

// ShardShared is like Shard, but never copies: it is for arrays whose memory this process
// shares with devices, such as those of PutShared. It waits until the array is ready.
//
// Errors: those of Shard; FAILED_PRECONDITION, with the reason, for other arrays.
func ShardShared(ctx context.Context, a *sharded.Array, i int) (arrow.Array, error) {
	return shard(ctx, a, i, a.Lent, nil)
}

// shard returns a shard as Arrow data in the block that get returns.
func shard(ctx context.Context, a *sharded.Array, i int, get func(context.Context, int) (transport.Block, error),
	mem memory.Allocator) (arrow.Array, error) {
	dims := a.ShardDims()
	t, err := TypeOf(a.DType(), dims)
	if err != nil {
		return nil, err
	}
	block, err := get(ctx, i)
	if err != nil {
		return nil, err
	}
	b := arrowmem.Received(block)
	defer b.Release()
	return show(t, a.DType(), dims, b, mem)
}

// Chunks returns an array of which only the first dimension is cut, with one chunk per
// part, each like that of Shard.
//
// Errors: those of Shard; FAILED_PRECONDITION if another dimension is cut, or the array's
// layout is not known.
func Chunks(ctx context.Context, a *sharded.Array, mem memory.Allocator) (*arrow.Chunked, error) {
	t, err := TypeOf(a.DType(), a.ShardDims())
	if err != nil {
		return nil, err
	}
	tiles := a.Layout().Tiles
	if !a.Tiled() {
		return nil, errUnknown
	}
	for d, n := range tiles {
		if d > 0 && n > 1 {
			return nil, status.New(status.FailedPrecondition,
				"the array's tiles are %v, and chunks are rows; use Read, which assembles the parts", tiles)
		}
	}
	var chunks []arrow.Array
	defer func() {
		for _, c := range chunks {
			c.Release()
		}
	}()
	for i := 0; i < a.Shards(); i += a.Copies() {
		c, err := Shard(ctx, a, i, mem)
		if err != nil {
			return nil, err
		}
		chunks = append(chunks, c)
	}
	return arrow.NewChunked(t, chunks), nil
}

var errUnknown = status.New(status.FailedPrecondition,
	"the layout of the array is not known; set CompileSpec.Outputs when compiling the program that makes it, or read it "+
		"shard by shard")

// Read returns a whole array. If it has several parts, Read assembles them in memory of
// mem.
//
// Errors: those of Shard; FAILED_PRECONDITION if the array's layout is not known.
func Read(ctx context.Context, a *sharded.Array, mem memory.Allocator) (_ arrow.Array, err error) {
	if !a.Tiled() {
		return nil, errUnknown
	}
	if a.Copies() == a.Shards() {
		return Shard(ctx, a, 0, mem)
	}
	dims := a.Dims()
	t, err := TypeOf(a.DType(), dims)
	if err != nil {
		return nil, err
	}
	defer arrowmem.Catch(&err)
	whole := memory.NewResizableBuffer(mem)
	defer whole.Release()
	whole.Resize(int(shape.Shape{DType: a.DType(), Dims: dims}.HostBytes()))
	var parts sync.WaitGroup
	failed := make([]error, a.Shards())
	for i := 0; i < a.Shards(); i += a.Copies() {
		parts.Go(func() {
			b, err := a.Shard(ctx, i)
			if err != nil {
				failed[i] = err
				return
			}
			defer b.Release()
			place(whole.Bytes(), dims, a.ShardStart(i), a.ShardDims(), int64(a.DType().Bits()/8), b.Data)
		})
	}
	parts.Wait()
	for _, err := range failed {
		if err != nil {
			return nil, err
		}
	}
	return show(t, a.DType(), dims, whole, mem)
}

// place writes the dense bytes of a region to their positions in a whole array.
func place(whole []byte, dims, start, size []int64, element int64, from []byte) {
	if len(from) == 0 {
		return
	}
	strides, at := make([]int64, len(dims)), element
	for d := len(dims) - 1; d >= 0; d-- {
		strides[d] = at
		at *= dims[d]
	}
	// A run is contiguous: the last dimensions that are not cut, and the one before them.
	last := len(dims) - 1
	for last > 0 && size[last] == dims[last] {
		last--
	}
	run := strides[last] * size[last]
	runs(start, size, strides, last, func(to int64) {
		copy(whole[to:to+run], from[:run])
		from = from[run:]
	})
}
