package controller

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/wire/wiretest"
	"github.com/openpathways/pathways/device/sim"
)

// lined is a session on four devices of two workers whose operations are all right, with what became of each.
type lined struct {
	b        *bed
	t        *rapid.T
	on       map[uint64][]uint32 // operations that were asked for: their devices
	runs     map[uint64]bool     // of these, those that need a place
	fetches  map[uint64]uint64   // of these: the array that each reads
	made     map[uint64]uint64   // by array: the operation that makes it, puts aside
	queue    []uint64            // those that were not dispatched
	aborted  map[uint64]bool
	under    map[uint64]uint64              // gangs: their operations
	left     map[uint64]map[uint64]struct{} // the workers that have yet to report them
	last     map[uint32]uint64              // operation dispatched last, by device
	ended    map[uint64]error
	live     map[uint64][]uint32 // arrays
	op       uint64
	object   uint64
	programs [][]uint32 // by number, from 1
	graphs   map[uint64]*wire.Graph
}

var linedPrograms = [][]uint32{{0}, {1}, {2}, {3}, {0, 1}, {2, 3}, {3, 0}, {0, 1, 2, 3}}

func newLined(tt *testing.T, t *rapid.T) *lined {
	c := Config{FirstCome: rapid.Bool().Draw(t, "first come"), Limits: Limits{Window: 256},
		Sequential: rapid.IntRange(0, 7).Draw(t, "sequential") == 0}
	l := &lined{b: newBed(tt, c, 2, 2), t: t, on: map[uint64][]uint32{}, runs: map[uint64]bool{},
		fetches: map[uint64]uint64{}, made: map[uint64]uint64{}, aborted: map[uint64]bool{},
		under: map[uint64]uint64{}, left: map[uint64]map[uint64]struct{}{}, last: map[uint32]uint64{},
		ended: map[uint64]error{}, live: map[uint64][]uint32{}, graphs: map[uint64]*wire.Graph{}}
	for _, rows := range linedPrograms {
		l.install(rows)
	}
	return l
}

// install compiles a program for some devices.
func (l *lined) install(rows []uint32) {
	l.programs = append(l.programs, rows)
	n, ids := uint64(len(l.programs)), make([]int, len(rows))
	for i, d := range rows {
		ids[i] = int(d)
	}
	for _, a := range slices.Clone(l.b.say(l.b.client, wire.KindCompile, &wire.Compile{Op: n, Program: n, Format: "sim",
		Code: fmt.Append(nil, n), Options: sim.CompileOptions(ids)})) {
		if a.Kind == Send && a.Wire == wire.KindCompile {
			m := wiretest.Decode[wire.Compile](l.t, sent(a))
			l.b.say(a.To[0], wire.KindCompiled, &wire.Compiled{Op: m.Op, Info: &wire.ProgramInfo{Name: fmt.Sprint("p", n),
				Outputs: []*wire.Array{scalar}}, Loadable: &wire.Loadable{Serialized: []byte("x")}})
		}
	}
}

// asks has the client ask for an operation on some devices.
func (l *lined) asks(kind wire.Kind, m proto.Message, on ...[]uint32) {
	for i, rows := range on {
		op := l.op - uint64(len(on)-1-i)
		l.on[op] = rows
		l.queue = append(l.queue, op)
	}
	l.see(l.b.say(l.b.client, kind, m))
}

// see records what a Step brought.
func (l *lined) see(actions []Action) {
	l.take(actions)
	l.take(l.b.step(Event{Kind: Flush}))
	statustest.OK(l.t, l.b.st.Check())
	l.goesOn()
}

func (l *lined) take(actions []Action) {
	for _, a := range actions {
		if a.Kind != Send {
			continue
		}
		switch a.Wire {
		case wire.KindDispatch:
			m, op := new(wire.Dispatch), new(wire.Fetch) // all have op as field 1
			statustest.OK(l.t, m.Parse(sent(a)))
			if kind := wire.Kind(m.Kind); kind != wire.KindFree && kind != wire.KindAssemble {
				_ = proto.Unmarshal(m.Operation, op)
				l.dispatched(m.Gang, op.Op, a.To)
			}
		case wire.KindPlayed:
			m := new(wire.Played)
			statustest.OK(l.t, m.Parse(sent(a)))
			for i := range uint64(m.Count) {
				l.dispatched(m.Gang+i, m.Op+uint64(m.From)+i, a.To)
			}
		case wire.KindCompleted:
			m := new(wire.Completed)
			statustest.OK(l.t, m.Parse(sent(a)))
			for _, op := range m.Ok {
				l.ends(op, nil)
			}
			for _, f := range m.Failed {
				l.ends(f.Number, f.Status.Err())
			}
		}
	}
}

func (l *lined) ends(op uint64, err error) {
	if _, twice := l.ended[op]; twice {
		l.t.Fatalf("operation %d ends twice", op)
	}
	if l.ended[op] = err; !l.aborted[op] {
		l.queue = slices.DeleteFunc(l.queue, func(o uint64) bool { return o == op })
	}
	if err != nil && len(l.aborted) == 0 {
		l.t.Fatalf("operation %d fails: %v", op, err)
	}
}

// dispatched records an operation that some workers get, in its place on each device: a fetch comes after what makes
// its array, and before what was asked for later.
func (l *lined) dispatched(gang, op uint64, to []uint64) {
	if l.left[gang] == nil {
		l.left[gang], l.under[gang] = map[uint64]struct{}{}, op
		if id, ok := l.fetches[op]; ok && slices.Contains(l.queue, l.made[id]) {
			l.t.Fatalf("operation %d reads array %d before operation %d makes it", op, id, l.made[id])
		}
		for _, d := range l.on[op] {
			if op < l.last[d] {
				l.t.Fatalf("operation %d comes after operation %d on device %d", op, l.last[d], d)
			}
			if l.fetches[op] == 0 {
				l.last[d] = op
			}
		}
		l.queue = slices.DeleteFunc(l.queue, func(o uint64) bool { return o == op })
	}
	for _, w := range to {
		isIts := func(d uint32) bool { return l.b.workers[d/2] == w }
		if l.on[op] == nil || slices.ContainsFunc(l.on[op], isIts) {
			l.left[gang][w] = struct{}{}
		}
	}
}

// goesOn checks that an operation which was not dispatched has an earlier one before it on one of its devices, or is a
// run and one of its devices has something under way, or a fetch of what was not dispatched either.
func (l *lined) goesOn() {
	if l.b.st.config.Sequential {
		return
	}
	var before, busy [4]bool
	for _, op := range l.under {
		for _, d := range l.on[op] {
			busy[d] = true
		}
	}
	for _, op := range l.queue {
		waits := false
		for _, d := range l.on[op] {
			waits = waits || before[d] || l.runs[op] && busy[d]
		}
		if id, ok := l.fetches[op]; ok {
			waits = slices.Contains(l.queue, l.made[id])
		}
		for _, d := range l.on[op] { // those behind one that was aborted wait for what it waits for
			before[d] = before[d] || waits
		}
		if !waits && !l.aborted[op] {
			l.t.Fatalf("operation %d on devices %v waits, though nothing is before it: %v, under way %v on %v, run: %v", op,
				l.on[op], l.queue, l.under, busy, l.runs[op])
		}
	}
}

// array returns an array that is on some devices, and puts one there if there is none.
func (l *lined) array(on []uint32) uint64 {
	var there []uint64
	for _, id := range slices.Sorted(maps.Keys(l.live)) {
		if !slices.ContainsFunc(on, func(d uint32) bool { return !slices.Contains(l.live[id], d) }) {
			there = append(there, id)
		}
	}
	if len(there) > 0 && rapid.IntRange(0, 4).Draw(l.t, "there") > 0 {
		return rapid.SampledFrom(there).Draw(l.t, "array")
	}
	l.op++
	l.object++
	l.live[l.object] = on
	l.asks(wire.KindPut, &wire.Put{Op: l.op, Object: l.object, Array: scalar, Devices: on}, nil)
	return l.object
}

// submit has the client do something.
func (l *lined) submit() {
	device := func(label string) uint32 { return uint32(rapid.IntRange(0, 3).Draw(l.t, label)) }
	program := rapid.IntRange(1, len(l.programs)).Draw(l.t, "program")
	rows := l.programs[program-1]
	switch rapid.SampledFrom([]string{"run", "run", "run", "transfer", "transfer", "fetch", "free", "forget", "graph",
		"play", "play", "abort"}).Draw(l.t, "what") {
	case "run":
		input := l.array(rows)
		l.op++
		l.object++
		l.live[l.object], l.runs[l.op], l.made[l.object] = rows, true, l.op
		l.asks(wire.KindRun, &wire.Run{Op: l.op, Program: uint64(program), FirstOutput: l.object,
			Inputs: []uint64{input}}, rows)
	case "transfer":
		from, to := device("from"), device("to")
		source := l.array([]uint32{from})
		l.op++
		l.object++
		l.live[l.object], l.made[l.object] = []uint32{to}, l.op
		l.asks(wire.KindTransfer, &wire.Transfer{Op: l.op, Object: l.object, Array: scalar,
			Moves: []*wire.Move{{Source: source, From: from, To: to}}}, []uint32{from, to})
	case "fetch":
		on := device("on")
		source := l.array([]uint32{on})
		l.op++
		l.fetches[l.op] = source
		l.asks(wire.KindFetch, &wire.Fetch{Op: l.op, Object: source, Device: on}, []uint32{on})
	case "free":
		if ids := slices.Sorted(maps.Keys(l.live)); len(ids) > 0 {
			id := rapid.SampledFrom(ids).Draw(l.t, "freed")
			delete(l.live, id)
			l.see(l.b.say(l.b.client, wire.KindFree, &wire.Free{Objects: []uint64{id}}))
		}
	case "forget":
		l.see(l.b.say(l.b.client, wire.KindForget, &wire.Forget{Programs: []uint64{77}}))
	case "graph":
		l.define()
	case "play":
		l.play()
	case "abort":
		if len(l.queue) > 0 && rapid.IntRange(0, 9).Draw(l.t, "aborts") == 0 {
			op := rapid.SampledFrom(l.queue).Draw(l.t, "operation")
			l.aborted[op] = true
			l.see(l.b.say(l.b.client, wire.KindAbort, &wire.Abort{Gang: op}))
		}
	}
}

// define makes a graph: from an input on all devices, some chains of runs and transfers.
func (l *lined) define() {
	m := &wire.Graph{Graph: uint64(len(l.graphs) + 1), Inputs: 1}
	on := map[uint64][]uint32{1: {0, 1, 2, 3}}
	for i := range uint64(rapid.IntRange(1, 12).Draw(l.t, "nodes")) {
		source := rapid.Uint64Range(1, i+1).Draw(l.t, "source")
		var able []uint64
		for k, rows := range l.programs {
			if !slices.ContainsFunc(rows, func(d uint32) bool { return !slices.Contains(on[source], d) }) {
				able = append(able, uint64(k+1))
			}
		}
		if len(able) > 0 && rapid.IntRange(0, 2).Draw(l.t, "runs") > 0 {
			p := rapid.SampledFrom(able).Draw(l.t, "program")
			m.Nodes = append(m.Nodes, &wire.Node{Makes: 1, Run: &wire.Run{Program: p, Inputs: []uint64{source}}})
			on[i+2] = l.programs[p-1]
		} else {
			to := uint32(rapid.IntRange(0, 3).Draw(l.t, "to"))
			m.Nodes = append(m.Nodes, &wire.Node{Makes: 1, Transfer: &wire.Transfer{Array: scalar,
				Moves: []*wire.Move{{Source: source, From: on[source][0], To: to}}}})
			on[i+2] = []uint32{to}
		}
		if rapid.IntRange(0, 2).Draw(l.t, "kept") == 0 {
			m.Outputs = append(m.Outputs, i+2)
		}
	}
	l.graphs[m.Graph] = m
	l.see(l.b.say(l.b.client, wire.KindGraph, m))
}

func (l *lined) play() {
	if len(l.graphs) == 0 {
		l.define()
	}
	g := l.graphs[rapid.Uint64Range(1, uint64(len(l.graphs))).Draw(l.t, "graph")]
	input := l.array([]uint32{0, 1, 2, 3})
	m := &wire.Play{Op: l.op + 1, Graph: g.Graph, Nodes: uint32(len(g.Nodes)), First: l.object + 1,
		Inputs: []uint64{input}}
	var on [][]uint32
	for i, n := range g.Nodes {
		l.op++
		l.object++
		rows, made := []uint32(nil), []uint32(nil)
		if n.Run != nil {
			rows = l.programs[n.Run.Program-1]
			made, l.runs[l.op] = rows, true
		} else {
			rows = ends(n.Transfer.Moves)
			made = rows[1:]
		}
		if slices.Contains(g.Outputs, uint64(i+2)) {
			l.live[l.object], l.made[l.object] = made, l.op
		}
		on = append(on, rows)
	}
	l.asks(wire.KindPlay, m, on...)
}

// report has a worker report a gang that it was sent.
func (l *lined) report() {
	gang := rapid.SampledFrom(slices.Sorted(maps.Keys(l.under))).Draw(l.t, "gang")
	var from []uint64
	for w := range l.left[gang] {
		from = append(from, w)
	}
	slices.Sort(from)
	w := rapid.SampledFrom(from).Draw(l.t, "worker")
	delete(l.left[gang], w)
	if len(l.left[gang]) == 0 {
		delete(l.under, gang)
		delete(l.left, gang)
	}
	took := rapid.SampledFrom([]uint64{1e3, 1e6, 1e9}).Draw(l.t, "took")
	l.see(l.b.say(w, wire.KindCompleted, &wire.Completed{Ok: []uint64{gang}, Busy: []uint64{took}}))
}

// A session's operations come in its order on each device, and one that waits has another before it there, or is a run
// whose devices are in use; a fetch waits for what makes its array alone. All end, and nothing is left: nodes of plays
// like others, also where some are aborted.
func TestOperationsOfASessionWaitForThoseOfTheirDevicesAlone(tt *testing.T) {
	rapid.Check(tt, func(t *rapid.T) {
		l := newLined(tt, t)
		for range rapid.IntRange(10, 120).Draw(t, "events") {
			if len(l.under) > 0 && rapid.IntRange(0, 3).Draw(t, "reports") == 0 {
				l.report()
			} else if len(l.queue) < 60 {
				l.submit()
			}
		}
		for len(l.under) > 0 {
			l.report()
		}
		for op := uint64(1); op <= l.op; op++ {
			err, ended := l.ended[op]
			if !ended || l.aborted[op] && status.CodeOf(err) != status.Cancelled {
				t.Fatalf("operation %d has no end, or %v; aborted: %v", op, err, l.aborted[op])
			}
		}
		if s := l.b.st.conns.Get(l.b.client).s; s.line.length > 0 || s.out > 0 || s.play != nil || len(s.queue) > s.head {
			t.Fatalf("%d entries, %d gangs and %d operations are left", s.line.length, s.out, len(s.queue)-s.head)
		}
		if rapid.Bool().Draw(t, "leaves early") { // with something in its line
			for range 10 {
				l.submit()
			}
		}
		l.queue = nil
		l.see(l.b.say(l.b.client, wire.KindGoodbye, &wire.Goodbye{}))
		for len(l.under) > 0 {
			l.report()
		}
		if n := l.b.st.ledger.Len(); n != 0 || l.b.st.gangs.Len()+l.b.st.leaving.Len() != 0 {
			t.Fatalf("%d arrays and %d gangs are left of the session", n, l.b.st.gangs.Len()+l.b.st.leaving.Len())
		}
	})
}

// A fetch that is asked for before a run donates its array comes before that run, also where both wait. One that is
// asked for behind a run which still waits for its place reads what is there, and does so before the run takes it.
func TestFetchesComeBeforeRunsThatDonateTheirArrays(t *testing.T) {
	for name, first := range map[string]wire.Kind{"fetch, run": wire.KindFetch, "run, fetch": wire.KindRun} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, Config{}, 1, 1)
			b.program(1)
			b.install(2, 1, false)
			b.st.sessions[1].programs[2].of.info.Donated = []uint32{0}
			b.install(3, 1, false)
			reads := uint64(1) // what is there
			for range 2 {      // of a program whose time is not known, so that the second waits for its place
				b.runs(3)
			}
			if first == wire.KindFetch {
				reads = b.next() - 1 // what the second makes
			}
			ask := func(kind wire.Kind) []Action {
				op := b.next()
				if kind == wire.KindFetch {
					return b.say(b.client, kind, &wire.Fetch{Op: op, Object: reads})
				}
				return b.say(b.client, kind, &wire.Run{Op: op, Program: 2, FirstOutput: op, Inputs: []uint64{reads}})
			}
			second := wire.KindFetch + wire.KindRun - first
			got := append(b.kindsDispatched(ask(first)), b.kindsDispatched(ask(second))...)
			for b.st.gangs.Len() > 0 {
				done := mustMarshal(t, &wire.Completed{Ok: b.st.gangs.Numbers()})
				got = append(got, b.kindsDispatched(b.check(b.frame(b.workers[0], wire.KindCompleted, done)))...)
			}
			want := []wire.Kind{wire.KindFetch, wire.KindRun, wire.KindRun}
			if first == wire.KindFetch {
				want = []wire.Kind{wire.KindRun, wire.KindFetch, wire.KindRun}
			}
			statustest.EqualSlices(t, got, want, "dispatched")
			if ends := b.told(); slices.ContainsFunc(ends, func(op int) bool { return op < 0 }) {
				t.Errorf("ended are %v, want none that failed", ends)
			}
		})
	}
}
