package devicetest

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/device"
)

// programs checks Compile, Load and the properties of executables.
var programs = []check{
	{"an executable knows its devices, results, name and cost", 0, func(r *rig) {
		for _, p := range []Program{AddOne, Copy, Add, Two, Donate, AllReduce} {
			s, devs := f32(4, 2), r.all()
			exe := r.compile(p, s, devs)
			statustest.EqualSlices(r, exe.Devices(), devs, "%s: Devices", p)
			want := 1
			if p == Two {
				want = 2
			}
			statustest.Equal(r, len(exe.Outputs()), want, "%s: outputs", p)
			for i, o := range exe.Outputs() {
				if o.Shape.DType != s.DType || !slices.Equal(o.Shape.Dims, s.Dims) {
					r.Errorf("%s: output %d is %s, want %s", p, i, o.Shape, s)
				}
				statustest.Equal(r, o.Memory, r.memoryKind(0), "%s: output %d is in memory", p, i)
			}
			if exe.Name() == "" || exe.Fingerprint() == "" {
				r.Errorf("%s: name %q fingerprint %q: want both", p, exe.Name(), exe.Fingerprint())
			}
			if c, err := exe.Cost(); err != nil {
				r.Errorf("%s: the cost: %v", p, err)
			} else if c.ArgumentBytes < -1 || c.OutputBytes < -1 || c.AliasBytes < -1 || c.TempBytes < -1 ||
				c.CodeBytes < -1 {
				r.Errorf("%s: a cost is below -1: %+v", p, c)
			} else if c.ArgumentBytes > 0 && c.ArgumentBytes < s.Bytes()*int64(p.arguments()) {
				r.Errorf("%s: ArgumentBytes is %d for %d arguments of %d bytes", p, c.ArgumentBytes, p.arguments(), s.Bytes())
			}
		}
		a, b := r.compile(AddOne, f32(4), on(0)), r.compile(AddOne, f32(5), on(0))
		if a.Fingerprint() == b.Fingerprint() {
			r.Errorf("two programs have the fingerprint %q", a.Fingerprint())
		}
	}},
	{"rows are those of the devices in the program's order", 2, func(r *rig) {
		exe := r.compile(Copy, f32(2), on(1, 0))
		statustest.MustEqualSlices(r, exe.Devices(), on(1, 0), "Devices")
		out := r.execute(exe, r.ramps(f32(2), on(1, 0))...)
		for row, dev := range on(1, 0) {
			statustest.Equal(r, out.Outputs[row][0].Device(), dev, "the output of row %d is on device", row)
			r.values(fmt.Sprintf("row %d", row), out.Outputs[row][0], ramp(f32(2), row))
		}
	}},
	{"what is no program is refused", 1, func(r *rig) {
		good := r.Programs(AddOne, f32(4), on(0))
		for _, c := range []struct {
			name  string
			p     device.Program
			codes []status.Code
		}{
			{"garbage", device.Program{Format: good.Format, Code: []byte("this is not a program")}, invalid},
			{"empty", device.Program{Format: good.Format}, invalid},
			{"half a program", device.Program{Format: good.Format, Code: good.Code[:len(good.Code)/2]}, invalid},
			{"unknown format", device.Program{Format: "cobol", Code: good.Code},
				[]status.Code{status.InvalidArgument, status.Unimplemented}},
		} {
			exe, err := r.driver.Compile(r.ctx, c.p, good.Options)
			if err == nil {
				exe.Close()
			}
			r.refused(c.name, err, c.codes)
		}
		exe, err := r.driver.Compile(r.ctx, good.Program, []byte("\xff\xff\xff"))
		if err == nil {
			exe.Close()
		}
		r.refused("garbage options", err, invalid)
		r.compile(AddOne, f32(4), on(0)) // the driver is unharmed
	}},
	{"a program compiles without options", 1, func(r *rig) {
		exe, err := r.driver.Compile(r.ctx, r.Programs(AddOne, f32(4), on(0)).Program, nil)
		statustest.OKf(r, err, "Compile with nil options")
		r.keep(exe)
		out := r.execute(exe, r.ramps(f32(4), exe.Devices())...)
		r.values("x+1", out.Outputs[0][0], plus(ramp(f32(4), 0), 1))
	}},
	{"an executable is the same after Serialize and Load", 0, func(r *rig) {
		if r.Lacks.Serialize {
			r.Skip("the driver lacks Serialize")
		}
		s, devs := f32(4), r.all()
		for _, p := range []Program{AddOne, AllReduce} {
			exe := r.compile(p, s, devs)
			blob, err := exe.Serialize()
			statustest.OKf(r, err, "Serialize of %s", p)
			again, err := r.driver.Load(r.ctx, blob.Data)
			blob.Release()
			statustest.OKf(r, err, "Load of %s", p)
			r.keep(again)
			if !slices.Equal(again.Devices(), exe.Devices()) || len(again.Outputs()) != len(exe.Outputs()) {
				r.Errorf("%s has devices %v and %d outputs, after Load %v and %d", p, exe.Devices(), len(exe.Outputs()),
					again.Devices(), len(again.Outputs()))
			}
			exe.Close()
			in := r.ramps(s, devs)
			out := r.execute(again, in...)
			for i := range devs {
				want := plus(ramp(s, i), 1)
				if p == AllReduce {
					want = total(s, len(devs))
				}
				r.values(fmt.Sprintf("%s loaded again, row %d", p, i), out.Outputs[i][0], want)
			}
		}
		for _, blob := range [][]byte{nil, []byte("this is not an executable")} {
			exe, err := r.driver.Load(r.ctx, blob)
			if err == nil {
				exe.Close()
			}
			r.refused(fmt.Sprintf("Load of %q", blob), err, []status.Code{status.InvalidArgument, status.Internal})
		}
	}},
}

// total returns the result of AllReduce for ramps of seeds 0 to n-1.
func total(s shape.Shape, n int) []float64 {
	sum := make([]float64, s.Elements())
	for i := range n {
		for j, v := range ramp(s, i) {
			sum[j] += v
		}
	}
	return sum
}

// executions checks the results of computations, and what Execute refuses.
var executions = []check{
	{"a program computes values of each shape, and leaves its arguments", 1, func(r *rig) {
		for _, s := range []shape.Shape{f32(), f32(0), f32(4), f32(3, 5), s32(), s32(7), f32(129, 65)} {
			x := ramp(s, 1)
			exe := r.compile(AddOne, s, on(0))
			in := r.put(s, encode(s, x), 0)
			out := r.execute(exe, []device.Buffer{in})
			r.wait(out.Done[0])
			r.values("argument of add_one of "+s.String(), in, x)
			b := out.Outputs[0][0]
			if got := b.Shape(); got.DType != s.DType || !slices.Equal(got.Dims, s.Dims) || b.Device() != 0 ||
				b.Memory() != r.memoryKind(0) {
				r.Errorf("output is %s on device %d memory %q", got, b.Device(), b.Memory())
			}
			r.values("add_one of "+s.String(), b, plus(x, 1))

			y := ramp(s, 2)
			out = r.execute(r.compile(Add, s, on(0)), []device.Buffer{r.put(s, encode(s, x), 0), r.put(s, encode(s, y), 0)})
			want := slices.Clone(x)
			for i := range want {
				want[i] += y[i]
			}
			r.values("add of "+s.String(), out.Outputs[0][0], want)

			out = r.execute(r.compile(Two, s, on(0)), []device.Buffer{r.put(s, encode(s, x), 0)})
			r.values("two of "+s.String()+", output 0", out.Outputs[0][0], x)
			r.values("two of "+s.String()+", output 1", out.Outputs[0][1], plus(x, 1))
		}
	}},
	{"a buffer may be two arguments of a program", 1, func(r *rig) {
		s := f32(4)
		b := r.put(s, encode(s, ramp(s, 1)), 0)
		out := r.execute(r.compile(Add, s, on(0)), []device.Buffer{b, b})
		want := ramp(s, 1)
		for i := range want {
			want[i] *= 2
		}
		r.values("x+x", out.Outputs[0][0], want)
	}},
	{"a result stays when the argument that it copies is closed", 1, func(r *rig) {
		s := f32(4)
		in := r.put(s, encode(s, ramp(s, 1)), 0)
		out := r.execute(r.compile(Copy, s, on(0)), []device.Buffer{in})
		in.Close()
		r.values("a computation's copy after its input was closed", out.Outputs[0][0], ramp(s, 1))
	}},
	{"a program runs on all devices at once", 0, func(r *rig) {
		s, devs := f32(3, 2), r.all()
		out := r.execute(r.compile(AddOne, s, devs), r.ramps(s, devs)...)
		for i, dev := range devs {
			r.wait(out.Done[i])
			statustest.Equal(r, out.Outputs[i][0].Device(), dev, "the output of row %d is on device", i)
			r.values(fmt.Sprintf("row %d", i), out.Outputs[i][0], plus(ramp(s, i), 1))
		}
	}},
	{"a program of one device runs on each", 0, func(r *rig) {
		s := f32(4)
		for _, dev := range r.all() {
			out := r.execute(r.compile(AddOne, s, on(dev)), r.ramps(s, on(dev))...)
			statustest.Equal(r, out.Outputs[0][0].Device(), dev, "the output is on device")
			r.values(fmt.Sprintf("device %d", dev), out.Outputs[0][0], plus(ramp(s, 0), 1))
		}
	}},
	{"an all-reduce gives all devices the sum", 0, func(r *rig) {
		devs := r.all()
		for _, s := range []shape.Shape{f32(), f32(5), s32(2, 3)} {
			exe := r.compile(AllReduce, s, devs)
			for range 3 {
				in := r.ramps(s, devs)
				out := r.execute(exe, in...)
				for i := range devs {
					r.values(fmt.Sprintf("all_reduce of %s, row %d", s, i), out.Outputs[i][0], total(s, len(devs)))
					r.values(fmt.Sprintf("argument of all_reduce, row %d", i), in[i][0], ramp(s, i))
				}
			}
		}
	}},
	{"buffers may be closed while runs in a chain still read them", 1, func(r *rig) {
		s, n := f32(4), 50
		exe := r.compile(AddOne, s, on(0))
		b := r.put(s, encode(s, ramp(s, 0)), 0)
		for range n {
			next := r.execute(exe, []device.Buffer{b}).Outputs[0][0]
			b.Close() // while it may still be read
			b = next
		}
		r.values("a chain of closed buffers", b, plus(ramp(s, 0), float64(n)))
	}},
	{"wrong arguments are refused, and say what was expected", 2, func(r *rig) {
		s := f32(4)
		add := r.compile(Add, s, on(0))
		x := func(s shape.Shape, dev int) device.Buffer { return r.put(s, make([]byte, s.HostBytes()), dev) }
		good := x(s, 0)
		type row = []device.Buffer
		bad := []struct {
			name   string
			rows   []row
			texts  []string
			byType bool // seen only by a driver that knows its parameters' types
		}{
			{"no rows", nil, []string{"1"}, false},
			{"two rows for one device", []row{{good, good}, {good, good}}, []string{"2", "1"}, false},
			{"too few arguments", []row{{good}}, []string{"1", "2"}, false},
			{"too many arguments", []row{{good, good, good}}, []string{"3", "2"}, false},
			{"no arguments", []row{{}}, []string{"0", "2"}, false},
			{"another size", []row{{good, x(f32(5), 0)}}, []string{argument(1)}, false},
			{"another shape of the same size", []row{{good, x(f32(2, 2), 0)}}, []string{argument(1), "f32[2,2]", "f32[4]"},
				true},
			{"another type of the same size", []row{{x(s32(4), 0), good}}, []string{argument(0), "s32[4]", "f32[4]"}, true},
			{"another device", []row{{good, x(s, 1)}}, []string{argument(1), "device"}, false},
			{"a nil buffer", []row{{good, nil}}, []string{argument(1)}, false},
		}
		for _, c := range bad {
			if c.byType && r.Lacks.ArgumentTypes {
				continue
			}
			_, err := r.tryRun(add, device.Run{Inputs: c.rows, Only: -1})
			r.refused(c.name, err, invalid, c.texts...)
		}
		for _, i := range []int{-1, 2} {
			_, err := r.tryRun(add, device.Run{Inputs: []row{{good, good}}, NotDonated: []int{i}, Only: -1})
			r.refused(fmt.Sprintf("NotDonated %d", i), err, invalid, fmt.Sprint("argument ", i))
		}
		other := r.Open(r, 2)
		foreign, err := other.FromHost(device.Host{Shape: s, Data: make([]byte, 16)})
		statustest.OKf(r, err, "FromHost of another driver")
		_, err = r.tryRun(add, device.Run{Inputs: []row{{good, foreign}}, Only: -1})
		r.refused("a buffer of another driver", err, invalid, argument(1))
		foreign.Close()
		statustest.Checkf(r, other.Close(), "Close of another driver")
		out := r.execute(add, []device.Buffer{good, good}) // unharmed by all this
		r.values("0+0", out.Outputs[0][0], make([]float64, 4))
	}},
	{"a donated argument is gone after the launch", 0, func(r *rig) {
		s, devs := f32(64), r.all()
		exe := r.compile(Donate, s, devs)
		in := r.ramps(s, devs)
		out := r.execute(exe, in...)
		for i := range devs {
			if !in[i][0].Deleted() {
				r.Errorf("row %d: the donated argument is not Deleted", i)
			}
			r.values(fmt.Sprintf("donated, row %d", i), out.Outputs[i][0], plus(ramp(s, i), 1))
		}
		_, err := r.tryRun(exe, device.Run{Inputs: in, Only: -1})
		r.refused("a donated argument again", err, gone, argument(0))
		_, err = in[0][0].ToHost(r.memory(s.HostBytes()))
		r.refused("ToHost of a donated argument", err, gone)

		in = r.ramps(s, devs)
		out = r.run(exe, device.Run{Inputs: in, NotDonated: []int{0}, Only: -1})
		for i := range devs {
			if in[i][0].Deleted() {
				r.Errorf("row %d: an argument in NotDonated is Deleted", i)
			}
			r.values(fmt.Sprintf("not donated, row %d", i), out.Outputs[i][0], plus(ramp(s, i), 1))
			r.values(fmt.Sprintf("not donated, argument of row %d", i), in[i][0], ramp(s, i))
		}
		b := in[0][0]
		one := r.compile(Donate, s, on(0))
		for range 20 {
			b = r.execute(one, []device.Buffer{b}).Outputs[0][0]
		}
		r.values("a chain of donations", b, plus(ramp(s, 0), 20))
	}},
	{"a buffer may be donated while it is read", 1, func(r *rig) {
		s := f32(64)
		b := r.put(s, encode(s, ramp(s, 1)), 0)
		reading := r.memory(s.HostBytes())
		e, err := b.ToHost(reading)
		statustest.OKf(r, err, "ToHost")
		out := r.execute(r.compile(Donate, s, on(0)), []device.Buffer{b}) // while it is read
		r.wait(e)
		if want := encode(s, ramp(s, 1)); !bytes.Equal(reading, want) {
			r.Errorf("a read before a donation saw %v", decode(s, reading))
		}
		r.values("donated while read", out.Outputs[0][0], plus(ramp(s, 1), 1))
	}},
	{"memory of the host is let go when an array that used it was donated", 1, func(r *rig) {
		s := f32(64)
		for _, sem := range semantics {
			data := r.memory(s.HostBytes())
			copy(data, encode(s, ramp(s, 1)))
			let := make(chan struct{}, 2)
			b := r.fromHost(device.Host{Shape: s, Data: data, Semantics: sem.s, Done: func() { let <- struct{}{} }})
			out := r.execute(r.compile(Donate, s, on(0)), []device.Buffer{b})
			r.values(sem.name+" donated", out.Outputs[0][0], plus(ramp(s, 1), 1))
			if sem.s != device.MutableZeroCopy && !bytes.Equal(data, encode(s, ramp(s, 1))) {
				r.Errorf("%s: a computation wrote into the host's bytes", sem.name)
			}
			b.Close()
			out.Outputs[0][0].Close()
			r.receive(sem.name+": Done", let)
		}
	}},
	{"a program may run on one of its devices only", 2, func(r *rig) {
		if r.Lacks.Only {
			r.Skip("the driver lacks Run.Only")
		}
		s := f32(4)
		exe := r.compile(AddOne, s, on(0))
		for _, dev := range r.all() {
			out := r.run(exe, device.Run{Inputs: r.ramps(s, on(dev)), Only: dev})
			if got := out.Outputs[0][0].Device(); got != dev {
				r.Errorf("Only %d gave an output on device %d", dev, got)
			}
			r.values(fmt.Sprintf("Only %d", dev), out.Outputs[0][0], plus(ramp(s, 0), 1))
		}
		_, err := r.tryRun(exe, device.Run{Inputs: r.ramps(s, on(0)), Only: 1})
		r.refused("Only 1 with an argument on device 0", err, invalid, argument(0), "device")
		_, err = r.tryRun(exe, device.Run{Inputs: r.ramps(s, on(0)), Only: 2})
		r.refused("Only on no device", err, invalid, "device")
		two := r.compile(AddOne, s, on(0, 1))
		_, err = r.tryRun(two, device.Run{Inputs: r.ramps(s, on(0)), Only: 0})
		r.refused("Only with an executable for two devices", err, invalid, "2")
	}},
}
