package devicetest

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/device"
)

// events checks that events fire once and can be waited for in every way.
var events = []check{
	{"an event fires once for each that waits or asks", 1, func(r *rig) {
		s := f32(4)
		for _, p := range []Program{AddOne, Slow} {
			out := r.execute(r.compile(p, s, on(0)), r.ramps(s, on(0))...)
			done := out.Done[0]
			var calls atomic.Int32
			fired := make(chan struct{}, 64)
			then := func(err error) {
				if err != nil {
					r.Errorf("Then got %v", err)
				}
				calls.Add(1)
				fired <- struct{}{}
			}
			for range 10 {
				done.Then(then) // pending, as far as the driver is
			}
			for range 3 {
				r.wait(done)
			}
			if !done.Ready() {
				r.Errorf("%s: the event is not Ready after Wait", p)
			}
			for range 10 {
				done.Then(then) // fired
			}
			for range 20 {
				r.receive("Then", fired)
			}
			ready := out.Outputs[0][0].Ready()
			r.wait(ready)
			if !ready.Ready() {
				r.Errorf("%s: the buffer's event is not Ready after Wait", p)
			}
			r.values("what the event was of", out.Outputs[0][0], afterOne(p, ramp(s, 0)))
			statustest.Equal(r, calls.Load(), 20, "%s: how often 20 functions given to Then were called", p)
		}
	}},
	{"an event of a closed buffer fires", 1, func(r *rig) {
		s := f32(4)
		out := r.execute(r.compile(Slow, s, on(0)), r.ramps(s, on(0))...)
		ready := out.Outputs[0][0].Ready()
		out.Outputs[0][0].Close()
		_ = ready.Wait(r.ctx) // with or without an error, it fires
		if !ready.Ready() {
			r.Errorf("the event of a closed buffer never fires")
		}
		r.wait(out.Done[0])
	}},
	{"a wait ends with its context", 1, func(r *rig) {
		s := f32(4)
		out := r.execute(r.compile(Slow, s, on(0)), r.ramps(s, on(0))...)
		ctx, cancel := context.WithCancel(r.ctx)
		cancel()
		if err := out.Done[0].Wait(ctx); err == nil {
			if !out.Done[0].Ready() {
				r.Errorf("Wait with an ended context gave no error before the event fired")
			}
		} else if !errors.Is(err, context.Canceled) {
			r.Errorf("Wait with an ended context: %v, want context.Canceled", err)
		}
		r.wait(out.Done[0]) // the work went on
		r.values("after a cancelled wait", out.Outputs[0][0], ramp(s, 0))
	}},
	{"a device computes in the order of launches", 1, func(r *rig) {
		if r.Lacks.OneAtATime {
			r.Skip("the driver's devices run several computations at once")
		}
		s := f32(4)
		slow, quick := r.compile(Slow, s, on(0)), r.compile(AddOne, s, on(0))
		in := r.ramps(s, on(0))
		var order atomic.Int32
		places := make(chan string, 16)
		var want []string
		for i := range 6 {
			exe := quick
			if i%2 == 0 {
				exe = slow
			}
			r.execute(exe, in...).Done[0].Then(func(error) { places <- fmt.Sprint(i, " at ", order.Add(1)-1) })
			want = append(want, fmt.Sprint(i, " at ", i))
		}
		for _, w := range want {
			select {
			case got := <-places:
				statustest.Equal(r, got, w, "computation")
			case <-r.ctx.Done():
				r.Fatalf("computation %s never finished", w)
			}
		}
	}},
}

// afterOne returns the result of program p, which has one argument on one device, for x.
func afterOne(p Program, x []float64) []float64 {
	if p == AddOne || p == Donate {
		return plus(x, 1)
	}
	return x
}

// failures checks that errors that occur only when work runs reach everything that depends on it.
var failures = []check{
	{"a program that fails gives its error with every event", 1, func(r *rig) {
		if r.Failure == nil {
			r.Skip("the harness has no program that fails")
		}
		r.fails(r.Programs(Fail, f32(4), on(0)), f32(4), r.ramps(f32(4), on(0)), *r.Failure)
	}},
	{"a program that needs more memory than there is fails with RESOURCE_EXHAUSTED", 1, func(r *rig) {
		if r.TooBig == nil {
			r.Skip("the harness has no program that is too big")
		}
		r.fails(*r.TooBig, shape.Shape{}, [][]device.Buffer{{}}, Failure{Code: status.ResourceExhausted})
	}},
}

// fails runs a program that fails, at once or later, and checks where its error appears.
func (r *rig) fails(source Source, s shape.Shape, in [][]device.Buffer, want Failure) {
	exe, err := r.driver.Compile(r.ctx, source.Program, source.Options)
	statustest.OKf(r, err, "Compile")
	r.keep(exe)
	same := func(what string, err error) {
		statustest.Fails(r, what, err, want.Code, want.Text)
	}
	out, err := r.tryRun(exe, device.Run{Inputs: in, Only: -1})
	if err != nil {
		same("Execute", err) // a driver that ran it before it returned
	} else {
		same("Done", out.Done[0].Wait(r.ctx))
		b := out.Outputs[0][0]
		same("Ready of an output", b.Ready().Wait(r.ctx))
		told := make(chan struct{}, 1)
		b.Ready().Then(func(err error) {
			same("Then of an output", err)
			told <- struct{}{}
		})
		r.receive("Then", told)
		if e, err := b.ToHost(r.memory(b.Shape().HostBytes())); err != nil {
			same("ToHost of an output", err)
		} else {
			same("ToHost's event", e.Wait(r.ctx))
		}
		if dst, err := b.CopyTo(0, ""); err != nil {
			same("CopyTo of an output", err)
		} else {
			r.keep(dst)
			same("Ready of a copy", dst.Ready().Wait(r.ctx))
		}
		if s.DType != shape.Invalid {
			next := b
			addOne := r.compile(AddOne, s, on(0))
			for i := range 3 {
				out, err := r.tryRun(addOne, device.Run{Inputs: [][]device.Buffer{{next}}, Only: -1})
				if err != nil {
					same(fmt.Sprintf("Execute of dependent %d", i), err)
					break
				}
				next = out.Outputs[0][0]
				same(fmt.Sprintf("Done of dependent %d", i), out.Done[0].Wait(r.ctx))
				same(fmt.Sprintf("Ready of dependent %d", i), next.Ready().Wait(r.ctx))
			}
		}
	}
	ok := r.execute(r.compile(AddOne, f32(4), on(0)), r.ramps(f32(4), on(0))...)
	r.values("the device afterwards", ok.Outputs[0][0], plus(ramp(f32(4), 0), 1))
}
