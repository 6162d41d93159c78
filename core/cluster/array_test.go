package cluster_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/device/sim"
)

// array is an object as it must be.
type array struct {
	object  uint64
	devices []int
	values  map[int]shard
	risk    bool // it may have failed
}

// shard is what a shard has: each element as often as its trial says.
type shard = [4]float32

// shape is that of each shard.
func (x *trial) shape() shape.Shape { return shape.Shape{DType: shape.F32, Dims: []int64{4, x.wide}} }

// encode writes a shard's bytes. Many elements are written at once, which the race detector sees as one access.
func (x *trial) encode(dst []byte, v shard) {
	row := 4 * int(x.wide)
	for i, e := range v {
		one := binary.LittleEndian.AppendUint32(nil, math.Float32bits(e))
		copy(dst[i*row:][:row], bytes.Repeat(one, int(x.wide)))
	}
}

// decode reads a shard's bytes, in which each row must have one element all along.
func (x *trial) decode(b []byte) (v shard, err error) {
	row := 4 * int(x.wide)
	for i := range v {
		all := bytes.Clone(b[i*row:][:row]) // an access that the race detector sees; that of bytes.Equal is none
		v[i] = math.Float32frombits(binary.LittleEndian.Uint32(all))
		if !bytes.Equal(all[4:], all[:row-4]) {
			err = fmt.Errorf("row %d has more than one element", i)
		}
	}
	return v, err
}

// program is a computation of shards of this trial.
func (x *trial) program(n int) sim.Program {
	p := computations[n].program
	p.Params = slices.Clone(p.Params)
	for i := range p.Params {
		p.Params[i].Dims = x.shape().Dims
	}
	return p
}

// The programs of the simulation.
var computations = []struct {
	program sim.Program
	args    int
	value   func(x []float32, sum float32) float32 // of an element
}{
	{sim.Program{Name: "increment", Params: vectorParam, Results: []sim.Result{{Op: "add", Args: []int{0}, Value: 1}}}, 1,
		func(x []float32, _ float32) float32 { return x[0] + 1 }},
	{sim.Program{Name: "together", Gang: true, Params: vectorParam, Results: []sim.Result{
		{Op: "add", Args: []int{0}, Value: 2}}}, 1,
		func(x []float32, _ float32) float32 { return x[0] + 2 }},
	{sim.Program{Name: "total", Params: vectorParam, Results: []sim.Result{{Op: "all-reduce", Args: []int{0}}}}, 1,
		func(_ []float32, sum float32) float32 { return sum }},
	{sim.Program{Name: "plus", Params: []sim.Param{vectorParam[0], vectorParam[0]}, Results: []sim.Result{
		{Op: "add", Args: []int{0, 1}}}}, 2,
		func(x []float32, _ float32) float32 { return x[0] + x[1] }},
	{sim.Program{Name: "replace", Params: []sim.Param{{DType: "f32", Dims: []int64{4}, Donated: true}},
		Results: []sim.Result{{Op: "add", Args: []int{0}, Value: 3}}}, 1,
		func(x []float32, _ float32) float32 { return x[0] + 3 }},
}

const (
	total   = 2
	replace = 4 // consumes its argument
)

// compute fills in what a computation returns.
func (z *array) compute(n int, in []*array) {
	var sum shard
	for _, d := range z.devices {
		for i, v := range in[0].values[d] {
			sum[i] += v
		}
	}
	for _, d := range z.devices {
		var v shard
		for i := range v {
			var x []float32
			for _, o := range in {
				x = append(x, o.values[d][i])
			}
			v[i] = computations[n].value(x, sum[i])
		}
		z.values[d] = v
	}
}
