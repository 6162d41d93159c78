package sim_test

import (
	"testing"
	"time"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/devicetest"
	"github.com/openpathways/pathways/device/sim"
)

// harness runs the suite on one clock and hardware.
func harness(o sim.Options, clock sim.Clock) devicetest.Harness {
	tooBig := sim.Program{Name: "too_big", Results: []sim.Result{{Op: "fill", DType: "f32", Value: 1}}, Temp: 1 << 60}
	return devicetest.Harness{
		Open: func(t testing.TB, n int) device.Driver {
			o := o
			o.Devices = n
			o.Island = sim.NewIsland(clock, 1)
			d, err := sim.Open(o)
			statustest.OKf(t, err, "Open")
			return d
		},
		Programs: func(p devicetest.Program, s shape.Shape, devices []int) devicetest.Source {
			return devicetest.Source{Program: devicetest.Simulated(p, s).Source(), Options: sim.CompileOptions(devices)}
		},
		Failure: &devicetest.Failure{Code: status.DataLoss, Text: "the simulated disk ate it"},
		TooBig:  &devicetest.Source{Program: tooBig.Source()},
	}
}

func TestSimulatedDevicesKeepTheContractOfADriver(t *testing.T) {
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
