//go:build !race && !invariants

package cluster_test

import (
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/cluster"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/device/sim"
	"github.com/openpathways/pathways/transport/inproc"
)

// Data parallel training over two islands, on a clock of its own: the model has layers, whose forwards and backwards
// take the time that they say, and whose gradients cross a network of some bandwidth to the other island, where an
// update adds them. What an island does in its inside is part of these times. One island of twice the devices would
// take the same steps without the exchange, so the part of their time that devices compute is the throughput as a part
// of that island's.
var islandsSend = flag.String("islands-send", "0.03,0.3",
	"how long the gradients of a step are under way, as parts of the time that it computes")
var islandsDelay = flag.Duration("islands-delay", hop, "how long a message is under way from one island to the other")

const (
	layers       = 16
	forwardCost  = time.Millisecond
	backwardCost = 2 * forwardCost
	stepCost     = layers * (forwardCost + backwardCost)
	layerNumbers = 256 // of f32: a device's part of a layer's gradients
	vectorSize   = 4   // of f32: all other arrays
)

// exchange is when gradients are sent and used.
type exchange struct {
	name    string
	overlap bool // each layer's as its backward has made them, else all at the end
	late    bool // they are used after the next step's backward
}

var exchanges = []exchange{
	{name: "after"},
	{name: "overlapped", overlap: true},
	{name: "late", overlap: true, late: true},
}

// Gradients that cross while the backward runs cost nearly nothing while they take less time than it does; used a step
// later, nearly nothing while they take less than a step. Sent after it, they cost what they take.
func TestTwoIslandsHideTheirExchangeBehindTheBackward(t *testing.T) {
	least := map[string]map[string]float64{
		"0.03": {"after": 0.96, "overlapped": 0.99, "late": 0.99},
		"0.3":  {"after": 0.75, "overlapped": 0.97, "late": 0.99},
	}
	for _, send := range strings.Split(*islandsSend, ",") {
		for _, e := range exchanges {
			t.Run(fmt.Sprintf("send=%s/%s", send, e.name), func(t *testing.T) {
				var part float64
				statustest.OK(t, statustest.Of(fmt.Sscan(send, &part)))
				c := cluster.InProcess{Islands: []string{"west", "east"}}
				bytes := float64(layers * layerNumbers * 4 * *clockEach)
				bandwidth := bytes / (part * stepCost.Seconds())
				c.Network = &inproc.Conditions{Bandwidth: func(string, string) float64 { return bandwidth },
					Delay: func(from, to string) time.Duration {
						if strings.HasPrefix(from, "worker") && strings.HasPrefix(to, "worker") {
							return *islandsDelay
						}
						return hop
					}}
				onItsClock(t, c, func(t *testing.T, l *cluster.Local) {
					const steps = 32
					m := newIslands(t, l, e)
					m.run(2) // what a program takes is measured once
					use := steps * stepCost.Seconds() / m.run(steps).Seconds()
					t.Attr("use", fmt.Sprintf("%.4f", use))
					if want := least[send][e.name]; use < want {
						t.Errorf("devices compute %.1f %% of the time, want %.0f %%", 100*use, 100*want)
					}
				})
			})
		}
	}
}

// islands is a model on two islands of a worker each.
type islands struct {
	s                         *session
	how                       exchange
	devices                   [2][]int
	forward, backward, update [2]*client.Remote
	whole                     [2]*client.Remote // the last backward, which has the gradients of all layers
	params                    [2][layers]uint64
	x                         [2]uint64
	waiting                   [][2]*gradients // of steps whose updates have yet to be submitted
	tokens                    [][]uint64      // of steps that may be under way
}

// gradients are an island's own, and those that come from the other one, by layer.
type gradients struct{ own, other [layers]uint64 }

func newIslands(t testing.TB, l *cluster.Local, how exchange) *islands {
	m := &islands{s: connect(t, l, "client"), how: how}
	numbers := int64(layerNumbers)
	if !how.overlap {
		numbers *= layers
	}
	vector, gradient := sim.Param{DType: "f32", Dims: []int64{vectorSize}}, sim.Param{DType: "f32", Dims: []int64{numbers}}
	zeros := func(p sim.Param) sim.Result { return sim.Result{Op: "zeros", DType: p.DType, Dims: p.Dims} }
	none, forward, backward := time.Duration(0), forwardCost, backwardCost
	for i := range m.devices {
		for d := range *clockEach {
			m.devices[i] = append(m.devices[i], i**clockEach+d)
		}
		program := func(name string, cost *time.Duration, params []sim.Param, results ...sim.Result) *client.Remote {
			return m.s.program(sim.Program{Name: name, Gang: true, Cost: cost, Params: params, Results: results},
				m.devices[i]...)
		}
		m.forward[i] = program("forward", &forward, []sim.Param{vector, vector}, zeros(vector))
		m.backward[i] = program("backward", &backward, []sim.Param{vector}, zeros(vector))
		m.whole[i] = program("backward", &backward, []sim.Param{vector}, zeros(vector), zeros(gradient))
		m.update[i] = program("update", &none, []sim.Param{vector, gradient, gradient}, zeros(vector))
		m.x[i] = m.s.vector(m.devices[i], ramp)
		for layer := range layers {
			m.params[i][layer] = m.s.vector(m.devices[i], ramp)
		}
	}
	return m
}

// run takes steps, of which two are under way at a time, and returns how long they take.
func (m *islands) run(steps int) time.Duration {
	begun := time.Now()
	for range steps {
		m.tokens = append(m.tokens, nil)
		m.step()
		if len(m.tokens) > 2 {
			m.end()
		}
	}
	for len(m.tokens) > 0 {
		m.end()
	}
	return time.Since(begun)
}

// end waits for the oldest step.
func (m *islands) end() {
	for _, token := range m.tokens[0] {
		statustest.OK(m.s.T, m.s.Wait(token))
	}
	m.tokens = m.tokens[1:]
}

// start submits a computation and returns its first result.
func (m *islands) start(r *client.Remote, inputs ...uint64) uint64 {
	token, output := m.s.Start(r, inputs...)
	m.began(token)
	return output
}

func (m *islands) began(token uint64) {
	last := len(m.tokens) - 1
	m.tokens[last] = append(m.tokens[last], token)
}

// step submits a step. Devices compute in the order of its calls, so updates, which wait for the network, come last.
func (m *islands) step() {
	var x [2]uint64
	for i := range x {
		x[i] = m.x[i]
		for layer := range layers {
			x[i] = m.start(m.forward[i], m.params[i][layer], x[i])
		}
	}
	made := [2]*gradients{{}, {}}
	for layer := layers - 1; layer >= 0; layer-- {
		var own [2]uint64
		for i := range x {
			if !m.how.overlap && layer > 0 {
				x[i] = m.start(m.backward[i], x[i])
				continue
			}
			x[i] = m.start(m.whole[i], x[i])
			own[i] = x[i] + 1
		}
		if own[0] == 0 {
			continue
		}
		for i := range own {
			made[i].own[layer], made[i].other[layer] = own[i], m.send(own[1-i], 1-i)
		}
	}
	m.waiting = append(m.waiting, made)
	if !m.how.late || len(m.waiting) > 1 {
		m.updates()
	}
}

// updates submits the updates of the oldest step that waits for them.
func (m *islands) updates() {
	made := m.waiting[0]
	m.waiting = m.waiting[1:]
	for layer := layers - 1; layer >= 0; layer-- {
		for i, g := range made {
			if g.own[layer] != 0 {
				m.params[i][layer] = m.start(m.update[i], m.params[i][layer], g.own[layer], g.other[layer])
			}
		}
	}
}

// send sends an array of an island to the other, from each device to its partner.
func (m *islands) send(source uint64, from int) uint64 {
	numbers := int64(layerNumbers)
	if !m.how.overlap {
		numbers *= layers
	}
	t := &wire.Transfer{Object: m.s.Objects(1), Array: &wire.Array{Dtype: uint32(shape.F32), Dims: []int64{numbers}}}
	for d := range m.devices[from] {
		t.Moves = append(t.Moves, &wire.Move{Source: source, From: uint32(m.devices[from][d]),
			To: uint32(m.devices[1-from][d])})
	}
	token := m.s.Tokens(1)
	statustest.OK(m.s.T, m.s.Transfer(t, token))
	m.began(token)
	return t.Object
}
