package cluster_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/openpathways/pathways/capi/cluster"
	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/xla/compileoptions"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/devicetest"
	"github.com/openpathways/pathways/device/pjrt"
	"github.com/openpathways/pathways/device/sim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newFrontend opens a client of the frontend over a cluster of simulated devices. Which ends of operations it hears of,
// and when, is for hear.
func newFrontend(t testing.TB, o sim.Options, hear ...func(client.Notify) client.Notify) (*pjrt.Client, *observed) {
	t.Helper()
	var inner *observed
	cluster.Use("test", func(ctx context.Context, _ string, _ cluster.Want, notify client.Notify) (client.Cluster, error) {
		for _, f := range hear {
			notify = f(notify)
		}
		var err error
		inner, err = observe(ctx, o, notify)
		return inner, err
	})
	p := statustest.Value(pjrt.Wrap("the cluster's frontend", cluster.API())).OK(t)
	c := statustest.Value(p.Create(pjrt.ClientOptions{})).OK(t)
	return c, inner
}

// TestTableKeepsTheContractOfADriver drives the table as a client does, through the whole contract of
// a driver.
func TestTableKeepsTheContractOfADriver(t *testing.T) {
	slow := sim.Options{Cost: time.Millisecond, Jitter: time.Millisecond, Latency: 100 * time.Microsecond,
		Bandwidth: 1 << 30}
	for name, o := range map[string]sim.Options{"Instant": {}, "Slow": slow} {
		t.Run(name, func(t *testing.T) {
			tooBig := sim.Program{Name: "too_big", Results: []sim.Result{{Op: "fill", DType: "f32", Value: 1}}, Temp: 1 << 60}
			devicetest.Run(t, devicetest.Harness{
				Open: func(t testing.TB, n int) device.Driver {
					o := o
					o.Devices = n
					o.Island = sim.NewIsland(sim.Instant, 1)
					c, _ := newFrontend(t, o)
					return c
				},
				Programs: func(p devicetest.Program, s shape.Shape, devices []int) devicetest.Source {
					return devicetest.Source{
						Program: devicetest.Simulated(p, s).Source(),
						Options: compileoptions.New(len(devices), 1, devices, slices.Equal(devices, []int{0}))}
				},
				Failure: &devicetest.Failure{Code: status.DataLoss, Text: "the simulated disk ate it"},
				TooBig:  &devicetest.Source{Program: tooBig.Source()},
			})
		})
	}
	nothingAlive(t)
}

// nothingAlive waits until no handle is alive. A thread that fires an event drops it after its last callback, which may
// be after the close that this callback ended.
func nothingAlive(t *testing.T) {
	t.Helper()
	statustest.Soon(t, func() string { return fmt.Sprint(cluster.ReadStats().Live) }, "map[]", "handles at the end")
}
