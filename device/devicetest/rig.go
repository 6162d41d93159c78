package devicetest

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/device"
)

// rig holds a check's driver and everything that the check made with it. At the end
// everything is closed twice, the driver last. Its methods may be called from any
// goroutine, except that those that can end the test may only be called from the test's.
type rig struct {
	testing.TB
	Harness
	driver device.Driver
	ctx    context.Context // ends after Hang

	mu     sync.Mutex
	opened []interface{ Close() }
	pinned runtime.Pinner
}

func newRig(t *testing.T, h Harness, devices int) *rig {
	ctx, cancel := context.WithTimeout(context.Background(), Hang)
	t.Cleanup(cancel)
	r := &rig{TB: t, Harness: h, ctx: ctx, driver: h.Open(t, devices)}
	t.Cleanup(func() {
		r.closeAll()
		for i := range 2 {
			statustest.Checkf(t, r.driver.Close(), "Close %d of the driver", i+1)
		}
		r.pinned.Unpin()
	})
	statustest.MustEqual(t, len(r.driver.Devices()), devices, "devices of the driver that the harness opened")
	return r
}

// closeAll closes what was kept, newest first, and each twice.
func (r *rig) closeAll() {
	r.mu.Lock()
	opened := r.opened
	r.opened = nil
	r.mu.Unlock()
	for _, c := range slices.Backward(opened) {
		c.Close()
		c.Close()
	}
}

func (r *rig) keep(c interface{ Close() }) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.opened = append(r.opened, c)
}

// memory returns n bytes that a device may read or write while Go runs: aligned
// as XLA prefers, and pinned until the driver is closed.
func (r *rig) memory(n int64) []byte {
	const align = 64
	b := make([]byte, n+align)
	off := (align - int64(uintptr(unsafe.Pointer(&b[0])))%align) % align
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pinned.Pin(&b[0])
	return b[off : off+n : off+n]
}

// on returns a list of local device indices.
func on(devices ...int) []int { return devices }

// first returns the local indices 0 to n-1.
func first(n int) []int {
	devices := make([]int, n)
	for i := range devices {
		devices[i] = i
	}
	return devices
}

// all returns every device of the driver.
func (r *rig) all() []int { return first(len(r.driver.Devices())) }

func (r *rig) compile(p Program, s shape.Shape, devices []int) device.Executable {
	r.Helper()
	source := r.Programs(p, s, devices)
	exe, err := r.driver.Compile(r.ctx, source.Program, source.Options)
	statustest.OKf(r, err, "Compile of %s over %s for devices %v", p, s, devices)
	r.keep(exe)
	return exe
}

// put copies data to a device; the bytes may change at once.
func (r *rig) put(s shape.Shape, data []byte, dev int) device.Buffer {
	r.Helper()
	return r.fromHost(device.Host{Shape: s, Data: data, Device: dev})
}

func (r *rig) fromHost(h device.Host) device.Buffer {
	r.Helper()
	b, err := r.driver.FromHost(h)
	statustest.OKf(r, err, "FromHost of %s to device %d memory %q", h.Shape, h.Device, h.Memory)
	r.keep(b)
	return b
}

// ramps makes one buffer of s for each of devices, with the values ramp(s, i) for row i.
func (r *rig) ramps(s shape.Shape, devices []int) [][]device.Buffer {
	r.Helper()
	rows := make([][]device.Buffer, len(devices))
	for i, d := range devices {
		rows[i] = []device.Buffer{r.put(s, encode(s, ramp(s, i)), d)}
	}
	return rows
}

// execute runs exe on one row of inputs per device and keeps the outputs.
func (r *rig) execute(exe device.Executable, rows ...[]device.Buffer) *device.Results {
	r.Helper()
	return r.run(exe, device.Run{Inputs: rows, Only: -1})
}

func (r *rig) run(exe device.Executable, run device.Run) *device.Results {
	r.Helper()
	out, err := r.tryRun(exe, run)
	statustest.OKf(r, err, "Execute of %s", exe.Name())
	return out
}

// tryRun calls Execute, keeps the outputs and checks their number.
func (r *rig) tryRun(exe device.Executable, run device.Run) (*device.Results, error) {
	r.Helper()
	out, err := exe.Execute(run)
	if err != nil {
		return nil, err
	}
	if len(out.Outputs) != len(run.Inputs) || len(out.Done) != len(run.Inputs) {
		r.Errorf("Execute of %s with %d rows gave %d rows and %d events", exe.Name(), len(run.Inputs), len(out.Outputs),
			len(out.Done))
	}
	for _, row := range out.Outputs {
		for _, b := range row {
			r.keep(b)
		}
		if len(row) != len(exe.Outputs()) {
			r.Errorf("Execute of %s gave %d outputs a device, Outputs says %d", exe.Name(), len(row), len(exe.Outputs()))
		}
	}
	return out, nil
}

func (r *rig) wait(e device.Event) {
	r.Helper()
	statustest.OKf(r, e.Wait(r.ctx), "event")
}

// get reads a buffer to the host.
func (r *rig) get(b device.Buffer) []byte {
	r.Helper()
	dst := r.memory(b.Shape().HostBytes())
	e, err := b.ToHost(dst)
	statustest.OKf(r, err, "ToHost of %s", b.Shape())
	r.wait(e)
	return dst
}

// values asserts the contents of a buffer.
func (r *rig) values(what string, b device.Buffer, want []float64) {
	r.Helper()
	if got := r.get(b); !bytes.Equal(got, encode(b.Shape(), want)) {
		r.Errorf("%s: got %v, want %v", what, decode(b.Shape(), got), want)
	}
}

// refused asserts that err has one of the codes, and every text (lower case) in
// its message.
func (r *rig) refused(what string, err error, codes []status.Code, texts ...string) {
	r.Helper()
	if err == nil {
		r.Errorf("%s: no error, want one of %v", what, codes)
		return
	}
	if !slices.Contains(codes, status.CodeOf(err)) {
		r.Errorf("%s: code %v, want one of %v: %v", what, status.CodeOf(err), codes, err)
	}
	for _, text := range texts {
		if !strings.Contains(strings.ToLower(err.Error()), text) {
			r.Errorf("%s: the message lacks %q: %v", what, text, err)
		}
	}
}

// invalid is the code for an argument that is never valid; gone are the codes that a
// driver may return for something that was deleted, donated or closed.
var (
	invalid = []status.Code{status.InvalidArgument}
	gone    = []status.Code{status.FailedPrecondition, status.InvalidArgument}
)

func f32(dims ...int64) shape.Shape { return shape.Shape{DType: shape.F32, Dims: dims} }
func s32(dims ...int64) shape.Shape { return shape.Shape{DType: shape.S32, Dims: dims} }

// ramp returns values for an array of s that differ by element and seed and are exact in
// f32 and s32.
func ramp(s shape.Shape, seed int) []float64 {
	v := make([]float64, s.Elements())
	for i := range v {
		v[i] = float64(100*seed + i)
	}
	return v
}

// plus adds a constant to each value.
func plus(v []float64, c float64) []float64 {
	out := make([]float64, len(v))
	for i := range v {
		out[i] = v[i] + c
	}
	return out
}

// encode returns values as dense bytes of s, which is f32 or s32.
func encode(s shape.Shape, values []float64) []byte {
	b := make([]byte, 0, s.HostBytes())
	for _, v := range values {
		if s.DType == shape.F32 {
			b = binary.NativeEndian.AppendUint32(b, math.Float32bits(float32(v)))
		} else {
			b = binary.NativeEndian.AppendUint32(b, uint32(int32(v)))
		}
	}
	return b
}

// decode is the inverse of encode.
func decode(s shape.Shape, b []byte) []float64 {
	var v []float64
	for ; len(b) >= 4; b = b[4:] {
		if u := binary.NativeEndian.Uint32(b); s.DType == shape.F32 {
			v = append(v, float64(math.Float32frombits(u)))
		} else {
			v = append(v, float64(int32(u)))
		}
	}
	return v
}

// random returns bytes that are a valid array of s: any bits for types of whole
// bytes, and values in range for pred and for types narrower than a byte.
func random(s shape.Shape, rng *rand.Rand) []byte {
	b := make([]byte, s.HostBytes())
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	bits := s.DType.Bits()
	for i := range b {
		switch s.DType {
		case shape.Pred:
			b[i] &= 1
		case shape.S4, shape.S2, shape.S1:
			b[i] = byte(int8(b[i]<<(8-bits)) >> (8 - bits))
		default:
			if bits < 8 {
				b[i] &= 1<<bits - 1
			}
		}
	}
	return b
}

// argument returns the text that a message about argument i contains.
func argument(i int) string { return fmt.Sprintf("argument %d", i) }
