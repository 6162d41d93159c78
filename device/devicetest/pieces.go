package devicetest

import (
	"bytes"
	"math/rand/v2"
	"slices"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/device"
)

// pieces checks arrays that are read and written in pieces.
var pieces = []check{
	{"an array is read in pieces as it is at once", 1, func(r *rig) {
		s := f32(33, 129)
		b := r.put(s, encode(s, ramp(s, 1)), 0)
		in, ok := b.(device.Sliced)
		if !ok || !in.Dense() {
			r.Skip("the driver reads no pieces")
		}
		got := r.memory(s.HostBytes())
		for at := int64(0); at < s.HostBytes(); at += 1000 {
			e, err := in.Slice(got[at:min(at+1000, s.HostBytes())], at)
			statustest.OKf(r, err, "Slice at %d", at)
			r.wait(e)
		}
		statustest.EqualSlices(r, got, encode(s, ramp(s, 1)), "the bytes that were read")
		for _, at := range []int64{-1, s.HostBytes() - 3} {
			_, err := in.Slice(r.memory(4), at)
			r.refused("Slice outside of the array", err, invalid)
		}
		b.Close()
		_, err := in.Slice(got[:4], 0)
		r.refused("Slice of a closed buffer", err, gone)
	}},
	{"an array is written in pieces, in any order", 1, func(r *rig) {
		rng := rand.New(rand.NewPCG(1, 2))
		for _, s := range []shape.Shape{f32(7), f32(33, 129), {DType: shape.BF16, Dims: []int64{3, 1000}}} {
			in, data := r.receive1(s), random(s, rng)
			const piece = 100
			host := r.memory(int64(len(data)))
			copy(host, data)
			starts := make([]int, 0, len(data)/piece+1)
			for at := 0; at < len(data); at += piece {
				starts = append(starts, at)
			}
			rng.Shuffle(len(starts), func(i, k int) { starts[i], starts[k] = starts[k], starts[i] })
			for i, at := range starts {
				if i == len(starts)-1 && in.Buffer().Ready().Ready() {
					r.Errorf("the buffer of %s is ready before its last piece", s)
				}
				e, err := in.Write(host[at:min(at+piece, len(data))], int64(at))
				statustest.OKf(r, err, "Write at %d", at)
				r.wait(e)
			}
			r.wait(in.Buffer().Ready())
			_, err := in.Write(host[:1], 0)
			r.refused("a piece too many", err, invalid)
			in.Close()
			if got := r.get(in.Buffer()); !bytes.Equal(got, data) {
				r.Errorf("%s came back changed", s)
			}
		}
	}},
	{"what reads an array that comes in pieces waits for the last", 1, func(r *rig) {
		s := f32(4)
		in := r.receive1(s)
		out := r.execute(r.compile(AddOne, s, on(0)), []device.Buffer{in.Buffer()}).Outputs[0][0]
		host := r.memory(16)
		copy(host, encode(s, ramp(s, 1)))
		for _, at := range []int64{8, 0} {
			statustest.OK(r, statustest.Of(in.Write(host[at:at+8], at)))
		}
		r.values("the result", out, plus(ramp(s, 1), 1))
	}},
	{"an array of which pieces are missing has failed", 1, func(r *rig) {
		in := r.receive1(f32(4))
		_, err := in.Write(r.memory(4), 14)
		r.refused("a piece outside of the array", err, invalid)
		e, err := in.Write(r.memory(8), 0)
		statustest.OK(r, err)
		r.wait(e)
		in.Close()
		statustest.Fails(r, "the buffer", in.Buffer().Ready().Wait(r.ctx), status.Cancelled, "8 bytes")
		_, err = in.Write(r.memory(8), 8)
		r.refused("a piece after Close", err, gone)
	}},
}

// receive1 makes an array on device 0 that comes in pieces.
func (r *rig) receive1(s shape.Shape) device.Incoming {
	r.Helper()
	d, ok := r.driver.(device.Receiver)
	if !ok {
		r.Skip("the driver writes no pieces")
	}
	in, err := d.Receive(s, 0, "")
	if status.CodeOf(err) == status.Unimplemented {
		r.Skip(err)
	}
	statustest.OKf(r, err, "Receive of %s", s)
	r.keep(in.Buffer())
	r.keep(in)
	if b := in.Buffer(); b.Device() != 0 || b.Memory() != r.memoryKind(0) || !slices.Equal(b.Shape().Dims, s.Dims) {
		r.Errorf("the buffer of %s is of %s, on device %d memory %q", s, b.Shape(), b.Device(), b.Memory())
	}
	return in
}
