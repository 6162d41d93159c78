package controller

import (
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/schedule"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// An operation of a session goes through these steps. Each is one call, or part of one, of Step.
//
//	received    operation (session.go) counts it, and performs it, or queues it behind others of its session
//	performed   perform checks it and makes the objects that it names
//	placed      a run: submit enters it into its island's schedule under a ticket, and start is its turn
//	dispatched  enter numbers it, and its workers are told in the same Step
//	ended       through counts the workers' reports, and the last one ends it
//
// # Why it ends once
//
// end tells the client. For each operation it is called in exactly one of these places: in what perform calls, if a
// check fails and no gang is made; in refused, for a run that gets no turn, which recycles the gang; in fail, for the
// first error of an operation that was dispatched; or in through, when the last worker has reported and there was no
// error. fail sets gang.err, and the last two check it. And end is always called: the schedule starts or fails each
// ticket, and each worker of a gang reports, or is lost, which counts as its report.
//
// # Why the order is one
//
// A session's operations are performed in the order of their numbers. Operations that share a device are dispatched in
// that order, except for puts and fetches (line.go), so a reader of an object comes after its maker. enter counts
// upward, the message is sent in the same Step, and a connection keeps the order of messages. So every worker receives
// gangs by rising numbers, and two gangs that share devices have the same order everywhere. Since workers wait only for
// earlier gangs, their waits cannot form a cycle.
//
// # What a failure leaves behind
//
// An operation that fails still makes its objects, with the error in place of contents: operations that the client sent
// before it heard of the failure read them, and fail with the same error. Workers never hear of such objects (absent),
// nor that they were freed.

// gang is an operation under way on workers, or a run that waits for its place. Gangs are reused.
type gang struct {
	number uint64 // 0 while it waits
	s      *session
	op     uint64
	err    error  // the first failure; the client was told
	began  int64  // when it came, and from its dispatch on, when that was
	waited uint64 // nanoseconds from the one to the other, while its session is profiled
	waits  set    // slots of the workers that have yet to report
	left   int    // their number
	spent  uint64 // device time on those that have, in nanoseconds
	place  *place
	// Its outputs: objects first to first+makes-1.
	first uint64
	makes int

	// Of a run.
	island  *island   // nil of other operations
	ticket  uint64    // its name in the island's schedule
	program *program  // until it is launched
	ran     *compiled // from then on
	run     *wire.Run
	line    []byte // of the user's code that called it
	// firstCall: line is that of the first call of its program, since this one came without.
	firstCall bool
	payload   []byte // of others, too: what all workers are sent
	kept      bool   // payload does not change
	// Of a node of a play, instead of run and payload.
	play  *play // until it is dispatched
	node  int
	title string // its name, for errors
	// inner: all that it makes is released by the play.
	inner bool
	// What was asked for: of a Fetch or a Transfer, nil of others.
	asked proto.Message
	entry *entry // in its session's line; nil unless it waits for its turn there, or for its place

	// Of admission.
	kind     wire.Kind // of what is no run and no node
	to       set       // slots of the workers that take part
	conns    []uint64  // their connections
	bytes    int64     // of what it makes, on each device
	temp     int64     // that its program takes beside, on each device
	computes bool      // temp is in the ledger
	uses     bool      // see occupy
	code     *resident // that its program uses, once it is admitted
	hosts    []hostUse // nil unless its tenant has a quota
	onHosts  bool      // hosts are counted
	held     *hold     // nil unless it is held
	// A Put or a Transfer of which each worker is sent its own part; nil of others.
	message proto.Message
	cut     *cut // of a Transfer
	// Of its session's gangs under way: its place among them, and its neighbors.
	turn uint64
	links[gang]
	retires []*object // of a put: what of its array was freed before it has ended
	keeps   []*kept   // workers that have gone and whose places it still has, by the times of their going
}

func (st *State) newGang(s *session, op uint64) *gang {
	var g *gang
	if n := len(st.freeOps); n > 0 {
		g = st.freeOps[n-1]
		st.freeOps = st.freeOps[:n-1]
	} else {
		g = new(gang)
	}
	g.s, g.op, g.began = s, op, st.now
	return g
}

func (st *State) recycle(g *gang) {
	g.vacate()
	for _, k := range g.keeps {
		st.letGone(k)
	}
	*g = gang{waits: g.waits[:0]}
	st.freeOps = append(st.freeOps, g)
}

func invalid(format string, args ...any) error {
	return status.New(status.InvalidArgument, format, args...)
}

// perform carries out the session's next operation, or submits a run to its island's schedule. q.payload belongs to the
// caller, which may reuse it, so it has to be copied to be kept.
func (st *State) perform(s *session, q *queued) {
	st.awaits, st.performed = st.awaits[:0], q.message
	switch m := q.message.(type) {
	case *wire.Run:
		st.run(s, m, q)
	case *wire.Put:
		st.put(s, m, q)
	case *wire.Transfer:
		st.transfer(s, m, q)
	case *wire.Fetch:
		st.fetch(s, m, q)
	case *wire.Free:
		st.freeInTurn(s, m)
	case *wire.Assemble:
		st.assemble(s, m)
	case *wire.Forget:
		st.forgetInTurn(s, m)
	case *wire.Rebind:
		st.rebind(s)
	case *wire.Play:
		st.play(s, m, q)
	}
}

func (st *State) run(s *session, m *wire.Run, q *queued) {
	p := s.programs[m.Program]
	if p == nil {
		st.end(s, m.Op, invalid("program %d is not known to this session; was its executable deleted?", m.Program))
		return
	}
	at, err := st.placeOfRun(s, p, m.Only)
	if q.err != nil {
		err = q.err
	}
	if err == nil && st.known == nil {
		err = lossFirst(locate(st.alive(at), p.of.info.Name, m.Trace, false),
			func() error { return st.readable(s, p, at, m) })
	}
	if e := st.create(s, m.FirstOutput, p.of.outputs, p.counted, at, err); e != nil {
		st.end(s, m.Op, e)
		return
	}
	if err != nil {
		st.end(s, m.Op, err)
		return
	}
	g := st.newGang(s, m.Op)
	g.run, g.payload, g.kept, g.first = m, q.payload, q.kept, m.FirstOutput
	g.calledBy(p, m.Trace)
	g.ofProgram(p, at)
	st.admit(g)
}

// calledBy records which line of the user's code called a run of a program. Clients send it with the first run of a
// program, and after that only with long runs, since finding the line takes them longer than submitting a short run.
func (g *gang) calledBy(p *program, line []byte) {
	if len(line) > 0 {
		g.line = line
		p.calledFirst(line)
	} else {
		g.line, g.firstCall = p.firstCall, p.firstCall != nil
	}
}

// calledFirst records which line called the program, unless one is known that did so before.
func (p *program) calledFirst(line []byte) {
	if p.firstCall == nil && len(line) > 0 {
		p.firstCall = slices.Clone(line[:min(len(line), wire.MaxText)])
	}
}

// keepPayload copies a gang's payload unless it belongs to the gang.
func (g *gang) keepPayload() {
	if !g.kept {
		g.payload, g.kept = slices.Clone(g.payload), true
	}
}

// ofProgram makes a gang a run of a program at a place.
func (g *gang) ofProgram(p *program, at *place) {
	g.program, g.place, g.to, g.conns, g.makes = p, at, at.workers, at.conns, len(p.of.outputs)
	g.bytes, g.temp = p.takes, p.of.info.GetCost().GetTempBytes()
}

// submit submits a run to its island's schedule. It may start, or be refused, before this returns.
func (st *State) submit(g *gang) {
	st.tickets++
	g.ticket, g.island = st.tickets, g.place.island
	is, ticket := g.island, g.ticket
	is.held[ticket] = g
	st.feed(is, schedule.Event{
		Kind: schedule.Submit, Gang: schedule.Gang{
			ID: g.ticket, Session: g.s.id, Tenant: g.s.tenant.share, Devices: g.place.devices, Cost: g.program.of.usual,
			Collective: g.program.of.collective, Calls: g.program.of.loadable.GetCallsHost()}})
	if is.held[ticket] == g {
		st.keepInLine(g)
	}
}

// placeOfRun returns the place of a run; with an error, that of the program. Only is the field of wire.Run.
func (st *State) placeOfRun(s *session, p *program, only uint32) (*place, error) {
	if only == 0 {
		return p.place, nil
	}
	if err := p.runsOn(only - 1); err != nil {
		return p.place, err
	}
	at, err := st.place(s, []uint32{only - 1})
	if err != nil {
		return p.place, err
	}
	return at, nil
}

// runsOn is an error where a program does not run on one device alone.
func (p *program) runsOn(device uint32) error {
	if len(p.place.rows) != 1 || !p.portable && device != p.place.rows[0] {
		return invalid("program %s was not compiled to be run on device %d alone", p.of.info.Name, device)
	}
	return nil
}

// create makes an operation's objects, with err, if any, in place of their contents. Of the bytes of a shard, counted
// are in device memory.
func (st *State) create(s *session, first uint64, bytes, counted []int64, at *place, err error) error {
	if n := uint64(len(bytes)); n > 0 && (first == 0 || first+n < first) {
		return invalid("arrays are numbered from 1, got %d", first)
	}
	if len(s.objects)+len(bytes) > st.limits.Objects {
		return status.New(status.ResourceExhausted, "the session has %d arrays, which is its limit; delete some",
			len(s.objects))
	}
	if len(bytes) > st.ledger.Room() {
		return status.New(status.ResourceExhausted, "the cluster has %d arrays, as many as can be counted; delete some",
			st.ledger.Len())
	}
	for i := range bytes {
		if s.objects[first+uint64(i)] != nil {
			return invalid("array %d is there already; numbers are used once", first+uint64(i))
		}
	}
	for i, n := range bytes {
		var o *object
		if k := len(st.freeObj); k > 0 {
			o = st.freeObj[k-1]
			st.freeObj = st.freeObj[:k-1]
		} else {
			o = new(object)
		}
		*o = object{place: at, bytes: n, counted: counted[i], err: err, absent: err != nil}
		s.add(first+uint64(i), o)
	}
	return nil
}

// start handles a run whose turn has come.
func (st *State) start(g *gang) {
	s, p, m := g.s, g.program, g.run
	if err := g.located(st.alive(g.place)); err != nil {
		st.feed(g.island, schedule.Event{Kind: schedule.Failed, ID: g.ticket, Err: err})
		st.refused(g, err)
		return
	}
	st.takeOver(g)
	if g.play != nil {
		g.play.donate(g.node)
		st.load(s, p, g.place)
		st.include(g, g.place.workers, g.place.conns)
		st.launched(g)
		return
	}
	st.donated(g, m)
	st.load(s, p, g.place)
	st.dispatch(g, wire.KindRun, g.place.workers, g.place.conns)
	st.launched(g)
}

// donated records which arrays a run donates.
func (st *State) donated(g *gang, m *wire.Run) {
	s, p := g.s, g.program
	for _, i := range p.of.info.Donated {
		if int(i) < len(m.Inputs) && !slices.Contains(m.NotDonated, i) {
			if o := s.objects[m.Inputs[i]]; o != nil && g.place.has.covers(o.place.has) {
				o.donated = true
				s.damage(o, errMemberDonated)
			}
		}
	}
}

// launched is called after a run's dispatch: workers get later operations after it, so the session may go on.
func (st *State) launched(g *gang) {
	st.feed(g.island, schedule.Event{Kind: schedule.Launched, ID: g.ticket})
	g.ran, g.program, g.run, g.payload = g.program.of, nil, nil, nil
	st.played(g)
	st.leaveLine(g)
}

// refused ends a run that gets no turn.
func (st *State) refused(g *gang, err error) {
	s := g.s
	st.computed(g)
	st.stir()
	if st.sessions[s.id] == s {
		for i := range uint64(g.makes) {
			if o := s.objects[g.first+i]; o != nil {
				st.ledger.Free(o.charge)
				o.err, o.absent, o.charge = err, true, 0
				s.damage(o, err)
			}
		}
		st.end(s, g.op, err)
		st.wake(s)
		if g.play != nil {
			g.play.skipped = true
			st.played(g)
		}
		st.leaveLine(g)
	}
	st.recycle(g)
}

// dispatch numbers the operation and sends it to its workers.
func (st *State) dispatch(g *gang, kind wire.Kind, workers set, conns []uint64) {
	st.tell(g.s, workers)
	st.enter(g, workers, conns)
	st.deliverDispatch(conns, g.number, g.waited, g.s, kind, g.kept, g.payload)
	g.payload = nil
}

// deliverDispatch sends an operation of a session under a number. The operation may be in several pieces. If kept is
// true they do not change any more; then long ones are copied only when they are sent.
func (st *State) deliverDispatch(to []uint64, number, waited uint64, s *session, kind wire.Kind, kept bool,
	operation ...[]byte) {
	m := wire.Dispatch{Gang: number, Session: s.id, Kind: uint32(kind), Client: s.process.Number, Waited: waited}
	size := 0
	for _, piece := range operation {
		size += len(piece)
	}
	if size < lateSize && size*len(to) < spreadSize {
		st.room(size + wire.MaxDispatch)
		from := len(st.buffer)
		st.buffer = m.AppendAround(st.buffer, operation...)
		st.deliver(to, wire.KindDispatch, st.buffer[from:])
		return
	}
	st.deliverDispatchLate(to, number, waited, s, kind, kept, slices.Clone(operation))
}

// deliverDispatchLate is deliverDispatch for long operations. It is a separate function, since its closure allocates
// memory.
func (st *State) deliverDispatchLate(to []uint64, number, waited uint64, s *session, kind wire.Kind, kept bool,
	operation [][]byte) {
	m := wire.Dispatch{Gang: number, Session: s.id, Kind: uint32(kind), Client: s.process.Number, Waited: waited}
	if !kept {
		operation = [][]byte{slices.Concat(operation...)}
	}
	size := wire.MaxDispatch
	for _, piece := range operation {
		size += len(piece)
	}
	st.deliverLate(to, wire.KindDispatch, &Late{Size: size, Encode: func() []byte {
		return m.AppendAround(make([]byte, 0, size), operation...)
	}})
}

// enter numbers an operation, which is under way from then on.
func (st *State) enter(g *gang, workers set, conns []uint64) {
	number := st.known.numberOf()
	if number == 0 {
		st.gang++
		number = st.gang
	}
	if g.s.profiles > 0 {
		g.waited = uint64(st.now - g.began)
	}
	g.number, g.began = number, st.now
	g.waits.copyOf(workers)
	g.left = len(conns)
	g.waits.each(func(slot int) { st.busy[slot]++ })
	st.gangs.Set(g.number, g)
	st.muted.enters(g)
	g.s.out++
	g.s.list(g)
	if g.kind == wire.KindPut {
		g.s.putting++
		if o := g.s.objects[g.first]; o != nil {
			o.put = g.number
		}
	}
}

// fail handles a gang's first failure: it tells the client and the other workers, and fails the operations that read
// its objects.
func (st *State) fail(g *gang, err error) {
	if g.err != nil {
		return
	}
	g.err = err
	for i := range uint64(g.makes) {
		if o := g.s.objects[g.first+i]; o != nil {
			o.err = err
			g.s.damage(o, err)
		}
	}
	st.stir()
	st.end(g.s, g.op, err)
	st.send(st.connsOf(g.waits), wire.KindAbort, &wire.Abort{Gang: g.number, Status: wire.Of(err)})
}

// maxSpent bounds the device time that a worker can report for a gang, in nanoseconds: thirteen days, so that sums do
// not overflow.
const maxSpent = 1 << 50

// heldEnds bounds the ends that wait to be reported together with another one.
const heldEnds = 64

// through handles the end of a worker's part of a gang. If the operation makes only intermediate objects of a graph,
// which no client can wait for, the client is told when another operation ends, or when nothing is under way.
//
// Spent is the device time that the part took there, in nanoseconds.
func (st *State) through(g *gang, w *worker, spent uint64, err error) {
	if !g.waits.has(w.slot) {
		return
	}
	g.waits.remove(w.slot)
	st.busy[w.slot]--
	g.left--
	g.spent += min(spent, maxSpent)
	if err != nil {
		st.fail(g, err)
	}
	if g.left > 0 {
		if g.err != nil || st.partsMatter(g, g.left) {
			st.leavesDevices(g)
		}
		return
	}
	switch s := g.s; {
	case g.err != nil:
	case g.inner && len(s.ok) < heldEnds:
		s.ok = append(s.ok, g.op)
	default:
		st.end(s, g.op, nil)
	}
	st.forget(g)
}

// forget removes a gang that has ended.
func (st *State) forget(g *gang) {
	st.gangs.Delete(g.number)
	g.s.out--
	if g.kind == wire.KindPut {
		g.s.putting--
		g.s.ahead = true // fetches may have waited for its bytes
	} else {
		g.s.gave = st.now
	}
	st.computed(g)
	st.unlist(g)
	st.stir()
	is, ticket, time, s := g.island, g.ticket, st.charge(g), g.s
	if s.out == 0 && len(s.ok) > 0 {
		st.markDirty(s)
	}
	st.recycle(g)
	if is != nil {
		st.feed(is, schedule.Event{Kind: schedule.Completed, ID: ticket, Time: time})
	}
	if st.config.Sequential {
		st.wake(s)
	}
}

// charge adds the device time of a gang that has ended to its session's, and to the average of its program on each
// device. It returns the time on each device.
func (st *State) charge(g *gang) int64 {
	if g.ran == nil {
		return 0
	}
	st.spend(g.s, g.spent, len(g.place.rows))
	g.ran.runs++
	g.ran.spent += g.spent
	time := int64(g.spent) / int64(len(g.place.rows))
	if g.err == nil {
		g.ran.took(max(1, time)) // 0 would say that it is not known
	}
	return time
}

// abortOf ends an operation that its client has cancelled, in whatever step it is.
func (st *State) abortOf(s *session, op uint64, err error) {
	if err == nil {
		err = status.New(status.Cancelled, "the client cancelled operation %d", op)
	}
	for i := s.head; i < len(s.queue); i++ {
		q := &s.queue[i]
		if q.op == op && op != 0 && q.nodes == 0 {
			q.err = err
			return
		}
		if op >= q.op && op-q.op < uint64(q.nodes) {
			q.cancelled = q.cancelled.with(op, err)
			return
		}
	}
	if g := s.waiting; g != nil && g.op == op {
		st.giveUp(g, err)
		return
	}
	if g := s.inLine(op); g != nil {
		if g.isPlacing() {
			st.feed(g.island, schedule.Event{Kind: schedule.Cancel, ID: g.ticket, Err: err})
		} else {
			st.refused(g, err)
		}
		return
	}
	if p := s.play; p != nil && op >= p.op+uint64(p.next) && op < p.op+uint64(len(p.g.nodes)) {
		p.cancelled = p.cancelled.with(op, err)
		return
	}
	for g := range s.dispatched {
		if g.op == op {
			st.fail(g, err)
			return
		}
	}
}
