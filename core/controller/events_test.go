package controller

import (
	"fmt"
	"testing"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

// An answer has the newest events that it is asked for, oldest first, with their ages.
func TestAnswerHasTheNewestEvents(t *testing.T) {
	st := New(Config{Cluster: "test"})
	numbers := func(after uint64, n int) (all []uint64) {
		for _, e := range st.Answer(&wire.Ask{After: after, Events: uint32(n), OnlyEvents: true}).Events {
			statustest.Equal(t, e.Text, fmt.Sprint("event ", e.Number), "event %d says", e.Number)
			statustest.Equal(t, e.AgeMs, int64(st.happened-e.Number), "age in ms of event %d", e.Number)
			all = append(all, e.Number)
		}
		return all
	}
	record := func(until uint64) {
		for st.happened < until {
			st.now += 1e6
			st.note(about{kind: wire.EventJoined}, fmt.Sprint("event ", st.happened+1), nil)
		}
	}
	for _, c := range []struct {
		happened, after uint64
		n               int
		first, last     uint64 // 0: none
	}{
		{0, 0, 10, 0, 0}, {3, 0, 10, 1, 3}, {3, 0, 2, 2, 3}, {3, 2, 10, 3, 3}, {3, 3, 10, 0, 0},
		{3, 9, 10, 0, 0}, {3, 0, 0, 0, 0},
		{keepsEvents, 0, 1 << 20, 1, keepsEvents},
		{keepsEvents + 5, 0, 1 << 20, 6, keepsEvents + 5},
		{keepsEvents + 5, 3, 1 << 20, 6, keepsEvents + 5},
		{2*keepsEvents + 7, 2*keepsEvents + 5, 9, 2*keepsEvents + 6, 2*keepsEvents + 7},
	} {
		record(c.happened)
		got := numbers(c.after, c.n)
		want := []uint64{}
		for n := c.first; n > 0 && n <= c.last; n++ {
			want = append(want, n)
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("of %d, %d after %d are %v, want %v", c.happened, c.n, c.after, got, want)
		}
	}
}

// A controller remembers who came, got devices, was refused or left, and why; a tenant is not told the reasons of
// sessions.
func TestEventsSayWhoCameAndWhatTheyGot(t *testing.T) {
	b := newBed(t, Config{}, 1, 1)
	client := b.client
	b.say(client, wire.KindSliceRequest, &wire.SliceRequest{Slice: 1, Devices: 1})
	b.say(client, wire.KindSliceRequest, &wire.SliceRequest{Slice: 2, Devices: 9})
	b.say(b.client, wire.KindSliceRelease, &wire.SliceRelease{Slices: []uint64{1, 2}})
	b.step(Event{Kind: Join, Conn: 77, Peer: "elsewhere", Message: &wire.Hello{Role: wire.Role_ROLE_WORKER, Name: "odd"}})
	b.step(Event{Kind: Lost, Conn: b.workers[0], Err: status.New(status.Unavailable, "it burns")})
	b.step(Event{Kind: Lost, Conn: client, Err: status.New(status.Unavailable, "called at secret.py:3")})

	r := b.st.Answer(&wire.Ask{Events: 100, OnlyEvents: true})
	if len(r.Islands)+len(r.Sessions) > 0 {
		t.Error("an answer with events only tells who is there")
	}
	got := ""
	for _, e := range r.Events {
		got += fmt.Sprintf("%s warn=%v session=%d worker=%d reason=%v\n", e.Kind, e.Warn, e.Session, e.Worker, e.Reason != "")
	}
	want := `joined warn=false session=0 worker=1 reason=false
began warn=false session=1 worker=0 reason=false
granted warn=false session=1 worker=0 reason=false
denied warn=false session=1 worker=0 reason=true
released warn=false session=1 worker=0 reason=false
refused warn=true session=0 worker=0 reason=true
lost warn=true session=0 worker=1 reason=true
ended warn=false session=1 worker=0 reason=true
`
	if got != want {
		t.Errorf("the events are\n%swant\n%s", got, want)
	}
	for _, e := range For(wire.Viewer{IsTenant: true}, r).Events {
		if secret := e.Kind != wire.EventRefused; secret && e.Reason != "" || !secret && e.Reason == "" {
			t.Errorf("a tenant is told of %s: %q", e.Kind, e.Reason)
		}
	}
}
