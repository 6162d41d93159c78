package devicetest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/device"
)

// devices checks the properties of a driver and its devices.
var devices = []check{
	{"devices have numbers, kinds and memories", 0, func(r *rig) {
		d := r.driver
		if d.Platform() == "" || d.PlatformVersion() == "" {
			r.Errorf("platform %q version %q: want both", d.Platform(), d.PlatformVersion())
		}
		ids := map[int]bool{}
		for i, dev := range d.Devices() {
			if ids[dev.ID] {
				r.Errorf("two devices have id %d", dev.ID)
			}
			ids[dev.ID] = true
			if dev.Kind == "" {
				r.Errorf("device %d has no kind", i)
			}
			if dev.Default < 0 || dev.Default >= len(dev.Memories) {
				r.Fatalf("device %d: default memory %d of %d", i, dev.Default, len(dev.Memories))
			}
			kinds := map[string]bool{}
			for _, m := range dev.Memories {
				if m.Kind == "" || kinds[m.Kind] {
					r.Errorf("device %d: memory kind %q is empty or there twice", i, m.Kind)
				}
				kinds[m.Kind] = true
			}
		}
	}},
	{"statistics of a device that there is not are refused", 1, func(r *rig) {
		for _, i := range []int{-1, 1} {
			_, err := r.driver.MemoryStats(i)
			r.refused(fmt.Sprintf("MemoryStats(%d)", i), err, invalid, "device")
		}
	}},
}

// semantics lists the modes of FromHost.
var semantics = []struct {
	name string
	s    device.HostSemantics
}{
	{"DuringCall", device.DuringCall}, {"UntilDone", device.UntilDone},
	{"ZeroCopy", device.ZeroCopy}, {"MutableZeroCopy", device.MutableZeroCopy},
}

// dtypes are the element types that the suite copies to a device and back.
var dtypes = []shape.DType{shape.Pred, shape.S8, shape.S16, shape.S32, shape.S64, shape.U8, shape.U16, shape.U32,
	shape.U64, shape.F16, shape.F32, shape.F64, shape.BF16, shape.C64, shape.C128, shape.F8E5M2, shape.F8E4M3FN,
	shape.F8E4M3B11FNUZ, shape.F8E5M2FNUZ, shape.F8E4M3FNUZ, shape.S4, shape.U4, shape.S2, shape.U2, shape.F8E4M3,
	shape.F8E3M4, shape.F8E8M0FNU, shape.F4E2M1FN}

// dims are the dimensions of a scalar, of empty arrays, and of arrays of odd and of page-crossing size.
var dims = [][]int64{nil, {0}, {3, 0, 2}, {1}, {7}, {3, 5}, {2, 3, 4}, {33, 129}}

// transfers checks copies of arrays to devices, between them, and back.
var transfers = []check{
	{"memory of the host is let go once, when its semantics say", 1, func(r *rig) {
		for _, sem := range semantics {
			for _, dim := range dims {
				s := f32(dim...)
				data := r.memory(s.HostBytes())
				copy(data, encode(s, ramp(s, 1)))
				var done atomic.Int32
				let := make(chan struct{}, 2)
				b := r.fromHost(device.Host{Shape: s, Data: data, Semantics: sem.s, Done: func() {
					done.Add(1)
					let <- struct{}{}
				}})
				what := sem.name + " " + s.String()
				if sem.s == device.DuringCall {
					for i := range data {
						data[i] = 0xff
					}
				}
				if got := b.Shape(); got.DType != s.DType || !slices.Equal(got.Dims, s.Dims) {
					r.Errorf("%s: the buffer's shape is %s", what, got)
				}
				if b.Device() != 0 || b.Memory() != r.memoryKind(0) {
					r.Errorf("%s: the buffer is on device %d memory %q", what, b.Device(), b.Memory())
				}
				r.wait(b.Ready())
				if sem.s == device.UntilDone {
					r.receive(what+": Done", let) // not tied to the buffer's life
					let <- struct{}{}
				}
				r.values(what, b, ramp(s, 1))
				b.Close()
				r.receive(what+": Done", let)
				statustest.Equal(r, done.Load(), 1, "%s: how often Done was called", what)
			}
		}
	}},
	{"an array comes from the host without a callback", 1, func(r *rig) {
		for _, sem := range semantics {
			s := f32(4)
			data := r.memory(s.HostBytes())
			copy(data, encode(s, ramp(s, 2)))
			r.values(sem.name, r.fromHost(device.Host{Shape: s, Data: data, Semantics: sem.s}), ramp(s, 2))
		}
	}},
	{"wrong shapes, sizes, devices and memories of the host's data are refused", 1, func(r *rig) {
		good := device.Host{Shape: f32(4), Data: make([]byte, 16)}
		bad := []struct {
			name   string
			text   string
			change func(*device.Host)
		}{
			{"too few bytes", "16", func(h *device.Host) { h.Data = h.Data[:15] }},
			{"too many bytes", "16", func(h *device.Host) { h.Data = make([]byte, 17) }},
			{"no such device", "device", func(h *device.Host) { h.Device = 1 }},
			{"negative device", "device", func(h *device.Host) { h.Device = -1 }},
			{"no such memory", "no_such_memory", func(h *device.Host) { h.Memory = "no_such_memory" }},
			{"negative dimension", "-4", func(h *device.Host) { h.Shape = f32(-4) }},
			{"overflowing shape", "", func(h *device.Host) { h.Shape = f32(1<<40, 1<<40) }},
			{"no type", "invalid", func(h *device.Host) { h.Shape.DType = shape.Invalid }},
			{"unknown type", "", func(h *device.Host) { h.Shape.DType = 4000 }},
			{"unknown semantics", "semantics", func(h *device.Host) { h.Semantics = 99 }},
		}
		for _, c := range bad {
			h := good
			h.Done = func() { r.Errorf("%s: Done was called although FromHost failed", c.name) }
			c.change(&h)
			b, err := r.driver.FromHost(h)
			if err == nil {
				b.Close()
			}
			r.refused(c.name, err, invalid, c.text)
		}
		r.values("the driver afterwards", r.put(f32(2), encode(f32(2), ramp(f32(2), 1)), 0), ramp(f32(2), 1))
	}},
	{"arrays of each type come back from a device as they were", 1, func(r *rig) {
		rng := rand.New(rand.NewPCG(1, 2))
		for _, t := range dtypes {
			if slices.Contains(r.Lacks.DTypes, t) {
				continue
			}
			for _, dim := range dims {
				s := shape.Shape{DType: t, Dims: dim}
				data := random(s, rng)
				b := r.put(s, data, 0)
				if got := r.get(b); !bytes.Equal(got, data) {
					r.Errorf("%s came back changed:\n%x, want\n%x", s, got, data)
				}
			}
		}
	}},
	{"memory of another size than the array is refused", 1, func(r *rig) {
		b := r.put(f32(4), make([]byte, 16), 0)
		for _, n := range []int64{0, 15, 17} {
			_, err := b.ToHost(r.memory(n))
			r.refused(fmt.Sprintf("ToHost of 16 bytes into %d", n), err, invalid, "16")
		}
	}},
	{"a copy on another device has the values, also after the original was closed", 2, func(r *rig) {
		for _, dim := range dims {
			s := f32(dim...)
			src := r.put(s, encode(s, ramp(s, 3)), 0)
			for _, dev := range on(1, 0) {
				dst, err := src.CopyTo(dev, "")
				statustest.OKf(r, err, "CopyTo(%d) of %s", dev, s)
				r.keep(dst)
				if dst.Device() != dev || dst.Memory() != r.memoryKind(dev) {
					r.Errorf("the copy is on device %d memory %q, want %d", dst.Device(), dst.Memory(), dev)
				}
				r.values(fmt.Sprintf("copy of %s on device %d", s, dev), dst, ramp(s, 3))
			}
			// A copy is independent of its source.
			dst, err := src.CopyTo(1, "")
			statustest.OKf(r, err, "CopyTo")
			r.keep(dst)
			src.Close()
			r.values("copy after its source was closed", dst, ramp(s, 3))
		}
	}},
	{"a copy in another memory has the values", 1, func(r *rig) {
		memories := r.driver.Devices()[0].Memories
		if len(memories) < 2 {
			r.Skip("the device has one memory")
		}
		s := f32(5, 3)
		for _, from := range memories {
			src := r.fromHost(device.Host{Shape: s, Data: encode(s, ramp(s, 1)), Memory: from.Kind})
			if src.Memory() != from.Kind {
				r.Errorf("FromHost to memory %q gave a buffer in %q", from.Kind, src.Memory())
			}
			for _, to := range memories {
				dst, err := src.CopyTo(0, to.Kind)
				if err != nil {
					r.Errorf("CopyTo from %q to %q: %v", from.Kind, to.Kind, err)
					continue
				}
				r.keep(dst)
				if dst.Memory() != to.Kind {
					r.Errorf("a copy to memory %q is in %q", to.Kind, dst.Memory())
				}
				r.values(from.Kind+" to "+to.Kind, dst, ramp(s, 1))
			}
		}
	}},
	{"a copy to a device or memory that there is not is refused", 1, func(r *rig) {
		src := r.put(f32(4), make([]byte, 16), 0)
		for _, dev := range on(-1, 1) {
			_, err := src.CopyTo(dev, "")
			r.refused(fmt.Sprintf("CopyTo(%d)", dev), err, invalid, "device")
		}
		_, err := src.CopyTo(0, "no_such_memory")
		r.refused("CopyTo another memory", err, invalid, "no_such_memory")
	}},
}

// memoryKind returns the kind of the default memory of a device.
func (r *rig) memoryKind(dev int) string {
	d := r.driver.Devices()[dev]
	return d.Memories[d.Default].Kind
}

// receive waits for a value on c.
func (r *rig) receive(what string, c <-chan struct{}) {
	r.Helper()
	select {
	case <-c:
	case <-r.ctx.Done():
		r.Fatalf("%s never came", what)
	}
}
