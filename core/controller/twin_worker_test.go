package controller

// What a worker of the twin checks: that each message names only what the worker was told of before.

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/wire/wiretest"
)

func (w *twin) workerSees(conn uint64, worker *twinWorker, a Action) {
	switch a.Wire {
	case wire.KindPeers:
		w.meets(worker, wiretest.Decode[wire.Peers](w.t, sent(a)))
	case wire.KindSession:
		w.hearsOfSession(worker, wiretest.Decode[wire.Session](w.t, sent(a)))
	case wire.KindCompile:
		m := wiretest.Decode[wire.Compile](w.t, sent(a))
		worker.compiles[m.Op] = &twinCompile{message: m}
	case wire.KindLoad:
		w.loads(worker, wiretest.Decode[wire.Load](w.t, sent(a)))
	case wire.KindDispatch:
		w.takesOperation(worker, wiretest.Decode[wire.Dispatch](w.t, sent(a)))
	case wire.KindGraph:
		w.takesGraph(worker, wiretest.Decode[wire.Graph](w.t, sent(a)))
	case wire.KindPlayed:
		w.takesPlay(worker, wiretest.Decode[wire.Played](w.t, sent(a)))
	case wire.KindSettled:
		worker.settles(wiretest.Decode[wire.Settled](w.t, sent(a)))
	case wire.KindGive:
		w.gives(conn, worker, wiretest.Decode[wire.Give](w.t, sent(a)))
	case wire.KindSource:
		w.source(worker, wiretest.Decode[wire.Source](w.t, sent(a)))
	case wire.KindForget:
		w.forgets(worker, wiretest.Decode[wire.Forget](w.t, sent(a)))
	case wire.KindDrop:
		w.drops(worker, wiretest.Decode[wire.Drop](w.t, sent(a)))
	}
}

// meets checks that a worker is told of each process once, or again with at least as many that are new, and of the loss
// of those alone of which it was told.
func (w *twin) meets(worker *twinWorker, m *wire.Peers) {
	again := 0
	for _, p := range m.Come {
		if worker.met[p.Number] {
			again++
		}
		worker.met[p.Number] = true
	}
	if 2*again > len(m.Come) {
		w.t.Fatalf("process %d is told of %d processes, and again of %d of them", worker.process, len(m.Come), again)
	}
	for _, gone := range m.Gone {
		if w.isWorker[gone] && !worker.met[gone] && w.config.Starts < 2 { // a start does not know who was told of it
			w.t.Fatalf("process %d is told that process %d is lost, of which it was not told", worker.process, gone)
		}
		delete(worker.met, gone)
	}
}

// hearsOfSession has a worker take in a session and its devices.
func (w *twin) hearsOfSession(worker *twinWorker, m *wire.Session) {
	if c := w.clientOf(m.Session); worker.known[m.Session] && !worker.untold[m.Session] &&
		(c == nil || !c.rebinding) {
		w.t.Fatalf("a worker is told of session %d twice", m.Session)
	}
	delete(worker.untold, m.Session)
	had := worker.devices[m.Session]
	worker.known[m.Session], worker.devices[m.Session] = true, map[uint32]uint32{}
	for _, own := range m.Devices {
		for k := range own.Count {
			worker.devices[m.Session][own.First+k] = own.Local + k
		}
	}
	for d, local := range had {
		if now, has := worker.devices[m.Session][d]; !has || now != local {
			w.t.Fatalf("process %d was told that device %d of session %d is its device %d, and is told %v", worker.process, d,
				m.Session, local, m.Devices)
		}
	}
}

// loads has a worker load a program of a session that it knows.
func (w *twin) loads(worker *twinWorker, m *wire.Load) {
	if !worker.known[m.Session] || worker.loaded[[2]uint64{uint64(m.Session), m.Program}] {
		w.t.Fatalf("program %d of session %d is loaded twice, or before the session is known", m.Program, m.Session)
	}
	worker.loaded[[2]uint64{uint64(m.Session), m.Program}] = true
	worker.donates[[2]uint64{uint64(m.Session), m.Program}] = len(m.Donated) > 0
	worker.load(m)
	if like := [2]uint64{uint64(m.LikeSession), m.LikeProgram}; m.LikeProgram != 0 {
		if m.Places = worker.places[like]; m.Places == nil {
			w.t.Fatalf("program %d of session %d is loaded where program %d of session %d is, which process %d does not have",
				m.Program, m.Session, m.LikeProgram, m.LikeSession, worker.process)
		}
	}
	worker.places[[2]uint64{uint64(m.Session), m.Program}] = m.Places
	w.loadsDevices(worker, m)
}

// takesOperation checks an operation that a worker is to perform.
func (w *twin) takesOperation(worker *twinWorker, m *wire.Dispatch) {
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
	w.dispatched(worker, m.Gang, what, m.Session, op.Op, w.devicesOf(m, op.Op))
	switch {
	case m.Gang <= worker.last:
		w.t.Fatalf("a worker gets gang %d after gang %d", m.Gang, worker.last)
	case !worker.known[m.Session] || worker.untold[m.Session]:
		w.t.Fatalf("a worker gets an operation of session %d, which it does not know", m.Session)
	}
	worker.last = m.Gang
	if wire.Kind(m.Kind) == wire.KindRun {
		run := wiretest.Decode[wire.Run](w.t, m.Operation)
		in := [2]uint64{uint64(m.Session), run.Inputs[0]}
		if o := w.st.sessions[m.Session].objects[in[1]]; o != nil && o.of != nil && !worker.assembled[in] {
			w.t.Fatalf("a worker gets a run that reads array %d, of which it was not told what it is", in[1])
		}
		if !worker.loaded[[2]uint64{uint64(m.Session), run.Program}] {
			w.t.Fatalf("a worker gets a run of program %d, which it did not load", run.Program)
		}
	}
	switch kind {
	case wire.KindFree:
		free := wiretest.Decode[wire.Free](w.t, m.Operation)
		worker.frees(m.Session, free.Objects)
	case wire.KindRun:
		run := new(wire.Run)
		statustest.OK(w.t, run.Parse(m.Operation))
		worker.runs(w, m.Gang, m.Session, op.Op, run.Program, run.Inputs[0], run.FirstOutput)
	case wire.KindPut:
		put := wiretest.Decode[wire.Put](w.t, m.Operation)
		worker.begins(w, m.Gang, twinGang{session: m.Session, op: op.Op, makes: []uint64{put.Object}}, put.Devices)
	case wire.KindTransfer:
		t := wiretest.Decode[wire.Transfer](w.t, m.Operation)
		worker.begins(w, m.Gang, twinGang{session: m.Session, op: op.Op, reads: sourcesOf(t.Moves),
			makes: []uint64{t.Object}}, madeOn(t.Moves))
	case wire.KindFetch:
		fetch := wiretest.Decode[wire.Fetch](w.t, m.Operation)
		worker.begins(w, m.Gang, twinGang{session: m.Session, op: op.Op, reads: []uint64{fetch.Object}}, nil)
	}
}

// takesGraph has a worker keep a graph that sessions are to play.
func (w *twin) takesGraph(worker *twinWorker, m *wire.Graph) {
	key := [2]uint64{uint64(m.Session), m.Graph}
	c := w.clientOf(m.Session)
	if !worker.known[m.Session] || worker.graphs[key] != nil && worker.stale[key] == nil &&
		(c == nil || !c.rebinding) {
		w.t.Fatalf("graph %d of session %d comes twice, or before the session is known", m.Graph, m.Session)
	}
	delete(worker.stale, key)
	worker.graphs[key] = m
	w.ownNodes(worker, m)
}

// takesPlay checks that a worker is to play nodes of a graph that it has, of which some are its own.
func (w *twin) takesPlay(worker *twinWorker, m *wire.Played) {
	g := worker.graphs[[2]uint64{uint64(m.Session), m.Graph}]
	switch {
	case g == nil:
		w.t.Fatalf("a worker is to play graph %d of session %d, which it does not know", m.Graph, m.Session)
	case m.Gang <= worker.last:
		w.t.Fatalf("a worker gets gang %d after gang %d", m.Gang, worker.last)
	case m.Count == 0 || int(m.From+m.Count) > len(g.Nodes) || len(m.Inputs) != int(g.Inputs):
		w.t.Fatalf("a worker is to play %v of %v", m, g)
	}
	worker.last = m.Gang + uint64(m.Count) - 1
	part := false
	for i := range m.Count {
		op, gang := m.Op+uint64(m.From+i), m.Gang+uint64(i)
		w.dispatched(worker, gang, fmt.Sprint(m.Session, "node", m.From+i, m.Graph, op, m.First, m.Inputs), m.Session, op,
			w.devicesOfNode(m.Session, m.Graph, m.From+i))
		n := g.Nodes[m.From+i]
		if !worker.hasPart(m.Session, n) {
			continue
		}
		number := func(local uint64) uint64 {
			if local <= uint64(g.Inputs) {
				return m.Inputs[local-1]
			}
			return m.First + local - uint64(g.Inputs) - 1
		}
		local := uint64(g.Inputs) + uint64(m.From+i) + 1 // each node makes one
		var makes []uint64                               // that is there when the play has ended
		if slices.Contains(g.Outputs, local) {
			makes = []uint64{number(local)}
		}
		if n.Run != nil {
			worker.runs(w, gang, m.Session, op, n.Run.Program, number(n.Run.Inputs[0]), makes...)
		} else {
			reads := sourcesOf(n.Transfer.Moves)
			for i := range reads {
				reads[i] = number(reads[i])
			}
			worker.begins(w, gang, twinGang{session: m.Session, op: op, reads: reads, makes: makes}, madeOn(n.Transfer.Moves))
		}
		for _, given := range g.Given {
			if !slices.ContainsFunc(g.Nodes[m.From+i+1:], func(n *wire.Node) bool {
				return worker.hasPart(m.Session, n) && reads(n, given)
			}) {
				worker.frees(m.Session, []uint64{number(given)})
			}
		}
		part = true
	}
	if !part {
		w.t.Fatalf("a worker is to play nodes in which it has no part: %v of %v", m, g)
	}
}

// forgets has a worker drop programs, artifacts and graphs.
func (w *twin) forgets(worker *twinWorker, m *wire.Forget) {
	worker.unload(func(session, program uint64) bool {
		return session == uint64(m.Session) && slices.Contains(m.Programs, program)
	})
	for _, op := range m.Compiles {
		if c := worker.compiles[op]; c != nil {
			c.unwanted = true
		}
	}
	for _, number := range m.Artifacts {
		delete(worker.artifacts.kept, number)
	}
	for _, id := range m.Graphs {
		key := [2]uint64{uint64(m.Session), id}
		if worker.graphs[key] == nil && w.config.Starts < 2 {
			w.t.Fatalf("a worker is to forget graph %d of session %d, which it does not know", id, m.Session)
		}
		delete(worker.graphs, key)
	}
	c := w.clientOf(m.Session)
	for key, g := range worker.graphs {
		for _, n := range g.Nodes {
			if n.Run == nil || key[0] != uint64(m.Session) || !slices.Contains(m.Programs, n.Run.Program) {
				continue
			}
			if c != nil && c.rebinding || worker.stale[key] != nil { // it comes again, and is not played before
				delete(worker.graphs, key)
			} else {
				w.t.Fatalf("a worker is to forget program %d, which graph %d runs", n.Run.Program, key[1])
			}
		}
	}
}

// drops has a worker forget all of a session.
func (w *twin) drops(worker *twinWorker, m *wire.Drop) {
	delete(worker.devices, m.Session)
	maps.DeleteFunc(worker.graphs, func(k [2]uint64, _ *wire.Graph) bool { return k[0] == uint64(m.Session) })
	if !worker.known[m.Session] && w.config.Starts < 2 {
		w.t.Fatalf("a worker is to drop session %d, which it does not know", m.Session)
	}
	delete(worker.known, m.Session)
	delete(worker.untold, m.Session)
	maps.DeleteFunc(worker.arrays, func(k [2]uint64, _ *twinArray) bool { return k[0] == uint64(m.Session) })
	maps.DeleteFunc(worker.ended, func(_ uint64, g *twinGang) bool { return g.session == m.Session })
	worker.unload(func(session, _ uint64) bool { return session == uint64(m.Session) })
}

// runs has a worker begin a run of a program that reads and makes one array.
func (worker *twinWorker) runs(w *twin, gang uint64, session uint32, op, program, reads uint64,
	makes ...uint64) {
	var on []uint32
	for _, d := range slices.Sorted(maps.Keys(worker.devices[session])) {
		if c := w.clientOf(session); c == nil || slices.Contains(c.rows[program], d) {
			on = append(on, d)
		}
	}
	a := worker.arrays[[2]uint64{uint64(session), reads}]
	if a != nil && worker.donates[[2]uint64{uint64(session), program}] {
		a.donated, a.pending = true, false
	}
	g := twinGang{session: session, op: op, reads: []uint64{reads}, makes: makes}
	for _, d := range on {
		if local, own := worker.devices[session][d]; own {
			g.runsOn = append(g.runsOn, local)
		}
	}
	worker.begins(w, gang, g, on)
}

// hasPart reports whether a worker has a part in a node of a graph that it was sent.
func (worker *twinWorker) hasPart(session uint32, n *wire.Node) bool {
	if n.Run != nil {
		return worker.loaded[[2]uint64{uint64(session), n.Run.Program}]
	}
	return len(n.Transfer.Moves) > 0 // its own, see ownNodes
}

// reads reports whether a node reads an object of its graph.
func reads(n *wire.Node, local uint64) bool {
	if n.Run != nil {
		return slices.Contains(n.Run.Inputs, local)
	}
	return slices.ContainsFunc(n.Transfer.Moves, func(m *wire.Move) bool { return m.Source == local })
}

// sourcesOf returns the objects whose bytes move.
func sourcesOf(moves []*wire.Move) (objects []uint64) {
	for _, m := range moves {
		objects = append(objects, m.Source)
	}
	return objects
}

// madeOn returns the devices to which bytes move.
func madeOn(moves []*wire.Move) (on []uint32) {
	for _, m := range moves {
		on = append(on, m.To)
	}
	return on
}

// takesAssembled checks that a worker is told what its own shards of an assembled array are. It returns the array.
func (w *twin) takesAssembled(worker *twinWorker, d *wire.Dispatch) uint64 {
	m := wiretest.Decode[wire.Assemble](w.t, d.Operation)
	rows := 0
	for _, p := range m.Pieces {
		rows += int(p.Rows)
	}
	own := 0
	for _, v := range m.Devices {
		if worker.has(d.Session, v) {
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
	var got, want proto.Message
	switch m := w.sent[[2]uint64{uint64(d.Session), op}].(type) {
	case *wire.Put:
		own, is := proto.CloneOf(m), wiretest.Decode[wire.Put](w.t, d.Operation)
		own.Devices = slices.DeleteFunc(own.Devices, func(v uint32) bool { return !worker.has(d.Session, v) })
		own.Lost, is.Lost = nil, nil // the controller's
		got, want = is, own
	case *wire.Transfer:
		own, is := proto.CloneOf(m), wiretest.Decode[wire.Transfer](w.t, d.Operation)
		own.Moves = worker.ownMoves(d.Session, m.Moves)
		w.knowsPeers(worker, d.Session, is.Moves)
		got, want = is, own
	default:
		w.t.Fatalf("operation %d of session %d, which was not submitted, is dispatched", op, d.Session)
	}
	if !proto.Equal(got, want) {
		w.t.Fatalf("process %d is sent %v, want %v", worker.process, got, want)
	}
}

// has reports whether a virtual device is the worker's.
func (worker *twinWorker) has(session, d uint32) bool {
	_, own := worker.devices[session][d]
	return own
}

// ownMoves returns the moves that a worker has to be sent, without their peers. They have their indices where there are
// others.
func (worker *twinWorker) ownMoves(session uint32, moves []*wire.Move) (own []*wire.Move) {
	apart := false
	for i, m := range moves {
		from, to := worker.has(session, m.From), worker.has(session, m.To)
		apart = apart || !from || !to
		if from || to {
			m = proto.CloneOf(m)
			m.Index = uint32(i + 1)
			own = append(own, m)
		}
	}
	if !apart {
		return moves
	}
	return own
}

// ownerOf returns the process of the worker that was told that a virtual device is its own; 0 if it is lost.
func (w *twin) ownerOf(session, d uint32) uint64 {
	for _, worker := range w.workers {
		if worker.has(session, d) {
			return worker.process
		}
	}
	return 0
}

// loadsDevices checks that a worker is told of the devices of a program, and of those of others where they wait for
// each other.
func (w *twin) loadsDevices(worker *twinWorker, m *wire.Load) {
	c := w.clientOf(m.Session)
	if c == nil {
		return
	}
	rows := c.rows[m.Program]
	if rows == nil { // its client hears of it behind the workers
		if rows = c.waiting[m.Program]; rows == nil {
			return
		}
	}
	others := slices.ContainsFunc(rows, func(d uint32) bool { return !worker.has(m.Session, d) })
	if !m.Loadable.Collective || !others {
		if told := wire.NumbersOf(m.Devices); len(m.Places) > 0 || len(told) != 1 && !slices.Equal(told, rows) {
			w.t.Fatalf("process %d loads a program of devices %v on %v, and is told of %v", worker.process, rows, told, m.Places)
		}
		return
	}
	for _, span := range m.Places {
		if w.isStranger(worker, span.Worker) {
			w.t.Fatalf("process %d loads a collective program with process %d, of which it was not told", worker.process,
				span.Worker)
		}
		for range span.Count {
			if owner := w.ownerOf(m.Session, rows[0]); owner != 0 && owner != span.Worker {
				w.t.Fatalf("process %d is told that device %d is process %d's, and not %d's", worker.process, rows[0], span.Worker,
					owner)
			}
			rows = rows[1:]
		}
	}
	if len(rows) > 0 {
		w.t.Fatalf("process %d is not told who has devices %v of a collective program", worker.process, rows)
	}
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

// knowsPeers checks that moves say with whom a worker exchanges bytes, and that it was told of these. It takes the
// peers out of the moves.
func (w *twin) knowsPeers(worker *twinWorker, session uint32, moves []*wire.Move) {
	for _, m := range moves {
		want := uint64(0)
		for _, d := range []uint32{m.From, m.To} {
			if !worker.has(session, d) {
				want = cmp.Or(w.ownerOf(session, d), m.Peer)
			}
		}
		if m.Peer != want || w.isStranger(worker, m.Peer) {
			w.t.Fatalf("process %d is sent a move between devices %d and %d whose peer is process %d, want %d, of which it was "+
				"told", worker.process, m.From, m.To, m.Peer, want)
		}
		m.Peer = 0
	}
}

// ownNodes checks that a worker is sent of a graph what concerns it.
func (w *twin) ownNodes(worker *twinWorker, sent *wire.Graph) {
	got := proto.CloneOf(sent)
	for _, n := range got.Nodes {
		w.knowsPeers(worker, got.Session, n.GetTransfer().GetMoves())
	}
	for _, c := range w.clients {
		if c.session != got.Session || c.graphs[got.Graph] == nil { // it comes again, in front of its Forget
			continue
		}
		want := proto.CloneOf(c.graphs[got.Graph])
		want.Session = got.Session
		all := !slices.ContainsFunc(want.Nodes, func(n *wire.Node) bool {
			rows := c.rows[n.GetRun().GetProgram()]
			for _, m := range n.GetTransfer().GetMoves() {
				rows = append(slices.Clone(rows), m.From, m.To)
			}
			return slices.ContainsFunc(rows, func(d uint32) bool { return !worker.has(got.Session, d) })
		})
		for _, n := range want.Nodes {
			rows := c.rows[n.GetRun().GetProgram()]
			switch {
			case all:
			case n.Transfer != nil:
				n.Transfer.Moves = worker.ownMoves(got.Session, n.Transfer.Moves)
				for i, m := range n.Transfer.Moves {
					m.Index = uint32(i + 1) // also where this node has no other worker
				}
				if len(n.Transfer.Moves) == 0 {
					n.Transfer.Array = nil
				}
			case !slices.ContainsFunc(rows, func(d uint32) bool { return worker.has(got.Session, d) }):
				n.Run.Inputs = nil
			}
		}
		if !proto.Equal(got, want) {
			w.t.Fatalf("process %d is sent the graph %v, want %v", worker.process, got, want)
		}
	}
}
