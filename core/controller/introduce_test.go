package controller

import (
	"fmt"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/wire/wiretest"
	"strings"
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

// The many workers of a program, put, transfer or graph are told of the session, and introduced to those that they
// exchange bytes with, in several Steps: each once, and before it is told to do anything.
func TestManyWorkersAreIntroducedInParts(t *testing.T) {
	const workers = 2*pairsAtOnce + 10
	b := newBed(t, Config{}, workers, 1)
	all := onAll(b)
	shifts := func(by uint32) *wire.Transfer {
		m := &wire.Transfer{Op: b.next(), Object: b.next(), Array: square}
		for _, d := range all {
			m.Moves = append(m.Moves, &wire.Move{Source: 1, From: d, To: (d + by) % workers})
		}
		return m
	}
	var told, met []int // workers, by Step: told of the session, and of how many others
	acted := false
	b.around = func(step func()) {
		b.actions = b.actions[:0]
		step()
		sessions, others := 0, 0
		for _, a := range b.actions {
			switch {
			case a.Kind == Send && a.Wire == wire.KindSession:
				sessions++
			case a.Kind == Send && a.Wire == wire.KindPeers:
				others += len(wiretest.Decode[wire.Peers](t, a.Payload).Come)
			case a.Kind == Send && (a.Wire == wire.KindDispatch || a.Wire == wire.KindGraph || a.Wire == wire.KindLoad):
				acted = true
				continue
			default:
				continue
			}
			if acted {
				t.Fatal("workers are introduced after one has been told to act")
			}
		}
		if sessions > 0 {
			told = append(told, sessions)
		}
		if others > 0 {
			met = append(met, others)
		}
	}
	check := func(what string, inParts *[]int, want ...int) {
		t.Helper()
		statustest.EqualSlices(t, *inParts, want, "%s: workers, by Step", what)
		if len(told)+len(met) > len(want) {
			t.Errorf("%s: %d are told of the session, and %d of others", what, told, met)
		}
		told, met, acted = nil, nil, false
	}
	parts := []int{pairsAtOnce, pairsAtOnce, 10}
	b.loads(1, false)
	check("a program", &told, parts...)
	b.puts(all)
	check("a put", &told)
	other := b.joinClient()
	b.say(other, wire.KindPut, &wire.Put{Op: 1, Object: 1, Array: square, Devices: all})
	check("another session's put", &told, parts...)
	// A worker is told of itself and of two neighbors; a first and a last one, which are in two parts, of one at a time.
	parts = []int{3*pairsAtOnce + 1, 3 * pairsAtOnce, 3*10 - 1}
	b.say(b.client, wire.KindTransfer, shifts(1))
	check("a transfer", &met, parts...)
	b.say(b.client, wire.KindTransfer, shifts(1))
	check("the same again", &met)
	b.say(b.client, wire.KindGraph, chainOf(1, 8, workers, 1))
	check("a graph of it", &met)
	b.say(b.client, wire.KindGraph, chainOf(2, 8, workers, 3))
	check("a graph", &met, 2*pairsAtOnce, 2*pairsAtOnce, 2*10)

	// One is lost after the survey: it has no part in what is introduced then.
	m := shifts(7)
	ev := Arrived(b.client, wire.KindTransfer, m, mustMarshal(t, m))
	b.st.Survey(&ev)()
	b.around = nil
	b.step(Event{Kind: Lost, Conn: b.workers[5], Err: errLeft})
	for first := ev.Introduce(); first != nil; first = ev.Introduce() {
		for _, line := range peersIn(t, b.step(*first)) {
			if strings.HasPrefix(line, "[6]") || strings.Contains(line+" ", " +6 ") {
				t.Errorf("of the one that was lost: %s", line)
			}
		}
	}
	b.step(ev)
	failed := b.st.sessions[1].failed
	statustest.Equal(t, failed[len(failed)-1].Number, m.Op, "the operation that fails, beside those that were under way")
	statustest.Check(t, b.st.Check())
}
