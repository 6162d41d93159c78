// Command arrow is a client in Go whose data is Arrow's: it brings a record to four
// devices of a cluster, runs a program on them, and reads the results as Arrow
// arrays.
//
//	pathways up --workers 2 --devices 2 -- go run ./tests/clients/arrow
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"

	"github.com/openpathways/pathways/core/arrowio"
	"github.com/openpathways/pathways/core/sharded"
	"github.com/openpathways/pathways/transport/arrowmem"
)

const rows = 1000

// program takes two columns, a quarter of whose rows each device has. It returns their
// product, which lies the same way, and its sum over all devices.
const program = `
module @revenue attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%price: tensor<1000xf32> {mhlo.sharding = "{devices=[4]<=[4]}"},
                         %count: tensor<1000xf32> {mhlo.sharding = "{devices=[4]<=[4]}"})
      -> (tensor<1000xf32> {mhlo.sharding = "{devices=[4]<=[4]}"}, tensor<1xf32> {mhlo.sharding = "{replicated}"}) {
    %each = stablehlo.multiply %price, %count : tensor<1000xf32>
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %sum = stablehlo.reduce(%each init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<1000xf32>, tensor<f32>) -> tensor<f32>
    %total = stablehlo.reshape %sum : (tensor<f32>) -> tensor<1xf32>
    return %each, %total : tensor<1000xf32>, tensor<1xf32>
  }
}`

func main() {
	if err := run(context.Background(), os.Getenv("PATHWAYS_ADDRESS")); err != nil {
		fmt.Fprintln(os.Stderr, "arrow:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, address string) (err error) {
	session, err := sharded.Dial(ctx, address)
	if err != nil {
		return err
	}

	// Arrow allocates from the session's memory, which is counted: what is not
	// released after the session has released it is an error.
	mem := arrowmem.New(session.Pool(), "arrow", true)
	defer func() {
		session.Close()
		if leak := mem.Close(); err == nil {
			err = leak
		}
	}()
	defer arrowmem.Catch(&err) // where there is no memory

	builder := array.NewRecordBuilder(mem, arrow.NewSchema([]arrow.Field{
		{Name: "price", Type: arrow.PrimitiveTypes.Float32},
		{Name: "count", Type: arrow.PrimitiveTypes.Float32},
	}, nil))
	defer builder.Release()
	for i := range rows {
		builder.Field(0).(*array.Float32Builder).Append(float32(i) / 4)
		builder.Field(1).(*array.Float32Builder).Append(float32(i % 3))
	}
	record := builder.NewRecord()
	defer record.Release()

	// Nothing here waits: columns are on their way when the program is submitted.
	devices := []int{0, 1, 2, 3}
	columns, err := arrowio.PutRecord(session, record, sharded.Rows(devices...))
	if err != nil {
		return err
	}
	compiled, err := session.Compile(ctx, sharded.CompileSpec{
		Code: []byte(program), Devices: devices, Partitions: 4, Outputs: [][]int64{{4}, {1}},
	})
	if err != nil {
		return err
	}
	results, err := compiled.Run(columns[0].Array, columns[1].Array)
	if err != nil {
		return err
	}

	each, err := arrowio.Chunks(ctx, results[0], mem) // a chunk a device, where its bytes have come
	if err != nil {
		return err
	}
	defer each.Release()
	total, err := arrowio.Read(ctx, results[1], mem)
	if err != nil {
		return err
	}
	defer total.Release()

	sum := 0.0
	for _, chunk := range each.Chunks() {
		for _, v := range chunk.(*array.Float32).Float32Values() {
			sum += float64(v)
		}
	}
	fmt.Printf("%d rows on %d devices: total %.0f, and %.0f by hand\n", each.Len(), results[0].Shards(),
		total.(*array.Float32).Value(0), sum)
	return nil
}
