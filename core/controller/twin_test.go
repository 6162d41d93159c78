package controller

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// twin drives a State with peers that do what they like, and knows what must hold
// whatever they do.
type twin struct {
	t        *rapid.T
	st       *State
	config   Config
	now      int64
	conns    uint64
	workers  map[uint64]*twinWorker // by connection
	clients  map[uint64]*twinClient
	gangs    map[uint64]string           // operation and session by gang
	isWorker map[uint64]bool             // processes that are workers, or were
	sent     map[[2]uint64]proto.Message // clients' Puts and Transfers, by session and operation
	memory   int64                       // of each device of workers
	first    map[[2]uint64]uint64        // the last operation dispatched, by session and virtual device
}

type twinWorker struct {
	old       bool               // it does not speak ProtocolParts
	met       map[uint64]bool    // processes of workers that it was told of
	assembled map[[2]uint64]bool // arrays, by session
	process   uint64
	devices   map[uint32][]uint64 // workers of a session's virtual devices
	graphs    map[[2]uint64]*wire.Graph
	last      uint64
	known     map[uint32]bool
	loaded    map[[2]uint64]bool
	loads     []*wire.Loaded    // to be told
	gangs     map[uint64]uint32 // to be reported: session
	compiles  map[uint64]bool
}

type twinClient struct {
	conn     uint64
	session  uint32
	devices  int
	op       uint64
	object   uint64
	program  uint64
	ended    map[uint64]error // operations; nil is success
	programs map[uint64][]uint32
	waiting  map[uint64][]uint32
	graph    uint64
	graphs   map[uint64]*wire.Graph
	failing  map[uint64]bool     // operations that name what is not there
	live     []uint64            // objects that were made and not freed
	where    map[uint64][]uint32 // devices of objects
}

func (w *twin) step(ev Event) {
	w.now += 1e6
	ev.Now = w.now
	for _, a := range w.st.Step(ev, nil) {
		w.see(a)
	}
	if err := w.st.Check(); err != nil {
		w.t.Fatalf("after an event of kind %d: %v", ev.Kind, err)
	}
	running := 0
	for _, is := range w.st.islands {
		running += is.sched.Running()
		if n := is.sched.Running(); n > w.st.limits.Window {
			w.t.Fatalf("%d runs have been given to an island, the window is %d", n, w.st.limits.Window)
		}
	}
	if there := len(w.st.gangs) + len(w.st.leaving); running > there {
		w.t.Fatalf("the schedules know %d gangs under way, there are %d", running, there)
	}
}

func (w *twin) say(conn uint64, kind wire.Kind, m proto.Message) {
	payload, err := proto.Marshal(m)
	if err != nil {
		w.t.Fatal(err)
	}
	got, err := decode(kind, payload)
	if err != nil {
		w.t.Fatal(err)
	}
	w.step(Event{Kind: Message, Conn: conn, Wire: kind, Message: got, Payload: payload})
}

// see checks an action and has the peers take it in.
func (w *twin) see(a Action) {
	switch a.Kind {
	case Welcome:
		if c := w.clients[a.To[0]]; c != nil {
			a.complete()
			c.session, c.devices = a.Message.Session, len(a.Message.Devices)
		}
		if x := w.workers[a.To[0]]; x != nil {
			x.process = a.Message.Process
			w.isWorker[x.process] = true
		}
		return
	case Refuse:
		delete(w.clients, a.To[0])
		delete(w.workers, a.To[0])
		return
	case Close:
		delete(w.clients, a.To[0])
		return
	case Send:
	default:
		return
	}
	for _, to := range a.To {
		worker, client := w.workers[to], w.clients[to]
		switch {
		case worker != nil:
			w.workerSees(worker, a)
		case client != nil:
			w.clientSees(client, a)
		}
	}
}

func (w *twin) into(a Action, m proto.Message) {
	if err := proto.Unmarshal(sent(a), m); err != nil {
		w.t.Fatalf("a message of kind %d does not decode: %v", a.Wire, err)
	}
}

func (w *twin) workerSees(worker *twinWorker, a Action) {
	switch a.Wire {
	case wire.KindPeers:
		m := new(wire.Peers)
		w.into(a, m)
		for _, p := range m.Come {
			if worker.met[p.Number] {
				w.t.Fatalf("process %d is told of process %d twice", worker.process, p.Number)
			}
			worker.met[p.Number] = true
		}
		for _, gone := range m.Gone {
			if w.isWorker[gone] && !worker.met[gone] {
				w.t.Fatalf("process %d is told that process %d is lost, of which it was not told", worker.process, gone)
			}
			delete(worker.met, gone)
		}
	case wire.KindSession:
		m := new(wire.Session)
		w.into(a, m)
		if worker.known[m.Session] {
			w.t.Fatalf("a worker is told of session %d twice", m.Session)
		}
		worker.known[m.Session] = true
		for _, span := range m.Devices {
			for range span.Count {
				worker.devices[m.Session] = append(worker.devices[m.Session], span.Worker)
			}
		}
	case wire.KindCompile:
		m := new(wire.Compile)
		w.into(a, m)
		worker.compiles[m.Op] = true
	case wire.KindLoad:
		m := new(wire.Load)
		w.into(a, m)
		if !worker.known[m.Session] || worker.loaded[[2]uint64{uint64(m.Session), m.Program}] {
			w.t.Fatalf("program %d of session %d is loaded twice, or before the session is known", m.Program, m.Session)
		}
		worker.loaded[[2]uint64{uint64(m.Session), m.Program}] = true
		worker.loads = append(worker.loads, &wire.Loaded{Session: m.Session, Program: m.Program})
		for _, p := range m.Places {
			if m.Loadable.Collective && w.isStranger(worker, p.Worker) {
				w.t.Fatalf("process %d loads a collective program with process %d, of which it was not told", worker.process,
					p.Worker)
			}
		}
	case wire.KindDispatch:
		m := new(wire.Dispatch)
		w.into(a, m)
		op := new(wire.Fetch) // all have op as field 1
		kind := wire.Kind(m.Kind)
		if kind != wire.KindFree && kind != wire.KindAssemble {
			_ = proto.Unmarshal(m.Operation, op)
		}
		what := fmt.Sprint(m.Session, m.Kind, m.Operation)
		if kind == wire.KindAssemble {
			what = fmt.Sprint(m.Session, m.Kind, w.takesAssembled(worker, m))
		}
		if kind == wire.KindPut || kind == wire.KindTransfer {
			w.ownPart(worker, m, op.Op)
			what = fmt.Sprint(m.Session, m.Kind, op.Op)
		}
		w.dispatched(m.Gang, what, m.Session, op.Op, w.devicesOf(m, op.Op))
		switch {
		case m.Gang <= worker.last:
			w.t.Fatalf("a worker gets gang %d after gang %d", m.Gang, worker.last)
		case !worker.known[m.Session]:
			w.t.Fatalf("a worker gets an operation of session %d, which it does not know", m.Session)
		case m.Term != w.config.Term:
			w.t.Fatalf("term %d, want %d", m.Term, w.config.Term)
		}
		worker.last = m.Gang
		if wire.Kind(m.Kind) == wire.KindRun {
			run := new(wire.Run)
			if err := proto.Unmarshal(m.Operation, run); err != nil {
				w.t.Fatal(err)
			}
			in := [2]uint64{uint64(m.Session), run.Inputs[0]}
			if o := w.st.sessions[m.Session].objects[in[1]]; o != nil && o.of != nil && !worker.assembled[in] {
				w.t.Fatalf("a worker gets a run that reads array %d, of which it was not told what it is", in[1])
			}
			if !worker.loaded[[2]uint64{uint64(m.Session), run.Program}] {
				w.t.Fatalf("a worker gets a run of program %d, which it did not load", run.Program)
			}
		}
		if kind != wire.KindFree && kind != wire.KindAssemble {
			worker.gangs[m.Gang] = m.Session
		}
	case wire.KindGraph:
		m := new(wire.Graph)
		w.into(a, m)
		key := [2]uint64{uint64(m.Session), m.Graph}
		if !worker.known[m.Session] || worker.graphs[key] != nil {
			w.t.Fatalf("graph %d of session %d comes twice, or before the session is known", m.Graph, m.Session)
		}
		worker.graphs[key] = m
		w.ownNodes(worker, m)
	case wire.KindPlayed:
		m := new(wire.Played)
		w.into(a, m)
		g := worker.graphs[[2]uint64{uint64(m.Session), m.Graph}]
		switch {
		case g == nil:
			w.t.Fatalf("a worker is to play graph %d of session %d, which it does not know", m.Graph, m.Session)
		case m.Gang <= worker.last:
			w.t.Fatalf("a worker gets gang %d after gang %d", m.Gang, worker.last)
		case m.Term != w.config.Term || m.Count == 0 || int(m.From+m.Count) > len(g.Nodes) || len(m.Inputs) != int(g.Inputs):
			w.t.Fatalf("a worker is to play %v of %v", m, g)
		}
		worker.last = m.Gang + uint64(m.Count) - 1
		part := false
		for i := range m.Count {
			op, gang := m.Op+uint64(m.From+i), m.Gang+uint64(i)
			w.dispatched(gang, fmt.Sprint(m.Session, "node", m.From+i, m.Graph, op, m.First, m.Inputs), m.Session, op,
				w.devicesOfNode(m.Session, m.Graph, m.From+i))
			here := false
			if n := g.Nodes[m.From+i]; n.Run != nil {
				here = worker.loaded[[2]uint64{uint64(m.Session), n.Run.Program}]
			} else {
				here = len(n.Transfer.Moves) > 0 // its own, see ownNodes
			}
			if here {
				worker.gangs[gang], part = m.Session, true
			}
		}
		if !part {
			w.t.Fatalf("a worker is to play nodes in which it has no part: %v of %v", m, g)
		}
	case wire.KindForget:
		m := new(wire.Forget)
		w.into(a, m)
		for _, id := range m.Programs {
			delete(worker.loaded, [2]uint64{uint64(m.Session), id})
		}
		for _, id := range m.Graphs {
			key := [2]uint64{uint64(m.Session), id}
			if worker.graphs[key] == nil {
				w.t.Fatalf("a worker is to forget graph %d of session %d, which it does not know", id, m.Session)
			}
			delete(worker.graphs, key)
		}
		for key, g := range worker.graphs {
			for _, n := range g.Nodes {
				if n.Run != nil && key[0] == uint64(m.Session) && slices.Contains(m.Programs, n.Run.Program) {
					w.t.Fatalf("a worker is to forget program %d, which graph %d runs", n.Run.Program, key[1])
				}
			}
		}
	case wire.KindDrop:
		m := new(wire.Drop)
		w.into(a, m)
		delete(worker.devices, m.Session)
		maps.DeleteFunc(worker.graphs, func(k [2]uint64, _ *wire.Graph) bool { return k[0] == uint64(m.Session) })
		if !worker.known[m.Session] {
			w.t.Fatalf("a worker is to drop session %d, which it does not know", m.Session)
		}
		delete(worker.known, m.Session)
		maps.DeleteFunc(worker.loaded, func(k [2]uint64, _ bool) bool { return k[0] == uint64(m.Session) })
	}
}

// takesAssembled checks that a worker is told what its own shards of an assembled array are. It returns the array.
func (w *twin) takesAssembled(worker *twinWorker, d *wire.Dispatch) uint64 {
	m := new(wire.Assemble)
	if err := proto.Unmarshal(d.Operation, m); err != nil {
		w.t.Fatal(err)
	}
	rows := 0
	for _, p := range m.Pieces {
		rows += int(p.Rows)
	}
	own := 0
	for _, v := range m.Devices {
		if worker.devices[d.Session][v] == worker.process {
			own++
		}
	}
	if rows == 0 || rows != len(m.Devices) || own != rows {
		w.t.Fatalf("process %d is told of the assembled array %v", worker.process, m)
	}
	key := [2]uint64{uint64(d.Session), m.Object}
	worker.assembled[key] = true
	return m.Object
}

// ownPart checks that a worker is sent its own part of a Put or a Transfer, and all of it.
func (w *twin) ownPart(worker *twinWorker, d *wire.Dispatch, op uint64) {
	on := worker.devices[d.Session]
	var got, want proto.Message
	switch m := w.sent[[2]uint64{uint64(d.Session), op}].(type) {
	case *wire.Put:
		own := proto.CloneOf(m)
		own.Devices = slices.DeleteFunc(own.Devices, func(d uint32) bool { return on[d] != worker.process })
		got, want = new(wire.Put), own
	case *wire.Transfer:
		own := proto.CloneOf(m)
		own.Moves = worker.ownMoves(on, m.Moves)
		w.knowsEnds(worker, on, own.Moves)
		got, want = new(wire.Transfer), own
	default:
		w.t.Fatalf("operation %d of session %d, which was not submitted, is dispatched", op, d.Session)
	}
	if err := proto.Unmarshal(d.Operation, got); err != nil || !proto.Equal(got, want) {
		w.t.Fatalf("process %d is sent %v, %v, want %v", worker.process, got, err, want)
	}
}

// ownMoves returns the moves that a worker has to be sent. They have their indices where there are others.
func (worker *twinWorker) ownMoves(on []uint64, moves []*wire.Move) (own []*wire.Move) {
	apart := false
	for i, m := range moves {
		apart = apart || on[m.From] != worker.process || on[m.To] != worker.process
		if on[m.From] == worker.process || on[m.To] == worker.process {
			m = proto.CloneOf(m)
			m.Index = uint32(i + 1)
			own = append(own, m)
		}
	}
	if !apart || worker.old {
		return moves
	}
	return own
}

// isStranger reports whether a worker, which is still there, is one that another was not told of.
func (w *twin) isStranger(worker *twinWorker, process uint64) bool {
	for _, other := range w.workers {
		if other.process == process {
			return other != worker && !worker.met[process]
		}
	}
	return false
}

// knowsEnds checks that a worker was told of those that it exchanges bytes with.
func (w *twin) knowsEnds(worker *twinWorker, on []uint64, moves []*wire.Move) {
	for _, m := range moves {
		for _, end := range []uint64{on[m.From], on[m.To]} {
			mine := on[m.From] == worker.process || on[m.To] == worker.process
			if mine && w.isStranger(worker, end) {
				w.t.Fatalf("process %d is sent a move of process %d, of which it was not told", worker.process, end)
			}
		}
	}
}

// ownNodes checks that a worker is sent of a graph what concerns it.
func (w *twin) ownNodes(worker *twinWorker, got *wire.Graph) {
	on := worker.devices[got.Session]
	for _, c := range w.clients {
		if c.session != got.Session {
			continue
		}
		want := proto.CloneOf(c.graphs[got.Graph])
		want.Session = got.Session
		all := worker.old || !slices.ContainsFunc(want.Nodes, func(n *wire.Node) bool {
			rows := c.programs[n.GetRun().GetProgram()]
			for _, m := range n.GetTransfer().GetMoves() {
				rows = append(slices.Clone(rows), m.From, m.To)
			}
			return slices.ContainsFunc(rows, func(d uint32) bool { return on[d] != worker.process })
		})
		for _, n := range want.Nodes {
			rows := c.programs[n.GetRun().GetProgram()]
			switch {
			case all:
			case n.Transfer != nil:
				n.Transfer.Moves = worker.ownMoves(on, n.Transfer.Moves)
				w.knowsEnds(worker, on, n.Transfer.Moves)
				for i, m := range n.Transfer.Moves {
					m.Index = uint32(i + 1) // also where this node has no other worker
				}
				if len(n.Transfer.Moves) == 0 {
					n.Transfer.Array = nil
				}
			case !slices.ContainsFunc(rows, func(d uint32) bool { return on[d] == worker.process }):
				n.Run.Inputs = nil
			}
		}
		if !proto.Equal(got, want) {
			w.t.Fatalf("process %d is sent the graph %v, want %v", worker.process, got, want)
		}
	}
}

// clientOf returns the client of a session, nil if it has gone.
func (w *twin) clientOf(session uint32) *twinClient {
	for _, c := range w.clients {
		if c.session == session {
			return c
		}
	}
	return nil
}

// devicesOf returns the virtual devices on which an operation has its place behind others of its session. Puts and
// fetches may pass what is held.
func (w *twin) devicesOf(m *wire.Dispatch, op uint64) []uint32 {
	c := w.clientOf(m.Session)
	switch {
	case c == nil:
	case wire.Kind(m.Kind) == wire.KindRun:
		run := new(wire.Run)
		if err := proto.Unmarshal(m.Operation, run); err != nil {
			w.t.Fatal(err)
		}
		if run.Only > 0 {
			return []uint32{run.Only - 1}
		}
		return c.programs[run.Program]
	case wire.Kind(m.Kind) == wire.KindTransfer:
		if t, ok := w.sent[[2]uint64{uint64(m.Session), op}].(*wire.Transfer); ok {
			return ends(t.Moves)
		}
	}
	return nil
}

// devicesOfNode is devicesOf for a node of a graph.
func (w *twin) devicesOfNode(session uint32, graph uint64, node uint32) []uint32 {
	c := w.clientOf(session)
	if c == nil || c.graphs[graph] == nil {
		return nil
	}
	n := c.graphs[graph].Nodes[node]
	if n.Run == nil {
		return ends(n.Transfer.Moves)
	}
	return c.programs[n.Run.Program]
}

// ends returns the devices between which bytes move.
func ends(moves []*wire.Move) (on []uint32) {
	for _, m := range moves {
		on = append(on, m.From, m.To)
	}
	return on
}

// dispatched checks that a gang is the same for all workers, and that a session's
// operations come in order on each device. Op is 0 of what has no end.
func (w *twin) dispatched(gang uint64, what string, session uint32, op uint64, on []uint32) {
	if seen, ok := w.gangs[gang]; ok {
		if seen != what {
			w.t.Fatalf("gang %d is %s for one worker and %s for another", gang, seen, what)
		}
		return
	}
	w.gangs[gang] = what
	for _, d := range on {
		at := [2]uint64{uint64(session), uint64(d)}
		if op < w.first[at] {
			w.t.Fatalf("operation %d of session %d is dispatched on device %d after operation %d", op, session, d, w.first[at])
		}
		w.first[at] = op
	}
}

func (w *twin) clientSees(c *twinClient, a Action) {
	switch a.Wire {
	case wire.KindCompleted:
		m := new(wire.Completed)
		w.into(a, m)
		for _, op := range m.Ok {
			w.ends(c, op, nil)
		}
		for _, f := range m.Failed {
			w.ends(c, f.Number, f.Status.Err())
		}
	case wire.KindCompiled:
		m := new(wire.Compiled)
		w.into(a, m)
		rows, ok := c.waiting[m.Program]
		if !ok {
			w.t.Fatalf("program %d is compiled and was not asked for", m.Program)
		}
		delete(c.waiting, m.Program)
		if m.Status.Err() == nil {
			if !slices.Equal(m.Info.Devices, rows) {
				w.t.Fatalf("program %d is for devices %v, want %v", m.Program, m.Info.Devices, rows)
			}
			c.programs[m.Program] = rows
		}
	}
}

func (w *twin) ends(c *twinClient, op uint64, err error) {
	if _, twice := c.ended[op]; twice || op == 0 || op > c.op {
		w.t.Fatalf("operation %d of session %d ends, which has ended or never began", op, c.session)
	}
	if c.failing[op] && err == nil {
		w.t.Fatalf("operation %d ends well and names what is not there", op)
	}
	c.ended[op] = err
}

// TestRulesHoldUnderRandomEvents keeps the rules of the package's contract under random
// events.
func TestRulesHoldUnderRandomEvents(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := Config{Term: 7, Lease: 5e6, MemoryWait: 20e6,
			FirstCome: rapid.Bool().Draw(t, "first come"), Sequential: rapid.IntRange(0, 3).Draw(t, "sequential") == 0,
			Limits: Limits{Window: rapid.SampledFrom([]int{1, 2, 3, 16, 64}).Draw(t, "window"),
				Credit: rapid.IntRange(1, 20).Draw(t, "credit"),
				Store:  1}}
		w := &twin{t: t, config: c, st: New(c), workers: map[uint64]*twinWorker{}, clients: map[uint64]*twinClient{},
			gangs: map[uint64]string{}, first: map[[2]uint64]uint64{}, sent: map[[2]uint64]proto.Message{},
			isWorker: map[uint64]bool{}}
		w.memory = rapid.SampledFrom([]int64{0, 12, 40}).Draw(t, "memory")
		for range rapid.IntRange(1, 3).Draw(t, "workers") {
			w.joinWorker()
		}
		w.joinClient()
		lose := func(number uint64) {
			delete(w.workers, number)
			delete(w.clients, number)
			w.step(Event{Kind: Lost, Conn: number, Err: status.New(status.Unavailable, "it fell over")})
		}
		for range rapid.IntRange(20, 250).Draw(t, "steps") {
			// Small numbers are drawn more often.
			switch n := rapid.IntRange(0, 99).Draw(t, "event"); {
			case n < 20:
				number, c := pick(w, w.clients, "client")
				for range rapid.SampledFrom([]int{1, 1, 8}).Draw(t, "burst") {
					if c != nil && w.clients[number] == c {
						w.submits(c)
					}
				}
			case n < 60:
				if number, worker := pick(w, w.workers, "worker"); worker != nil {
					w.reports(number, worker)
				}
			case n < 80:
				w.step(Event{Kind: Flush})
			case n < 85:
				w.step(Event{Kind: Tick})
			case n < 90:
				w.joinClient()
			case n < 95:
				w.joinWorker()
			case n < 97:
				if number, c := pick(w, w.clients, "client"); c != nil {
					if rapid.Bool().Draw(t, "politely") {
						w.say(number, wire.KindGoodbye, &wire.Goodbye{})
					} else {
						lose(number)
					}
				}
			default:
				if number, _ := pick(w, w.workers, "worker"); number != 0 {
					lose(number)
				}
			}
		}
		// When workers have reported everything, every operation has ended.
		for busy := true; busy; {
			busy = len(w.st.held) > 0
			w.now = max(w.now, w.st.Due())
			w.step(Event{Kind: Tick})
			for _, number := range slices.Sorted(maps.Keys(w.workers)) {
				for worker := w.workers[number]; len(worker.gangs)+len(worker.compiles)+len(worker.loads) > 0; busy = true {
					w.reports(number, worker)
				}
			}
		}
		w.step(Event{Kind: Flush})
		for _, number := range slices.Sorted(maps.Keys(w.clients)) {
			c := w.clients[number]
			for op := uint64(1); op <= c.op; op++ {
				if _, ok := c.ended[op]; !ok {
					t.Fatalf("operation %d of session %d has no end; %+v, gangs %v", op, c.session, w.st.sessions[c.session],
						w.st.gangs)
				}
			}
			if s := w.st.sessions[c.session]; s.line.length != 0 || s.underWay != 0 || s.out != 0 || len(s.queue) != 0 ||
				s.waiting != nil ||
				s.play != nil || s.freeing != 0 || len(c.waiting) != 0 {
				t.Fatalf("session %d is left with %+v", c.session, s)
			}
			if rapid.Bool().Draw(t, "politely") {
				w.say(number, wire.KindGoodbye, &wire.Goodbye{})
			} else {
				lose(number)
			}
		}
		// And when the sessions have gone, there is nothing left of them.
		w.now += 1e9
		w.step(Event{Kind: Tick})
		for _, worker := range w.workers {
			if len(worker.known) != 0 || len(worker.loaded) != 0 || len(worker.graphs) != 0 {
				t.Fatalf("a worker still has sessions %v, programs %v", worker.known, worker.loaded)
			}
		}
		if n := w.st.ledger.Len(); n != 0 || len(w.st.held) != 0 {
			t.Fatalf("%d arrays are left in the ledger, and %d gangs are held", n, len(w.st.held))
		}
		if len(w.st.gangs)+len(w.st.sessions)+len(w.st.compiles) != 0 {
			t.Fatalf("%d gangs, %d sessions and %d compiles are left", len(w.st.gangs), len(w.st.sessions), len(w.st.compiles))
		}
		for _, is := range w.st.islands {
			if is.sched.Queued()+is.sched.Running()+len(is.held) != 0 {
				t.Fatalf("island %q has %d runs queued, %d running, %d held", is.name, is.sched.Queued(), is.sched.Running(),
					len(is.held))
			}
		}
		for _, c := range w.st.compiled {
			if !c.ready || c.users != 0 || len(c.waiting) != 0 {
				t.Fatalf("a program is left with %d users and %d who wait, ready: %t", c.users, len(c.waiting), c.ready)
			}
		}
		for _, number := range slices.Sorted(maps.Keys(w.workers)) {
			lose(number)
		}
		for slot, worker := range w.st.workers {
			if worker != nil {
				t.Fatalf("worker %s still has slot %d, for %d sessions", worker.name, slot, worker.views)
			}
		}
	})
}
