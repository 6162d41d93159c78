package controller

import (
	"errors"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/wire/wiretest"
)

// A device's slice_index stays the same when the controller starts again, also for a device whose island has no worker
// then.
func TestIslandsKeepTheirNumbersWhenTheControllerStartsAgain(t *testing.T) {
	b := newBed(t, Config{Keeps: true}, 1, 1)
	join := func(hello *wire.Hello) (conn uint64, actions []Action) {
		b.conns++
		return b.conns, b.check(b.step(Event{Kind: Join, Conn: b.conns, Message: hello}))
	}
	other := &wire.Hello{Role: wire.Role_ROLE_WORKER, Name: "other",
		Worker: &wire.WorkerOffer{Island: "other", Platform: &wire.Platform{Name: "sim"}, Devices: []*wire.LocalDevice{{}}}}
	lost, _ := join(other)
	b.check(b.step(Event{Kind: Lost, Conn: b.client, Err: errors.New("it has left")}))
	b.client, _ = join(&wire.Hello{Role: wire.Role_ROLE_CLIENT})
	b.check(b.step(Event{Kind: Lost, Conn: lost, Err: errors.New("it burnt")}))
	kept := b.facts()
	b.st = New(Config{Keeps: true, Starts: 2})
	if refused, _ := b.st.Restore(kept); len(refused) > 0 {
		t.Fatalf("these cannot come back: %v", refused)
	}
	b.say(b.client, wire.KindRejoin, &wire.Rejoin{Epoch: 1})
	b.check(b.say(b.workers[0], wire.KindRejoin, &wire.Rejoin{}))
	_, actions := join(other)
	m := new(wire.Rebind)
	for _, a := range actions {
		if a.Kind == Send && a.Wire == wire.KindRebind {
			statustest.OK(t, proto.Unmarshal(sent(a), m))
		}
	}
	if len(m.Devices) != 1 || m.Devices[0].Slice != 1 {
		t.Errorf("the client is offered %v in the place of a device of island 1", m.Devices)
	}
}

// A controller that starts again keeps the last numbers that were given, also those of clients that have gone, for the
// start behind it: peers remember which processes have gone.
func TestNumbersAreNotGivenAgainAfterTwoStarts(t *testing.T) {
	b := newBedThatKeeps(t)
	b.check(b.step(Event{Kind: Lost, Conn: b.client, Err: errLeft}))
	kept := b.facts()
	want := proto.CloneOf(kept.Numbers)
	refused, actions := New(Config{Keeps: true, Starts: 2}).Restore(kept)
	if len(refused) > 0 {
		t.Fatalf("these cannot come back: %v", refused)
	}
	got := []*wire.KeptLink{kept.Numbers}
	for _, a := range actions {
		if m, ok := a.Fact.(*wire.KeptLink); ok {
			got = append(got, m)
		}
	}
	for _, m := range got { // any of them may be the last that gets to the disk
		if m.Process != want.Process || m.Session != want.Session {
			t.Errorf("process %d and session %d are kept as the last ones, want %d and %d", m.Process, m.Session, want.Process,
				want.Session)
		}
	}
}

// A place on a board has blocks of the worker that had it, also of one that was lost before the controller started
// again. Those that come back keep their places, and others are told of these.
func TestPlacesOnABoardAreNotGivenAgain(t *testing.T) {
	b := newBed(t, Config{Keeps: true}, 1, 1)
	b.workers = nil
	join := func(name string, number, slot int) {
		t.Helper()
		b.conns++
		b.workers = append(b.workers, b.conns)
		hello := &wire.Hello{Role: wire.Role_ROLE_WORKER, Name: name, Host: "host"}
		hello.Worker = &wire.WorkerOffer{Platform: &wire.Platform{Name: "sim"}, Board: "path",
			Devices: []*wire.LocalDevice{{}}}
		b.check(b.step(Event{Kind: Join, Conn: b.conns, Message: hello}))
		if p := b.st.conns.Get(b.conns).w.process; int(p.Board) != number || int(p.Slot) != slot {
			t.Errorf("%s gets place %d of board %d, want %d of %d", name, p.Slot, p.Board, slot, number)
		}
	}
	lose := func(i int) { b.check(b.step(Event{Kind: Lost, Conn: b.workers[i], Err: errors.New("it burnt")})) }
	again := func() {
		t.Helper()
		conns := b.st.conns.Numbers()
		kept := b.facts()
		b.st = New(Config{Keeps: true, Starts: b.st.config.Starts + 1})
		refused, actions := b.st.Restore(kept)
		if len(refused) > 0 {
			t.Fatalf("these cannot come back: %v", refused)
		}
		for _, a := range actions { // any of them may be the last that gets to the disk
			if m, ok := a.Fact.(*wire.KeptBoard); ok && !slices.ContainsFunc(kept.Boards, func(k *wire.KeptBoard) bool {
				return proto.Equal(k, m)
			}) {
				t.Errorf("the start keeps %v, want %v", m, kept.Boards)
			}
		}
		for _, conn := range conns {
			b.check(b.say(conn, wire.KindRejoin, &wire.Rejoin{Epoch: 1}))
		}
		for _, w := range b.st.present {
			if told := wiretest.Decode[wire.Peers](t, b.st.peers[w.slot].come).Come[0]; !proto.Equal(told, w.process) {
				t.Errorf("others are told %v of a worker that came back, want %v", told, w.process)
			}
		}
	}
	maker := int(b.st.process) + 1
	join("first", maker, 0)
	join("second", maker, 1)
	join("third", maker, 2)
	lose(1)
	lose(2)
	again()
	join("fourth", maker, 3)
	again()
	lose(0) // its board can no longer be opened
	again()
	join("fifth", maker+4, 0)
}
