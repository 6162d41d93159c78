package worker_test

import (
	"context"
	"testing"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/sim"
)

// slowCompiler is a driver whose compiler waits until it is let.
type slowCompiler struct {
	device.Driver
	begun, let chan struct{}
}

func (d slowCompiler) Compile(ctx context.Context, p device.Program, options []byte) (device.Executable, error) {
	d.begun <- struct{}{}
	<-d.let
	return d.Driver.Compile(context.WithoutCancel(ctx), p, options) // as one that cannot stop midway
}

// A compile that no session waits for any more does not begin; one that has begun goes
// on, and its result is told.
func TestAbandonedCompileDoesNotBegin(t *testing.T) {
	drivers := simDrivers(t, 1, 1, sim.Options{})
	slow := slowCompiler{drivers[0], make(chan struct{}), make(chan struct{})}
	drivers[0] = slow
	s := start(t, drivers, nil)
	p := addOne()
	compile := func(op uint64) {
		s.tell(wire.KindCompile,
			&wire.Compile{Op: op, Format: sim.Format, Code: p.Source().Code, Options: sim.CompileOptions([]int{0}),
				Places: []*wire.Place{{Worker: firstWorker}}})
	}
	answer := func(n int) *wire.Compiled {
		s.until("a compile", func() bool { return len(s.compiled) >= n })
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.compiled[n-1]
	}
	// As many as may compile at once, and one more.
	compile(1)
	<-slow.begun
	compile(2)
	<-slow.begun
	compile(3)
	s.tell(wire.KindForget, &wire.Forget{Compiles: []uint64{1, 3, 77}})
	if m := answer(1); m.Op != 3 || status.CodeOf(m.Status.Err()) != status.Cancelled {
		t.Errorf("the answer is %v, want CANCELLED for compile 3, which had not begun", m)
	}
	close(slow.let)
	for n := 2; n <= 3; n++ {
		if m := answer(n); m.Op == 3 || m.Status.Err() != nil || m.Info == nil {
			t.Errorf("compile %d had begun and returns %v", m.Op, m.Status)
		}
	}
}
