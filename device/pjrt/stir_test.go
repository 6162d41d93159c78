package pjrt

import (
	"testing"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/device"
)

// Work that stands still is stirred until it ends, and then no more.
func TestIdleWorkIsStirredUntilItEnds(t *testing.T) {
	each(t, func(t *testing.T, p *Plugin) {
		one := program{name: "still", replicas: 1, partitions: 4, in: "16x16xf32", out: "16x16xf32", body: `
    %p = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0] : (tensor<16x16xf32>, tensor<16x16xf32>) -> tensor<16x16xf32>
    ` + reduce("%y", "all_reduce", "%p", "add", "f32", all+", "+global, "16x16xf32", "16x16xf32")}
		g, _ := makeGang(t, p, one.source(), one.options())
		var runs [4]*device.Results
		begin := func(rank int, h device.Host) {
			h.Device = rank % 2
			row := [][]device.Buffer{{put(t, g.clients[rank/2], h)}}
			r := statustest.Value(g.executables[rank/2].Execute(device.Run{LaunchID: 1, Inputs: row, Only: rank % 2})).OK(t)
			runs[rank] = r
		}
		rows := gangInputs([]shape.Shape{f32(16, 16)}, 1)
		for rank := range 3 {
			begin(rank, rows[rank][0])
		}
		for _, c := range g.clients {
			statustest.Soon(t, func() bool { return c.stirs.times.Load() >= 3 }, true, "something was submitted three times")
		}
		begin(3, rows[3][0])
		for _, r := range runs {
			statustest.OK(t, r.Done[0].Wait(t.Context()))
			r.Outputs[0][0].Close()
		}
		for _, c := range g.clients {
			statustest.Soon(t, c.stirs.armed.Load, false, "it goes on")
		}
	})
}
