package controller

import (
	"math"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

// A client hears that its program is compiled once all is on disk that the next start of the controller needs of it.
func TestCompiledProgramsAreKeptBeforeTheirClientsHear(t *testing.T) {
	b := newBed(t, Config{Keeps: true}, 1, 1)
	kept := map[string]bool{}
	heard := false
	for _, a := range b.check(b.install(1, 1, false)) {
		switch {
		case a.Kind == Keep:
			kept[a.Table] = a.Fact != nil
		case a.Kind == Send && a.Wire == wire.KindCompiled:
			heard = true
			if !a.AfterKept || !kept[tablePrograms] || !kept[tableCompiled] {
				t.Errorf("the client hears of it when facts of %v are kept; after them: %t", kept, a.AfterKept)
			}
		}
	}
	if !heard {
		t.Error("the client does not hear of it")
	}
}

// What a program was compiled to stays on disk while any session has the program, also one that had it before no worker
// had it any more and it was compiled anew for another session.
func TestCompiledProgramsStayOnDiskForAllWhoHaveThem(t *testing.T) {
	b := newBed(t, Config{Keeps: true, Limits: Limits{Store: 1}}, 1, 1)
	b.loads(1, true)
	number := b.st.sessions[1].programs[1].of.number
	b.check(b.say(b.workers[0], wire.KindHave, &wire.Have{Artifact: number, No: true}))
	first := b.client
	b.client = b.joinClient()
	b.loads(1, true)
	statustest.EqualSlices(t, b.forget(1), []string{tablePrograms},
		"when one of two sessions forgets it, facts are removed of")
	b.client = first
	statustest.EqualSlices(t, b.forget(1), ofOneProgram, "when both have, facts are removed of")
}

// A start keeps the offer of a session as it was kept before: its client may have taken it when that start ends, too.
func TestOffersStayOnDiskWhenTheControllerStartsAgain(t *testing.T) {
	b := newBed(t, Config{Keeps: true}, 2, 1)
	hello := b.st.conns.Get(b.workers[1]).w.hello
	b.step(Event{Kind: Lost, Conn: b.workers[1], Err: errLeft})
	b.conns++
	b.check(b.step(Event{Kind: Join, Conn: b.conns, Message: hello}))
	kept := b.facts()
	if len(kept.Sessions[1].Offered) == 0 {
		t.Fatal("the session is offered nothing")
	}
	refused, actions := New(Config{Keeps: true, Starts: 2}).Restore(kept)
	if len(refused) > 0 {
		t.Fatalf("these cannot come back: %v", refused)
	}
	for _, a := range actions {
		if m, ok := a.Fact.(*wire.KeptSession); ok && !proto.Equal(m, kept.Sessions[1]) {
			t.Errorf("the start keeps %v, want %v", m, kept.Sessions[1])
		}
	}
}

// Numbers that follow from those of a damaged file do not begin again at 0, as others may have these: the file is
// refused. What a worker reports of a session that is unknown has no such effect either.
func TestNumbersNearTheEndAreRefused(t *testing.T) {
	for name, fact := range map[string]storedFact{
		"process": {TableLinks, mustMarshal(t, &wire.KeptLink{Process: math.MaxUint64})},
		"link":    {TableLinks, mustMarshal(t, &wire.KeptLink{Id: math.MaxUint64 - 1})},
		"last":    {tableNumbers, mustMarshal(t, &wire.KeptLink{Process: math.MaxUint64 - 5})},
		"session": {tableSessions, mustMarshal(t, &wire.KeptSession{Session: math.MaxUint32})},
		"another": {tableNumbers, mustMarshal(t, &wire.KeptLink{Session: math.MaxUint32})},
	} {
		_, err := ReadKept(storedFacts{fact}.read)
		statustest.Fails(t, name, err, status.DataLoss, fact.table, "expected at most", "move the file away")
	}
	b := newBedThatKeeps(t)
	kept := b.facts()
	b.st = New(Config{Keeps: true, Starts: 2})
	if refused, _ := b.st.Restore(kept); len(refused) > 0 {
		t.Fatalf("these cannot come back: %v", refused)
	}
	b.say(b.client, wire.KindRejoin, &wire.Rejoin{Epoch: 1, Programs: []uint64{1}})
	for _, w := range b.workers {
		b.say(w, wire.KindRejoin, &wire.Rejoin{Holdings: []*wire.Holding{{Session: 1, Programs: []uint64{1}},
			{Session: math.MaxUint32}}})
	}
	b.conns++
	b.check(b.step(Event{Kind: Join, Conn: b.conns, Message: &wire.Hello{Role: wire.Role_ROLE_CLIENT}}))
	statustest.Equal(t, b.st.conns.Get(b.conns).s.id, 2, "the next session")
}
