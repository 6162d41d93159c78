//go:build !race && !invariants

package cluster_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/cluster"
	"github.com/openpathways/pathways/core/graph"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/device/sim"
)

// Pipelines on a clock of their own: a worker of one device for each place of stages, a program for each step, and
// forwards, input halves and weight halves of backwards that are equally long, but in some schedules longer on one
// place than on the others. A message takes hop, an array gets to the next place in a hundredth of an op, and what
// processes compute takes no time. What is left of the time is the schedule's, and what the order adds in which the
// controller and the workers do its ops.
var (
	pipelineSchedules = flag.String("pipeline-schedules", "testdata/schedules.json",
		"a file of schedules, as PYTHONPATH=tests python tests/bench/stages.py FILE writes it")
	pipelineOp = flag.Duration("pipeline-op", 20*time.Millisecond, "how long a forward, or half a backward, takes")
)

const (
	pipelineSteps = 8   // in a row
	copiesOfOp    = 200 // as many copies as an op is long: a move is two, to the host of a device and to the next device
)

// scheduled is a schedule of one step, as python/pathways/_schedule.py makes it.
type scheduled struct {
	Name         string
	Places       []int // of each stage
	Microbatches int
	Lengths      []float64 // of ops, by place
	Bubble       float64   // of steps in a row, if moves take no time
	// Ops are in the order of submission: stage, microbatch and kind, which is forward, backward, input or weight.
	Ops []string
}

func (sc *scheduled) width() int { return slices.Max(sc.Places) + 1 }

// The idle part of a step, as the devices' own spans show it, is that of the schedule, to a point: so zero-bubble
// schedules that leave no gap between steps are idle for less than one percent.
func TestPipelinesAreIdleAsTheirSchedulesSay(t *testing.T) {
	text := statustest.Value(os.ReadFile(*pipelineSchedules)).OK(t)
	var schedules []*scheduled
	statustest.OKf(t, json.Unmarshal(text, &schedules), "%s", *pipelineSchedules)
	for _, sc := range schedules {
		ways := []string{"program"}
		if sc.Name == "gpipe" { // which loops do that have no schedule
			ways = append(ways, "calls")
		}
		for _, way := range ways {
			name := fmt.Sprintf("%s/places=%d/microbatches=%d/slowest=%g/%s", sc.Name, sc.width(), sc.Microbatches,
				slices.Max(sc.Lengths), way)
			t.Run(name, func(t *testing.T) {
				o := sim.Options{Latency: *pipelineOp / copiesOfOp}
				onTheClockOf(t, cluster.InProcess{}, sc.width(), o, func(t *testing.T, l *cluster.Local) {
					p := newStages(t, l, sc)
					p.record(way, 2) // what a program takes is measured once
					one := p.record(way, 1)
					several := p.record(way, pipelineSteps)
					// What begins and ends a row of steps is in its first one and its last.
					steady := p.bubble((several - one) / (pipelineSteps - 1))
					t.Attr("steady", fmt.Sprintf("%.4f", steady))
					if steady > sc.Bubble+0.01 {
						t.Errorf("%.3f of a step is idle in a row of steps, want at most %.3f and 0.01", steady, sc.Bubble)
					}
				})
			})
		}
	}
}

// stages are the programs and arrays of a model on a cluster.
type stages struct {
	s        *session
	sc       *scheduled
	programs []map[string]*client.Remote // of each stage, by kind; "update" is the optimizer's
	params   []uint64                    // of each stage, as the last step makes them
	fixed    []uint64                    // a microbatch, the gradient of the loss, and each stage's first sum of gradients
	step     *graph.Graph
	id       uint64
}

// submitter takes the computations and moves of a step: a drawing, which makes one program of them, or a live session.
type submitter interface {
	run(r *client.Remote, inputs ...uint64) uint64
	move(source uint64, from, to []int) uint64
}

func newStages(t *testing.T, l *cluster.Local, sc *scheduled) *stages {
	p := &stages{s: connect(t, l, "client"), sc: sc}
	vector := sim.Param{DType: "f32", Dims: []int64{vectorSize}}
	zero := sim.Result{Op: "zeros", DType: vector.DType, Dims: vector.Dims}
	last := len(sc.Places) - 1
	p.fixed = []uint64{p.s.vector(sc.Places[:1], ramp), p.s.vector(sc.Places[last:], ramp)}
	for stage, place := range sc.Places {
		program := func(kind string, params, results int) *client.Remote {
			cost := sc.cost(stage, kind)
			return p.s.program(sim.Program{Name: fmt.Sprintf("stage%d_%s", stage, kind), Cost: &cost,
				Params: slices.Repeat([]sim.Param{vector}, params), Results: slices.Repeat([]sim.Result{zero}, results)}, place)
		}
		p.programs = append(p.programs, map[string]*client.Remote{
			"forward":  program("forward", 2, 2),  // params, x → y, kept
			"input":    program("input", 3, 2),    // params, kept, gradient → gradient, carried
			"weight":   program("weight", 2, 1),   // carried, sum → sum
			"backward": program("backward", 4, 2), // params, kept, gradient, sum → gradient, sum
			"update":   program("update", 2, 1),   // params, sum → params
		})
		p.params = append(p.params, p.s.vector([]int{place}, ramp))
		p.fixed = append(p.fixed, p.s.vector([]int{place}, ramp))
	}
	d := draw(len(p.params) + len(p.fixed))
	inputs := make([]uint64, d.Inputs)
	for i := range inputs {
		inputs[i] = uint64(i + 1)
	}
	p.step = d.keeps(p.submit(d, inputs[:len(p.params)], inputs[len(p.params):])...)
	p.id = p.s.define(p.step)
	return p
}

// submit submits a step in the order of the schedule, and returns the new parameters of each stage. Moves come behind
// the computations that they are for, as in python/pathways/_pipeline.py.
func (p *stages) submit(to submitter, params, fixed []uint64) (updated []uint64) {
	type at struct{ stage, microbatch int }
	places, last := p.sc.Places, len(p.sc.Places)-1
	arrived, kept, gradients, carried := map[at]uint64{}, map[at]uint64{}, map[at]uint64{}, map[at]uint64{}
	sums := slices.Clone(fixed[2:])
	for m := range p.sc.Microbatches {
		arrived[at{0, m}], gradients[at{last, m}] = fixed[0], fixed[1]
	}
	send := func(object uint64, from, stage int) uint64 {
		if places[from] == places[stage] {
			return object
		}
		return to.move(object, places[from:from+1], places[stage:stage+1])
	}
	for _, op := range p.sc.Ops {
		var kind string
		var here at
		statustest.OKf(p.s.T, statustest.Of(fmt.Sscan(op, &here.stage, &here.microbatch, &kind)), "op %q", op)
		stage, program := here.stage, p.programs[here.stage][kind]
		switch kind {
		case "forward":
			y := to.run(program, params[stage], arrived[here])
			kept[here] = y + 1
			if stage < last {
				arrived[at{stage + 1, here.microbatch}] = send(y, stage, stage+1)
			}
		case "input", "backward":
			inputs := []uint64{params[stage], kept[here], gradients[here]}
			if kind == "backward" {
				inputs = append(inputs, sums[stage])
			}
			onward := to.run(program, inputs...)
			carried[here] = onward + 1
			if kind == "backward" {
				sums[stage] = onward + 1
			}
			if stage > 0 {
				gradients[at{stage - 1, here.microbatch}] = send(onward, stage, stage-1)
			}
		case "weight":
			sums[stage] = to.run(program, carried[here], sums[stage])
		}
	}
	for stage := range places {
		updated = append(updated, to.run(p.programs[stage]["update"], params[stage], sums[stage]))
	}
	return updated
}

// live submits by a call each.
type live struct {
	s      *session
	tokens []uint64
}

func (c *live) run(r *client.Remote, inputs ...uint64) uint64 {
	token, output := c.s.Start(r, inputs...)
	c.tokens = append(c.tokens, token)
	return output
}

func (c *live) move(source uint64, from, to []int) uint64 {
	object, token := c.s.Objects(1), c.s.Tokens(1)
	t := &wire.Transfer{Object: object, Array: &wire.Array{Dtype: uint32(shape.F32), Dims: []int64{vectorSize}},
		Moves: []*wire.Move{{Source: source, From: uint32(from[0]), To: uint32(to[0])}}}
	statustest.OK(c.s.T, c.s.Transfer(t, token))
	c.tokens = append(c.tokens, token)
	return object
}

// record takes steps, each a play or as many calls as it has nodes, without a wait between them. It returns the time
// from the first begin of an op to the last end, as devices' spans have them.
func (p *stages) record(way string, steps int) time.Duration {
	p.s.T.Helper()
	stop, calls := p.s.profile(), &live{s: p.s}
	var plays []*played
	for range steps {
		if way == "calls" {
			p.params = p.submit(calls, p.params, p.fixed)
			continue
		}
		play := p.s.play(p.id, p.step, append(slices.Clone(p.params), p.fixed...)...)
		for stage, output := range p.step.Outputs {
			p.params[stage] = play.object(output)
		}
		plays = append(plays, play)
	}
	for _, play := range plays {
		play.good()
	}
	for _, token := range calls.tokens {
		statustest.OK(p.s.T, p.s.Wait(token))
	}
	profile := stop(context.Background())
	want := steps * (len(p.sc.Ops) + len(p.sc.Places))
	if got := len(profile.Spans); got != want || profile.Dropped > 0 {
		p.s.T.Fatalf("%d spans, %d dropped, want %d", got, profile.Dropped, want)
	}
	first, last := int64(math.MaxInt64), int64(0)
	for _, span := range profile.Spans {
		name, kind, _ := strings.Cut(span.Program, "_")
		var stage int
		statustest.OKf(p.s.T, statustest.Of(fmt.Sscanf(name, "stage%d", &stage)), "a span of program %q", span.Program)
		first, last = min(first, span.End-p.sc.cost(stage, kind).Nanoseconds()), max(last, span.End)
	}
	return time.Duration(last - first)
}

// cost returns how long an op of a stage takes.
func (sc *scheduled) cost(stage int, kind string) time.Duration {
	ops := sc.Lengths[sc.Places[stage]]
	switch kind {
	case "update":
		return 0
	case "backward":
		ops *= 2
	}
	return time.Duration(ops * float64(*pipelineOp))
}

// bubble returns the share of a time in which the places compute nothing, if they take a step in it.
func (p *stages) bubble(took time.Duration) float64 {
	var busy time.Duration
	for _, op := range p.sc.Ops {
		var stage, microbatch int
		var kind string
		statustest.OKf(p.s.T, statustest.Of(fmt.Sscan(op, &stage, &microbatch, &kind)), "op %q", op)
		busy += p.sc.cost(stage, kind)
	}
	return 1 - busy.Seconds()/(float64(p.sc.width())*took.Seconds())
}
