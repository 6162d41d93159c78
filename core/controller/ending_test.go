package controller

import (
	"testing"

	"github.com/openpathways/pathways/core/ledger"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

// What is freed leaves although a put of the session does not end, since its client has stopped: no put reads anything.
// What such a put makes stays until it has ended, and what a run or fetch may read until that has.
func TestFreesBehindAStoppedPutLeave(t *testing.T) {
	const long = 8 << 10
	b := newBed(t, Config{MemoryWait: 60e9}, 1, 1)
	b.program(1)
	expect := func(when string, want int64) {
		t.Helper()
		statustest.Equal(t, b.st.ledger.Device(b.st.sessions[1].number(0)).InUse, want, "%s: bytes are in use", when)
		statustest.Check(t, b.st.Check())
	}
	free := func(id uint64) { b.say(b.client, wire.KindFree, &wire.Free{Objects: []uint64{id}}) }
	put := func(op uint64) (gang uint64) {
		b.say(b.client, wire.KindPut, &wire.Put{Op: op, Object: op, Array: floats(long), Devices: []uint32{0}})
		return b.st.gang
	}
	ends := func(gang uint64) { b.say(b.workers[0], wire.KindCompleted, &wire.Completed{Ok: []uint64{gang}}) }
	ends(put(2))
	stopped := put(3)
	expect("all are there", 4+2*4*long)
	b.say(b.client, wire.KindFetch, &wire.Fetch{Op: 4, Object: 2})
	fetch := b.st.gang
	free(2)
	expect("a fetch reads it", 4+2*4*long)
	ends(fetch)
	expect("the fetch has ended", 4+4*long)
	free(1)
	expect("nothing reads it", 4*long)
	free(3)
	expect("its own put has not ended", 4*long)
	ends(stopped)
	expect("the put has ended", 0)
	// Nor does a session that ends leave anything behind.
	stopped = put(5)
	free(5)
	b.say(b.client, wire.KindGoodbye, &wire.Goodbye{})
	ends(stopped)
	if n := b.st.ledger.Len(); n != 0 || b.st.ledger.On(ledger.Owner(1), 0) != 0 {
		t.Errorf("%d arrays are left", n)
	}
}

// A report of one part of a gang is taken without a Step if others are left and nothing else follows from it.
func TestPartsAreTakenWithoutAStep(t *testing.T) {
	succeeds, fails := &wire.Completed{Ok: []uint64{2}}, &wire.Completed{Failed: []*wire.Failure{{Number: 2}}}
	for _, c := range []struct {
		name   string
		before func(b *bed) // worker 0 has reported its part
		worker int
		m      *wire.Completed
		want   bool
	}{
		{"a part", nil, 1, &wire.Completed{Ok: []uint64{2}, Busy: []uint64{7}}, true},
		{"the last part", func(b *bed) {
			b.reports(1, succeeds)
			b.reports(3, succeeds)
		}, 2, succeeds, false},
		{"a part again", nil, 0, succeeds, false},
		{"no gang", nil, 1, &wire.Completed{Ok: []uint64{9}}, false},
		{"two gangs", nil, 1, &wire.Completed{Ok: []uint64{2, 2}}, false},
		{"a failure", nil, 1, fails, false},
		{"a part of a gang that has failed", func(b *bed) { b.reports(1, fails) }, 2, succeeds, false},
		{"a device that another session may use", func(b *bed) { b.joinClient() }, 1, succeeds, false},
		{"a worker with memory of an earlier start", func(b *bed) {
			b.st.remains(b.st.workers[1], 9, map[uint64]bool{2: true}, []int64{1})
		}, 1, succeeds, false},
	} {
		b := newBed(t, Config{}, 4, 1)
		b.loads(1, false)
		b.say(b.client, wire.KindPut, &wire.Put{Op: 1, Object: 1, Array: scalar, Devices: onAll(b)})
		b.reportAll()
		b.say(b.client, wire.KindRun, &wire.Run{Op: 2, Program: 1, FirstOutput: 2, Inputs: []uint64{1}})
		b.reports(0, succeeds)
		if c.before != nil {
			c.before(b)
		}
		g := b.st.gangs.Get(2)
		left := g.left
		statustest.Equal(t, b.st.TakePart(b.workers[c.worker], c.m), c.want, "%s is taken", c.name)
		if c.want {
			left--
		}
		statustest.Equal(t, g.left, left, "%s: parts are left", c.name)
		statustest.Check(t, b.st.Check())
		for worker := range b.workers {
			b.reports(worker, succeeds)
		}
		statustest.Equal(t, b.st.gangs.Len(), 0, "%s: gangs are left", c.name)
		statustest.Equal(t, len(b.st.workers[1].remains), 0, "%s: memory of an earlier start is left", c.name)
	}
}

func (b *bed) reports(worker int, m *wire.Completed) { b.say(b.workers[worker], wire.KindCompleted, m) }

// A device that has done its part of a run is for the next one, also while another device has not. The parts of a
// collective end together, so the schedule is told of all at once.
func TestADeviceThatHasDoneItsPartOfARunIsForTheNext(t *testing.T) {
	for _, collective := range []bool{false, true} {
		b := newBed(t, Config{}, 2, 1)
		b.install(1, 2, collective)
		b.install(2, 1, false)
		scalar := &wire.Array{Dtype: uint32(shape.F32)}
		b.say(b.client, wire.KindPut, &wire.Put{Op: 1, Object: 1, Array: scalar, Devices: []uint32{0, 1}})
		b.say(b.client, wire.KindPut, &wire.Put{Op: 2, Object: 2, Array: scalar, Devices: []uint32{0}})
		// neither was measured, so a device has one at a time
		b.say(b.client, wire.KindRun, &wire.Run{Op: 3, Program: 1, FirstOutput: 3, Inputs: []uint64{1}})
		wide := b.st.gang
		b.say(b.client, wire.KindRun, &wire.Run{Op: 4, Program: 2, FirstOutput: 4, Inputs: []uint64{2}})
		if b.st.gang != wide {
			t.Fatal("a run begins on a device that has one already")
		}
		b.say(b.workers[0], wire.KindCompleted, &wire.Completed{Ok: []uint64{wide}, Busy: []uint64{1e9}})
		if begun := b.st.gang != wide; begun == collective {
			t.Errorf("collective %v: where its device has done its part of the run before, the next has begun: %v", collective,
				begun)
		}
		b.say(b.workers[1], wire.KindCompleted, &wire.Completed{Ok: []uint64{wide}, Busy: []uint64{2e9}})
		if b.st.gang == wide {
			t.Error("the next run has not begun though the one before has ended")
		}
		statustest.Check(t, b.st.Check())
	}
}
