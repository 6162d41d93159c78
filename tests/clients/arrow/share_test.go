package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"unsafe"

	"github.com/apache/arrow/go/v15/arrow/array"

	"github.com/openpathways/pathways/core/arrowio"
	"github.com/openpathways/pathways/core/sharded"
	"github.com/openpathways/pathways/transport/arrowmem"
)

// sharing is a client whose workers, in other processes, read its memory where it is:
// what it changes there after the array has come, the devices see.
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
	in.Float32Values()[n-1] = 1000 // nobody does that outside of tests
	compiled, err := session.Compile(ctx, sharded.CompileSpec{
		Code: []byte(strings.ReplaceAll(program, "<1000x", fmt.Sprintf("<%dx", n))), Devices: devices, Partitions: 4, Outputs: [][]int64{{4}, {1}},
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
	fmt.Printf("the device saw %.0f, the same memory is %v, the result: %v\n", last.(*array.Float32).Value(n/4-1), same, refused)
	in.Release()
	x.Free()
	shared.Release()
	session.Close()
	return mem.Close()
}
