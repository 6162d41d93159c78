package sim_test

import (
	"testing"
	"time"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/sim"
)

// All pieces of an array take as long as the array at once, and a latency for each.
func TestPiecesTakeTheTimeOfTheirArray(t *testing.T) {
	is := sim.NewIsland(sim.Manual, 1)
	d := open(t, sim.Options{Island: is, Latency: time.Second, Bandwidth: 4})
	s := shape.Shape{DType: shape.F32, Dims: []int64{4}}
	in := statustest.Value(d.Receive(s, 0, "")).OK(t)
	defer in.Buffer().Close()
	const half = 2*time.Second + time.Second
	for i, wants := range []time.Duration{half, 2 * half} {
		e := statustest.Value(in.Write(make([]byte, 8), int64(8*i))).OK(t)
		e.Then(func(err error) {
			statustest.Equal(t, is.Now(), wants, "the time at which piece %d is there, %v", i, err)
		})
	}
	is.Settle()
	statustest.OK(t, in.Buffer().Ready().Wait(t.Context()))
	written := is.Now()
	for i := range 2 {
		statustest.OK(t, statustest.Of(in.Buffer().(device.Sliced).Slice(make([]byte, 8), int64(8*i))))
	}
	is.Settle()
	statustest.Equal(t, is.Now()-written, 2*half, "how long it takes to read both pieces")
	in.Close()
}

// A piece fails where a test wants it to, and a device that is lost fails those under way.
func TestPiecesFail(t *testing.T) {
	is := sim.NewIsland(sim.Manual, 1)
	d := open(t, sim.Options{Island: is, Latency: time.Second})
	s := shape.Shape{DType: shape.F32, Dims: []int64{4}}
	in := statustest.Value(d.Receive(s, 0, "")).OK(t)
	defer in.Buffer().Close()
	statustest.OK(t, d.FailPiece(0, 2, status.New(status.DataLoss, "a bit fell over")))
	e := statustest.Value(in.Write(make([]byte, 8), 0)).OK(t)
	statustest.Fails(t, "the second piece", statustest.Of(in.Write(make([]byte, 8), 8)), status.DataLoss, "fell over")
	statustest.OK(t, d.Lose(0, "it melts"))
	is.Settle()
	statustest.Fails(t, "the first piece", e.Wait(t.Context()), status.Unavailable, "melts")
	statustest.Fails(t, "the buffer", in.Buffer().Ready().Wait(t.Context()), status.Unavailable, "melts")
	in.Close()
}
