package cluster

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/cluster"
	"github.com/openpathways/pathways/core/cluster/clustertest"
	graphs "github.com/openpathways/pathways/core/graph"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/sim"
)

// One program has nodes on the CPU and on simulated devices of two kinds, in formats of their own, and arrays go from
// one to the next.
func TestOneProgramRunsOnThreePlatforms(t *testing.T) {
	platforms := []string{"cpu", "sim_fast", "sim_large"}
	r := &rig{t: t, drivers: []device.Driver{driver(t, 1)}}
	for _, p := range platforms[1:] {
		d := statustest.Value(sim.Open(sim.Options{Platform: p})).OK(t)
		t.Cleanup(func() {
			statustest.Check(t, d.Close())
		})
		r.drivers = append(r.drivers, d)
	}
	var err error
	if r.Local, err = (cluster.InProcess{Drivers: r.drivers, Islands: platforms}).Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	s := &session{clustertest.Begin(t, func(n client.Notify) (client.Cluster, error) {
		return r.ConnectAsking(t.Context(), &wire.Hello{Name: "client", Platforms: platforms}, n)
	})}

	numbers := shape.Shape{DType: shape.F32, Dims: []int64{4}}
	triple := s.compile(program{name: "triple", replicas: 1, text: `
module @triple {
  func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    %y = stablehlo.add %x, %x : tensor<4xf32>
    %z = stablehlo.add %y, %x : tensor<4xf32>
    return %z : tensor<4xf32>
  }
}`})
	simulated := func(op string, value float64, device int) *client.Remote {
		source := sim.Program{Name: op, Params: []sim.Param{{DType: "f32", Dims: numbers.Dims}},
			Results: []sim.Result{{Op: op, Args: []int{0}, Value: value}}}.Source()
		p := statustest.Value(s.Compile(t.Context(), client.CompileSpec{Format: source.Format, Code: source.Code,
			Options: sim.CompileOptions([]int{device})})).OK(t)
		return p
	}
	d := &drawing{Graph: graphs.Graph{Inputs: 1, Programs: map[uint64]*graphs.Program{}}, last: 1}
	move := func(object uint64, from, to uint32) uint64 {
		d.Nodes = append(d.Nodes, graphs.Node{Transfer: &graphs.Transfer{Shape: numbers,
			Moves: []graphs.Move{{Source: object, From: from, To: to}}}})
		d.last++
		return d.last
	}
	y := move(d.run(triple, 1), 0, 1)
	y = move(d.run(simulated("add", 1, 1), y), 1, 2)
	y = move(d.run(simulated("mul", 10, 2), y), 2, 0)
	d.Outputs = []uint64{d.run(triple, y)}
	id := statustest.Value(s.Define(&d.Graph)).OK(t)
	x := s.Array(numbers, []int{0}, func(int) []byte { return packed(0, 1, 2, 3) })
	p := &client.PlaySpec{Graph: id, Inputs: []uint64{x}, First: s.Objects(d.Made()), Token: s.Tokens(len(d.Nodes))}
	statustest.OK(t, s.Play(p))
	for i := range d.Nodes {
		statustest.OKf(t, s.Wait(p.Token+uint64(i)), "node %d, %s", i, d.Name(i))
	}
	output := p.First + d.last - 2
	got, err := s.Read(output, 0, numbers.Bytes())
	if want := packed(30, 120, 210, 300); err != nil || string(got) != string(want) {
		t.Errorf("the program made %x, %v; want %x", got, err, want)
	}
	s.Free([]uint64{x, output})
	r.free()
}

// drawing is a graph of runs that is being made.
type drawing struct {
	graphs.Graph
	last uint64
}

func (d *drawing) run(r *client.Remote, input uint64) uint64 {
	d.Programs[r.ID] = r.Program()
	d.Nodes = append(d.Nodes, graphs.Node{Run: &graphs.Run{Program: r.ID, Inputs: []uint64{input}, Only: -1}})
	d.last += uint64(len(r.Info.Outputs))
	return d.last
}

func packed(all ...float32) (b []byte) {
	for _, x := range all {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	}
	return b
}
