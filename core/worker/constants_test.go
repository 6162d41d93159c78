package worker

import (
	"encoding/binary"
	"testing"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/sim"
	"github.com/openpathways/pathways/transport/content"
)

// constantOf is a constant of so many u32, each of which is the first plus its index.
func constantOf(first, n uint32) device.Constant {
	return device.Constant{Shape: shape.Shape{DType: shape.U32, Dims: []int64{int64(n)}}, CopyTo: func(to []byte) {
		for i := range n {
			binary.LittleEndian.PutUint32(to[4*i:], first+i)
		}
	}}
}

// An executable with constants appends them to the arguments of a run on any device, and does not count them among its
// parameters. It holds their bytes, which the devices do not count, until it is closed and its runs have ended.
func TestExecutableWithConstants(t *testing.T) {
	d := statustest.Value(sim.Open(sim.Options{Devices: 2})).OK(t)
	w := &Worker{driver: d, queues: make([]*queue, 2)}
	used := content.Used()
	u32 := func(n int64) sim.Param { return sim.Param{DType: "u32", Dims: []int64{n}} }
	p := sim.Program{Name: "p", Params: []sim.Param{u32(5), u32(5), u32(3)},
		Results: []sim.Result{{Op: "add", Args: []int{0, 1}}, {Op: "copy", Args: []int{2}}}}
	x := statustest.Value(d.Compile(t.Context(), p.Source(), nil)).OK(t)
	parts := statustest.Value(constantsOf([]device.Constant{constantOf(7, 5), constantOf(100, 3)})).OK(t)
	with := statustest.Value(w.withConstants(x, parts)).OK(t)
	release(parts...)
	shapes, _, _ := with.Parameters()
	statustest.Equal(t, len(shapes), 1, "parameters")
	for local := range 2 {
		statustest.Equal(t, statustest.Value(d.MemoryStats(local)).OK(t).InUse, 0, "bytes on device %d", local)
	}
	host := device.Host{Shape: shapes[0], Device: 1, Data: make([]byte, 20)}
	in := statustest.Value(d.FromHost(host)).OK(t)
	r := statustest.Value(with.Execute(device.Run{Inputs: [][]device.Buffer{{in}}, Only: 1})).OK(t)
	with.Close()
	with.Close() // does nothing
	for i, first := range []uint32{7, 100} {
		b := r.Outputs[0][i]
		got, want := make([]byte, b.Shape().HostBytes()), make([]byte, b.Shape().HostBytes())
		constantOf(first, uint32(len(want)/4)).CopyTo(want)
		statustest.OK(t, statustest.Value(b.ToHost(got)).OK(t).Wait(t.Context()))
		statustest.EqualSlices(t, got, want, "result %d", i)
		b.Close()
	}
	in.Close()
	statustest.OK(t, d.Close())
	statustest.Soon(t, content.Used, used, "bytes of constants")
}

// An artifact whose parts do not fit together is refused, and nothing is left of it.
func TestDamagedConstantsAreRefused(t *testing.T) {
	d := statustest.Value(sim.Open(sim.Options{Devices: 1})).OK(t)
	w := &Worker{driver: d, queues: make([]*queue, 1)}
	used := content.Used()
	p := sim.Program{Name: "p", Params: []sim.Param{{DType: "u32", Dims: []int64{20}}}}
	table := func(arrays ...*wire.Array) []byte { return wire.Encode(nil, &wire.Constants{Arrays: arrays}) }
	u32 := func(n int64) *wire.Array { return &wire.Array{Dtype: uint32(shape.U32), Dims: []int64{n}} }
	for name, c := range map[string]struct {
		table []byte
		size  int
		want  status.Code
	}{
		"no list":          {[]byte{255}, 128, status.DataLoss},
		"too few bytes":    {table(u32(20)), 64, status.DataLoss},
		"none for another": {table(u32(20), u32(1)), 128, status.DataLoss},
		"a negative size":  {table(u32(-5)), 128, status.DataLoss},
		"no size":          {table(&wire.Array{Dtype: 4, Dims: []int64{1 << 40, 1 << 40}}), 128, status.DataLoss},
		"a type unknown":   {table(u32(20), &wire.Array{Dtype: 1 << 20, Dims: []int64{1}}), 128, status.InvalidArgument},
	} {
		x := statustest.Value(d.Compile(t.Context(), p.Source(), nil)).OK(t)
		data := statustest.Value(content.Reserve(c.size)).OK(t)
		_, err := w.withConstants(x, []*content.Memory{content.Bytes(c.table), data})
		data.Release()
		statustest.Fails(t, name, err, c.want)
		statustest.Soon(t, content.Used, used, "%s: bytes of constants", name)
	}
	statustest.OK(t, d.Close())
}
