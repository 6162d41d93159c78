package pjrt

import (
	"encoding/binary"
	"math"
	"slices"
	"testing"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/xla/compileoptions"
	"github.com/openpathways/pathways/device"
)

// calls has functions 3 and 5 of its client make %y out of %x, and the second one
// a number out of %y.
var calls = mlir("calls", `
  func.func public @main(%x: tensor<2x3xf32>) -> (tensor<2x3xf32>, tensor<i8>) {
    %y = stablehlo.custom_call @xla_ffi_python_cpu_callback(%x)
        {api_version = 4 : i32, backend_config = {index = 3 : ui64}} : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %z:2 = stablehlo.custom_call @xla_ffi_python_cpu_callback(%y, %x)
        {api_version = 4 : i32, backend_config = {index = 5 : ui64}} : (tensor<2x3xf32>, tensor<2x3xf32>) -> (tensor<2x3xf32>, tensor<i8>)
    return %z#0, %z#1 : tensor<2x3xf32>, tensor<i8>
  }`)

func float32s(b []byte) []float32 {
	out := make([]float32, len(b)/4)
	for i := range out {
		out[i] = math.Float32frombits(binary.NativeEndian.Uint32(b[4*i:]))
	}
	return out
}

func TestHostCalls(t *testing.T) {
	each(t, func(t *testing.T, p *Plugin) {
		c := client(t, p, 2)
		serve := func(*device.HostCall) {}
		statustest.Fails(t, "host calls without collectives", c.ServeHostCalls(serve), status.FailedPrecondition)
		statustest.OK(t, c.ServeCollectives(refuse))
		// Both answer from another goroutine, when the handler may have returned, and at once.
		later := true
		var fails error
		err := c.ServeHostCalls(func(h *device.HostCall) {
			answer := func() {
				if h.Launch != 7 || h.Local != 1 {
					t.Errorf("launch %d of device %d calls, want launch 7 of device 1", h.Launch, h.Local)
				}
				x := h.Arguments[0]
				if x.Type != uint32(shape.F32) || !slices.Equal(x.Dims, []int64{2, 3}) || len(x.Data) != 24 {
					t.Errorf("argument of type %d %v, %d bytes", x.Type, x.Dims, len(x.Data))
				}
				for i, f := range float32s(x.Data) {
					binary.NativeEndian.PutUint32(h.Results[0].Data[4*i:], math.Float32bits(f*10))
				}
				if h.Index == 5 {
					h.Results[1].Data[0] = byte(len(h.Arguments))
				}
				h.Done(fails)
			}
			if later {
				go answer()
			} else {
				answer()
			}
		})
		statustest.OK(t, err)
		statustest.Fails(t, "host calls served twice", c.ServeHostCalls(serve), status.FailedPrecondition)
		x := compile(t, c, calls, compileoptions.New(1, 1, []int{0}, true))
		run := func() ([]float32, byte, error) {
			data := make([]byte, 24)
			for i := range 6 {
				binary.NativeEndian.PutUint32(data[4*i:], math.Float32bits(float32(i)))
			}
			in := statustest.Value(c.FromHost(device.Host{Shape: f32(2, 3), Data: data, Device: 1})).OK(t)
			defer in.Close()
			out, err := x.Execute(device.Run{LaunchID: 7, Inputs: [][]device.Buffer{{in}}, Only: 1})
			if err != nil {
				return nil, 0, err
			}
			err = out.Done[0].Wait(t.Context())
			got, number := make([]byte, 24), make([]byte, 1)
			for i, dst := range [][]byte{got, number} {
				b := out.Outputs[0][i]
				if err == nil {
					var e device.Event
					if e, err = b.ToHost(dst); err == nil {
						err = e.Wait(t.Context())
					}
				}
				b.Close()
			}
			return float32s(got), number[0], err
		}
		for range 20 {
			y, z, err := run()
			if want := []float32{0, 100, 200, 300, 400, 500}; err != nil || !slices.Equal(y, want) || z != 2 {
				t.Fatalf("got %v and %d, %v; want %v and 2", y, z, err, want)
			}
			later = !later
		}
		fails = status.New(status.Internal, "the function has failed")
		for range 4 {
			statustest.Fails(t, "a run", statustest.Of2(run()), status.Internal, "the function has failed")
			later = !later
		}
		fails = nil
		statustest.OK(t, statustest.Of2(run()))
	})
}
