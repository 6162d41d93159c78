package controller

import (
	"testing"

	"github.com/openpathways/pathways/core/ledger"
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
		if got := b.st.ledger.Device(b.st.sessions[1].numbers[0]).InUse; got != want {
			t.Errorf("%s: %d bytes are in use, want %d", when, got, want)
		}
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
