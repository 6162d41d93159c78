package cluster

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/apache/arrow/go/v15/arrow/array"

	"github.com/openpathways/pathways/core/arrowio"
	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/cluster"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/sharded"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/pjrt"
	"github.com/openpathways/pathways/transport/arrowmem"
	"github.com/openpathways/pathways/transport/shm"
)

const scaled = `
module @scaled attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%x: tensor<8x4xf32> {mhlo.sharding = "{devices=[2,2]<=[4]}"}, %y: tensor<8x4xf32> {mhlo.sharding = "{devices=[4,1]<=[4]}"})
      -> (tensor<8x4xf32> {mhlo.sharding = "{devices=[2,2]<=[4]}"}, tensor<4xf32> {mhlo.sharding = "{replicated}"}) {
    %p = stablehlo.multiply %x, %y : tensor<8x4xf32>
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %s = stablehlo.reduce(%p init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
    return %p, %s : tensor<8x4xf32>, tensor<4xf32>
  }
}`

const broadcast = `
module @broadcast attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%x: tensor<4xf32> {mhlo.sharding = "{manual}"}) -> (tensor<4xf32> {mhlo.sharding = "{manual}"}) {
    %y = "stablehlo.collective_broadcast"(%x) {replica_groups = dense<[[2, 0, 1, 3]]> : tensor<1x4xi64>,
        channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>} : (tensor<4xf32>) -> tensor<4xf32>
    return %y : tensor<4xf32>
  }
}`

func shardedOf(t *testing.T, r *rig, name string) *sharded.Session {
	t.Helper()
	pool := shm.NewPool(shm.Config{Idle: time.Hour})
	s, err := sharded.Open(pool, func(n client.Notify) (client.Cluster, error) { return r.Connect(t.Context(), name, n) })
	statustest.OK(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

// matrix puts an 8 by 4 array whose elements count from first.
func matrix(t *testing.T, s *sharded.Session, first float32, l sharded.Layout) *sharded.Array {
	t.Helper()
	a, err := s.Put(sharded.PutSpec{
		DType: shape.F32, Dims: []int64{8, 4}, Layout: l, Fill: func(start, size []int64, dst []byte) {
			for i := range size[0] {
				for j := range size[1] {
					v := first + float32((start[0]+i)*4+start[1]+j)
					binary.LittleEndian.PutUint32(dst[4*(i*size[1]+j):], math.Float32bits(v))
				}
			}
		}})
	statustest.OK(t, err)
	return a
}

// Programs on sharded arrays make what a loop makes, cut in two dimensions, with
// copies, in a chain that is not waited for; what they are given that they do not
// take is an error.
func TestShardedProgramsMakeWhatALoopMakes(t *testing.T) {
	for _, workers := range []int{1, 2, 4} {
		r := open(t, workers, 4/workers)
		s := shardedOf(t, r, "client")
		all := []int{0, 1, 2, 3}
		p, err := s.Compile(t.Context(), sharded.CompileSpec{
			Code: []byte(scaled), Devices: all, Partitions: 4, Outputs: [][]int64{{2, 2}, {1}}})
		statustest.OK(t, err)
		boxes := sharded.Layout{Devices: all, Tiles: []int64{2, 2}}
		x, y := matrix(t, s, 1, boxes), matrix(t, s, 0, sharded.Rows(all...))
		mem := arrowmem.New(s.Pool(), "arrow", false)
		var sums *sharded.Array
		for range 3 {
			results := statustest.Value(p.Run(x, y)).OK(t)
			x.Free()
			if sums != nil {
				sums.Free()
			}
			x, sums = results[0], results[1]
		}
		whole := statustest.Value(arrowio.Read(t.Context(), x, mem)).OK(t)
		total := statustest.Value(arrowio.Read(t.Context(), sums, mem)).OK(t)
		got := whole.(array.ExtensionArray).Storage().(*array.FixedSizeList).ListValues().(*array.Float32).Float32Values()
		var columns [4]float32
		for i := range 32 {
			want := float32(i + 1)
			for range 3 {
				want *= float32(i)
			}
			columns[i%4] += want
			if len(got) != 32 || got[i] != want {
				t.Fatalf("%d workers: element %d of %v, expected %v", workers, i, got, want)
			}
		}
		for i, want := range columns {
			if v := total.(*array.Float32).Value(i); math.Abs(float64(v-want)) > 1e-5*float64(want) {
				t.Errorf("%d workers: column %d sums to %v, expected %v", workers, i, v, want)
			}
		}
		whole.Release()
		total.Release()
		statustest.Check(t, mem.Close())

		freed, other := matrix(t, s, 0, boxes), matrix(t, shardedOf(t, r, "another"), 0, boxes)
		freed.Free()
		for name, c := range map[string]struct {
			arguments []*sharded.Array
			code      status.Code
			want      string
		}{
			"few": {[]*sharded.Array{x}, status.InvalidArgument, "takes 2 arguments, got 1"},
			"freed": {[]*sharded.Array{freed, y}, status.FailedPrecondition,
				"argument 0 of scaled: the array was freed"},
			"another's": {[]*sharded.Array{other, y}, status.InvalidArgument, "another session"},
			"cut another way": {[]*sharded.Array{x, x}, status.InvalidArgument,
				"argument 1 of scaled: the array has shards of f32[4,2]; expected f32[2,4]"},
			"elsewhere": {[]*sharded.Array{
				matrix(t, s, 0, sharded.Layout{Devices: []int{1, 0, 2, 3}, Tiles: []int64{2, 2}}), y}, status.InvalidArgument,
				"argument 0 of scaled: the array is on the devices [1 0 2 3]; expected [0 1 2 3]"},
		} {
			statustest.Fails(t, name, statustest.Of(p.Run(c.arguments...)), c.code, c.want)
		}
		for name, c := range map[string]sharded.CompileSpec{
			"text":       {Code: []byte("nothing")},
			"outputs":    {Code: []byte(scaled), Devices: all, Partitions: 4, Outputs: [][]int64{{2, 2}}},
			"tiles":      {Code: []byte(scaled), Devices: all, Partitions: 4, Outputs: [][]int64{{2, 2}, {8}}},
			"partitions": {Code: []byte(scaled), Devices: all[:3], Partitions: 2},
			"devices":    {Code: []byte(scaled), Devices: []int{0, 0}},
		} {
			statustest.Fails(t, name, statustest.Of(s.Compile(t.Context(), c)), status.InvalidArgument)
		}
		_, err = s.Compile(t.Context(), sharded.CompileSpec{Code: []byte(broadcast), Devices: all, Partitions: 4})
		statustest.Fails(t, "what needs Python", err, status.Unimplemented, "a Python process", "or collective_permute")
		blind, err := s.Compile(t.Context(), sharded.CompileSpec{Code: []byte(scaled), Devices: all, Partitions: 4})
		statustest.OK(t, err)
		results := statustest.Value(blind.Run(matrix(t, s, 0, boxes), y)).OK(t)
		statustest.Fails(t, fmt.Sprintf("%d workers: an array of unknown layout", workers),
			statustest.Of(arrowio.Read(t.Context(), results[0], mem)), status.FailedPrecondition, "CompileSpec.Outputs")
		b, err := results[1].Shard(t.Context(), 3)
		if err != nil || len(b.Data) != 16 {
			t.Fatalf("a shard of it: %d bytes, %v", len(b.Data), err)
		}
		b.Release()
		blind.Forget()
		s.Close()
		if err := results[0].Wait(context.Background()); err != nil && status.CodeOf(err) != status.Unavailable {
			t.Error(err)
		}
	}
}

// watched is a driver that records the memory it is given, and what its
// buffers are then.
type watched struct {
	*pjrt.Client
	mu    sync.Mutex
	given map[*byte]bool
	lies  map[*byte]bool
}

func (d *watched) FromHost(h device.Host) (device.Buffer, error) {
	b, err := d.Client.FromHost(h)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.given[unsafe.SliceData(h.Data)] = true
	if v, ok := b.(device.Viewer); ok && err == nil && b.Ready().Wait(context.Background()) == nil {
		d.lies[unsafe.SliceData(v.View())] = true
	}
	return b, err
}

func watchedSession(t *testing.T) (*watched, *sharded.Session) {
	d := &watched{Client: driver(t, 2), given: map[*byte]bool{}, lies: map[*byte]bool{}}
	l := statustest.Value(cluster.InProcess{Drivers: []device.Driver{d}}.Start(t.Context())).OK(t)
	t.Cleanup(l.Close)
	return d, shardedOf(t, &rig{t: t, Local: l}, "client")
}

// What is written to bring an array is the memory that the device then has.
func TestPutIsOneCopy(t *testing.T) {
	d, s := watchedSession(t)
	var mu sync.Mutex
	var written []*byte
	a, err := s.Put(sharded.PutSpec{DType: shape.U8, Dims: []int64{1 << 21}, Layout: sharded.Rows(0, 1),
		Fill: func(_, _ []int64, dst []byte) {
			mu.Lock()
			defer mu.Unlock()
			clear(dst)
			written = append(written, unsafe.SliceData(dst))
		}})
	if err == nil {
		err = a.Wait(t.Context())
	}
	statustest.OK(t, err)
	for _, at := range written {
		if !d.given[at] || !d.lies[at] {
			t.Errorf("memory at %p was written, the driver was given %v and has %v", at, d.given, d.lies)
		}
	}
	statustest.Equal(t, len(written), 2, "shards were written")
	a.Free()
}

// What is lent is the memory that the device has.
func TestLentIsNoCopy(t *testing.T) {
	d, s := watchedSession(t)
	mem := arrowmem.New(s.Pool(), "arrow", true)
	bytes := mem.Allocate(1 << 21)
	returned := make(chan struct{})
	a, err := s.Lend(sharded.LendSpec{DType: shape.U8, Dims: []int64{1 << 21}, Layout: sharded.Rows(0, 1),
		At:       func(start, size []int64) []byte { return bytes[start[0]:][:size[0]] },
		Returned: func() { close(returned) }})
	if err == nil {
		err = a.Wait(t.Context())
	}
	statustest.OK(t, err)
	for i := range 2 {
		at := &bytes[i<<20]
		b, err := a.Lent(t.Context(), i)
		if err != nil || !d.lies[at] || unsafe.SliceData(b.Data) != at {
			t.Errorf("memory at %p was lent, the device has %v and the reader %p, %v", at, d.lies, unsafe.SliceData(b.Data), err)
		}
		b.Release()
	}
	a.Free()
	<-returned
	mem.Free(bytes)
	statustest.Check(t, mem.Close())
}
