package controller

import (
	"fmt"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

// heldBed has a session that has all memory but what another one has, which is the client that it returns. A run of the
// session is held, and behind it wait so many others, with as many arguments, and the frees of what these make.
func heldBed(t testing.TB, queue, arguments int) (b *bed, other uint64) {
	b, other = narrowBed(t, Limits{Credit: queue + 10}, 8, 1)
	inputs := make([]uint64, arguments)
	for i := range inputs {
		inputs[i] = 1
	}
	for op := uint64(2); op < uint64(queue)+3; op++ {
		b.say(b.client, wire.KindRun, &wire.Run{Op: op, Program: 1, FirstOutput: op, Inputs: inputs})
		b.say(b.client, wire.KindFree, &wire.Free{Objects: []uint64{op}})
	}
	statustest.MustEqual(t, len(b.st.held), 1, "gangs are held")
	return b, other
}

// endBeside has an operation of the other session begin and end.
func (b *bed) endBeside(other, op uint64) {
	b.say(other, wire.KindFetch, &wire.Fetch{Op: op, Object: 1})
	b.say(b.workers[0], wire.KindCompleted, &wire.Completed{Ok: []uint64{b.st.gang}})
	b.step(Event{Kind: Flush})
}

// What is queued behind a held run is not looked at when operations of others end: here that would panic. What was
// freed meanwhile leaves nothing behind.
func TestEndsLookAtNothingThatIsQueued(t *testing.T) {
	b, other := heldBed(t, 100, 5)
	s := b.st.sessions[1]
	queued := make([]proto.Message, len(s.queue))
	for i := range s.queue {
		queued[i], s.queue[i].message = s.queue[i].message, (*wire.Run)(nil)
	}
	for op := uint64(2); op < 10; op++ {
		b.endBeside(other, op)
	}
	b.now += 1e9
	b.step(Event{Kind: Tick})
	for i := range s.queue {
		s.queue[i].message = queued[i]
	}
	b.say(other, wire.KindFree, &wire.Free{Objects: []uint64{1}})
	for b.st.gangs.Len() > 0 {
		for gang := range b.st.gangs.All() {
			b.say(b.workers[0], wire.KindCompleted, &wire.Completed{Ok: []uint64{gang}})
		}
		statustest.OK(t, b.st.Check())
	}
	b.step(Event{Kind: Flush})
	if len(s.objects) != 1 || s.underWay != 0 || s.names != nil || s.freeing != 0 {
		t.Errorf("the session has %d arrays and %d operations under way, %d arrays are to be freed, names: %v",
			len(s.objects), s.underWay, s.freeing, s.names)
	}
}

// Of a long queue whose first run is held each Step counts a part, until all is counted.
func TestLongQueueIsCountedInParts(t *testing.T) {
	b, other := heldBed(t, 40, 1000)
	s := b.st.sessions[1]
	s.names = nil // as if it had been queued before
	b.st.stir()
	b.step(Event{Kind: Flush})
	steps := 0
	for ; !s.isCounted(); steps++ {
		if b.st.Due() == 0 || b.st.Due() > b.now+1000 {
			t.Fatalf("%d operations are not counted, and the next look is at %d", s.names.uncounted, b.st.Due())
		}
		b.endBeside(other, uint64(2+steps))
		statustest.OK(t, b.st.Check())
	}
	if steps < 40*1000/countsAtOnce/2 {
		t.Errorf("40000 names were counted in %d steps", steps)
	}
}

// kindsDispatched returns the kinds of the operations that these actions bring to workers.
func (b *bed) kindsDispatched(actions []Action) (kinds []wire.Kind) {
	for _, a := range actions {
		if a.Kind == Send && a.Wire == wire.KindDispatch {
			m := new(wire.Dispatch)
			statustest.OK(b.t, m.Parse(a.Payload))
			kinds = append(kinds, wire.Kind(m.Kind))
		}
	}
	return kinds
}

// A run waits outside of the order for the bytes of a long put, also where its session is alone, so that one that comes
// later is not behind it. The session's next puts do not wait for it, where there is room for them beside the runs.
func TestPutsGoPastARunThatWaitsForAPut(t *testing.T) {
	const long = 8 << 10
	array := &wire.Array{Dtype: uint32(shape.F32), Dims: []int64{long}}
	for _, room := range []bool{true, false} {
		b := newBed(t, Config{MemoryWait: 60e9}, 1, 1)
		b.program(1)
		limit := int64(4 + 4*long + 4 + 4*long) // the scalar, a put, a run, a put
		if !room {
			limit--
		}
		statustest.OK(t, b.st.ledger.SetLimit(0, limit))
		var got []wire.Kind
		say := func(conn uint64, kind wire.Kind, m proto.Message) {
			got = append(got, b.kindsDispatched(b.say(conn, kind, m))...)
			statustest.OK(t, b.st.Check())
		}
		expect := func(when string, want ...wire.Kind) {
			t.Helper()
			statustest.EqualSlices(t, got, want, "with room: %t, %s: the kinds that are dispatched", room, when)
			got = nil
		}
		put := func(op uint64) { // and a run that reads it
			say(b.client, wire.KindPut, &wire.Put{Op: op, Object: op, Array: array, Devices: []uint32{0}})
			say(b.client, wire.KindRun, &wire.Run{Op: op + 1, Program: 1, FirstOutput: op + 1, Inputs: []uint64{op}})
		}
		put(2)
		first := b.st.gang
		put(4)
		second := b.st.gang
		if room {
			expect("while bytes come", wire.KindPut, wire.KindPut)
		} else {
			expect("while bytes come", wire.KindPut)
		}
		if room {
			say(b.workers[0], wire.KindCompleted, &wire.Completed{Ok: []uint64{second}})
			expect("when the bytes of the second are there")
		}
		say(b.workers[0], wire.KindCompleted, &wire.Completed{Ok: []uint64{first}})
		expect("then", wire.KindRun) // there is no room for another one
	}
}

// compiling has the client compile a program. The worker answers when compiled is called.
func (b *bed) compiling(program uint64) (compiled func(info *wire.ProgramInfo)) {
	op := b.compile(program, 1)
	return func(info *wire.ProgramInfo) {
		b.say(b.workers[0], wire.KindCompiled, &wire.Compiled{Op: op, Info: info,
			Loadable: &wire.Loadable{Serialized: []byte("x")}})
	}
}

func floats(n int64) *wire.Array { return &wire.Array{Dtype: uint32(shape.F32), Dims: []int64{n}} }

// narrowBed has one device of so many bytes. Another session, which is the client that it returns, has an array of so
// many elements there.
func narrowBed(t testing.TB, limits Limits, limit, elements int64) (b *bed, other uint64) {
	b = newBed(t, Config{MemoryWait: 60e9, Limits: limits}, 1, 1)
	b.program(1)
	statustest.OK(t, b.st.ledger.SetLimit(0, limit))
	b.conns++
	other = b.conns
	b.step(Event{Kind: Join, Conn: other, Message: &wire.Hello{Role: wire.Role_ROLE_CLIENT, Name: "other"}})
	b.say(other, wire.KindPut, &wire.Put{Op: 1, Object: 1, Array: floats(elements), Devices: []uint32{0}})
	b.say(b.workers[0], wire.KindCompleted, &wire.Completed{Ok: []uint64{b.st.gang}})
	b.step(Event{Kind: Flush})
	return b, other
}

// A put stays behind a run whose program was still being compiled when the run was queued, since its memory is not
// known then. What was counted for the run is what is taken off again, though its program is known by that time.
func TestPutsStayBehindARunOfAnUnknownProgram(t *testing.T) {
	const long = 8 << 10
	b, _ := narrowBed(t, Limits{}, 4+2*4*long+4*100*long+64, 60*long)
	say := func(conn uint64, kind wire.Kind, m proto.Message) {
		t.Helper()
		b.say(conn, kind, m)
		statustest.OK(t, b.st.Check())
	}
	compiled := b.compiling(2)
	put := func(op uint64, elements int64) {
		say(b.client, wire.KindPut, &wire.Put{Op: op, Object: op, Array: floats(elements), Devices: []uint32{0}})
	}
	put(2, long)
	first := b.st.gang
	say(b.client, wire.KindRun, &wire.Run{Op: 3, Program: 1, FirstOutput: 3, Inputs: []uint64{2}})
	say(b.client, wire.KindRun, &wire.Run{Op: 4, Program: 2, FirstOutput: 4, Inputs: []uint64{999}})
	put(5, long)
	if b.st.gang != first {
		t.Error("a put went past a run that may take any memory")
	}
	say(b.client, wire.KindRun, &wire.Run{Op: 6, Program: 1, FirstOutput: 6, Inputs: []uint64{5}})
	put(7, 90*long) // does not fit beside what the other session has
	compiled(&wire.ProgramInfo{Name: "big", Outputs: []*wire.Array{floats(1000 * long)}})
	say(b.workers[0], wire.KindCompleted, &wire.Completed{Ok: []uint64{first}})
	s := b.st.sessions[1]
	if n := s.names; len(b.st.held) != 1 || n == nil || n.takes != 4+4*90*long || n.unknown != 0 {
		t.Errorf("%d gangs are held, and these are counted: %+v", len(b.st.held), n)
	}
	b.now += 3e9
	b.step(Event{Kind: Tick})
	// Were there no room for a put that goes past, it would end rather than be held beside another one.
	b.st.perform(s, &queued{kind: wire.KindPut, message: &wire.Put{Op: 8, Object: 8, Array: floats(90 * long),
		Devices: []uint32{0}}})
	if err := b.st.Check(); err != nil || len(b.st.held) != 1 || s.waiting != b.st.held[0] {
		t.Errorf("%d gangs are held: %v", len(b.st.held), err)
	}
	if len(s.failed) != 2 || s.failed[1].Number != 8 { // the other one reads an array that is not there
		t.Errorf("these failed: %v", s.failed)
	}
}

// A put leaves room for the code of a run that it goes past.
func TestPutsLeaveRoomForCode(t *testing.T) {
	const long, code = 8 << 10, 8 << 10
	for _, room := range []bool{true, false} {
		limit := int64(4 + 4 + 2*4*long + 4 + code) // scalars, two puts, the run
		if !room {
			limit--
		}
		b, _ := narrowBed(t, Limits{}, limit, 1)
		b.compiling(2)(&wire.ProgramInfo{Name: "coded", Outputs: []*wire.Array{floats(1)},
			Cost: &wire.Cost{CodeBytes: code}})
		b.say(b.client, wire.KindPut, &wire.Put{Op: 2, Object: 2, Array: floats(long), Devices: []uint32{0}})
		first := b.st.gang
		b.say(b.client, wire.KindRun, &wire.Run{Op: 3, Program: 2, FirstOutput: 3, Inputs: []uint64{2}})
		b.say(b.client, wire.KindPut, &wire.Put{Op: 4, Object: 4, Array: floats(long), Devices: []uint32{0}})
		if passed := b.st.gang > first; passed != room {
			t.Errorf("with room: %t, a put went past the run: %t", room, passed)
		}
		got := b.kindsDispatched(b.say(b.workers[0], wire.KindCompleted, &wire.Completed{Ok: []uint64{first}}))
		statustest.EqualSlices(t, got, []wire.Kind{wire.KindRun},
			"with room: %t, when the bytes are there: the kinds that are dispatched", room)
		statustest.Check(t, b.st.Check())
	}
}

// Many puts that may go past a held run do so over several Steps, and all of them do.
func TestManyPutsPassInParts(t *testing.T) {
	const long, puts, atOnce = 8 << 10, 100, 10
	b, other := narrowBed(t, Limits{}, 4+4*long+4+4*puts, puts)
	b.say(b.client, wire.KindPut, &wire.Put{Op: 2, Object: 2, Array: floats(long), Devices: []uint32{0}})
	b.say(b.client, wire.KindRun, &wire.Run{Op: 3, Program: 1, FirstOutput: 3, Inputs: []uint64{2}})
	put := func(op uint64) {
		b.say(b.client, wire.KindPut, &wire.Put{Op: op, Object: op, Array: floats(1), Devices: []uint32{0}})
	}
	for op := uint64(4); op < 4+puts; op++ {
		put(op)
	}
	statustest.MustEqual(t, b.st.gangs.Len(), 1, "operations are under way")
	b.st.Weigh(atOnce * weightOfOne)
	passed := 0
	actions := b.say(other, wire.KindFree, &wire.Free{Objects: []uint64{1}})
	for ; ; actions = b.step(Event{Kind: Continue}) {
		n := 0
		for _, kind := range b.kindsDispatched(actions) {
			if kind == wire.KindPut {
				n++
			}
		}
		if n > atOnce {
			t.Errorf("%d puts went past the run in one Step", n)
		}
		if passed += n; !b.st.More() {
			break
		}
		statustest.OK(t, b.st.Check())
	}
	statustest.Equal(t, passed, puts, "puts that went past the run")
}

// Puts go past a run that waits for a put when another session makes room for them, though the client asks for nothing
// more. They do so in their order: one that has room waits for one before it that has none.
func TestPutsGoPastInTheirOrderWhenAnotherSessionFrees(t *testing.T) {
	const long = 8 << 10
	b := newBed(t, Config{MemoryWait: 60e9}, 1, 2)
	b.program(1)
	s := b.st.sessions[1]
	statustest.OK(t, b.st.ledger.SetLimit(s.number(0), 4+4*long+15)) // of the other device there is no limit
	other := b.joinClient()
	put := func(conn, op uint64, elements int64, on uint32) {
		b.say(conn, wire.KindPut, &wire.Put{Op: op, Object: op, Array: floats(elements), Devices: []uint32{on}})
	}
	put(other, 1, 2, 0)
	b.reportAll()
	put(b.client, 2, long, 0)
	b.say(b.client, wire.KindRun, &wire.Run{Op: 3, Program: 1, FirstOutput: 3, Inputs: []uint64{2}})
	put(b.client, 4, 1, 0)
	put(b.client, 5, 1, 1)
	statustest.MustEqual(t, b.st.gangs.Len(), 1, "operations are under way")
	var got []uint64
	for _, a := range b.say(other, wire.KindFree, &wire.Free{Objects: []uint64{1}}) {
		if a.Kind != Send || a.Wire != wire.KindDispatch {
			continue
		}
		d, m := new(wire.Dispatch), new(wire.Put)
		if err := d.Parse(a.Payload); err != nil || wire.Kind(d.Kind) != wire.KindPut {
			continue
		}
		statustest.OK(t, proto.Unmarshal(d.Operation, m))
		got = append(got, m.Op)
	}
	statustest.EqualSlices(t, got, []uint64{4, 5}, "puts that went past the run")
	statustest.Check(t, b.st.Check())
}

// fillsMemory leaves no memory on the first devices beside what is there, and has a run held that reads an array.
func (b *bed) fillsMemory(devices int, array uint64) {
	s := b.st.sessions[1]
	for i := range devices {
		d := s.number(uint32(i))
		statustest.OK(b.t, b.st.ledger.SetLimit(d, b.st.ledger.Device(d).InUse))
	}
	b.say(b.client, wire.KindRun, &wire.Run{Op: b.next(), Program: 1, FirstOutput: 1 << 20, Inputs: []uint64{array}})
	statustest.MustEqual(b.t, len(b.st.held), 1, "gangs are held")
}

// A member of an assembled array is not freed ahead of a run that reads what is assembled of it.
func TestMembersAreNotFreedAheadOfRunsOfWhatIsAssembled(t *testing.T) {
	b := newBed(t, Config{MemoryWait: 60e9}, 1, 2)
	b.program(2)
	for range 2 { // arrays 2 and 3
		b.say(b.client, wire.KindPut, &wire.Put{Op: b.next(), Object: b.next(), Array: floats(1), Devices: []uint32{0, 1}})
		b.reportAll()
	}
	b.say(b.client, wire.KindAssemble, &wire.Assemble{Object: 10, Program: 1, Pieces: []*wire.Piece{{Object: 1, Rows: 2}}})
	b.fillsMemory(2, 2)
	b.say(b.client, wire.KindRun, &wire.Run{Op: b.next(), Program: 1, FirstOutput: 2 << 20, Inputs: []uint64{10}})
	b.say(b.client, wire.KindFree, &wire.Free{Objects: []uint64{1, 3}})
	objects := b.st.sessions[1].objects
	if objects[1] == nil || objects[3] != nil {
		t.Errorf("is the member there: %t; is an array that nothing reads: %t", objects[1] != nil, objects[3] != nil)
	}
	statustest.Check(t, b.st.Check())
}

// Frees and Forgets that come in turns, as after a new start of the controller, do not fill the queue.
func TestFreesAndForgetsInTurnsTakeTwoPlaces(t *testing.T) {
	b := newBed(t, Config{MemoryWait: 60e9}, 1, 1)
	b.program(1)
	b.fillsMemory(1, 1)
	s := b.st.sessions[1]
	before := len(s.queue) - s.head
	for range 4 * b.st.limits.Credit {
		b.say(b.client, wire.KindFree, &wire.Free{Objects: []uint64{1 << 40}})
		b.say(b.client, wire.KindForget, &wire.Forget{Graphs: []uint64{}})
	}
	if after := len(s.queue) - s.head; b.st.sessions[1] == nil || after != before+2 {
		t.Errorf("there were %d operations in the queue, and there are %d", before, after)
	}
	statustest.Check(t, b.st.Check())
}

// What was freed ahead does not stay in the frees that are queued, which would be as many as the session ever freed.
func TestFreesThatWentAheadLeaveTheQueue(t *testing.T) {
	const arrays = sweepsFrom + 10
	b := newBed(t, Config{MemoryWait: 60e9}, 1, 1)
	b.program(1)
	m := new(wire.Free)
	for range arrays {
		m.Objects = append(m.Objects, b.next())
		b.say(b.client, wire.KindPut, &wire.Put{Op: b.next(), Object: b.next(), Array: floats(0), Devices: []uint32{0}})
		b.reportAll()
	}
	b.fillsMemory(1, 1)
	b.say(b.client, wire.KindFree, m)
	s := b.st.sessions[1]
	left := s.queue[s.head].message.(*wire.Free)
	if s.freeing != 0 || len(left.Objects) != 0 || len(s.objects) > 2 {
		t.Errorf("%d arrays are there, %d wait to be freed, %d of them in the queue", len(s.objects), s.freeing,
			len(left.Objects))
	}
	statustest.Check(t, b.st.Check())
}

// The end of an operation while another session's run is held. Nothing of what is queued behind that is looked at.
func BenchmarkEndBesideHeld(b *testing.B) {
	for _, queue := range []int{0, 10, 1000} {
		b.Run(fmt.Sprintf("queue=%d", queue), func(b *testing.B) {
			d, other := heldBed(b, queue, 500)
			op := uint64(1)
			b.ReportAllocs()
			for b.Loop() {
				op++
				d.endBeside(other, op)
			}
		})
	}
}

// A read of an array takes no memory of its device. So it goes past a put of its session that waits for some, even
// where another session's put has waited so long that all that need memory wait behind it.
func TestReadsDoNotWaitForMemoryOfTheirDevice(t *testing.T) {
	b, other := narrowBed(t, Limits{}, 100, 10) // bytes; 40 are the other's, and 4 the client's
	client := b.st.conns.Get(b.client).s
	client.tenant.terms.HostMemory = 1 << 20 // which a read does take
	for _, conn := range []uint64{other, b.client} {
		b.say(conn, wire.KindPut, &wire.Put{Op: 2, Object: 2, Array: floats(20), Devices: []uint32{0}})
		statustest.Equal(t, b.st.conns.Get(conn).s.waiting != nil, true, "whether a put waits for memory")
	}
	b.now += b.st.turn()
	b.step(Event{Kind: Tick})
	statustest.Equal(t, b.st.isFirst(b.st.held[0]), true, "whether the other's put is first")
	actions := b.say(b.client, wire.KindFetch, &wire.Fetch{Op: 3, Object: 1})
	actions = append(slices.Clone(actions), b.step(Event{Kind: Flush})...)
	statustest.EqualSlices(t, b.kindsDispatched(actions), []wire.Kind{wire.KindFetch}, "what is dispatched")
	statustest.OK(t, b.st.Check())
}
