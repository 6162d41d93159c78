package epoch

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
)

// machine is a State with what it did.
type machine struct {
	t *testing.T
	*State
	out []Action
}

func (m *machine) step(ev Event) {
	m.t.Helper()
	m.out = m.Step(ev, nil)
	statustest.OKf(m.t, m.Check(), "after %+v", ev)
}

// want compares what the last step did, as text.
func (m *machine) want(want ...string) {
	m.t.Helper()
	var got []string
	for _, a := range m.out {
		s := fmt.Sprintf("%s %d", [...]string{"welcome", "refuse", "begin", "answer", "over"}[a.Kind], a.To)
		switch a.Kind {
		case Begin:
			s += fmt.Sprintf(" epoch %d node %d of %d", a.Epoch, a.Node, a.Nodes)
		case Answer:
			s += fmt.Sprintf(" %d %q", a.ID, a.Value)
		}
		if a.Err != nil {
			s += " " + status.CodeOf(a.Err).String()
		}
		got = append(got, s)
	}
	if !slices.Equal(got, want) {
		m.t.Fatalf("got\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func TestEpochsBeginWhenAllMembersAreThere(t *testing.T) {
	m := &machine{t: t, State: New(Limits{})}
	join := func(number uint64, name string, nodes int) {
		m.step(Event{Kind: Join, Member: number, Name: name, Island: "a", Nodes: nodes})
	}
	join(1, "w10", 2)
	m.want("welcome 1")
	m.step(Event{Kind: Put, Member: 1, ID: 1, Key: "early"})
	m.want(`answer 1 1 "" FAILED_PRECONDITION`)
	join(2, "w2", 3)
	m.want("refuse 2 FAILED_PRECONDITION")
	join(3, "w2", 2)
	m.want("welcome 3", "begin 3 epoch 1 node 0 of 2", "begin 1 epoch 1 node 1 of 2")
	join(3, "w2", 2)
	m.want("refuse 3 ALREADY_EXISTS")
	join(4, "spare", 2)
	m.want("welcome 4")

	m.step(Event{Kind: Get, Member: 1, ID: 1, Key: "k"})
	m.want()
	m.step(Event{Kind: Get, Member: 3, ID: 7, Key: "k"})
	m.step(Event{Kind: Get, Member: 3, ID: 8, Key: "k"})
	m.step(Event{Kind: Get, Member: 3, ID: 8, Key: "other"})
	m.want(`answer 3 8 "" INVALID_ARGUMENT`)
	m.step(Event{Kind: Drop, Member: 3, ID: 7})
	m.want()
	m.step(Event{Kind: Put, Member: 3, ID: 9, Key: "k", Value: []byte("v")})
	m.want(`answer 1 1 "v"`, `answer 3 8 "v"`, `answer 3 9 ""`)
	m.step(Event{Kind: Put, Member: 1, ID: 2, Key: "k", Value: []byte("v")})
	m.want(`answer 1 2 ""`)
	m.step(Event{Kind: Put, Member: 1, ID: 3, Key: "k", Value: []byte("w")})
	m.want(`answer 1 3 "" ALREADY_EXISTS`)
	m.step(Event{Kind: Try, Member: 1, ID: 4, Key: "k"})
	m.want(`answer 1 4 "v"`)
	m.step(Event{Kind: Try, Member: 1, ID: 5, Key: "nothing"})
	m.want(`answer 1 5 "" NOT_FOUND`)
	m.step(Event{Kind: Get, Member: 1, ID: 6, Key: "never"})

	m.step(Event{Kind: Leave, Member: 3, Err: status.New(status.Unavailable, "killed")})
	m.want("over 1 ABORTED")
	if text := m.out[0].Err.Error(); !strings.Contains(text, "w2") || !strings.Contains(text, "killed") ||
		!strings.Contains(text, "epoch 1") {
		t.Errorf("the end names neither who nor why: %s", text)
	}
	m.step(Event{Kind: Get, Member: 1, ID: 7, Key: "k"}) // it has yet to hear
	m.want()
	join(5, "w10", 2)
	m.want("welcome 5", "begin 4 epoch 2 node 0 of 2", "begin 5 epoch 2 node 1 of 2")
	m.step(Event{Kind: Try, Member: 5, ID: 1, Key: "k"})
	m.want(`answer 5 1 "" NOT_FOUND`)
	m.step(Event{Kind: Leave, Member: 1}) // of the epoch before
	m.want()
	m.step(Event{Kind: Leave, Member: 4})
	m.want("over 5 ABORTED")
	if len(m.members)+len(m.islands) != 0 {
		t.Errorf("%d members and %d islands are left", len(m.members), len(m.islands))
	}
	join(6, "w", 1)
	m.want("welcome 6", "begin 6 epoch 3 node 0 of 1")
}

func TestMembersBeyondTheBoundsAreRefused(t *testing.T) {
	m := &machine{t: t, State: New(Limits{Members: 2, Keys: 2, Bytes: 10, Key: 4, Waits: 1})}
	m.step(Event{Kind: Join, Member: 1, Nodes: 1, Island: "a"})
	m.step(Event{Kind: Join, Member: 2, Nodes: 1 << 20})
	m.want("refuse 2 INVALID_ARGUMENT")
	m.step(Event{Kind: Join, Member: 2})
	m.want("refuse 2 INVALID_ARGUMENT")
	m.step(Event{Kind: Join, Member: 2, Nodes: 2, Name: strings.Repeat("n", maxName+1)})
	m.want("refuse 2 INVALID_ARGUMENT")
	m.step(Event{Kind: Join, Member: 2, Nodes: 2})
	m.step(Event{Kind: Join, Member: 3, Nodes: 2})
	m.want("refuse 3 RESOURCE_EXHAUSTED")
	m.step(Event{Kind: Put, Member: 1, ID: 1, Key: "abcde"})
	m.want(`answer 1 1 "" INVALID_ARGUMENT`)
	m.step(Event{Kind: Get, Member: 1, ID: 1, Key: "abcd"})
	m.step(Event{Kind: Get, Member: 1, ID: 2, Key: "x"})
	m.want(`answer 1 2 "" RESOURCE_EXHAUSTED`)
	m.step(Event{Kind: Put, Member: 1, ID: 2, Key: "abcd", Value: make([]byte, 7)})
	m.want(`answer 1 2 "" RESOURCE_EXHAUSTED`)
	m.step(Event{Kind: Put, Member: 1, ID: 2, Key: "abcd", Value: make([]byte, 2)})
	m.step(Event{Kind: Put, Member: 1, ID: 3, Key: "b", Value: make([]byte, 1)})
	m.want(`answer 1 3 ""`)
	m.step(Event{Kind: Put, Member: 1, ID: 4, Key: "c"})
	m.want(`answer 1 4 "" RESOURCE_EXHAUSTED`)
}

// twin is the same, without a thought for cost: it looks everything up in the
// log of what has happened.
type twin struct {
	t        *rapid.T
	limits   Limits
	last, id uint64   // members and requests that were drawn
	order    []uint64 // members that are there, by coming
	island   map[uint64]string
	epoch    map[uint64]uint64
	values   map[uint64]map[string]string // by epoch
	pending  map[[2]uint64]string         // requests that wait: keys
}

// twinNodes are the members of an epoch, by island.
var twinNodes = map[string]int{"a": 2, "b": 1, "c": 3}

// Whatever members do, in any order: each request has one answer or none is owed,
// answers are what was put in the member's own epoch, epochs have as many members
// as they should, one an island, and what has gone is told of.
func TestRulesHoldUnderRandomMembers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &twin{t: t, limits: Limits{Keys: 3, Waits: 2, Members: 9}, island: map[uint64]string{},
			epoch: map[uint64]uint64{}, values: map[uint64]map[string]string{}, pending: map[[2]uint64]string{}}
		st := New(w.limits)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			ev := w.drawEvent()
			out := st.Step(ev, nil)
			statustest.OKf(t, st.Check(), "%+v", ev)
			of := w.epoch[ev.Member]
			answered, over, begun := w.sorted(ev, out)
			w.ends(ev, of, over)
			for e, list := range begun {
				w.begins(e, list)
			}
			w.asks(ev, of, answered)
			w.waitersHear(ev, of, answered)
		}
	})
}

func (w *twin) drawEvent() Event {
	t := w.t
	ev := Event{Kind: EventKind(rapid.IntRange(0, int(Leave)).Draw(t, "kind"))}
	if ev.Kind == Join || len(w.order) == 0 {
		w.last++
		ev.Kind, ev.Member, ev.Island = Join, w.last, rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "island")
		ev.Nodes, ev.Name = twinNodes[ev.Island], rapid.StringMatching(`w[0-9]{0,2}`).Draw(t, "name")
		return ev
	}
	ev.Member = rapid.SampledFrom(w.order).Draw(t, "member")
	w.id++
	ev.ID, ev.Key = w.id, rapid.SampledFrom([]string{"k", "l", "m", "n"}).Draw(t, "key")
	if ev.Kind == Put {
		ev.Value = []byte(rapid.StringMatching(`[xy]?`).Draw(t, "value"))
	}
	if ev.Kind == Drop {
		for k := range w.pending {
			if k[0] == ev.Member && (ev.ID == w.id || k[1] < ev.ID) {
				ev.ID = k[1]
			}
		}
	}
	return ev
}

// sorted takes in who was let in, and returns the other actions by what they are.
func (w *twin) sorted(ev Event, out []Action) (answered map[[2]uint64]Action, over map[uint64]bool,
	begun map[uint64][]Action) {
	answered, over, begun = map[[2]uint64]Action{}, map[uint64]bool{}, map[uint64][]Action{}
	for i, a := range out {
		switch a.Kind {
		case Welcome:
			if i != 0 || ev.Kind != Join || a.To != ev.Member {
				w.t.Fatalf("%+v: welcome to %d", ev, a.To)
			}
			w.order, w.island[a.To] = append(w.order, a.To), ev.Island
		case Refuse:
			if ev.Kind != Join || len(w.order) < w.limits.Members {
				w.t.Fatalf("%+v was refused: %v", ev, a.Err)
			}
		case Begin:
			begun[a.Epoch] = append(begun[a.Epoch], a)
		case Over:
			over[a.To] = true
		case Answer:
			key := [2]uint64{a.To, a.ID}
			if _, twice := answered[key]; twice {
				w.t.Fatalf("%+v: request %v is answered twice", ev, key)
			}
			answered[key] = a
		}
	}
	return answered, over, begun
}

// ends checks that the end of an epoch is told to those who were in it, when one of them leaves, and to nobody else.
func (w *twin) ends(ev Event, of uint64, over map[uint64]bool) {
	if ev.Kind != Leave {
		if len(over) > 0 {
			w.t.Fatalf("%+v ended an epoch", ev)
		}
		return
	}
	for m, e := range w.epoch {
		if m != ev.Member && e == of && of != 0 != over[m] {
			w.t.Fatalf("member %d of epoch %d was told %v of its end", m, e, over[m])
		}
	}
	for m := range over {
		if w.epoch[m] != of || of == 0 {
			w.t.Fatalf("member %d of epoch %d was told that %d is over", m, w.epoch[m], of)
		}
		w.gone(m)
	}
	w.gone(ev.Member)
}

func (w *twin) gone(m uint64) {
	w.order = slices.DeleteFunc(w.order, func(o uint64) bool { return o == m })
	delete(w.island, m)
	delete(w.epoch, m)
	maps.DeleteFunc(w.pending, func(k [2]uint64, _ string) bool { return k[0] == m })
}

// begins checks that an epoch begins with as many members as it should, and is the only one of its island.
func (w *twin) begins(e uint64, list []Action) {
	island := w.island[list[0].To]
	for node, a := range list {
		if a.Node != node || a.Nodes != twinNodes[island] || len(list) != a.Nodes || w.island[a.To] != island ||
			w.epoch[a.To] != 0 {
			w.t.Fatalf("epoch %d of island %s begins with %+v", e, island, list)
		}
	}
	for m, other := range w.epoch {
		if w.island[m] == island {
			w.t.Fatalf("epoch %d begins while %d is not over", e, other)
		}
	}
	for _, a := range list {
		w.epoch[a.To] = e
	}
	w.values[e] = map[string]string{}
}

// asks checks the answer of who asks now, and takes it out of those that were given.
func (w *twin) asks(ev Event, of uint64, answered map[[2]uint64]Action) {
	values, mine := w.values[of], [2]uint64{ev.Member, ev.ID}
	switch ev.Kind {
	case Put, Get, Try:
		a, ok := answered[mine]
		delete(answered, mine)
		value, there := values[ev.Key]
		switch {
		case !ok && (ev.Kind != Get || there || of == 0):
			w.t.Fatalf("%+v has no answer", ev)
		case !ok:
			w.pending[mine] = ev.Key
		case a.Err == nil && ev.Kind == Put && (of == 0 || there && value != string(ev.Value)):
			w.t.Fatalf("%+v put over %q in epoch %d", ev, value, of)
		case a.Err == nil && ev.Kind == Put:
			values[ev.Key] = string(ev.Value)
		case a.Err == nil && (!there || !bytes.Equal(a.Value, []byte(value))):
			w.t.Fatalf("%+v got %q, want %q", ev, a.Value, value)
		case a.Err != nil && there && ev.Kind != Put:
			w.t.Fatalf("%+v got %v, and the key is there", ev, a.Err)
		}
	case Drop:
		delete(w.pending, mine)
	}
}

// waitersHear checks that those who waited for a key, and nobody else, are told of it when it is put.
func (w *twin) waitersHear(ev Event, of uint64, answered map[[2]uint64]Action) {
	for at, a := range answered {
		key, waited := w.pending[at]
		if value, there := w.values[of][key]; !waited || ev.Kind != Put || key != ev.Key || !there ||
			w.epoch[at[0]] != of || a.Err != nil || string(a.Value) != value {
			w.t.Fatalf("%+v answers %+v, which asked for %q: %v", ev, a, key, waited)
		}
		delete(w.pending, at)
	}
	for at, key := range w.pending {
		if _, there := w.values[w.epoch[at[0]]][key]; there {
			w.t.Fatalf("%+v: request %v waits for %q, which is there", ev, at, key)
		}
	}
}
