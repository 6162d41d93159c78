package controller

// The controller of the twin ends at any time and starts again: its peers say what they have, as workers (core/worker)
// and clients (core/client) do. What was on its way is lost, in both directions.

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

// twinGang is a worker's part of an operation.
type twinGang struct {
	session uint32
	op      uint64
	failed  *wire.Status // of one that has ended
	reads   []uint64     // objects
	makes   []uint64     // the same
	runsOn  []uint32     // local devices; nil of what is no run
}

// twinArray is what a worker has of an array.
type twinArray struct {
	on      []uint32 // local devices
	pending bool     // what makes it has not ended
	donated bool
	failed  *wire.Status
}

// twinMessage is what a client remembers of an operation.
type twinMessage struct {
	kind wire.Kind
	m    proto.Message
}

// syncs writes facts to the disk, the oldest first.
func (w *twin) syncs(n int) {
	for _, a := range w.behind[:n] {
		w.keep(a)
	}
	w.behind = w.behind[n:]
}

// keep writes a fact to the disk.
func (w *twin) keep(a Action) {
	if w.disk[a.Table] == nil {
		w.disk[a.Table] = map[string][]byte{}
	}
	if delete(w.disk[a.Table], a.Key); a.Fact != nil {
		w.disk[a.Table][a.Key] = statustest.Value(proto.Marshal(a.Fact)).OK(w.t)
	}
}

// facts reads the disk.
func (w *twin) facts() *Kept {
	kept, err := ReadKept(func(table string, each func(key string, value []byte) error) error {
		for _, key := range slices.Sorted(maps.Keys(w.disk[table])) {
			if err := each(key, w.disk[table][key]); err != nil {
				return err
			}
		}
		return nil
	})
	statustest.OK(w.t, err)
	for i := range kept.Links {
		l := &kept.Links[i]
		l.Conn, l.Lease = l.Id, w.lease()
	}
	return kept
}

// link is the fact of a connection, which the shell keeps before it passes on the Welcome.
func (w *twin) link(number uint64) Action {
	c := w.st.conns.Get(number)
	l := &wire.KeptLink{Id: number, Hello: w.hellos[number], Tenant: w.of[number]}
	if c.w != nil {
		l.Process = c.w.process.Number
		if p := c.w.process; p.Board != 0 {
			l.Board = &wire.Board{Number: p.Board, Slot: p.Slot}
		}
	} else {
		l.Process, l.Session = c.s.process.Number, c.s.id
	}
	return Action{Table: TableLinks, Key: fmt.Sprintf("%020d", number), Fact: l}
}

// letLinks removes the facts of connections that are no more, as the shell does behind the Step that ended them.
func (w *twin) letLinks() {
	for _, key := range slices.Sorted(maps.Keys(w.disk[TableLinks])) {
		number, _ := strconv.ParseUint(key, 10, 64)
		if w.st.conns.Get(number) == nil && !slices.ContainsFunc(w.behind, func(a Action) bool {
			return a.Table == TableLinks && a.Key == key
		}) {
			w.behind = append(w.behind, Action{Table: TableLinks, Key: key})
		}
	}
}

// lease is that of connections.
func (w *twin) lease() int64 {
	if w.config.Keeps {
		return 1e15
	}
	return 0
}

// restarts has the controller end, behind some events of which some peers hear nothing, or of which it does not hear,
// and start again.
func (w *twin) restarts() {
	t := w.t
	w.deaf, w.mute = map[uint64]bool{}, map[uint64]bool{}
	for _, number := range w.st.conns.Numbers() {
		w.deaf[number] = rapid.IntRange(0, 2).Draw(t, "deaf") == 0
		w.mute[number] = rapid.IntRange(0, 5).Draw(t, "mute") == 0
	}
	for range rapid.IntRange(0, 8).Draw(t, "unheard") {
		switch rapid.IntRange(0, 3).Draw(t, "unheard event") {
		case 0, 1:
			if _, c := pick(w, w.clients, "client"); c != nil {
				w.submits(c)
			}
		case 2:
			if number, worker := pick(w, w.workers, "worker"); worker != nil {
				w.reports(number, worker)
			}
		default:
			w.step(Event{Kind: Flush})
		}
	}
	w.syncs(rapid.IntRange(0, len(w.behind)).Draw(t, "facts that reach the disk"))
	w.behind = nil
	kept := w.facts()
	w.config.Starts = max(2, w.config.Starts+1)
	w.st = New(w.config)
	w.st.Weigh(w.weight)
	w.deaf, w.mute = map[uint64]bool{}, map[uint64]bool{}
	refused, actions := w.st.Restore(kept)
	for number, err := range refused {
		if w.workers[number] != nil || w.clients[number] != nil {
			t.Fatalf("connection %d cannot come back: %v", number, err)
		}
	}
	for _, a := range actions {
		w.see(a)
	}
	for _, worker := range w.workers {
		worker.startsAgain()
	}
	w.forgetGangs()
	conns := w.st.conns.Numbers()
	var back []uint64
	for _, number := range rapid.Permutation(conns).Draw(t, "in this order") {
		if w.workers[number] == nil && w.clients[number] == nil { // its end was not on the disk
			w.lose(number)
			continue
		}
		switch rapid.IntRange(0, 9).Draw(t, "comes back") {
		case 0:
			delete(w.workers, number)
			w.forgetGangs()
			w.lose(number)
			continue
		case 1:
			w.step(Event{Kind: Tick})
		case 2:
			w.joinWorker()
		case 3:
			w.joinClient()
		}
		w.step(Event{Kind: Mended, Conn: number})
		var m *wire.Rejoin
		if worker := w.workers[number]; worker != nil {
			m = worker.rejoin(w)
		} else {
			m = w.clients[number].rejoin(w)
		}
		w.forgetGangs()
		w.say(number, wire.KindRejoin, m)
		back = append(back, number)
	}
	if w.st.IsComingBack() {
		t.Fatal("the controller waits although all have come back")
	}
	for _, number := range back {
		if w.workers[number] == nil && w.clients[number] == nil {
			t.Fatalf("connection %d, which has come back, is closed", number)
		}
	}
}

// forgetGangs forgets the gangs that no worker knows: their numbers may be given again.
func (w *twin) forgetGangs() {
	there := map[uint64]bool{}
	for _, worker := range w.workers {
		for _, known := range []map[uint64]*twinGang{worker.gangs, worker.ended} {
			for gang := range known {
				there[gang] = true
			}
		}
	}
	maps.DeleteFunc(w.gangs, func(gang uint64, _ string) bool { return !there[gang] })
}

// lose has a peer fall over.
func (w *twin) lose(number uint64) {
	delete(w.workers, number)
	delete(w.clients, number)
	w.step(Event{Kind: Lost, Conn: number, Err: status.New(status.Unavailable, "it fell over")})
}

// startsAgain is what a worker does when it hears that the controller has started again: it is told anew of peers, of
// sessions, graphs, and of what is assembled.
func (worker *twinWorker) startsAgain() {
	clear(worker.met)
	clear(worker.first) // what had failed before later operations is tried again behind them, see lost.go
	clear(worker.assembled)
	worker.stale = maps.Clone(worker.graphs)
	worker.untold = maps.Clone(worker.known)
	worker.artifacts.startsAgain()
	for _, c := range worker.compiles {
		c.stale = true
	}
}

// rejoin says what a worker has.
func (worker *twinWorker) rejoin(w *twin) *wire.Rejoin {
	m := &wire.Rejoin{Last: worker.last, Artifacts: worker.artifacts.held()}
	of := map[uint32]*wire.Holding{}
	holding := func(session uint32) *wire.Holding {
		if of[session] == nil {
			of[session] = &wire.Holding{Session: session}
			m.Holdings = append(m.Holdings, of[session])
		}
		return of[session]
	}
	for _, session := range slices.Sorted(maps.Keys(worker.known)) {
		holding(session)
	}
	for key := range worker.loaded {
		h := holding(uint32(key[0]))
		h.Programs = append(h.Programs, key[1])
	}
	for key, a := range worker.arrays {
		if a.pending && key[1]%2 == 0 { // a device has promised some of those that are made
			continue
		}
		held := &wire.HeldArray{Object: key[1], Devices: a.on, Donated: a.donated, Failed: a.failed}
		if !a.donated && a.failed == nil {
			held.Bytes = 4
		}
		h := holding(uint32(key[0]))
		h.Arrays = append(h.Arrays, held)
	}
	for gang, g := range worker.gangs {
		h := holding(g.session)
		h.Gangs = append(h.Gangs, &wire.HeldGang{Gang: gang, Op: g.op})
	}
	for gang, g := range worker.ended {
		h := holding(g.session)
		h.Gangs = append(h.Gangs, &wire.HeldGang{Gang: gang, Op: g.op, Ended: true, Failed: g.failed})
	}
	for _, h := range m.Holdings { // maps have no order, and a seed has to repeat
		slices.Sort(h.Programs)
		slices.SortFunc(h.Arrays, func(a, b *wire.HeldArray) int { return int(a.Object) - int(b.Object) })
		slices.SortFunc(h.Gangs, func(a, b *wire.HeldGang) int { return int(a.Gang) - int(b.Gang) })
	}
	slices.SortFunc(m.Holdings, func(a, b *wire.Holding) int { return int(a.Session) - int(b.Session) })
	return m
}

// begins has a worker know its part of a gang, and what that makes on some devices.
func (worker *twinWorker) begins(w *twin, gang uint64, g twinGang, on []uint32) {
	session, op := g.session, g.op
	at := [2]uint64{uint64(session), op}
	if worker.did[at] {
		w.t.Fatalf("process %d is sent operation %d of session %d twice", worker.process, op, session)
	}
	worker.did[at] = true
	worker.gangs[gang] = &g
	for _, object := range g.makes {
		a := &twinArray{pending: true}
		for _, d := range on {
			if worker.has(session, d) {
				a.on = append(a.on, worker.devices[session][d])
			}
		}
		if len(a.on) > 0 {
			worker.arrays[[2]uint64{uint64(session), object}] = a
		}
	}
}

// ends has a worker remember how a gang has ended.
func (worker *twinWorker) ends(gang uint64, failed *wire.Status) {
	g := worker.gangs[gang]
	if g == nil {
		return
	}
	delete(worker.gangs, gang)
	for _, object := range g.makes {
		if a := worker.arrays[[2]uint64{uint64(g.session), object}]; a != nil && a.pending {
			a.pending, a.failed = false, failed
		}
	}
	if g.failed = failed; worker.known[g.session] {
		worker.ended[gang] = g
	}
}

// frees has a worker let go of arrays.
func (worker *twinWorker) frees(session uint32, objects []uint64) {
	for _, object := range objects {
		delete(worker.arrays, [2]uint64{uint64(session), object})
	}
}

// nothingIsKept checks that workers have let go of what clients have.
func (w *twin) nothingIsKept() {
	for _, worker := range w.workers {
		for key := range worker.graphs {
			if c := w.clientOf(uint32(key[0])); c != nil && c.graphs[key[1]] == nil {
				w.t.Fatalf("process %d keeps graph %d of session %d, which was forgotten", worker.process, key[1], key[0])
			}
		}
		for key := range worker.arrays {
			c := w.clientOf(uint32(key[0]))
			if c != nil && !slices.Contains(c.live, key[1]) {
				w.t.Fatalf("process %d keeps array %d of session %d, which was freed", worker.process, key[1], key[0])
			}
		}
	}
}

// settles has a worker forget what a client has heard the end of.
func (worker *twinWorker) settles(m *wire.Settled) {
	maps.DeleteFunc(worker.ended, func(_ uint64, g *twinGang) bool {
		return g.session == m.Session && g.op < m.Next && !slices.Contains(m.Pending, g.op)
	})
}

// pending returns the operations of which a client has heard no end.
func (c *twinClient) pending() (all []uint64) {
	for op := uint64(1); op <= c.op; op++ {
		if _, ok := c.ended[op]; !ok {
			all = append(all, op)
		}
	}
	return all
}

// rejoin says what a client has sent and knows no end of.
func (c *twinClient) rejoin(w *twin) *wire.Rejoin {
	m := &wire.Rejoin{Epoch: c.epoch, Last: c.op, Programs: slices.Sorted(maps.Keys(c.programs))}
	add := func(kind wire.Kind, message proto.Message) {
		m.Frames = append(m.Frames, frames(w.bare, kind, message)...)
	}
	pending := c.pending()
	sent := map[uint64]bool{}
	for _, id := range slices.Sorted(maps.Keys(c.graphs)) {
		sent[id] = true
		add(wire.KindGraph, c.graphs[id])
	}
	for _, op := range pending {
		if p, ok := c.messages[c.firstOf(op)].m.(*wire.Play); ok && !sent[p.Graph] && c.everyGraph[p.Graph] != nil {
			sent[p.Graph] = true
			add(wire.KindGraph, c.everyGraph[p.Graph])
		}
	}
	for _, id := range slices.Sorted(maps.Keys(c.waiting)) {
		add(wire.KindCompile, c.compiles[id])
	}
	var aborts []uint64
	var play uint64
	told := map[uint64]bool{}
	for _, op := range pending {
		first := c.firstOf(op)
		switch message := c.messages[first].m.(type) {
		case *wire.Play:
			m.Pending = append(m.Pending, op)
			if play != first {
				play = first
				add(wire.KindPlay, message)
			}
		case *wire.Put:
			if !c.delivered(w, message) {
				aborts = append(aborts, op)
			}
			add(wire.KindPut, c.messages[op].m)
		case *wire.Run:
			for _, object := range message.Inputs {
				if as := c.assembles[object]; as != nil && !told[object] {
					told[object] = true
					as = proto.CloneOf(as)
					as.Program = message.Program
					add(wire.KindAssemble, as)
				}
			}
			add(wire.KindRun, message)
		default:
			add(c.messages[op].kind, message)
		}
	}
	for _, op := range aborts {
		add(wire.KindAbort, &wire.Abort{Gang: op, Status: wire.Of(status.New(status.Unavailable, "a row is lost"))})
	}
	c.retellSlices(m, func(request *wire.SliceRequest) { add(wire.KindSliceRequest, request) })
	for _, f := range c.frees {
		add(f.kind, f.m)
	}
	for object := range c.assembles { // the next run that reads its members has them assembled under another number
		if !told[object] {
			c.live = slices.DeleteFunc(c.live, func(o uint64) bool { return o == object })
		}
	}
	c.offered, c.rebinding = 0, false
	return m
}

// firstOf returns the operation whose message another one is part of.
func (c *twinClient) firstOf(op uint64) uint64 {
	for c.messages[op].m == nil {
		op--
	}
	return op
}

// delivered takes the rows out of a put whose bytes went to a worker in whose place another one is. It reports whether
// one is left.
func (c *twinClient) delivered(w *twin, put *wire.Put) bool {
	some := proto.CloneOf(put)
	some.Devices = slices.DeleteFunc(some.Devices, func(d uint32) bool { return put.Op <= c.rebound[d] })
	if len(some.Devices) == len(put.Devices) || len(some.Devices) == 0 {
		return len(some.Devices) > 0
	}
	some.Lost = wire.Of(status.New(status.Unavailable, "the worker that it was sent to is gone"))
	c.messages[put.Op] = twinMessage{wire.KindPut, some}
	w.sent[[2]uint64{uint64(c.session), put.Op}] = some
	return true
}

// remembers has a client remember a message that it sends.
func (c *twinClient) remembers(kind wire.Kind, m proto.Message) {
	switch m := m.(type) {
	case *wire.Run:
		c.messages[m.Op] = twinMessage{kind, m}
	case *wire.Put:
		c.messages[m.Op] = twinMessage{kind, m}
	case *wire.Transfer:
		c.messages[m.Op] = twinMessage{kind, m}
	case *wire.Fetch:
		c.messages[m.Op] = twinMessage{kind, m}
	case *wire.Play:
		c.messages[m.Op] = twinMessage{kind, m}
	case *wire.Compile:
		c.compiles[m.Program] = m
	case *wire.Graph:
		c.everyGraph[m.Graph] = m
	case *wire.Assemble:
		c.assembles[m.Object] = m
	case *wire.Free, *wire.Forget:
		c.frees = append(c.frees, twinMessage{kind, m})
	}
}
