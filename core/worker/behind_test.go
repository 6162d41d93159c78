package worker_test

import (
	"context"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/sim"
)

// polite is a driver that tells how nice the thread is that compiles.
type polite struct {
	device.Driver
	got chan int
}

func (d polite) Compile(ctx context.Context, p device.Program, options []byte) (device.Executable, error) {
	d.got <- priority()
	return d.Driver.Compile(ctx, p, options)
}

// priority is the calling thread's: higher is sooner.
func priority() int {
	n, _ := unix.Getpriority(unix.PRIO_PROCESS, 0)
	return n
}

// Compiling and loading leave the processors to computations, see host.Behind.
func TestCompilingAndLoadingStandBehind(t *testing.T) {
	usual := priority()
	if usual <= 1 {
		t.Skip("nothing can stand behind a process of the lowest priority")
	}
	drivers := simDrivers(t, 1, 1, sim.Options{})
	d := polite{drivers[0], make(chan int, 1)}
	drivers[0] = d
	s := start(t, drivers, nil)
	p := addOne()
	places := []*wire.Place{{Worker: firstWorker}}
	s.tell(wire.KindCompile, &wire.Compile{Op: 1, Format: sim.Format, Code: p.Source().Code,
		Options: sim.CompileOptions([]int{0}), Places: places})
	if got := <-d.got; got >= usual {
		t.Errorf("a thread that compiles has priority %d, others have %d", got, usual)
	}
	s.tell(wire.KindLoad, &wire.Load{Session: 1, Program: 1, Devices: []*wire.Devices{{Count: 1}},
		Loadable: &wire.Loadable{Form: wire.Loadable_NATIVE, Format: sim.Format, Code: p.Source().Code,
			Options: sim.CompileOptions([]int{0})}})
	if got := <-d.got; got >= usual {
		t.Errorf("a thread that loads has priority %d, others have %d", got, usual)
	}
}
