package match

import (
	"fmt"
	"testing"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/transport"
)

func key(id uint64) transport.Key { return transport.Key{Space: 1, ID: id} }

// Whichever comes first waits for the other, once.
func TestFirstToComeWaitsForTheOther(t *testing.T) {
	table := New[string]()
	if e, err := table.Offer(7, key(1), "first"); e != nil || err != nil {
		t.Fatal(e, err)
	}
	statustest.Fails(t, "a second offer", statustest.Of(table.Offer(7, key(1), "again")), status.AlreadyExists)
	if _, found, err := table.Expect(&Expected{Peer: 8, Key: key(1)}); found || err != nil {
		t.Errorf("the same key of another peer: %v, %v", found, err)
	}
	if o, found, err := table.Expect(&Expected{Peer: 7, Key: key(1)}); o != "first" || !found || err != nil {
		t.Errorf("got %q, %v, %v", o, found, err)
	}
	statustest.Fails(t, "a second expectation", statustest.Of2(table.Expect(&Expected{Peer: 8, Key: key(1)})),
		status.AlreadyExists)
	if e, err := table.Offer(8, key(1), "late"); e == nil || err != nil {
		t.Errorf("an offer that is expected: %v, %v", e, err)
	}
	if o, e := table.Len(); o+e != 0 {
		t.Errorf("%d offers and %d expectations are left", o, e)
	}
}

// What fails or is lost takes out what waits, refuses what comes later, and does
// not grow with how many there were.
func TestFailuresAreRememberedWithoutGrowing(t *testing.T) {
	table := New[int]()
	const many = 3 * remembered
	for n := uint64(1); n <= many; n++ {
		table.Offer(n, key(1), 0)
		table.Expect(&Expected{Peer: n, Key: key(2)})
		table.Offer(many+1, key(10+n), 0)
		gone := status.New(status.Unavailable, "process %d", n)
		if offers, expected := table.Lose(n, gone); len(offers) != 1 || len(expected) != 1 {
			t.Fatalf("process %d had %d offers and %d expectations", n, len(offers), len(expected))
		}
		if offers, _ := table.Fail(1, 10+n, gone); len(offers) != 1 {
			t.Fatalf("operation %d had %d offers", n, len(offers))
		}
		table.Lose(n, status.New(status.Internal, "told again"))
		for _, late := range []uint64{n, n - min(n-1, remembered-1)} {
			statustest.Fails(t, fmt.Sprintf("process %d, after %d", late, n), table.Refused(late, key(3)),
				status.Unavailable)
			statustest.Fails(t, fmt.Sprintf("operation %d, after %d", late, n), table.Refused(many+1, key(10+late)),
				status.Unavailable)
		}
	}
	for what, r := range map[string]int{"processes": table.lost.Len(), "their order": len(table.lost.order),
		"operations": table.failed.Len(), "offers": len(table.offers)} {
		if r > remembered {
			t.Errorf("%d %s are kept, of %d", r, what, many)
		}
	}
	closed := status.New(status.Cancelled, "closed")
	table.Close(closed)
	statustest.Equal(t, table.Refused(many+2, key(1)), closed, "after the end")
}

// What is expected from a peer that cannot be reached fails, now and until it is
// reached again; what has come from it stays, and what comes for a forsaken
// expectation is refused.
func TestExpectationsOfUnreachablePeerFail(t *testing.T) {
	table := New[string]()
	away := status.New(status.Unavailable, "process 7 cannot be reached")
	table.Offer(7, key(1), "there")
	table.Expect(&Expected{Peer: 7, Key: key(2)})
	table.Expect(&Expected{Peer: 8, Key: key(2)})
	if e := table.Forsake(7, away); len(e) != 1 || e[0].Key != key(2) {
		t.Errorf("%d expectations are forsaken", len(e))
	}
	if o, found, err := table.Expect(&Expected{Peer: 7, Key: key(1)}); o != "there" || !found || err != nil {
		t.Errorf("what had come: %q, %v, %v", o, found, err)
	}
	if _, _, err := table.Expect(&Expected{Peer: 7, Key: key(3)}); err != away {
		t.Errorf("what is expected meanwhile: %v", err)
	}
	if table.Away(7) != away || table.Away(8) != nil {
		t.Errorf("away: %v, %v", table.Away(7), table.Away(8))
	}
	table.Regain(7)
	for id := uint64(2); id <= 3; id++ {
		if _, err := table.Offer(7, key(id), "late"); err != away {
			t.Errorf("what comes of what was forsaken: %v", err)
		}
	}
	if _, found, err := table.Expect(&Expected{Peer: 7, Key: key(4)}); found || err != nil {
		t.Errorf("what is expected again: %v, %v", found, err)
	}
	table.Forsake(9, away)
	table.Lose(9, away)
	if table.Away(9) != nil {
		t.Error("a peer that is lost is kept as away")
	}
}
