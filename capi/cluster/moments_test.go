package cluster

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/bubble"
	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/status/statustest"
)

func TestMomentsAreKeptAndAwaited(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var h happenings
		if list, last := h.after(0, time.Second); len(list) != 0 || last != 0 {
			t.Fatalf("before anything has happened: %v, %d", list, last)
		}
		time.AfterFunc(time.Minute, func() { h.add(client.Moment{Kind: client.MomentLost, Worker: "w"}) })
		begun := time.Now()
		list, last := h.after(0, time.Hour)
		if took := time.Since(begun); took != time.Minute || len(list) != 1 || list[0].Worker != "w" || last != 1 {
			t.Fatalf("after %v: %v, %d", took, list, last)
		}
		for range 2 * keepsMoments {
			h.add(client.Moment{Kind: client.MomentResumed})
		}
		list, last = h.after(last, time.Hour)
		if n := len(list); n > keepsMoments || n < keepsMoments/2 || list[n-1].Number != last || last != 2*keepsMoments+1 {
			t.Fatalf("%d are kept, up to %d", n, last)
		}
	})
}

func TestAwayIsWhatTheConnectionWasLast(t *testing.T) {
	var h happenings
	says := func(want string, kinds ...string) {
		t.Helper()
		for _, kind := range kinds {
			h.add(client.Moment{Kind: kind, Reason: "UNAVAILABLE: x"})
		}
		statustest.Equal(t, h.away(), want, "after %v", kinds)
	}
	const away = ", since there is no connection to the controller: UNAVAILABLE: x"
	says("")
	says(away, client.MomentDisconnected, client.MomentLost)
	says("", client.MomentResumed)
	says(away, client.MomentDisconnected)
	says("", client.MomentRestarted)
}

// The kinds are read from the source, so that a new one cannot be forgotten here.
func TestEachKindOfMomentHasALine(t *testing.T) {
	source := statustest.Value(os.ReadFile("../../core/client/moment.go")).OK(t)
	kinds := regexp.MustCompile(`(?m)^\tMoment\w+ += "(\w+)"`).FindAllSubmatch(source, -1)
	if len(kinds) < 7 {
		t.Fatalf("%d kinds were found", len(kinds))
	}
	for _, k := range kinds {
		kind := string(k[1])
		line := momentLine(client.Moment{Kind: kind, Worker: "w", Devices: []uint32{1}, Reason: "UNAVAILABLE: x"})
		if line == "" || strings.Contains(line, "the session is lost") != (kind == client.MomentEnded) {
			t.Errorf("%s: %q", kind, line)
		}
	}
	away := momentLine(client.Moment{Kind: client.MomentDisconnected, Lease: 10 * time.Second})
	if !strings.HasSuffix(away, "for 10s at most") {
		t.Errorf("without a connection: %q", away)
	}
}
