package main

import (
	"github.com/gomlx/go-xla/pkg/pjrt"
	"github.com/gomlx/go-xla/pkg/stablehlo"
	"github.com/gomlx/go-xla/pkg/types/dtypes"
	"github.com/gomlx/go-xla/pkg/types/shapes"
)

// program writes one step of training as a device does it with n examples, of
// which there are others on other devices. It takes w1, b1, w2, b2, x and y, and returns the four
// parameters after the step and the loss before it.
func program(n, devices int) []byte {
	shape := func(dims ...int) shapes.Shape { return shapes.Make(dtypes.F32, dims...) }
	b := stablehlo.New("step").WithNumReplicas(devices)
	f := b.Main()
	in := func(name string, dims ...int) *stablehlo.Value { return must(f.NamedInput(name, shape(dims...))) }
	w1, b1, w2, b2 := in("w1", inputs, hidden), in("b1", hidden), in("w2", hidden, 1), in("b2", 1)
	x, y := in("x", n, inputs), in("y", n, 1)

	number := func(v float64, like *stablehlo.Value) *stablehlo.Value {
		return must(stablehlo.BroadcastInDim(must(f.ConstantFromScalar(float32(v))), like.Shape(), nil))
	}
	rows := func(v *stablehlo.Value, like *stablehlo.Value) *stablehlo.Value {
		return must(stablehlo.BroadcastInDim(v, like.Shape(), []int{1}))
	}
	mul := func(a, b *stablehlo.Value) *stablehlo.Value { return must(stablehlo.Multiply(a, b)) }
	sub := func(a, b *stablehlo.Value) *stablehlo.Value { return must(stablehlo.Subtract(a, b)) }
	// dot contracts an axis of one with an axis of the other.
	dot := func(a *stablehlo.Value, i int, b *stablehlo.Value, j int) *stablehlo.Value {
		return must(stablehlo.DotGeneral(a, []int{i}, nil, b, []int{j}, nil).Done())
	}
	plus := f.Closure()
	check(plus.Return(must(stablehlo.Add(must(plus.NamedInput("a", shape())), must(plus.NamedInput("b", shape()))))))
	sum := func(v *stablehlo.Value, axes ...int) *stablehlo.Value {
		return must(stablehlo.Reduce(v, must(f.ConstantFromScalar(float32(0))), plus, axes...))
	}

	sums := dot(x, 1, w1, 0)
	h := must(stablehlo.Tanh(must(stablehlo.Add(sums, rows(b1, sums)))))
	out := dot(h, 1, w2, 0)
	miss := sub(must(stablehlo.Add(out, rows(b2, out))), y)
	all := float64(n * devices)
	loss := sum(mul(mul(miss, miss), number(1/all, miss)), 0, 1)
	d := mul(miss, number(2/all, miss))
	up := mul(dot(d, 1, w2, 1), sub(number(1, h), mul(h, h)))
	gradients := []*stablehlo.Value{dot(x, 0, up, 0), sum(up, 0), dot(h, 0, d, 0), sum(d, 0), loss}

	group := make([]int, devices)
	for i := range group {
		group[i] = i
	}
	totals := must(stablehlo.AllReduce(gradients, [][]int{group}, plus))
	results := make([]*stablehlo.Value, 0, len(totals))
	for i, p := range []*stablehlo.Value{w1, b1, w2, b2} {
		results = append(results, sub(p, mul(totals[i], number(rate, p))))
	}
	check(f.Return(append(results, totals[4])...))
	return must(b.Build())
}

// trainer has the parameters and the examples on the devices of a client.
type trainer struct {
	client  *pjrt.Client
	program *pjrt.LoadedExecutable
	devices int
	state   [][]*pjrt.Buffer // of each device, the parameters
	data    [][]*pjrt.Buffer // of each device, its part of x and y
}

func newTrainer(client *pjrt.Client, devices int, p *parameters, x [][inputs]float64, y []float64) *trainer {
	n := examples / devices
	t := &trainer{client: client, devices: devices}
	t.program = must(client.Compile().WithStableHLO(program(n, devices)).WithSPMD(devices).Done())
	_, _, places, err := t.program.GetDeviceAssignment()
	check(err)
	for d, place := range places {
		put := func(values []float64, dims ...int) *pjrt.Buffer {
			return must(client.BufferFromHost().FromFlatDataWithDimensions(single(values), dims).ToDeviceNum(place).Done())
		}
		t.state = append(t.state,
			[]*pjrt.Buffer{put(p.w1, inputs, hidden), put(p.b1, hidden), put(p.w2, hidden, 1), put(p.b2, 1)})
		t.data = append(t.data, []*pjrt.Buffer{put(flat(x[d*n:(d+1)*n]), n, inputs), put(y[d*n:(d+1)*n], n, 1)})
	}
	return t
}

// arguments are those of a step, device by device.
func (t *trainer) arguments() (all []*pjrt.Buffer) {
	for d := range t.devices {
		all = append(append(all, t.state[d]...), t.data[d]...)
	}
	return all
}

// step runs a step on all devices and returns the loss before it.
func (t *trainer) step() float64 {
	out := must(t.program.Execute(t.arguments()...).Done())
	each := len(out) / t.devices
	loss := must(pjrt.BufferToScalar[float32](out[each-1]))
	for d := range t.devices {
		destroy(t.state[d])
		t.state[d] = out[d*each : (d+1)*each-1]
		check(out[(d+1)*each-1].Destroy())
	}
	return float64(loss)
}

func (t *trainer) parameters(device int) (all [][]float32) {
	for _, b := range t.state[device] {
		values, _, err := pjrt.BufferToArray[float32](b)
		check(err)
		all = append(all, values)
	}
	return all
}

func (t *trainer) close() {
	for d := range t.devices {
		destroy(t.state[d])
		destroy(t.data[d])
	}
	check(t.program.Destroy())
}

func destroy(buffers []*pjrt.Buffer) {
	for _, b := range buffers {
		check(b.Destroy())
	}
}
