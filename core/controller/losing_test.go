package controller

import (
	"slices"
	"testing"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

// What is under way on a worker that is lost fails some at a time, so that others come in between, such as a worker
// that can take its place. It takes that only when all has failed, and the session's arrays are lost.
func TestGangsOfALostWorkerFailSomeAtATime(t *testing.T) {
	const gangs, atOnce = 1000, int(StepWeight)/weightOfFailure + 1
	b := newBed(t, Config{}, 2, 1)
	s := b.st.sessions[1]
	b.putsOn(b.client, 1, true)
	b.putsOn(b.client, gangs, false)
	b.st.Weigh(StepWeight)
	after := func(ev Event) {
		t.Helper()
		before := len(s.failed)
		b.step(ev)
		if n := len(s.failed) - before; n > atOnce {
			t.Errorf("%d gangs failed in one step, expected %d at most", n, atOnce)
		}
		statustest.Check(t, b.st.Check())
	}
	after(Event{Kind: Lost, Conn: b.workers[0], Err: errLeft})
	b.joinWorker("w0", 1)
	after(Event{Kind: Tick})
	if n := len(s.failed); n == gangs || s.offered != nil {
		t.Fatalf("after three steps %d gangs of %d have failed, and the session is offered %v", n, gangs, s.offered)
	}
	for b.st.More() {
		after(Event{Kind: Continue})
	}
	statustest.Equal(t, len(s.failed), gangs, "gangs have failed")
	if s.offered == nil {
		t.Error("the session is not offered the worker that has come")
	}
	b.say(b.client, wire.KindFetch, &wire.Fetch{Op: b.next(), Object: 1})
	if last := s.failed[len(s.failed)-1]; status.CodeOf(last.Status.Err()) != status.DataLoss {
		t.Errorf("what reads an array that was there ends with %v", last)
	}
}

// A session's arrays lose their shards on a lost worker some at a time. Those that are freed meanwhile are passed over.
func TestArraysOfALostWorkerAreLostSomeAtATime(t *testing.T) {
	const arrays = 2000
	b := newBed(t, Config{}, 2, 1)
	s := b.st.sessions[1]
	b.putsOn(b.client, arrays, true)
	b.st.Weigh(10 * weightOfLoss)
	step := func(ev Event) {
		t.Helper()
		ev.Now = b.now
		b.actions = b.st.Step(&ev, b.actions[:0])
		statustest.Check(t, b.st.Check())
	}
	lost := func() (n int) {
		for _, o := range s.objects {
			if o.absent {
				n++
			}
		}
		return n
	}
	step(Event{Kind: Lost, Conn: b.workers[0], Err: errLeft})
	if n := lost(); n > 20 {
		t.Errorf("%d arrays were lost in one step", n)
	}
	next := b.st.losing[0].array.id
	step(Event{Kind: Message, Conn: b.client, Wire: wire.KindFree, Message: &wire.Free{Objects: []uint64{next, next + 1}}})
	for b.st.More() {
		before := lost()
		step(Event{Kind: Continue})
		if n := lost() - before; n > 20 {
			t.Fatalf("%d arrays were lost in one step", n)
		}
	}
	statustest.Equal(t, lost(), arrays-2, "arrays are lost")
}

// Likewise its programs, of which a session may have tens of thousands.
func TestProgramsOfALostWorkerAreLostSomeAtATime(t *testing.T) {
	const programs = 2000
	b := newBed(t, Config{}, 2, 1)
	s := b.st.sessions[1]
	for i := range uint64(programs) {
		b.loads(i+1, false)
	}
	b.st.Weigh(10 * weightOfUnload)
	slot := b.st.conns.Get(b.workers[1]).w.slot
	loaded := func() (n int) {
		for _, p := range s.programs {
			if p.loaded.has(slot) {
				n++
			}
		}
		return n
	}
	had := loaded()
	statustest.Equal(t, had, programs, "programs are loaded on the worker")
	forgotten := false
	for ev := (Event{Kind: Lost, Conn: b.workers[1], Err: errLeft}); ; ev = (Event{Kind: Continue}) {
		b.actions = b.st.Step(&ev, b.actions[:0])
		statustest.Check(t, b.st.Check())
		left := loaded()
		if had-left > 20 {
			t.Fatalf("%d programs were lost in one step", had-left)
		}
		had = left
		if !b.st.More() {
			break
		}
		if l := b.st.losing; len(l) > 0 && l[0].program != nil && !forgotten {
			forgotten = true
			next := l[0].program.id
			b.say(b.client, wire.KindForget, &wire.Forget{Programs: []uint64{next, next + 1}})
			had = loaded()
		}
	}
	statustest.Equal(t, loaded(), 0, "programs are loaded on the worker that is lost")
	statustest.Equal(t, len(s.programs), programs-2, "programs of the session")
}

// Likewise the artifacts that it had. Nothing is sent to it, though it still waits for some: it is passed over when its
// turn comes.
func TestArtifactsOfALostWorkerAreLostSomeAtATime(t *testing.T) {
	const artifacts = 500
	b := newBed(t, Config{Limits: Limits{Store: 1}}, 8, 1) // artifacts are dropped with their programs
	lost, others := b.workers[1], b.workers[2:]
	for i := range uint64(artifacts) {
		b.loads(i+1, true)
		if i%2 == 0 {
			b.say(lost, wire.KindHave, &wire.Have{Artifact: i + 1})
			continue
		}
		for _, w := range slices.Insert(slices.Clone(others), 4, lost) { // the first worker sends to four of them at a time
			b.say(w, wire.KindWant, &wire.Want{Artifact: i + 1})
		}
	}
	b.st.Weigh(10 * weightOfArtifact)
	w := b.st.conns.Get(lost).w
	left := func() (n int) {
		for _, c := range b.st.artifacts {
			if c.artifact.senders.has(w) {
				n++
			}
		}
		return n
	}
	step := func(ev Event) {
		t.Helper()
		ev.Now = b.now
		for _, a := range b.st.Step(&ev, nil) {
			if a.Kind == Send && slices.Contains(a.To, lost) {
				t.Fatalf("the lost worker is sent a message of kind %d", a.Wire)
			}
		}
		statustest.Check(t, b.st.Check())
	}
	had := left()
	statustest.Equal(t, had, artifacts/2, "artifacts that the worker has")
	step(Event{Kind: Lost, Conn: lost, Err: errLeft})
	next := b.st.losing[0].artifact.of.number
	step(Event{Kind: Message, Conn: b.client, Wire: wire.KindForget,
		Message: &wire.Forget{Programs: []uint64{next, next + 1}}})
	if _, is := b.st.artifacts[next]; is {
		t.Fatal("an artifact is kept that no session has")
	}
	for b.st.More() {
		had = left()
		if l := b.st.losing; len(l) > 0 && l[0].artifact != nil { // others have their turn
			wanted := l[0].artifact.of.number &^ 1
			step(Event{Kind: Message, Conn: others[0], Wire: wire.KindHave, Message: &wire.Have{Artifact: wanted + 2}})
		}
		step(Event{Kind: Continue})
		if n := had - left(); n > 25 {
			t.Fatalf("%d artifacts were lost in two steps", n)
		}
	}
	statustest.Equal(t, left(), 0, "artifacts that the worker has")
	statustest.Equal(t, len(b.st.artifacts), artifacts-2, "artifacts")
	for number, c := range b.st.artifacts {
		step(Event{Kind: Message, Conn: others[0], Wire: wire.KindHave, Message: &wire.Have{Artifact: number}})
		if c.artifact.wanted[w] {
			t.Fatalf("the lost worker still waits for artifact %d", number)
		}
	}
}
