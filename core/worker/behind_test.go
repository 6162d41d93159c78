package worker_test

import (
	"context"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/sim"
)

// sliced is a driver that tells the slice of the thread that compiles.
type sliced struct {
	device.Driver
	got chan uint64
}

func (d sliced) Compile(ctx context.Context, p device.Program, options []byte) (device.Executable, error) {
	a, err := unix.SchedGetAttr(0, 0)
	if err == nil {
		d.got <- a.Runtime
	} else {
		close(d.got)
	}
	return d.Driver.Compile(ctx, p, options)
}

// Compiling and loading leave the processors to computations, see host.Behind.
func TestCompilingAndLoadingStandBehind(t *testing.T) {
	a, err := unix.SchedGetAttr(0, 0)
	if err != nil || a.Runtime == 0 {
		t.Skipf("this Linux knows no slices of single threads (%v)", err)
	}
	drivers := simDrivers(t, 1, 1, sim.Options{})
	d := sliced{drivers[0], make(chan uint64, 1)}
	drivers[0] = d
	s := start(t, drivers, nil)
	p := addOne()
	places := []*wire.Place{{Worker: firstWorker}}
	s.tell(wire.KindCompile, &wire.Compile{Op: 1, Format: sim.Format, Code: p.Source().Code,
		Options: sim.CompileOptions([]int{0}), Places: places})
	if got := <-d.got; got <= a.Runtime {
		t.Errorf("a thread that compiles has slices of %d ns, as others: %d", got, a.Runtime)
	}
	s.tell(wire.KindLoad, &wire.Load{Session: 1, Program: 1, Places: places, Loadable: &wire.Loadable{
		Form: wire.Loadable_NATIVE, Format: sim.Format, Code: p.Source().Code, Options: sim.CompileOptions([]int{0})}})
	if got := <-d.got; got <= a.Runtime {
		t.Errorf("a thread that loads has slices of %d ns, as others: %d", got, a.Runtime)
	}
}
