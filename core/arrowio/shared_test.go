package arrowio

import (
	"bytes"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"unsafe"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/cluster/clustertest"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/sharded"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
)

// Numbers of every type are shared: what comes back has the address of what was put,
// whole and cut, from an offset on, with copies on several devices.
func TestNumbersOfEveryTypeAreShared(t *testing.T) {
	r := open(t, 2)
	for _, dtype := range types {
		if dtype == shape.Pred {
			continue
		}
		size := dtype.Bits() / 8
		for _, count := range []int{0, 1, 4 * 64, 1 << 14} {
			for _, offset := range []int{0, 64} {
				in := r.made(arrowTypes[dtype], offset, count, 0)
				for _, l := range []sharded.Layout{
					{}, {Devices: []int{2, 1}}, sharded.Rows(0, 1, 2, 3), {Devices: []int{3, 2, 1, 0}, Tiles: []int64{2}}} {
					if len(l.Tiles) > 0 && int64(count)%l.Tiles[0] != 0 {
						continue
					}
					a, err := PutShared(r.Session, in, l)
					statustest.OKf(t, err, "%v, %d from %d on, %+v", dtype, count, offset, l)
					for i := range a.Shards() {
						out := statustest.Value(ShardShared(t.Context(), a, i)).OK(t)
						rows := int(a.ShardDims()[0])
						first := i / a.Copies() * rows
						if got, want := bytesOf(out), bytesOf(in); count > 0 &&
							(unsafe.SliceData(got) != &want[first*size] || len(got) != rows*size) {
							t.Errorf("%v, %d from %d on, %+v: shard %d lies elsewhere", dtype, count, offset, l, i)
						}
						out.Release()
					}
					out, err := Read(t.Context(), a, r.mem)
					if err != nil || !bytes.Equal(bytesOf(out), bytesOf(in)) {
						t.Fatalf("%v, %d from %d on, %+v: %v, or other values", dtype, count, offset, l, err)
					}
					out.Release()
					a.Free()
				}
				in.Release()
			}
		}
	}
}

// Memory that is shared goes back once, when the caller, the devices, and all that was
// made of it have let go, in whatever order, and before or after the session's end.
func TestSharedMemoryGoesBackOnce(t *testing.T) {
	r := open(t, 1)
	orders := [][]string{{}}
	for _, name := range []string{"in", "out", "part", "free", "close"} {
		var longer [][]string
		for _, o := range orders {
			for i := range len(o) + 1 {
				longer = append(longer, slices.Insert(slices.Clone(o), i, name))
			}
		}
		orders = longer
	}
	for _, order := range orders {
		s, err := sharded.Open(r.Pool(), func(n client.Notify) (client.Cluster, error) {
			return r.local.Connect(t.Context(), "short", n)
		})
		statustest.OK(t, err)
		in := r.made(arrow.PrimitiveTypes.Int32, 0, 1<<14, 0)
		want := slices.Clone(bytesOf(in))
		a, err := Put(s, in, sharded.Rows(0, 1)) // shares what is long
		statustest.OK(t, err)
		out := statustest.Value(ShardShared(t.Context(), a, 1)).OK(t)
		part := array.NewSlice(out, 8, 24)
		holders, closed := map[string]arrow.Array{"in": in, "out": out, "part": part}, false
		for _, name := range order {
			switch name {
			case "free":
				a.Free()
			case "close":
				closed = true
				statustest.Check(t, s.Close())
			default:
				holders[name].Release()
				delete(holders, name)
			}
			n, _ := r.mem.Used()
			switch {
			case len(holders) > 0 && n != 1:
				t.Fatalf("%v: behind %q %d buffers are in use, and somebody has the memory", order, name, n)
			case len(holders) == 0 && closed && n != 0:
				t.Fatalf("%v: behind %q %d buffers are in use, and nothing holds the memory", order, name, n)
			}
			half := want[len(want)/2:]
			if holders["out"] != nil && !bytes.Equal(bytesOf(out), half) || holders["part"] != nil &&
				!bytes.Equal(bytesOf(part), half[32:96]) {
				t.Fatalf("%v: behind %q there are other bytes", order, name)
			}
		}
	}
}

// What cannot be shared is an error of PutShared that says why, and Put copies it.
func TestPutSharedSaysWhatCannotBeShared(t *testing.T) {
	r := open(t, 2)
	r.run()
	heap := array.NewFloat32Builder(memory.NewGoAllocator())
	heap.AppendValues(make([]float32, 1<<14), nil)
	onHeap := heap.NewArray()
	heap.Release()
	elements := r.made(arrow.PrimitiveTypes.Float32, 0, 1<<14, 0)
	at := NewTensorType(arrow.PrimitiveTypes.Float32, []int64{64, 64})
	tensors := lists(elements, at, 4, 0)
	turned := NewTensorType(arrow.PrimitiveTypes.Float32, []int64{64, 64})
	turned.told.Permutation = []int{1, 0}
	permuted := lists(elements, turned, 4, 0)
	skewed, bools := r.made(arrow.PrimitiveTypes.Float32, 0, 1<<14, 4), r.made(arrow.FixedWidthTypes.Boolean, 0, 1<<18, 0)
	rows := r.made(arrow.PrimitiveTypes.Float32, 0, 20<<10, 0)
	odd := r.made(arrow.PrimitiveTypes.Float32, 0, 4*5001, 0)
	for _, c := range []struct {
		in     arrow.Array
		layout sharded.Layout
		want   string
	}{
		{onHeap, sharded.Layout{}, "shared memory of the session's Pool"},
		{skewed, sharded.Layout{}, "begin 4 after a multiple of 64"},
		{rows, sharded.Layout{Devices: []int{0, 1, 2, 3}, Tiles: []int64{4}}, ""},
		{odd, sharded.Rows(0, 1, 2, 3), "shard 1, from [5001] on, cannot be shared with device 1: the bytes begin 36 after"},
		{bools, sharded.Layout{}, "booleans, which are bits"},
		{permuted, sharded.Layout{}, "are not contiguous"},
		{tensors, sharded.Layout{Devices: []int{0, 1}, Tiles: []int64{1, 2}}, "are not contiguous"},
		{tensors, sharded.Rows(0, 1), ""},
	} {
		a, err := PutShared(r.Session, c.in, c.layout)
		if c.want == "" {
			if err != nil {
				t.Errorf("%v: %v", c.in.DataType(), err)
			} else {
				a.Free()
			}
			continue
		}
		statustest.Fails(t, fmt.Sprint(c.in.DataType()), err, status.FailedPrecondition, c.want)
		if a, err = Put(r.Session, c.in, c.layout); err != nil {
			t.Fatal(err)
		}
		statustest.Fails(t, fmt.Sprintf("%v: what was copied is shared", c.in.DataType()),
			statustest.Of(ShardShared(t.Context(), a, 0)), status.FailedPrecondition, "in memory of the workers")
		a.Free()
	}
	for _, in := range []arrow.Array{onHeap, elements, tensors, permuted, skewed, bools, rows, odd} {
		in.Release()
	}
}

// Rounds do not grow: memory of arrays that were shared or copied comes back, and
// nothing is kept of them.
func TestSharingLeavesNothing(t *testing.T) {
	r := open(t, 1)
	r.run()
	short, long := r.made(arrow.PrimitiveTypes.Int32, 0, 64, 0), r.made(arrow.PrimitiveTypes.Int32, 0, 8<<10, 0)
	defer short.Release()
	defer long.Release()
	rounds := func(n int) (heap uint64, bytes int64) {
		for i := range n {
			in := short
			if i%4 == 0 {
				in = long // shared
			}
			a := statustest.Value(Put(r.Session, in, sharded.Layout{})).OK(t)
			out := statustest.Value(Shard(t.Context(), a, 0, r.mem)).OK(t)
			if out.Len() != in.Len() {
				t.Fatal(out.Len())
			}
			out.Release()
			a.Free()
		}
		clustertest.Free(t, r.drivers)
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc, r.Pool().Stats().Mapped
	}
	// A leak makes the heap grow in every stretch. Queues and maps keep the size of their longest backlog, which a busy
	// machine makes longer in one stretch or another.
	const stretch, stretches = 1_000, 5
	heap, mapped := rounds(stretch)
	var pool int64
	grown := make([]int64, stretches)
	for i := range grown {
		var after uint64
		after, pool = rounds(stretch)
		grown[i], heap = int64(after)-int64(heap), after
	}
	slices.Sort(grown)
	if grown[stretches/2] > 50*stretch {
		t.Errorf("the heap has grown by %d bytes in stretches of %d rounds", grown, stretch)
	}
	statustest.Equal(t, pool, mapped, "bytes of the pool after %d rounds", stretches*stretch)
	if n, _ := r.mem.Used(); n != 2 {
		t.Errorf("%d buffers are in use, expected those of the two arrays", n)
	}
}
