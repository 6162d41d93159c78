package controller

import (
	"testing"

	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

// Device time is a session's, and what a program takes of each device is an average over its runs.
func TestDeviceTimeIsChargedToTheSessionAndAveragedByProgram(t *testing.T) {
	b := newBed(t, Config{FirstCome: true}, 2, 1)
	b.program(2)
	b.st.sessions[1].programs[1].of.usual = 0
	run := func(op uint64, seconds ...uint64) uint64 {
		b.say(b.client, wire.KindRun, &wire.Run{Op: op, Program: 1, FirstOutput: op, Inputs: []uint64{1}})
		gang := b.st.gang
		for i, s := range seconds {
			b.say(b.workers[i], wire.KindCompleted, &wire.Completed{Ok: []uint64{gang}, Busy: []uint64{s * 1e9}})
		}
		return gang
	}
	usually := func(gang uint64) int64 {
		b.say(b.workers[0], wire.KindHeartbeat,
			&wire.Heartbeat{Running: []*wire.Running{{Devices: []uint32{0}, Session: 1, Gang: gang}}})
		return b.st.Report().Islands[0].Workers[0].Last.Running[0].UsualMs
	}
	statustest.Equal(t, usually(run(2)), 0, "ms that a program usually takes that has not ended yet")
	run(3, 2, 6)
	statustest.Equal(t, usually(run(4)), 4000, "ms that it usually takes after a run of 2 and 6 s on two devices")
	run(5, 6, 18)
	statustest.Equal(t, usually(run(6)), 5000, "ms that it usually takes after another of 6 and 18 s")
	b.say(b.workers[0], wire.KindCompleted, &wire.Completed{Failed: []*wire.Failure{{Number: b.st.gang, Busy: 5e9}}})
	// from a worker that measures nothing
	b.say(b.workers[1], wire.KindCompleted, &wire.Completed{Ok: []uint64{b.st.gang}})
	statustest.Equal(t, b.st.Report().Sessions[0].DeviceNs, 37e9, "ns that the session was charged")
	p := b.st.Report().Programs[0]
	if p.Runs != 3 || p.DeviceNs != 37e9 || p.UsualNs != 5e9 || p.Devices != 2 {
		t.Errorf("the program is reported as %v, want 3 runs of usually 5 s on each of 2 devices, 37 s in all", p)
	}
	statustest.Check(t, b.st.Check())
}

// A run that goes on when its session ends is charged what it takes, once its last worker has reported it, and keeps
// its place until then.
func TestDeviceTimeOfARunIsChargedAfterTheEndOfItsSession(t *testing.T) {
	b := newBed(t, Config{}, 2, 1)
	b.program(2)
	b.say(b.client, wire.KindRun, &wire.Run{Op: 2, Program: 1, FirstOutput: 2, Inputs: []uint64{1}})
	tenant, is := b.st.conns.Get(b.client).s.tenant, b.st.islands[0]
	b.say(b.client, wire.KindGoodbye, &wire.Goodbye{})
	for i, busy := range []uint64{3e9, 5e9} {
		if tenant.spent != 0 || is.sched.Running() != 1 {
			t.Errorf("before worker %d reports, %d ns are charged and %d runs are in the schedule; expected 0 and 1", i,
				tenant.spent, is.sched.Running())
		}
		b.say(b.workers[i], wire.KindCompleted, &wire.Completed{Ok: []uint64{b.st.gang}, Busy: []uint64{busy}})
	}
	if tenant.spent != 8e9 || is.sched.Running() != 0 {
		t.Errorf("%d ns are charged and %d runs are in the schedule; expected 8 s and none", tenant.spent,
			is.sched.Running())
	}
	statustest.Check(t, b.st.Check())
}
