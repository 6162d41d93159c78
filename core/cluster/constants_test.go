package cluster_test

import (
	"context"
	"encoding/binary"
	"math"
	"testing"

	"github.com/openpathways/pathways/core/cluster"
	"github.com/openpathways/pathways/core/cluster/clustertest"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/sim"
	"github.com/openpathways/pathways/transport/content"
)

// lifting is a driver whose partitioner finds that the last argument of each program is a constant: 10, 20, 30, 40.
type lifting struct{ sim.Separate }

func (d lifting) Partition(ctx context.Context, p device.Program, options []byte, devices int) (*device.Part, error) {
	part, err := d.Separate.Partition(ctx, p, options, devices)
	if err == nil {
		part.Constants = []device.Constant{{Shape: shape.Shape{DType: shape.F32, Dims: []int64{4}}, CopyTo: func(to []byte) {
			for i := range 4 {
				binary.LittleEndian.PutUint32(to[4*i:], math.Float32bits(float32(10*i+10)))
			}
		}}}
	}
	return part, err
}

// addTable returns the sum of its argument and the constant, and the constant.
var addTable = sim.Program{Name: "add_table", Params: append(vectorParam, vectorParam...), Results: []sim.Result{
	{Op: "add", Args: []int{0, 1}}, {Op: "copy", Args: []int{1}}}}

// The constants of a program are on each of its workers once, and clients see nothing of them. They are there for other
// sessions, on a worker that comes later, and when the one that compiled the program is gone. When sessions have
// forgotten the program they take no memory but the page cache's.
func TestConstantsOfAProgram(t *testing.T) {
	const each = 2
	var drivers []device.Driver
	for _, d := range separateOn(t, 3, sim.Options{Devices: each}) {
		drivers = append(drivers, lifting{d.(sim.Separate)})
	}
	used := content.Used()
	kept := func() int64 { return content.Used() - used }
	l := start(t, cluster.InProcess{Drivers: drivers[:2]})
	check := func(s *session, devices ...int) (forget func()) {
		t.Helper()
		r := s.program(addTable, devices...)
		if n := len(r.Info.Parameters); n != 1 {
			t.Fatalf("the program takes %d arguments, want 1", n)
		}
		in := s.vector(devices, ramp)
		token, out := s.Start(r, in)
		statustest.OK(t, s.Wait(token))
		for _, d := range devices {
			sum, table := statustest.Value(s.read(out, d)).OK(t), statustest.Value(s.read(out+1, d)).OK(t)
			for i, x := range ramp(d) {
				if c := float32(10*i + 10); sum[i] != x+c || table[i] != c {
					t.Errorf("device %d, element %d: %v and the constant %v, want %v and %v", d, i, sum[i], table[i], x+c, c)
				}
			}
		}
		s.Free([]uint64{in, out, out + 1})
		return func() { s.Forget(r.ID) }
	}
	a, b := connect(t, l, "a"), connect(t, l, "b")
	forgetA, forgetB := check(a, clustertest.UpTo(2*each)...), check(b, clustertest.UpTo(2*each)...)
	statustest.Soon(t, func() int64 { return kept() / 64 }, 2, // when the serialized form has gone to its file
		"workers with the constant, which takes 64 bytes, beside the list of it")
	clustertest.Free(t, drivers[:2]) // these bytes are not the devices'
	forgetA()
	check(b, clustertest.UpTo(2*each)...)()
	forgetB()
	statustest.Soon(t, kept, 0, "bytes of constants when all have forgotten the program")
	forget := check(b, clustertest.UpTo(2*each)...)
	statustest.OK(t, l.Join(t.Context(), "late", drivers[2], ""))
	l.Lose(0)
	c := connect(t, l, "c")
	check(c, clustertest.UpTo(2*each)...)
	forget()
	l.Close()
	statustest.Soon(t, kept, 0, "bytes of constants when the cluster has ended")
}
