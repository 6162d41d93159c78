package controller

import (
	"cmp"
	"maps"
	"slices"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// A controller that has started again rebuilds its State from three sources: the facts that it kept (facts.go), its
// workers' reports of what they have, and the operations of its clients whose ends they do not know. It waits until all
// processes that it kept have come back, or are lost. Then rebuild makes the rest in one step, and work continues.
//
// # Why no operation is done twice, and none is lost
//
// An operation is named by its session and number. A client remembers the message of each operation until it has heard
// how it ended, so none is lost. A worker remembers each operation that it was sent until the client has heard that
// (Settled). So for each operation it is known which workers have it, under which gang number, and how their parts
// ended. For an operation that a client remembers there are three cases:
//
//	no worker has it       it was not dispatched, or all its messages were lost. It is performed as if it had just come;
//	                       if it must have been dispatched, it gets its old place (lost.go).
//	all its workers do     it is under way, or has ended there. It becomes a gang again, under its old number, and ends
//	                       when all workers have reported it. Their reports from before count.
//	some of them do        it was being dispatched. It becomes a gang under its old number, too, and is sent to the
//	                       other workers now.
//
// So a worker is sent an operation only if it does not have it.
//
// # Why the order is one
//
// Each worker was sent gangs by rising numbers, over a link that keeps their order. So the gangs that a worker lacks
// and others have come after all that it has. rebuild sends it these by rising numbers, before anything new. New gangs
// get numbers above all that any worker has had, including those of gangs that all have forgotten: a worker drops
// blocks of a collective under such a number, since that gang has ended. So all workers have the gangs that they share
// in one order, as if the controller had not ended. An operation that was not dispatched shares no device with later
// ones of its session that were (line.go), so it may come after them. An operation whose messages were lost comes
// before those that arrived.
//
// A worker that lacks a gang but has had a later one was never sent it. Either it took the place of a worker that was
// lost with its part, or the operation failed before it was sent. In both cases the gang has failed.
//
// # What is not made again
//
// The device time of sessions, the usual times of programs, and the schedule's charges start from zero. A gang that was
// under way takes no place in its island's schedule.

// comeback is what a State waits for after the controller has started again.
type comeback struct {
	away map[uint64]bool           // connections that have yet to come back
	of   map[uint64][]*wire.Rejoin // what those said that have
}

// known is a gang that workers have.
type known struct {
	number uint64
	has    set // slots of the workers that have it
	ends   []*partEnd
}

// partEnd is a worker's part of a gang that has ended.
type partEnd struct {
	w *worker
	*wire.HeldGang
}

// numberOf returns the gang's number; 0 of nil.
func (k *known) numberOf() uint64 {
	if k == nil {
		return 0
	}
	return k.number
}

// opName names an operation.
type opName struct {
	session uint32
	op      uint64
}

// IsComingBack reports whether some of those who were there before the controller started again have yet to come back.
func (st *State) IsComingBack() bool { return st.comeback != nil }

// HasComeBack reports whether a connection has reported what it has, or need not.
func (st *State) HasComeBack(conn uint64) bool { return st.comeback == nil || !st.comeback.away[conn] }

// rejoins handles the report of a worker or client of what it has. A second report of the same process is ignored.
func (st *State) rejoins(c *conn, ev *Event) error {
	m, ok := ev.Message.(*wire.Rejoin)
	if !ok || c.w == nil && c.s == nil {
		return invalid("a message says what a process has that is neither a worker nor a client")
	}
	b := st.comeback
	if b == nil || !b.away[c.number] {
		return nil
	}
	b.of[c.number] = append(b.of[c.number], m)
	if !m.More {
		st.comesBack(c.number)
	}
	return nil
}

// comesBack records that a connection has come back, or is lost.
func (st *State) comesBack(conn uint64) {
	b := st.comeback
	if b == nil || !b.away[conn] {
		return
	}
	if delete(b.away, conn); len(b.away) == 0 {
		st.rebuild()
	}
}

// rebuild makes the State from the reports of workers and clients.
func (st *State) rebuild() {
	r := &rebuilding{st: st, of: st.comeback.of, known: map[opName]*known{}, arrays: map[uint32]map[uint64]*heldArray{},
		assembles: map[opName]*wire.Assemble{}, pending: map[opName]bool{}, made: map[opName]bool{},
		numbers: map[uint64]bool{}}
	for _, id := range slices.Sorted(maps.Keys(st.sessions)) {
		st.noteMissing(st.sessions[id]) // before another worker takes the place of one that is lost
		r.takesOffer(st.sessions[id])
	}
	st.comeback = nil
	for _, id := range slices.Sorted(maps.Keys(st.sessions)) {
		r.slices(st.sessions[id])
	}
	for _, w := range st.present {
		r.worker(w)
	}
	for _, number := range slices.Sorted(maps.Keys(st.artifacts)) {
		if c := st.artifacts[number]; c != nil && len(c.artifact.senders.holders) == 0 {
			st.discard(c) // others compile it anew; those that have it may ask for it to be compiled again
		}
	}
	for _, id := range slices.Sorted(maps.Keys(st.sessions)) {
		r.session(st.sessions[id])
	}
	for _, w := range st.present {
		r.remains(w)
	}
	r.endOrphans()
	for _, id := range slices.Sorted(maps.Keys(st.sessions)) {
		r.findLost(st.sessions[id])
	}
	r.makeArrays()
	r.makeGangs()
	for _, id := range slices.Sorted(maps.Keys(st.sessions)) {
		s := st.sessions[id]
		r.loseMade(s)
		r.goOn(s)
		st.markDirty(s) // the file of tenants may say something else than before
	}
	st.note(about{kind: wire.EventMended}, "the controller has started again, and has its cluster back: "+
		status.Count(len(st.present), "worker")+", "+status.Count(len(st.sessions), "session"), nil)
	st.stir()
	st.serve = true
	for _, s := range r.offered {
		if st.sessions[s.id] == s {
			st.tellOffer(s)
		}
	}
	st.offerAll()
}

// rebuilding is the state of rebuild.
type rebuilding struct {
	st       *State
	of       map[uint64][]*wire.Rejoin // by connection
	known    map[opName]*known
	arrays   map[uint32]map[uint64]*heldArray // by session and object
	pending  map[opName]bool                  // of plays
	sent     []*reminder                      // of all sessions, what no worker can have first
	underWay []*reminder                      // operations that workers have
	made     map[opName]bool                  // objects that underWay makes
	// Objects that are assembled.
	assembles map[opName]*wire.Assemble
	numbers   map[uint64]bool // of gangs that workers have
	offered   []*session      // whose clients are told again of an offer
}

func compareNames(a, b opName) int {
	return cmp.Or(cmp.Compare(a.session, b.session), cmp.Compare(a.op, b.op))
}

// reminder is a message that a client remembers.
type reminder struct {
	s    *session
	op   uint64 // 0 of those that have no end
	ev   Event
	gang *known
	// Of a play: nodes that workers have are reminders of their own, with the same play.
	play *play
	node int
}

// worker handles a worker's report of what it has.
func (r *rebuilding) worker(w *worker) {
	st := r.st
	for _, m := range r.of[w.to[0]] {
		st.gang, w.hadGang = max(st.gang, m.Last), max(w.hadGang, m.Last)
		for _, number := range m.Artifacts {
			if c := st.artifacts[number]; c == nil {
				st.send(w.to[:], wire.KindForget, &wire.Forget{Artifacts: []uint64{number}})
			} else if !c.artifact.senders.held[w] {
				c.artifact.senders.add(w)
			}
		}
		for _, h := range m.Holdings {
			r.holding(w, h)
		}
	}
}

// takesOffer performs an offer (rebind.go) that was not answered when the controller ended, if the session's client has
// accepted it. Operations that the client sent before its answer, and whose ends it does not know, come after this
// moment: those that read lost arrays fail in any case.
func (r *rebuilding) takesOffer(s *session) {
	switch took := func(m *wire.Rejoin) bool { return m.Epoch == s.offered.view.Epoch() }; {
	case s.offered == nil:
	case slices.ContainsFunc(r.of[s.conn], took):
		r.st.rebind(s)
	default:
		r.offered = append(r.offered, s)
	}
}

// holding handles a worker's report of a session's arrays.
func (r *rebuilding) holding(w *worker, h *wire.Holding) {
	st := r.st
	for _, g := range h.Gangs {
		r.numbers[g.Gang] = true
	}
	s := st.sessions[h.Session]
	if s == nil {
		if h.Session <= mostSession {
			st.session = max(st.session, h.Session)
		}
		st.send(w.to[:], wire.KindDrop, &wire.Drop{Session: h.Session, Status: wire.Of(errLeft)})
		return
	}
	if !s.told.has(w.slot) {
		s.told.add(w.slot)
		w.users++
	}
	var unknown []uint64
	for _, id := range h.Programs {
		if p := s.programs[id]; p == nil || s.view.Epoch() > 1 && len(p.place.rows) > 1 {
			unknown = append(unknown, id) // or it may be loaded for workers that have gone, see replacePrograms
		} else if !p.loaded.has(w.slot) {
			p.of.loads(p, setOf(w.slot))
			p.loaded.add(w.slot)
		}
	}
	if len(unknown) > 0 {
		st.send(w.to[:], wire.KindForget, &wire.Forget{Session: s.id, Programs: unknown})
	}
	for _, g := range h.Gangs {
		name := opName{s.id, g.Op}
		k := r.known[name]
		if k == nil {
			k = &known{number: g.Gang}
			r.known[name] = k
		}
		k.has.add(w.slot)
		if g.Ended {
			k.ends = append(k.ends, &partEnd{w, g})
		}
	}
	r.shards(s, w, h.Arrays)
}

// session handles what a client has sent, or ends its session if it cannot continue.
func (r *rebuilding) session(s *session) {
	st := r.st
	st.introduce(s.told)
	st.tellDevices(s, s.told)
	said := r.of[s.conn]
	for _, m := range said {
		var err error
		if m.Epoch != 0 && m.Epoch != s.view.Epoch() {
			err = status.New(status.Unavailable, "the controller ended just after it had offered other workers in the place "+
				"of lost ones, before that was on its disk")
		}
		for i, id := range m.Programs {
			if p := s.programs[id]; p == nil && err == nil {
				err = status.New(status.Unavailable, "the controller ended just after it had compiled program %d, before that "+
					"was on its disk", id)
			} else if p != nil && i < len(m.FirstCalls) {
				p.calledFirst(m.FirstCalls[i])
			}
		}
		if err != nil {
			st.expel(st.conns.Get(s.conn), err)
			return
		}
		for _, op := range m.Pending {
			r.pending[opName{s.id, op}] = true
		}
	}
	for _, m := range said {
		err := r.frames(s, m.Frames)
		if err != nil {
			st.expel(st.conns.Get(s.conn), err)
			return
		}
		s.last = max(s.last, m.Last)
	}
	if err := r.lacksSlice(s); err != nil {
		st.expel(st.conns.Get(s.conn), err)
	}
}

// frames handles the messages that a client remembers.
func (r *rebuilding) frames(s *session, frames []byte) error {
	for len(frames) > 0 {
		kind, payload, rest, err := wire.NextFrame(frames)
		if err != nil {
			return err
		}
		frames = rest
		m, err := Decode(kind, payload)
		if err != nil {
			return err
		}
		one := &reminder{s: s, ev: Event{Kind: Message, Conn: s.conn, Wire: kind, Message: m, Payload: payload, kept: true,
			again: true}}
		switch m := m.(type) {
		case *wire.Run:
			one.op = m.Op
			if p := s.programs[m.Program]; p != nil {
				r.makes(one, m.FirstOutput, len(p.of.outputs))
			}
		case *wire.Put:
			one.op = m.Op
			r.makes(one, m.Object, 1)
		case *wire.Transfer:
			one.op = m.Op
			r.makes(one, m.Object, 1)
		case *wire.Fetch:
			one.op = m.Op
			r.makes(one, 0, 0)
		case *wire.Graph: // plays need it
			r.st.define(s, m, &one.ev)
			continue
		case *wire.Assemble:
			r.assembles[opName{s.id, m.Object}] = m
		case *wire.Play:
			one.op = m.Op
			r.nodes(one, m)
		}
		if one.gang == nil {
			r.sent = append(r.sent, one)
		}
	}
	return nil
}

// nodes finds the nodes of a play that workers have.
func (r *rebuilding) nodes(one *reminder, m *wire.Play) {
	p, err := r.st.newPlay(one.s, m)
	if err != nil {
		return // to play it finds the same
	}
	one.play = p
	for i := range p.g.nodes {
		n, op := &p.g.nodes[i], m.Op+uint64(i)
		if !r.pending[opName{one.s.id, op}] { // its client has heard its end
			p.past.add(i)
			p.heard = true
			continue
		}
		node := &reminder{s: one.s, op: op, ev: one.ev, play: p, node: i}
		first := uint64(0)
		if len(n.sizes) > 0 {
			first = p.object(n.first)
		}
		if r.makes(node, first, len(n.sizes)); node.gang != nil {
			p.past.add(i)
		}
	}
}

// makes determines whether workers have an operation, which makes some objects.
func (r *rebuilding) makes(one *reminder, first uint64, n int) {
	name := opName{one.s.id, one.op}
	if one.gang = r.known[name]; one.gang == nil {
		return
	}
	delete(r.known, name)
	r.addUnderWay(one, first, n)
}

func (r *rebuilding) addUnderWay(one *reminder, first uint64, n int) {
	r.underWay = append(r.underWay, one)
	for i := range uint64(n) {
		r.made[opName{one.s.id, first + i}] = true
	}
}

// endOrphans ends parts that workers have of operations whose end the client has heard: these failed elsewhere. Such a
// part may still succeed, and then only its worker knows what it has made, so that worker must hear of all frees.
func (r *rebuilding) endOrphans() {
	why := wire.Of(status.New(status.Aborted, "the operation has failed elsewhere"))
	for _, name := range slices.SortedFunc(maps.Keys(r.known), compareNames) {
		k := r.known[name]
		for _, e := range k.ends {
			k.has.remove(e.w.slot)
		}
		if to := r.st.connsOf(k.has); len(to) > 0 {
			r.st.send(to, wire.KindAbort, &wire.Abort{Gang: k.number, Status: why})
			if s := r.st.sessions[name.session]; s != nil {
				s.orphans.union(k.has)
			}
		}
	}
}

// makeGangs makes gangs of operations that workers have, and sends them to those that lack them.
func (r *rebuilding) makeGangs() {
	st := r.st
	slices.SortFunc(r.underWay, func(a, b *reminder) int { return cmp.Compare(a.gang.number, b.gang.number) })
	for _, one := range r.underWay {
		if st.sessions[one.s.id] != one.s {
			continue
		}
		one.s.underWay++
		st.known = one.gang
		if one.play != nil {
			st.performNode(one.s, one.play, one.node)
			st.known = nil
			continue
		}
		if m, ok := one.ev.Message.(*wire.Run); ok {
			r.assembleFor(one.s, m)
		}
		st.perform(one.s, &queued{kind: one.ev.Wire, op: one.op, message: one.ev.Message, payload: one.ev.Payload,
			kept: true})
		st.known = nil
	}
}

// assembleFor assembles what a dispatched run reads: workers that lack the run may lack that, too. Members may have
// been freed after the run; then the assembled object fails, and the run does not.
func (r *rebuilding) assembleFor(s *session, run *wire.Run) {
	for _, object := range run.Inputs {
		if m := r.assembles[opName{s.id, object}]; m != nil && s.objects[object] == nil {
			r.st.assembleNow(s, m)
		}
	}
}

// goOn has a session go on with the arrays that no worker has.
func (r *rebuilding) goOn(s *session) {
	last := s.last
	for _, one := range r.sent {
		if one.s != s || one.gang != nil || r.st.sessions[s.id] != s {
			continue
		}
		// Messages without a number of their own, such as a Forget, come after all operations that the client has sent.
		if s.last = last; one.op != 0 {
			s.last = one.op - 1
		}
		if m, ok := one.ev.Message.(*wire.Compile); ok && s.programs[m.Program] != nil {
			p := s.programs[m.Program]
			r.st.sendWith(s.to(), wire.KindCompiled, &wire.Compiled{Op: m.Op, Program: m.Program, Info: p.describe()},
				p.place.named()) // the answer was lost
			continue
		}
		if m, ok := one.ev.Message.(*wire.SliceRequest); ok {
			r.askAgain(s, m)
			continue
		}
		if p := one.play; p != nil {
			s.last += uint64(len(p.g.nodes))
			s.underWay += len(p.g.nodes) - p.past.count()
			r.st.enqueue(s, &queued{kind: wire.KindPlay, op: one.op, nodes: len(p.g.nodes), message: one.ev.Message, kept: true,
				resumed: p}, one.ev.Payload)
			continue
		}
		if err := r.st.fromClient(s, &one.ev); err != nil {
			r.st.expel(r.st.conns.Get(s.conn), err)
			return
		}
	}
	s.last = max(last, s.last)
	r.forgetPrograms(s)
}

// forgetPrograms forgets programs that a session has on disk and its client has forgotten: they were kept since the
// client had not heard how their runs ended (unkept.go). It is called after the runs that were sent again, which may
// name some of them.
func (r *rebuilding) forgetPrograms(s *session) {
	has := map[uint64]bool{}
	for _, m := range r.of[s.conn] {
		for _, id := range m.Programs {
			has[id] = true
		}
	}
	for _, one := range r.sent { // those that it waits for
		if m, ok := one.ev.Message.(*wire.Compile); ok && one.s == s {
			has[m.Program] = true
		}
	}
	m := new(wire.Forget)
	for _, id := range slices.Sorted(maps.Keys(s.programs)) {
		if !has[id] {
			m.Programs = append(m.Programs, id)
		}
	}
	if len(m.Programs) == 0 {
		return
	}
	if err := r.st.forgetLater(s, &Event{Wire: wire.KindForget, Message: m, kept: true}, m); err != nil {
		r.st.expel(r.st.conns.Get(s.conn), err)
	}
}

// readmit makes a gang from an operation that workers have, which was admitted and had its place before.
func (st *State) readmit(g *gang, k *known) {
	s, kind := g.s, g.kind
	st.settleIn(g)
	st.book(g)
	if g.program != nil {
		kind = wire.KindRun
		st.takeOver(g)
		if g.play != nil {
			g.play.donate(g.node)
		} else {
			st.donated(g, g.run)
		}
	}
	var all []uint64
	var lack set
	lack.copyOf(g.to)
	g.to.each(func(slot int) { all = append(all, st.workers[slot].to[0]) })
	lack.without(k.has)
	var late set // have had later ones
	lack.each(func(slot int) {
		if st.workers[slot].hadGang >= k.number {
			late.add(slot)
		}
	})
	lack.without(late)
	st.enter(g, g.to, all)
	if to := st.connsOf(lack); len(to) > 0 {
		st.tell(s, lack)
		if g.program != nil {
			st.load(s, g.program, g.place)
		}
		if p := g.play; p != nil {
			st.send(to, wire.KindPlayed, p.played(g.number, g.node, 1))
		} else if g.message != nil {
			st.deliverParts(g, lack)
		} else {
			st.deliverDispatch(to, g.number, 0, s, kind, g.kept, g.payload)
		}
	}
	if g.program != nil {
		g.ran, g.program, g.run = g.program.of, nil, nil
	}
	g.message, g.payload, g.cut = nil, nil, nil
	st.played(g)
	st.endParts(g, k, late)
}

// endParts ends the parts of a gang that no worker will report any more: those that have ended, those whose workers
// have gone, and those that their workers were never sent.
func (st *State) endParts(g *gang, k *known, late set) {
	number := g.number
	for _, e := range k.ends {
		if st.gangs.Get(number) == g {
			st.through(g, e.w, e.Busy, e.Failed.Err())
		}
	}
	for _, slot := range g.to.all() {
		switch w := st.workers[slot]; {
		case st.gangs.Get(number) != g:
		case w.gone != nil:
			st.losePart(g, w)
		case late.has(slot):
			st.through(g, w, 0, g.located(status.New(status.Unavailable,
				"it failed before the controller started again: worker %s was sent later operations, but not this one", w.name)))
		}
	}
}
