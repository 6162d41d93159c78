package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"unsafe"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/openpathways/pathways/core/arrowio"
	"github.com/openpathways/pathways/core/sharded"
	"github.com/openpathways/pathways/transport/arrowmem"
)

// sharing is a client whose workers, in other processes, read its memory in place: a change that it makes there after
// the array has arrived is visible to the devices.
func sharing(ctx context.Context) error {
	session, err := sharded.Dial(ctx, os.Getenv("PATHWAYS_ADDRESS"))
	if err != nil {
		return err
	}
	defer session.Close()
	mem := arrowmem.New(session.Pool(), "arrow", true)
	const n = 1 << 20
	builder := array.NewFloat32Builder(mem)
	builder.Reserve(n)
	for range n {
		builder.UnsafeAppend(1)
	}
	in := builder.NewArray().(*array.Float32)
	builder.Release()
	devices := []int{0, 1, 2, 3}
	x, err := arrowio.PutShared(session, in, sharded.Rows(devices...))
	if err != nil {
		return err
	}
	if err := x.Wait(ctx); err != nil {
		return err
	}
	in.Float32Values()[n-1] = 1000 // only a test does that
	compiled, err := session.Compile(ctx, sharded.CompileSpec{
		Code: []byte(strings.ReplaceAll(program, "<1000x", fmt.Sprintf("<%dx", n))), Devices: devices, Partitions: 4,
		Outputs: [][]int64{{4}, {1}},
	})
	if err != nil {
		return err
	}
	results, err := compiled.Run(x, x)
	if err != nil {
		return err
	}
	last, err := arrowio.Shard(ctx, results[0], 3, mem)
	if err != nil {
		return err
	}
	defer last.Release()
	shared, err := arrowio.ShardShared(ctx, x, 3)
	if err != nil {
		return err
	}
	_, refused := arrowio.ShardShared(ctx, results[0], 3)
	same := unsafe.SliceData(shared.(*array.Float32).Float32Values()) == &in.Float32Values()[n/4*3]
	fmt.Printf("the device saw %.0f, the same memory is %v, the result: %v\n", last.(*array.Float32).Value(n/4-1), same,
		refused)
	in.Release()
	x.Free()
	shared.Release()
	session.Close()
	return mem.Close()
}

// large is a client whose array has more elements than an int32 can count. A worker reads it in place, copies it to
// another device, and sends it back.
func large(ctx context.Context) (err error) {
	session, err := sharded.Dial(ctx, os.Getenv("PATHWAYS_ADDRESS"))
	if err != nil {
		return err
	}
	defer session.Close()
	defer arrowmem.Catch(&err)
	mem := arrowmem.New(session.Pool(), "arrow", true)
	const n = 1<<31 + 1<<16
	marks := map[int]byte{0: 1, 1<<31 - 1: 2, 1 << 31: 3, n - 1: 4}
	buffer := memory.NewResizableBuffer(mem)
	buffer.Resize(n)
	for at, v := range marks {
		buffer.Bytes()[at] = v
	}
	data := array.NewData(arrow.PrimitiveTypes.Uint8, n, []*memory.Buffer{nil, buffer}, nil, 0, 0)
	in := array.NewUint8Data(data)
	data.Release()
	buffer.Release()
	x, err := arrowio.PutShared(session, in, sharded.Layout{})
	if err != nil {
		return err
	}
	y, err := x.Copy(1)
	if err != nil {
		return err
	}
	if err := y.Wait(ctx); err != nil {
		return err
	}
	x.Free()
	in.Release()
	out, err := arrowio.Read(ctx, y, mem)
	if err != nil {
		return err
	}
	for at, v := range marks {
		if got := out.(*array.Uint8).Value(at); got != v {
			return fmt.Errorf("element %d is %d, expected %d", at, got, v)
		}
	}
	fmt.Println(out.Len(), "elements")
	y.Free()
	out.Release()
	session.Close()
	return mem.Close()
}
