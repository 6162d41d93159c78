package controller

import (
	"errors"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/wire"
)

// A worker and a session whose connections break stay, also beyond the time in which a silent worker is lost. The
// report and the events say how often that happened, and for how long.
func TestCutConnectionKeepsItsPlace(t *testing.T) {
	const second = int64(1e9)
	b := newBed(t, Config{Heartbeat: second, Silence: 4 * second}, 0, 0)
	const worker, client = 7, 8
	b.step(Event{Kind: Join, Conn: worker, Lease: 60 * second, Message: &wire.Hello{Role: wire.Role_ROLE_WORKER, Name: "w",
		Worker: &wire.WorkerOffer{Platform: &wire.Platform{Name: "sim"}, Devices: []*wire.LocalDevice{{}}}}})
	b.step(Event{Kind: Join, Conn: client, Lease: 60 * second,
		Message: &wire.Hello{Role: wire.Role_ROLE_CLIENT, Name: "c"}})
	expect := func(when string, want *wire.Report_Link) {
		t.Helper()
		r := b.st.Report()
		if len(r.Islands) != 1 || len(r.Sessions) != 1 {
			t.Fatalf("%s: the cluster has %v", when, r)
		}
		for _, got := range []*wire.Report_Link{r.Islands[0].Workers[0].Link, r.Sessions[0].Link} {
			if !proto.Equal(got, want) {
				t.Errorf("%s: got %v, want %v", when, got, want)
			}
		}
	}
	expect("before", &wire.Report_Link{LeaseMs: 60_000})
	for _, conn := range []uint64{worker, client} {
		b.step(Event{Kind: Cut, Conn: conn, Err: errors.New("reset")})
	}
	for range 20 {
		b.now += second
		b.step(Event{Kind: Tick})
	}
	expect("while it is cut", &wire.Report_Link{LeaseMs: 60_000, Cuts: 1, CutMs: 20_000, LastMs: 20_000, Why: "reset"})
	for _, conn := range []uint64{worker, client} {
		b.step(Event{Kind: Mended, Conn: conn})
	}
	b.now += 2 * second
	b.step(Event{Kind: Tick})
	expect("when it is mended", &wire.Report_Link{LeaseMs: 60_000, Cuts: 1, BackMs: 20_000, LastMs: 22_000, Why: "reset"})
	kinds := map[string]int{}
	for _, e := range b.st.eventsAfter(0, keepsEvents) {
		kinds[e.event.Kind]++
	}
	if kinds[wire.EventCut] != 2 || kinds[wire.EventMended] != 2 {
		t.Errorf("events by kind: %v", kinds)
	}
	for range 4 {
		b.now += second
		b.step(Event{Kind: Tick})
	}
	if n := len(b.st.Report().Islands); n > 0 {
		t.Error("a worker that hangs after its connection was mended stays")
	}
}
