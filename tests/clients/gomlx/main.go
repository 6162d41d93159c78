// Command gomlx trains a small network with go-xla, the XLA bindings of GoMLX, on
// the devices of Pathways: it finds libpathways.so by the name of its plugin, as
// any program that go-xla drives would, and knows nothing else of it.
//
// The network is tanh(x·w1 + b1)·w2 + b2. Each device has its part of the examples
// and a copy of the parameters; gradients are summed over all devices. Every step's
// loss and the parameters at the end are compared with the same steps in plain Go.
package main

import (
	"flag"
	"fmt"
	"log"
	"math"
	"math/rand/v2"
	"strings"

	"github.com/gomlx/go-xla/pkg/pjrt"
)

const (
	examples = 64
	inputs   = 2
	hidden   = 16
	steps    = 150
	rate     = 0.2
)

func main() {
	log.SetFlags(0)
	own := flag.Int64("devices", 0, "of this process; 0: as many as there are, or the cluster's of PATHWAYS_ADDRESS")
	flag.Parse()
	options := pjrt.NamedValuesMap{}
	if *own > 0 {
		options["devices"] = *own
	}
	plugin := must(pjrt.GetPlugin("pathways"))
	client := must(plugin.NewClient(options))
	devices := min(client.NumDevices(), examples)
	for examples%devices != 0 {
		devices-- // as many as share the examples evenly
	}
	if devices < 2 {
		log.Fatalf("there are %d devices: expected several", client.NumDevices())
	}

	x, y := data()
	p := start()
	t := newTrainer(client, devices, p, x, y)
	first, last := 0.0, 0.0
	for step := range steps {
		got, want := t.step(), p.step(x, y)
		if math.Abs(got-want) > 1e-4*want {
			log.Fatalf("step %d: the loss is %v, and %v in plain Go", step, got, want)
		}
		if step == 0 {
			first = got
		}
		last = got
	}
	if last > first/4 {
		log.Fatalf("the loss fell from %v to %v only", first, last)
	}
	for device := range devices {
		for i, got := range t.parameters(device) {
			for k := range got {
				if want := p.all()[i][k]; math.Abs(float64(got[k])-want) > 1e-3 {
					log.Fatalf("device %d, parameter %d: element %d is %v, and %v in plain Go", device, i, k, got[k], want)
				}
			}
		}
	}
	t.refused()
	if got, want := t.step(), p.step(x, y); math.Abs(got-want) > 1e-4*want {
		log.Fatalf("after a call that was refused the loss is %v, and %v in plain Go", got, want)
	}
	t.close()
	check(client.Destroy())
	fmt.Printf("ok: %d devices, loss %.4f to %.4f\n", devices, first, last)
}

// data makes examples of a function that is not linear.
func data() (x [][inputs]float64, y []float64) {
	random := rand.New(rand.NewPCG(1, 2))
	for range examples {
		at := [inputs]float64{2*random.Float64() - 1, 2*random.Float64() - 1}
		x = append(x, at)
		y = append(y, math.Sin(3*at[0])*at[1])
	}
	return x, y
}

func flat(x [][inputs]float64) (all []float64) {
	for _, row := range x {
		all = append(all, row[:]...)
	}
	return all
}

func single(x []float64) []float32 {
	out := make([]float32, len(x))
	for i, v := range x {
		out[i] = float32(v)
	}
	return out
}

func check(err error) {
	if err != nil {
		log.Fatalf("%v", err)
	}
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

// refused expects that an error of the library arrives with its words.
func (t *trainer) refused() {
	wrong := must(pjrt.ArrayToBuffer(t.client, []float32{1, 2, 3}, 3))
	defer wrong.Destroy()
	in := append([]*pjrt.Buffer(nil), t.arguments()...)
	in[0] = wrong
	if _, err := t.program.Execute(in...).Done(); err == nil || !strings.Contains(err.Error(), "argument 0") {
		log.Fatalf("an argument of another shape gave %v", err)
	}
}
