package devicetest

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/device"
)

// lifetimes checks closing and the accounting of memory.
var lifetimes = []check{
	{"a closed buffer is refused, and may be closed again", 1, func(r *rig) {
		s := f32(4)
		exe := r.compile(AddOne, s, on(0))
		for _, c := range []struct {
			name string
			end  func(device.Buffer)
		}{
			{"closed", device.Buffer.Close},
			{"twice closed", func(b device.Buffer) { b.Close(); b.Close() }},
		} {
			b := r.ramps(s, on(0))[0][0]
			if b.Deleted() {
				r.Errorf("a new buffer is Deleted")
			}
			c.end(b)
			if !b.Deleted() {
				r.Errorf("a %s buffer is not Deleted", c.name)
			}
			_, err := b.ToHost(r.memory(16))
			r.refused("ToHost of a "+c.name+" buffer", err, gone)
			_, err = b.CopyTo(0, "")
			r.refused("CopyTo of a "+c.name+" buffer", err, gone)
			_, err = r.tryRun(exe, device.Run{Inputs: [][]device.Buffer{{b}}, Only: -1})
			r.refused("Execute with a "+c.name+" buffer", err, gone, argument(0))
			statustest.Equal(r, b.Shape().String(), s.String(), "the shape of a %s buffer", c.name)
			_ = b.Ready().Wait(r.ctx) // fires, one way or the other
		}
	}},
	{"a buffer may be closed while it is made and read", 1, func(r *rig) {
		s := f32(4)
		slow := r.execute(r.compile(Slow, s, on(0)), r.ramps(s, on(0))...)
		mid := slow.Outputs[0][0]
		dst := r.memory(s.HostBytes())
		read, err := mid.ToHost(dst)
		statustest.OKf(r, err, "ToHost")
		out := r.execute(r.compile(AddOne, s, on(0)), []device.Buffer{mid})
		copied, err := mid.CopyTo(0, "")
		statustest.OKf(r, err, "CopyTo")
		r.keep(copied)
		mid.Close() // before it is made, and before it is read
		r.values("made from a buffer that was closed", out.Outputs[0][0], plus(ramp(s, 0), 1))
		r.values("copied from a buffer that was closed", copied, ramp(s, 0))
		r.wait(read)
		statustest.Equal(r, fmt.Sprint(decode(s, dst)), fmt.Sprint(ramp(s, 0)), "read from a buffer that was closed")
	}},
	{"an executable may be closed while it runs", 1, func(r *rig) {
		s := f32(4)
		exe := r.compile(Slow, s, on(0))
		in := r.ramps(s, on(0))
		out := r.execute(exe, in...)
		exe.Close() // while it runs
		r.values("made by an executable that was closed", out.Outputs[0][0], ramp(s, 0))
		_, err := r.tryRun(exe, device.Run{Inputs: in, Only: -1})
		r.refused("Execute of a closed executable", err, gone)
		_, err = exe.Serialize()
		r.refused("Serialize of a closed executable", err, append([]status.Code{status.Unimplemented}, gone...))
	}},
	{"a driver that is closed waits for its work", 1, func(r *rig) {
		s := f32(4)
		exe := r.compile(Slow, s, on(0))
		out := r.execute(exe, r.ramps(s, on(0))...)
		done := out.Done[0]
		r.closeAll()
		if err := r.driver.Close(); err != nil { // waits for the work
			r.Errorf("Close with work in flight: %v", err)
		}
		if !done.Ready() {
			r.Errorf("Close did not wait for work in flight")
		}
		source := r.Programs(AddOne, s, on(0))
		_, err := r.driver.Compile(r.ctx, source.Program, source.Options)
		r.refused("Compile after Close", err, gone)
		_, err = r.driver.Load(r.ctx, []byte("anything"))
		r.refused("Load after Close", err, append([]status.Code{status.Unimplemented}, gone...))
		_, err = r.driver.FromHost(device.Host{
			Shape: s, Data: make([]byte, 16), Done: func() { r.Errorf("Done was called although FromHost failed") }})
		r.refused("FromHost after Close", err, gone)
		_, err = r.driver.MemoryStats(0)
		r.refused("MemoryStats after Close", err, gone)
	}},
	{"a canceled compilation says so", 1, func(r *rig) {
		ctx, cancel := context.WithCancel(r.ctx)
		cancel()
		source := r.Programs(AddOne, f32(4), on(0))
		exe, err := r.driver.Compile(ctx, source.Program, source.Options)
		if err == nil {
			exe.Close() // a driver that cannot stop a compiler
		} else if status.CodeOf(err) != status.Cancelled {
			r.Errorf("Compile with an ended context: %v: %v, want CANCELLED", status.CodeOf(err), err)
		}
	}},
	{"memory in use counts buffers until they are closed", 1, func(r *rig) {
		before := r.stats()
		if before.InUse < 0 {
			r.Skip("the driver does not know how much memory is in use")
		}
		s := f32(1 << 16)
		exe := r.compile(Two, s, on(0))
		in := r.put(s, encode(s, ramp(s, 0)), 0)
		out := r.execute(exe, []device.Buffer{in})
		r.wait(out.Done[0])
		held := r.stats()
		if want := before.InUse + 3*s.Bytes(); held.InUse < want {
			r.Errorf("with three arrays of %d bytes %d bytes are in use, want at least %d", s.Bytes(), held.InUse, want)
		}
		if held.Limit >= 0 && held.Limit < held.InUse {
			r.Errorf("the limit %d is below what is in use, %d", held.Limit, held.InUse)
		}
		donated := r.execute(r.compile(Donate, s, on(0)), []device.Buffer{in})
		r.wait(donated.Done[0])
		r.inUse("after a donation", held.InUse)
		r.closeAll()
		r.inUse("after everything was closed", before.InUse)
	}},
}

func (r *rig) stats() device.MemoryStats {
	r.Helper()
	m, err := r.driver.MemoryStats(0)
	statustest.OKf(r, err, "MemoryStats")
	return m
}

// inUse waits until no more than want bytes are in use: a driver may free
// memory a little after the event of the work that used it.
func (r *rig) inUse(when string, want int64) {
	r.Helper()
	for r.stats().InUse > want {
		select {
		case <-r.ctx.Done():
			r.Fatalf("%s %d bytes are in use, want %d", when, r.stats().InUse, want)
		case <-time.After(time.Millisecond):
		}
	}
}

// parallel checks use from several goroutines; it is most useful with -race.
var parallel = []check{
	{"goroutines may use all devices at the same time", 0, func(r *rig) {
		s, devs := f32(8), r.all()
		addOne := make([]device.Executable, len(devs))
		for i, dev := range devs {
			addOne[i] = r.compile(AddOne, s, on(dev))
		}
		donate := r.compile(Donate, s, devs)
		var work sync.WaitGroup
		var thens atomic.Int32
		const goroutines, rounds = 8, 12
		for g := range goroutines {
			work.Go(func() {
				for round := range rounds {
					dev := (g + round) % len(devs)
					if err := r.once(addOne[dev], donate, devs, dev, 10*g+round, &thens); err != nil {
						r.Errorf("goroutine %d round %d: %v", g, round, err)
						return
					}
				}
			})
		}
		work.Wait()
		if got := thens.Load(); !r.Failed() && got != goroutines*rounds {
			r.Errorf("Then was called %d times for %d events", got, goroutines*rounds)
		}
	}},
	{"goroutines may use one buffer at the same time", 2, func(r *rig) {
		s := f32(8)
		b := r.put(s, encode(s, ramp(s, 1)), 0)
		exe := r.compile(AddOne, s, on(0))
		var work sync.WaitGroup
		for range 8 {
			work.Go(func() {
				for range 10 {
					out, err := exe.Execute(device.Run{Inputs: [][]device.Buffer{{b}}, Only: -1})
					if err != nil {
						r.refused("Execute on a buffer that may be closed", err, gone, argument(0))
						continue
					}
					statustest.Check(r, r.holds(out.Outputs[0][0], plus(ramp(s, 1), 1)))
					out.Outputs[0][0].Close()
				}
			})
		}
		work.Go(func() { b.Close() })
		work.Wait()
	}},
	{"goroutines may compile at the same time", 1, func(r *rig) {
		var work sync.WaitGroup
		for g := range 4 {
			work.Go(func() {
				s := f32(int64(g + 1))
				source := r.Programs(AddOne, s, on(0))
				exe, err := r.driver.Compile(r.ctx, source.Program, source.Options)
				if err != nil {
					r.Errorf("Compile: %v", err)
					return
				}
				defer exe.Close()
				statustest.Equal(r, exe.Outputs()[0].Shape.String(), s.String(), "compiled for %s, the output", s)
			})
		}
		work.Wait()
	}},
}

// once copies an array to a device, adds one there, copies the result to every device,
// adds one on each by donation, and reads the results.
func (r *rig) once(addOne, donate device.Executable, devs []int, dev, seed int, thens *atomic.Int32) error {
	s := f32(8)
	x, err := r.driver.FromHost(device.Host{Shape: s, Data: encode(s, ramp(s, seed)), Device: dev})
	if err != nil {
		return err
	}
	defer x.Close()
	out, err := addOne.Execute(device.Run{Inputs: [][]device.Buffer{{x}}, Only: -1})
	if err != nil {
		return err
	}
	y := out.Outputs[0][0]
	defer y.Close()
	called := make(chan struct{})
	out.Done[0].Then(func(error) {
		thens.Add(1)
		close(called)
	})
	rows := make([][]device.Buffer, len(devs))
	for i, d := range devs {
		b, err := y.CopyTo(d, "")
		if err != nil {
			return err
		}
		defer b.Close()
		rows[i] = []device.Buffer{b}
	}
	all, err := donate.Execute(device.Run{Inputs: rows, Only: -1})
	if err != nil {
		return err
	}
	for _, row := range all.Outputs {
		defer row[0].Close()
		if err := r.holds(row[0], plus(ramp(s, seed), 2)); err != nil {
			return err
		}
	}
	select {
	case <-called:
		return nil
	case <-r.ctx.Done():
		return r.ctx.Err()
	}
}

// holds returns an error if a buffer does not have the values. It is for goroutines that
// must not end the test.
func (r *rig) holds(b device.Buffer, want []float64) error {
	dst := r.memory(b.Shape().HostBytes())
	e, err := b.ToHost(dst)
	if err != nil {
		return err
	}
	if err := e.Wait(r.ctx); err != nil {
		return err
	}
	if got := decode(b.Shape(), dst); fmt.Sprint(got) != fmt.Sprint(want) {
		return fmt.Errorf("got %v, want %v", got, want)
	}
	return nil
}
