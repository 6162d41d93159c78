package controller

import (
	"fmt"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/wire/wiretest"
	"testing"
)

// peersIn writes which connections are told of which processes, a line a message.
func peersIn(t *testing.T, actions []Action) (lines []string) {
	t.Helper()
	for _, a := range actions {
		if a.Kind != Send || a.Wire != wire.KindPeers {
			continue
		}
		m := wiretest.Decode[wire.Peers](t, a.Payload)
		line := fmt.Sprint(a.To)
		for _, p := range m.Come {
			line += fmt.Sprintf(" +%d", p.Number)
		}
		for _, n := range m.Gone {
			line += fmt.Sprintf(" -%d", n)
		}
		lines = append(lines, line)
	}
	return lines
}

// Workers hear of each other when they first exchange bytes, and of the loss of those that they have heard of.
func TestWorkersAreIntroducedToThoseTheyNeed(t *testing.T) {
	b := newBed(t, Config{}, 4, 1) // connections and processes 1 to 4, and the client 5
	want := func(what string, actions []Action, lines ...string) {
		t.Helper()
		statustest.EqualSlices(t, peersIn(t, actions), lines, "%s", what)
	}
	worker := func(name string) []Action {
		b.conns++
		return b.step(Event{Kind: Join, Conn: b.conns, Message: &wire.Hello{Role: wire.Role_ROLE_WORKER, Name: name,
			Worker: &wire.WorkerOffer{Devices: []*wire.LocalDevice{{}},
				Platform: &wire.Platform{Name: "sim"}}}})
	}
	want("a worker joins", worker("late"))
	array := &wire.Array{Dtype: uint32(shape.F32)}
	want("a put", b.say(b.client, wire.KindPut,
		&wire.Put{Op: 1, Object: 1, Array: array, Devices: []uint32{0, 1, 2, 3}}))
	transfer := func(op uint64, ends ...uint32) []Action {
		m := &wire.Transfer{Op: op, Object: op, Array: array}
		for i := range len(ends) - 1 {
			m.Moves = append(m.Moves, &wire.Move{Source: 1, From: ends[i], To: ends[i+1]})
		}
		return b.say(b.client, wire.KindTransfer, m)
	}
	want("a transfer within a worker", transfer(2, 0, 0))
	want("a transfer", transfer(3, 0, 1, 2), "[1] +1 +2", "[2] +1 +2 +3", "[3] +2 +3")
	want("the same again", transfer(4, 0, 1, 2))
	want("one pair more", transfer(5, 0, 2), "[1] +3", "[3] +1")
	lose := func(conn uint64) []Action {
		return b.step(Event{Kind: Lost, Conn: conn, Err: status.New(status.Unavailable, "it fell over")})
	}
	want("the loss of one that was needed", lose(2), "[1 3 5] -2")
	want("the loss of one that was not", lose(4), "[5] -4")
	statustest.Check(t, b.st.Check())

	// The workers of a collective program are told of all of them, by one message for all.
	b = newBed(t, Config{}, 3, 2)
	want("a collective program", b.install(1, 4, true), "[1 2] +1 +2")
	want("one on more workers", b.install(2, 6, true), "[1 2] +3", "[3] +1 +2 +3")
	b = newBed(t, Config{}, 3, 2)
	want("a program whose devices do not wait for each other", b.install(1, 6, false))

	// Those that know few of them are told of these again, so that it is still one message.
	b = newBed(t, Config{}, 6, 1)
	b.puts([]uint32{0, 1})
	want("a transfer", transfer(2, 0, 1), "[1] +1 +2", "[2] +1 +2")
	want("a collective program on all", b.install(1, 6, true), "[1 2 3 4 5 6] +1 +2 +3 +4 +5 +6")
	want("the next", b.install(2, 6, true))
	want("the loss of one of them", lose(3), "[1 2 4 5 6 7] -3")
	b.puts([]uint32{3, 4})
	want("a transfer between others", transfer(4, 3, 4))
	statustest.Check(t, b.st.Check())
}

// The many workers of a transfer or a graph are introduced in several Steps, each to its neighbors once, before they are
// told to send.
func TestManyWorkersAreIntroducedInParts(t *testing.T) {
	const workers = 2*pairsAtOnce + 10
	b := newBed(t, Config{}, workers, 1)
	all := onAll(b)
	b.puts(all)
	b.loads(1, false)
	shifts := func(by uint32) *wire.Transfer {
		m := &wire.Transfer{Op: b.next(), Object: b.next(), Array: square}
		for _, d := range all {
			m.Moves = append(m.Moves, &wire.Move{Source: 1, From: d, To: (d + by) % workers})
		}
		return m
	}
	// Of a message: the Steps, the most workers that one of them told of others, and how many others they were told of.
	var steps, most, told int
	met := map[[2]uint64]bool{}
	last := wire.KindDispatch
	b.around = func(step func()) {
		b.actions = b.actions[:0]
		step()
		now := 0
		for _, a := range b.actions {
			if a.Kind == Send && a.Wire == last && told < 2*workers {
				t.Fatalf("workers are told to send when they were told of %d others, want %d", told, 2*workers)
			}
			if a.Kind != Send || a.Wire != wire.KindPeers {
				continue
			}
			now++
			for _, p := range wiretest.Decode[wire.Peers](t, a.Payload).Come {
				if pair := [2]uint64{a.To[0], p.Number}; pair[0] != pair[1] && !met[pair] { // a connection has its process' number here
					met[pair] = true
					told++
				}
			}
		}
		if now > 0 {
			steps++
		}
		most = max(most, now)
	}
	check := func(what string, wantSteps, wantTold int) {
		t.Helper()
		statustest.Equal(t, steps, wantSteps, "Steps that introduce workers for %s", what)
		statustest.Equal(t, told, wantTold, "others that workers are told of for %s", what)
		if most > 2*pairsAtOnce {
			t.Errorf("%s: a Step tells %d workers, want at most %d", what, most, 2*pairsAtOnce)
		}
		steps, most, told = 0, 0, 0
	}
	b.say(b.client, wire.KindTransfer, shifts(1))
	check("a transfer", 3, 2*workers)
	told = 2 * workers
	b.say(b.client, wire.KindTransfer, shifts(1))
	check("the same again", 0, 2*workers)
	last = wire.KindGraph
	b.say(b.client, wire.KindGraph, chainOf(1, 8, workers, 2))
	check("a graph", 3, 2*workers)

	// One is lost after the survey: what is introduced then has no part in it.
	m := shifts(3)
	ev := Arrived(b.client, wire.KindTransfer, m, mustMarshal(t, m))
	b.st.Survey(&ev)()
	b.around = nil
	b.step(Event{Kind: Lost, Conn: b.workers[5], Err: errLeft})
	for first := ev.Introduce(); first != nil; first = ev.Introduce() {
		for _, line := range peersIn(t, b.step(*first)) {
			if line[:3] == "[6]" || line[len(line)-3:] == " +6" {
				t.Errorf("of the one that was lost: %s", line)
			}
		}
	}
	b.step(ev)
	failed := b.st.sessions[1].failed
	statustest.Equal(t, failed[len(failed)-1].Number, m.Op, "the operation that fails, beside those that were under way")
	statustest.Check(t, b.st.Check())
}
