package sim_test

import (
	"testing"
	"time"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/devicetest"
	"github.com/openpathways/pathways/device/sim"
)

// suiteProgram writes a program of the conformance suite.
func suiteProgram(p devicetest.Program, s shape.Shape) sim.Program {
	in := sim.Param{DType: s.DType.String(), Dims: s.Dims}
	addOne := sim.Result{Op: "add", Args: []int{0}, Value: 1}
	prog := sim.Program{Name: p.String(), Params: []sim.Param{in}, Results: []sim.Result{{Op: "copy", Args: []int{0}}}}
	switch p {
	case devicetest.AddOne:
		prog.Results[0] = addOne
	case devicetest.Add:
		prog.Params = append(prog.Params, in)
		prog.Results[0] = sim.Result{Op: "add", Args: []int{0, 1}}
	case devicetest.Two:
		prog.Results = append(prog.Results, addOne)
	case devicetest.Donate:
		prog.Params[0].Donated = true
		prog.Results[0] = addOne
	case devicetest.AllReduce:
		prog.Results[0].Op = "all-reduce"
	case devicetest.Slow:
		cost := 20 * time.Millisecond
		prog.Cost = &cost
	case devicetest.Fail:
		prog.Fail = &sim.Failure{Code: "DATA_LOSS", Text: "the simulated disk ate it"}
	}
	return prog
}

// harness runs the suite on one clock and hardware.
func harness(o sim.Options, clock sim.Clock) devicetest.Harness {
	tooBig := sim.Program{Name: "too_big", Results: []sim.Result{{Op: "fill", DType: "f32", Value: 1}}, Temp: 1 << 60}
	return devicetest.Harness{
		Open: func(t testing.TB, n int) device.Driver {
			o := o
			o.Devices = n
			o.Island = sim.NewIsland(clock, 1)
			d, err := sim.Open(o)
			if err != nil {
				t.Fatalf("Open: %v", err)
			}
			return d
		},
		Programs: func(p devicetest.Program, s shape.Shape, devices []int) devicetest.Source {
			return devicetest.Source{Program: suiteProgram(p, s).Source(), Options: sim.CompileOptions(devices)}
		},
		Failure: &devicetest.Failure{Code: status.DataLoss, Text: "the simulated disk ate it"},
		TooBig:  &devicetest.Source{Program: tooBig.Source()},
	}
}

func TestConformance(t *testing.T) {
	slow := sim.Options{Cost: time.Millisecond, Jitter: time.Millisecond, Latency: 100 * time.Microsecond,
		Bandwidth: 1 << 30}
	hooked := sim.Options{Launch: func(int32, int) {}}
	for _, c := range []struct {
		name  string
		o     sim.Options
		clock sim.Clock
	}{
		{"Instant", sim.Options{}, sim.Instant},
		{"InstantSlow", slow, sim.Instant},
		{"InstantHooked", hooked, sim.Instant},
		{"Real", slow, sim.Real},
	} {
		t.Run(c.name, func(t *testing.T) { devicetest.Run(t, harness(c.o, c.clock)) })
	}
}
