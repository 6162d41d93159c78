package pjrt

import (
	"bytes"
	"context"
	"encoding/binary"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/xla/compileoptions"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/devicetest"
)

func f32(dims ...int64) shape.Shape { return shape.Shape{DType: shape.F32, Dims: dims} }

// floats writes values as f32.
func floats(values ...float32) []byte {
	var b []byte
	for _, v := range values {
		b = binary.NativeEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

func put(t testing.TB, c *Client, h device.Host) *Buffer {
	t.Helper()
	b, err := c.FromHost(h)
	statustest.OKf(t, err, "FromHost")
	t.Cleanup(b.Close)
	return b.(*Buffer)
}

// get reads a buffer.
func get(t testing.TB, b device.Buffer) []byte {
	t.Helper()
	dst := make([]byte, b.Shape().HostBytes())
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(unsafe.SliceData(dst))
	e, err := b.ToHost(dst)
	statustest.OKf(t, err, "ToHost")
	statustest.OKf(t, e.Wait(t.Context()), "ToHost's event")
	return dst
}

func compile(t testing.TB, c *Client, p device.Program, options []byte) *Executable {
	t.Helper()
	x, err := c.Compile(t.Context(), p, options)
	statustest.OKf(t, err, "Compile")
	t.Cleanup(x.Close)
	return x.(*Executable)
}

func run(t testing.TB, x *Executable, rows ...[]device.Buffer) *device.Results {
	t.Helper()
	r, err := x.Execute(device.Run{Inputs: rows, Only: -1})
	statustest.OKf(t, err, "Execute")
	for _, row := range r.Outputs {
		for _, b := range row {
			t.Cleanup(b.Close)
		}
	}
	return r
}

// TestElementsNarrowerThanAByte brings elements narrower than a byte to a device and back: the bits
// of the element are kept, those above it come back as zeros.
func TestElementsNarrowerThanAByte(t *testing.T) {
	each(t, func(t *testing.T, p *Plugin) {
		c := client(t, p, 1)
		for _, d := range []shape.DType{shape.S4, shape.U4, shape.S2, shape.U2} {
			data := []byte{0, 1, 2, 3, 0xff, 0xfe, 7, 0xf8, 0x55}
			b := put(t, c, device.Host{Shape: shape.Shape{DType: d, Dims: []int64{3, 3}}, Data: data})
			want := slices.Clone(data)
			for i := range want {
				want[i] &= 1<<d.Bits() - 1
			}
			if got := get(t, b); !bytes.Equal(got, want) {
				t.Errorf("%s came back as %x, want %x", d, got, want)
			}
		}
	})
}

// TestDenseBuffersAreViewedInPlace reads buffers where they are, as far as they lie dense and row-major.
func TestDenseBuffersAreViewedInPlace(t *testing.T) {
	each(t, func(t *testing.T, p *Plugin) {
		c := client(t, p, 1)
		x := compile(t, c, mlir("both", `
  func.func public @main(%x: tensor<2x3xf32>) -> (tensor<2x3xf32> {mhlo.layout_mode = "{0,1}"}, tensor<2x3xf32>) {
    %r = stablehlo.add %x, %x : tensor<2x3xf32>
    return %r, %r : tensor<2x3xf32>, tensor<2x3xf32>
  }`), nil)
		in := put(t, c, device.Host{Shape: f32(2, 3), Data: floats(0, 1, 2, 3, 4, 5)})
		out := run(t, x, []device.Buffer{in}).Outputs[0]
		narrow := put(t, c, device.Host{Shape: shape.Shape{DType: shape.S4, Dims: []int64{2}}, Data: []byte{1, 2}})
		for i, b := range []device.Buffer{in, out[0], out[1], narrow} {
			statustest.OK(t, b.Ready().Wait(t.Context()))
			want := [][]byte{floats(0, 1, 2, 3, 4, 5), nil, floats(0, 2, 4, 6, 8, 10), nil}[i]
			if got := b.(device.Viewer).View(); !bytes.Equal(got, want) || (got == nil) != (want == nil) {
				t.Errorf("buffer %d is seen as %v, want %v", i, got, want)
			}
		}
		in.Close()
		if got := in.View(); got != nil {
			t.Errorf("a closed buffer is seen as %v", got)
		}
	})
}

// TestColumnMajorBufferIsReadRowMajor reads a buffer that lies column by column on its device.
func TestColumnMajorBufferIsReadRowMajor(t *testing.T) {
	each(t, func(t *testing.T, p *Plugin) {
		c := client(t, p, 1)
		x := compile(t, c, mlir("columns", `
  func.func public @main(%x: tensor<2x3xf32>) -> (tensor<2x3xf32> {mhlo.layout_mode = "{0,1}"}) {
    %r = stablehlo.add %x, %x : tensor<2x3xf32>
    return %r : tensor<2x3xf32>
  }`), nil)
		in := put(t, c, device.Host{Shape: f32(2, 3), Data: floats(0, 1, 2, 3, 4, 5)})
		out := run(t, x, []device.Buffer{in}).Outputs[0][0].(*Buffer)
		for b, want := range map[*Buffer][]int64{in: {1, 0}, out: {0, 1}} {
			statustest.EqualSlices(t, statustest.Value(b.Order()).OK(t), want, "the order in which the dimensions lie")
		}
		if got := get(t, out); !bytes.Equal(got, floats(0, 2, 4, 6, 8, 10)) {
			t.Errorf("got %v", got)
		}
	})
}

// TestAlignedHostBytesAreAliased checks that aligned host bytes are aliased, not copied.
func TestAlignedHostBytesAreAliased(t *testing.T) {
	each(t, func(t *testing.T, p *Plugin) {
		c := client(t, p, 1)
		room := make([]byte, 1<<12+64)
		var pin runtime.Pinner
		pin.Pin(&room[0])
		defer pin.Unpin()
		data := room[-uintptr(unsafe.Pointer(&room[0]))&63:][:1<<12]
		for i := range data {
			data[i] = byte(i)
		}
		var done atomic.Bool
		b := put(t, c, device.Host{Shape: shape.Shape{DType: shape.U8, Dims: []int64{1 << 12}}, Data: data,
			Semantics: device.ZeroCopy, Done: func() { done.Store(true) }})
		if !bytes.Equal(get(t, b), data) {
			t.Errorf("the contents differ")
		}
		if done.Load() {
			t.Errorf("the host bytes were released while the buffer is open: they were copied")
		}
		b.Close()
		statustest.Check(t, c.Close()) // waits for Done
		if !done.Load() {
			t.Errorf("Close of the client did not wait until the host bytes were released")
		}
	})
}

// TestErrorReachesEverythingMadeFromABuffer checks that an error in the place of contents reaches everything
// that is made from them.
func TestErrorReachesEverythingMadeFromABuffer(t *testing.T) {
	each(t, func(t *testing.T, p *Plugin) {
		c := client(t, p, 2)
		failed, err := c.Failed(f32(2), 0, "", status.New(status.DataLoss, "the far worker fell"))
		if status.CodeOf(err) == status.Unimplemented {
			t.Skip(err)
		}
		statustest.OK(t, err)
		t.Cleanup(failed.Close)
		says := func(what string, err error) {
			t.Helper()
			if err == nil || !strings.Contains(err.Error(), "the far worker fell") {
				t.Errorf("%s: %v", what, err)
			}
		}
		for range 2 {
			says("Ready", failed.Ready().Wait(t.Context()))
		}
		statustest.Equal(t, status.CodeOf(failed.Ready().Wait(t.Context())), status.DataLoss, "the code")
		x := compile(t, c, devicetest.StableHLO(devicetest.AddOne, f32(2), 1), nil)
		r := run(t, x, []device.Buffer{failed})
		says("Done", r.Done[0].Wait(t.Context()))
		out := r.Outputs[0][0]
		says("Ready of an output", out.Ready().Wait(t.Context()))
		told := make(chan error, 1)
		out.Ready().Then(func(err error) { told <- err })
		says("Then of an output", <-told)
		copied, err := out.CopyTo(1, "")
		statustest.OK(t, err)
		t.Cleanup(copied.Close)
		says("Ready of a copy", copied.Ready().Wait(t.Context()))
		_, err = c.Failed(f32(2), 5, "", status.New(status.DataLoss, "x"))
		refused(t, err, status.InvalidArgument, "device 5")
		_, err = c.Failed(f32(2), 0, "", nil)
		refused(t, err, status.InvalidArgument, "needs an error")
	})
}

// TestClientIsFreedWithTheLastThatItMade closes a client before what it made, which is an error but
// no crash: everything open goes on, and the client is freed with the last.
func TestClientIsFreedWithTheLastThatItMade(t *testing.T) {
	each(t, func(t *testing.T, p *Plugin) {
		c := statustest.Value(p.Create(ClientOptions{Devices: 1})).OK(t)
		x, err := c.Compile(t.Context(), devicetest.StableHLO(devicetest.AddOne, f32(2), 1), nil)
		statustest.OK(t, err)
		b := statustest.Value(c.FromHost(device.Host{Shape: f32(2), Data: floats(1, 2)})).OK(t)
		refused(t, c.Close(), status.FailedPrecondition, "2 of its buffers and executables")
		statustest.Checkf(t, c.Close(), "a second Close")
		// Also where the plugin knows collectives, and each run needs who carries them.
		if err := p.registerCollectives(); err != nil && status.CodeOf(err) != status.Unimplemented {
			t.Fatal(err)
		}
		r := statustest.Value(x.Execute(device.Run{Inputs: [][]device.Buffer{{b}}, Only: -1})).OK(t)
		if got := get(t, r.Outputs[0][0]); !bytes.Equal(got, floats(2, 3)) {
			t.Errorf("got %v", got)
		}
		r.Outputs[0][0].Close()
		x.Close()
		held(t, c, 1) // the buffer
		b.Close()
		held(t, c, 0)
	})
}

// held waits until a client has so many holders: an event drops it when its callback
// has run, on a thread of the plugin's.
func held(t *testing.T, c *Client, want int64) {
	t.Helper()
	statustest.Soon(t, func() int64 { return int64(c.refs.Load()) }, want, "holders of the client")
}

// TestRunsLeaveNothing checks that nothing is left of ten thousand runs.
func TestRunsLeaveNothing(t *testing.T) {
	each(t, func(t *testing.T, p *Plugin) {
		c := client(t, p, 2)
		x := compile(t, c, devicetest.StableHLO(devicetest.Donate, f32(4), 2), compileoptions.New(2, 1, []int{0, 1}, false))
		rows := [][]device.Buffer{{nil}, {nil}}
		for d := range rows {
			b := statustest.Value(c.FromHost(device.Host{Shape: f32(4), Data: floats(0, 0, 0, 0), Device: d})).OK(t)
			rows[d][0] = b
		}
		const rounds = 10000
		for range rounds {
			r := statustest.Value(x.Execute(device.Run{Inputs: rows, Only: -1})).OK(t)
			for d := range rows {
				rows[d][0].Close()
				rows[d][0] = r.Outputs[d][0]
			}
		}
		for d := range rows {
			if got := get(t, rows[d][0]); !bytes.Equal(got, floats(rounds, rounds, rounds, rounds)) {
				t.Errorf("device %d: got %v", d, got)
			}
			if m, err := c.MemoryStats(d); err != nil || m.InUse != 16 {
				t.Errorf("device %d: memory %+v, %v: want one array of 16 bytes in use", d, m, err)
			}
			rows[d][0].Close()
		}
		statustest.Equal(t, c.open.Load(), 1, "buffers and executables are open")
		if n := len(x.idle); n > maxIdle {
			t.Errorf("%d launches are kept", n)
		}
	})
}

// TestEachMemoryIsCounted checks the account of each kind of memory.
func TestEachMemoryIsCounted(t *testing.T) {
	each(t, func(t *testing.T, p *Plugin) {
		c := client(t, p, 1)
		for _, m := range c.Devices()[0].Memories {
			b := put(t, c, device.Host{Shape: f32(256), Data: make([]byte, 1024), Memory: m.Kind})
			want := int64(0)
			if m.Kind == c.Devices()[0].Memories[c.Devices()[0].Default].Kind {
				want = 1024
			}
			if s, err := c.MemoryStats(0); err != nil || s.InUse != want {
				t.Errorf("with 1024 bytes in %s, %d are in use on the device, want %d (%v)", m.Kind, s.InUse, want, err)
			}
			b.Close()
			b.Close()
			if s, _ := c.MemoryStats(0); s.InUse != 0 {
				t.Errorf("%d bytes of %s are in use after Close", s.InUse, m.Kind)
			}
		}
	})
}

func TestWaitEndsWithItsContext(t *testing.T) {
	e := &event{}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(status.New(status.Unavailable, "the worker is gone"))
	refused(t, e.Wait(ctx), status.Unavailable, "the worker is gone")
	ctx, stop := context.WithTimeout(t.Context(), 0)
	defer stop()
	refused(t, e.Wait(ctx), status.DeadlineExceeded)
	if failed(nil) != succeeded || !succeeded.Ready() || succeeded.Wait(ctx) != nil {
		t.Errorf("an event that has fired does not say so")
	}
}
