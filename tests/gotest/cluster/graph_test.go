package cluster

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/sharded"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/transport/arrowmem"
)

// each is a program that does something to every element of eight on two devices. It
// consumes its argument, where it is let.
func each(op, by string) []byte {
	return fmt.Appendf(nil, `
module @%[1]s attributes {mhlo.num_partitions = 2 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%%x: tensor<8xf32> {mhlo.sharding = "{devices=[2]<=[2]}", tf.aliasing_output = 0 : i32}) -> (tensor<8xf32> {mhlo.sharding = "{devices=[2]<=[2]}"}) {
    %%c = stablehlo.constant dense<%[2]s> : tensor<8xf32>
    %%y = stablehlo.%[1]s %%x, %%c : tensor<8xf32>
    return %%y : tensor<8xf32>
  }
}`, op, by)
}

func compiled(t *testing.T, s *sharded.Session, op, by string, devices ...int) *sharded.Program {
	t.Helper()
	p, err := s.Compile(t.Context(), sharded.CompileSpec{
		Code: each(op, by), Devices: devices, Partitions: 2, Outputs: [][]int64{{2}}})
	statustest.OK(t, err)
	return p
}

// vector puts eight floats.
func vector(t *testing.T, s *sharded.Session, l sharded.Layout) *sharded.Array {
	t.Helper()
	a, err := s.Put(sharded.PutSpec{
		DType: shape.F32, Dims: []int64{8}, Layout: l, Fill: func(start, size []int64, dst []byte) {
			for i := range size[0] {
				binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(float32(start[0]+i)))
			}
		}})
	statustest.OK(t, err)
	return a
}

// floats reads an array whose first dimension is cut, if any.
func floats(t *testing.T, a *sharded.Array) (out []float32) {
	t.Helper()
	for i := 0; i < a.Shards(); i += a.Copies() {
		b := statustest.Value(a.Shard(context.Background(), i)).OK(t)
		for ; len(b.Data) > 0; b.Data = b.Data[4:] {
			out = append(out, math.Float32frombits(binary.LittleEndian.Uint32(b.Data)))
		}
		b.Release()
	}
	return out
}

func counted(f func(x float32) float32) (out []float32) {
	for i := range 8 {
		out = append(out, f(float32(i)))
	}
	return out
}

// Figure 2 of the Pathways paper: programs on three pairs of devices, as a graph that
// is played, makes what the same calls make one by one, as often as it is played.
func TestFigureTwoAsAGraph(t *testing.T) {
	for _, workers := range []int{1, 2, 3} {
		r := open(t, workers, 6/workers)
		s := shardedOf(t, r, "client")
		pairs := [][]int{{0, 1}, {2, 3}, {4, 5}}
		a, b, c := compiled(t, s, "multiply", "2.0", pairs[0]...), compiled(t, s, "add", "1.0", pairs[1]...),
			compiled(t, s, "divide", "4.0", pairs[2]...)
		build := s.Build()
		v := build.Input(shape.F32, []int64{8}, sharded.Rows(pairs[0]...))
		x := build.RunDonating(a, nil, v)[0] // the input stays all the same
		y := build.RunDonating(b, nil, build.Copy(x, pairs[1]...))[0]
		z := build.Run(a, build.Copy(build.Run(c, build.Copy(x, pairs[2]...))[0], pairs[0]...))[0]
		whole := build.Reshard(z, sharded.Layout{Devices: []int{5}})
		g := statustest.Value(build.End(y, z, whole)).OK(t)
		if text := g.String(); !strings.Contains(text, "multiply") || !strings.Contains(text, "divide") {
			t.Errorf("the graph is %s", text)
		}
		in := vector(t, s, sharded.Rows(pairs[0]...))
		for range 3 {
			out := statustest.Value(g.Play(in)).OK(t)
			wants := [][]float32{counted(func(x float32) float32 { return 2*x + 1 }),
				counted(func(x float32) float32 { return x }), counted(func(x float32) float32 { return x })}
			for i, want := range wants {
				statustest.EqualSlices(t, floats(t, out[i]), want, "%d workers: output %d", workers, i)
				out[i].Free()
			}
		}
		for name, c := range map[string]struct {
			inputs []*sharded.Array
			want   string
		}{
			"few":       {nil, "takes 1 array, got 0"},
			"elsewhere": {[]*sharded.Array{vector(t, s, sharded.Rows(2, 3))}, "input 0: the array is on the devices [2 3]"},
		} {
			statustest.Fails(t, name, statustest.Of(g.Play(c.inputs...)), status.InvalidArgument, c.want)
		}
		g.Forget()
		g.Forget()
		statustest.Fails(t, "a graph that was forgotten", statustest.Of(g.Play(in)), status.InvalidArgument,
			"forgotten")
		in.Free()
		s.Close()
		r.free()
	}
}

// A graph that makes no sense is an error of End that names the node.
func TestErrorOfBadGraphNamesTheNode(t *testing.T) {
	s := shardedOf(t, open(t, 1, 4), "client")
	p := compiled(t, s, "add", "1.0", 0, 1)
	blind, err := s.Compile(t.Context(), sharded.CompileSpec{
		Code: each("add", "1.0"), Devices: []int{0, 1}, Partitions: 2})
	statustest.OK(t, err)
	rows := sharded.Rows(0, 1)
	other := s.Build().Input(shape.F32, []int64{8}, rows)
	for name, c := range map[string]struct {
		build func(b *sharded.Builder, v *sharded.Value) *sharded.Value
		want  string
	}{
		"an input as an output": {func(b *sharded.Builder, v *sharded.Value) *sharded.Value { return v },
			"output 0: it is an input"},
		"another's value": {func(b *sharded.Builder, v *sharded.Value) *sharded.Value { return b.Run(p, other)[0] },
			"node 0: argument 0 of add: the value belongs to another graph"},
		"other devices": {func(b *sharded.Builder, v *sharded.Value) *sharded.Value {
			return b.Run(p, b.Copy(v, 2, 3))[0]
		}, "node 1: argument 0 of add: the array is on the devices [2 3]"},
		"other shards": {func(b *sharded.Builder, v *sharded.Value) *sharded.Value {
			return b.Run(p, b.Reshard(v, sharded.Layout{Devices: []int{0, 1}}))[0]
		}, "has shards of f32[8]; expected f32[4]"},
		"few arguments": {func(b *sharded.Builder, v *sharded.Value) *sharded.Value { return b.Run(p)[0] },
			"takes 1 argument, got 0"},
		"few devices": {func(b *sharded.Builder, v *sharded.Value) *sharded.Value { return b.Copy(v, 2) },
			"node 0, a transfer: an array of 2 shards"},
		"a bad layout": {func(b *sharded.Builder, v *sharded.Value) *sharded.Value {
			return b.Reshard(v, sharded.Rows(0, 1, 2))
		}, "node 0, a transfer: an array of dimensions [8] cannot be cut"},
		"an unknown layout": {func(b *sharded.Builder, v *sharded.Value) *sharded.Value {
			return b.Reshard(b.Run(blind, v)[0], rows)
		}, "the layout of the array is not known"},
		"a bad input": {func(b *sharded.Builder, v *sharded.Value) *sharded.Value {
			return b.Run(p, b.Input(shape.F32, []int64{7}, rows))[0]
		}, "input 1: an array of dimensions [7]"},
		"what was donated": {func(b *sharded.Builder, v *sharded.Value) *sharded.Value {
			x := b.Run(p, v)[0]
			b.RunDonating(p, nil, x)
			return b.Run(p, x)[0]
		}, "which node 1, add, has consumed by donation"},
		"an argument to keep": {func(b *sharded.Builder, v *sharded.Value) *sharded.Value {
			return b.RunDonating(p, []int{1}, v)[0]
		}, "keep names argument 1 of add"},
	} {
		b := s.Build()
		if _, err := b.End(c.build(b, b.Input(shape.F32, []int64{8}, rows))); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, expected %q", name, err, c.want)
		}
	}
}

// A program has the memory of what it is given, unless that is to be kept; what was
// given is dead at once.
func TestProgramReusesDonatedMemory(t *testing.T) {
	for _, workers := range []int{1, 2} {
		r := open(t, workers, 2/workers)
		s := shardedOf(t, r, "client")
		p := compiled(t, s, "add", "1.0", 0, 1)
		x := vector(t, s, sharded.Rows(0, 1))
		want := 0
		for i := range 20 {
			var keep []int
			if i%3 == 0 {
				keep = []int{0}
			}
			y := statustest.Value(p.RunDonating(keep, x)).OK(t)
			want++
			if keep == nil {
				statustest.Fails(t, "an array that was donated", statustest.Of(p.Run(x)), status.FailedPrecondition,
					"argument 0 of add: the array was donated")
				statustest.Fails(t, "a shard of what was donated", statustest.Of(x.Shard(t.Context(), 0)),
					status.FailedPrecondition)
				statustest.Fails(t, "what was donated, elsewhere", statustest.Of(x.Reshard(sharded.Rows(1, 0))),
					status.FailedPrecondition)
			} else if got := floats(t, x); !slices.Equal(got, counted(func(x float32) float32 { return x + float32(want-1) })) {
				t.Errorf("what was kept is %v", got)
			}
			x.Free()
			x = y[0]
		}
		statustest.EqualSlices(t, floats(t, x), counted(func(x float32) float32 { return x + 20 }), "%d workers", workers)
		statustest.Fails(t, "an argument that there is not", statustest.Of(p.RunDonating([]int{7}, x)),
			status.InvalidArgument)
		statustest.Fails(t, "another layout", statustest.Of(p.RunDonating(nil,
			vector(t, s, sharded.Layout{Devices: []int{0, 1}}))), status.InvalidArgument)
		x.Free()
		s.Close()
		r.free()
	}
}

// An array in another layout has the same elements, whatever the layouts.
func TestReshardKeepsElementsInAnyLayout(t *testing.T) {
	sessions := []*sharded.Session{shardedOf(t, open(t, 1, 4), "one"), shardedOf(t, open(t, 2, 2), "two")}
	layout := func(rt *rapid.T, name string) sharded.Layout {
		tiles := rapid.SampledFrom([][]int64{nil, {1}, {2}, {4}, {1, 2}, {1, 4}, {2, 2}}).Draw(rt, name+" tiles")
		parts := int64(1)
		for _, n := range tiles {
			parts *= n
		}
		n := rapid.SampledFrom([]int{1, 2, 3, 4}).Filter(func(n int) bool { return int64(n)%parts == 0 }).Draw(rt, name+
			" devices")
		return sharded.Layout{Devices: rapid.Permutation([]int{0, 1, 2, 3}).Draw(rt, name+" order")[:n], Tiles: tiles}
	}
	rapid.Check(t, func(rt *rapid.T) {
		s := rapid.SampledFrom(sessions).Draw(rt, "session")
		a := matrix(t, s, 0, layout(rt, "from"))
		l := layout(rt, "to")
		b := statustest.Value(a.Reshard(l)).OK(rt)
		a.Free()
		rows := b.ShardDims()
		for i := range b.Shards() {
			block := statustest.Value(b.Shard(context.Background(), i)).OK(rt)
			start := b.ShardStart(i)
			for k := range rows[0] * rows[1] {
				want := float32((start[0]+k/rows[1])*4 + start[1] + k%rows[1])
				if got := math.Float32frombits(binary.LittleEndian.Uint32(block.Data[4*k:])); got != want {
					rt.Fatalf("shard %d of %+v: element %d is %v, expected %v", i, l, k, got, want)
				}
			}
			block.Release()
		}
		b.Free()
	})
}

// Memory that was lent stays as it is where its array is donated, and comes back.
func TestLentAndDonated(t *testing.T) {
	s := shardedOf(t, open(t, 1, 1), "client")
	p, err := s.Compile(t.Context(), sharded.CompileSpec{Code: []byte(`
module @twice {
  func.func public @main(%x: tensor<4096xui8> {tf.aliasing_output = 0 : i32}) -> tensor<4096xui8> {
    %y = stablehlo.add %x, %x : tensor<4096xui8>
    return %y : tensor<4096xui8>
  }
}`)})
	statustest.OK(t, err)
	mem := arrowmem.New(s.Pool(), "arrow", true)
	data := mem.Allocate(4096)
	for i := range data {
		data[i] = byte(i)
	}
	returned := make(chan struct{})
	a, err := s.Lend(sharded.LendSpec{DType: shape.U8, Dims: []int64{4096}, At: func(_, _ []int64) []byte { return data },
		Returned: func() { close(returned) }})
	statustest.OK(t, err)
	out := statustest.Value(p.RunDonating(nil, a)).OK(t)
	b := statustest.Value(out[0].Shard(t.Context(), 0)).OK(t)
	<-returned
	for i, v := range data {
		if v != byte(i) || b.Data[i] != byte(2*i) {
			t.Fatalf("element %d is %d, and twice that %d", i, v, b.Data[i])
		}
	}
	b.Release()
	out[0].Free()
	mem.Free(data)
	statustest.Check(t, mem.Close())
}
