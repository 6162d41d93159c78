package controller

import (
	"cmp"
	"container/list"
	"encoding/binary"
	"errors"
	"maps"
	"slices"

	graphs "github.com/openpathways/pathways/core/graph"
	"github.com/openpathways/pathways/core/ledger"
	"github.com/openpathways/pathways/core/placement"
	"github.com/openpathways/pathways/core/schedule"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// session is a client's programs, objects and operations.
type session struct {
	id        uint32
	name      string
	user      string // who began it, and on which machine, for people
	host      string
	process   *wire.Process
	conn      uint64 // 0 if it is no more
	address   [1]uint64
	begun     int64
	profiles  int          // that have begun, and not ended
	trace     *comingTrace // nil if none is on its way
	tenant    *tenancy
	platforms []string // of its devices

	// Its devices, and their workers.
	*binding
	offered   *binding          // that its client was told of, until it answers
	answered  bool              // and the answer is in the queue
	missing   int               // of its workers, those that have gone
	postponed []postponed       // Compiles behind the answer
	spot      spot              // of its client
	seen      placement.Numbers // the same as numbers; nil until needed
	told      set               // slots of workers that know of the session
	places    map[string]*place
	single    []*place // by virtual device; see alone

	// What it has there.
	objects map[uint64]*object
	// Of these, in the order in which they were made: a worker's loss looks at some at a time.
	made     linkedList[object, *object]
	lost     map[uint64]error // by object: why some of its shards are lost; those left are on the object's place
	programs map[uint64]*program
	// These, and those that only graphs keep, in the order in which it got them.
	allPrograms linkedList[program, *program]
	compiling   map[uint64]*compiled // by program
	graphs      map[uint64]*graph
	nodes       int // of graphs

	// For a controller that starts again.
	restored  bool            // it began before the controller started again
	forgotten string          // then: where arrays may have gone that no worker has
	orphans   set             // then: slots of workers that had parts of operations which had failed, see endOrphans
	unkept    []*list.Element // in State.unkept: programs that are gone, and stay on disk

	// Its operations, from their arrival on. The queue holds those that were received and not performed.
	last     uint64 // operation received last
	underWay int    // operations received whose end was not told
	queue    []queued
	head     int
	numbered uint64 // number of an operation given last
	popped   uint64 // that of the operation performed last
	freeing  int    // objects named in the queue
	pieces   int    // of Assembles in the queue
	unmade   int    // Assembles in the queue
	names    *names // nil unless something is queued behind a gang that is held, or was
	ahead    bool   // some of the fetches in the queue may be able to go past what is held
	waiting  *gang  // one that is held; the queue stays behind it
	play     *play  // of which nodes are yet to be performed; the queue stays behind it
	ready    bool   // in State.ready

	// Operations that were performed and have not ended.
	line    line     // waits for its turn
	busy    []*place // of gangs
	uses    uint64   // counts what came into busy, and went
	use     use
	readers gangs  // under way, all but puts
	putters gangs  // puts under way
	out     int    // gangs dispatched and not ended
	putting int    // of them, puts
	entered uint64 // gangs that were ever under way

	// Operations that have ended.
	gave   int64    // when it freed an array last, or an operation other than a put ended
	spent  uint64   // device time of those that have ended, in nanoseconds
	ok     []uint64 // operations whose end its client is told of with the next Flush
	failed []*wire.Failure
	dirty  bool // in State.dirty
}

// owner describes the session's owner for people.
func (s *session) owner() string { return wire.Owner(s.id, s.name, s.user, s.host) }

// object is one logical array: a shard on each device of its place.
type object struct {
	place   *place
	bytes   int64     // of a shard
	counted int64     // of them, those that take device memory
	charge  ledger.ID // 0 if it is not in the ledger
	put     uint64    // the gang that brings its bytes from the client; it may have ended
	err     error     // what stands in place of the contents
	// Donated: its contents belong to a run. A run that takes some of its shards
	// alone, by Only or Mixed, is known to the workers only.
	donated bool
	absent  bool         // workers never heard of it
	freed   set          // virtual devices whose shards were released before the others
	of      *assembly    // nil unless it was assembled
	in      []membership // objects that were assembled of it
	// In the list of its session's.
	id uint64
	links[object]
}

// place is a list of virtual devices, with what a gang on them needs. A session has one place for each such list.
type place struct {
	s       *session
	in      *binding
	gangs   int      // that were performed there and have not ended
	listed  int      // where session.busy has it, if there are any
	rows    []uint32 // virtual devices; the same may be there once
	has     set      // of virtual devices
	devices schedule.DeviceSet
	island  *island          // nil if the devices are of several
	numbers []int            // of its devices in the ledger, ascending
	hash    uint64           // of numbers
	sorted  ledger.Devices   // these
	memory  ledger.Placement // these
	slot    int              // of the first device's worker
	workers set              // slots
	conns   []uint64
	// The devices as messages name them, and the hash by which a program's key names them; nil until needed, see
	// describe.
	devicesAt []*wire.Place
	placesAt  []byte // Compile.places
	namedAt   []byte // Compiled.info.devices
	spansAt   []byte // Load.places
	spansSum  string // its SHA-256
	order     []byte
	ownAt     ownParts // see own
	err       error    // a worker has gone, or a device is in an exclusive slice of another session
	past      error    // something else is behind its devices now
	checked   uint64   // State.reach when err was looked for
	met       bool     // its workers that were there know each other
}

const maxPlaces = 1 << 14

func (st *State) clientJoins(ev *Event, h *wire.Hello) error {
	number := ev.Conn
	owner, err := st.tenantOf(ev.Of)
	if err == nil {
		err = st.maySession(owner)
	}
	if err != nil {
		return err
	}
	view, err := st.viewFor(h, ev.search)
	if err != nil {
		return err
	}
	st.session++
	st.process++
	st.keepNumbers()
	s, complete, m, err := st.begins(number, h, owner, view)
	if err != nil {
		st.layout.Retire(view)
		st.releaseUnused()
		return err
	}
	st.vacanciesOf(s, m)
	st.out = append(st.out, Action{Kind: Welcome, To: []uint64{number}, Message: m, Complete: complete})
	text := s.owner() + " began"
	if name := owner.terms.Name; name != "" {
		text += " for tenant " + name
	}
	st.note(s.about(wire.EventBegan), text, nil)
	return nil
}

// begins begins the session of the number given last, whose client is the process of the number given last.
func (st *State) begins(number uint64, h *wire.Hello, owner *tenancy, view *placement.View) (s *session,
	complete func(), m *wire.Welcome, err error) {
	s = &session{id: st.session, name: cmp.Or(h.Name, "a client"), user: h.User, host: h.Machine, conn: number,
		tenant: owner, binding: st.bind(view), spot: spotOf(h),
		begun:   st.now,
		process: &wire.Process{Number: st.process, Name: h.Name, Host: h.Host, User: h.User, Machine: h.Machine},
		places:  map[string]*place{}, programs: map[uint64]*program{}, graphs: map[uint64]*graph{},
		objects: map[uint64]*object{}, compiling: map[uint64]*compiled{}}
	m = &wire.Welcome{Keeps: st.config.Keeps, Process: st.process, Session: s.id, Cluster: st.config.Cluster,
		Proof:  wire.Prove(st.config.Key, st.process),
		Credit: uint32(st.limits.Credit), HostMemory: owner.terms.HostMemory,
		HeartbeatMs: uint32(st.config.Heartbeat / 1e6)}
	if st.config.KeepTraces {
		m.MaxTrace = maxTrace
	}
	if err := st.ledger.AddOwner(ledger.Owner(s.id), wire.Owner(s.id, h.Name, h.User, h.Machine)); err != nil {
		return nil, nil, nil, err
	}
	if err := st.joins(owner, s); err != nil {
		return nil, nil, nil, err
	}
	complete = st.showDevices(s, m)
	st.sessions[s.id] = s
	st.conns.Set(number, &conn{number: number, s: s})
	st.keepSession(s)
	return s, complete, m, nil
}

// surveyJoin returns work on choosing a client's devices that reads only what does not change: to choose some of tens
// of thousands takes a millisecond.
func (st *State) surveyJoin(ev *Event) (work func()) {
	h, ok := ev.Message.(*wire.Hello)
	if !ok || h.Role != wire.Role_ROLE_CLIENT || h.Devices == 0 || h.Elastic {
		return nil
	}
	platforms, err := st.platformsFor(h)
	if err == nil {
		ev.search, err = st.layout.SearchView(int(h.Devices), platforms...)
	}
	if err != nil {
		return nil // which Step says
	}
	return ev.search.Choose
}

// viewFor returns the devices that a client will see, or why it may not have a session now. A search may have chosen
// them.
func (st *State) viewFor(h *wire.Hello, search *placement.ViewSearch) (*placement.View, error) {
	if len(st.sessions) >= st.limits.Sessions {
		return nil, status.New(status.ResourceExhausted, "the cluster has %d sessions, which is its limit; end some",
			len(st.sessions))
	}
	if err := st.layout.Agree("client "+h.Name, h.Versions); err != nil {
		return nil, err
	}
	platforms, err := st.platformsFor(h)
	if err != nil {
		return nil, err
	}
	at := spotOf(h)
	for i := 0; i < len(st.present) && st.confined > 0; i++ {
		if w := st.present[i]; slices.Contains(platforms, w.platform) && !at.reachesWorker(w) {
			return nil, unreached(h.Name, w)
		}
	}
	view := st.layout.View(platforms...)
	switch {
	case view.Len() == 0:
		return nil, status.New(status.ResourceExhausted, "the cluster has no devices yet; start workers first")
	case h.Elastic && h.Devices > 0:
		return st.elasticView(int(h.Devices), view, platforms[0])
	case h.Devices > 0:
		return st.layout.TakeView(search, int(h.Devices), platforms...)
	}
	return view, nil
}

// to returns the client's connection as a list of receivers; it is empty if there is none.
func (s *session) to() []uint64 {
	if s.conn == 0 {
		return nil
	}
	s.address[0] = s.conn
	return s.address[:]
}

// errLeft is why a session has ended whose client has said goodbye.
var errLeft = status.New(status.Cancelled, "it said goodbye")

// drop ends a session: everything that it had is freed, on all workers.
func (st *State) drop(s *session, why error) {
	if st.sessions[s.id] != s {
		return
	}
	delete(st.sessions, s.id)
	st.keep(tableSessions, sessionKey(s.id), nil)
	st.left++
	st.leaves(s.tenant, s)
	st.dropTrace(s)
	reason := why
	if errors.Is(why, errLeft) { // as clients do
		reason = nil
	}
	st.note(s.about(wire.EventEnded), s.owner()+" ended", reason)
	st.gone(s, why)
	for _, slice := range st.layout.Slices(s.id) {
		st.letSlice(s.id, slice.Number)
	}
	for _, r := range st.layout.ReleaseAll(s.id) {
		st.letRequest(r)
		delete(st.asked, r)
	}
	st.layout.Retire(s.newest().view)
	st.released()
	st.dropLine(s, why)
	for _, is := range st.islands {
		st.feed(is, schedule.Event{Kind: schedule.SessionClosed, Session: s.id})
	}
	if g := s.waiting; g != nil {
		st.giveUp(g, why)
	}
	for g := range s.dispatched {
		st.outlive(g)
	}
	for _, program := range slices.Sorted(maps.Keys(s.compiling)) {
		st.leave(s.compiling[program], func(w waiter) bool { return w.s == s && w.program == program })
	}
	s.told.each(func(slot int) { st.workers[slot].users-- })
	st.leftovers = append(st.leftovers, s)
	if !s.isThrough() { // computations that still run have its memory
		st.ledger.Leave(ledger.Owner(s.id))
	} else {
		st.ledger.DropOwner(ledger.Owner(s.id))
	}
	st.stir()
	s.waiting, s.play, s.queue, s.head, s.names = nil, nil, nil, 0, nil
	s.objects, s.programs, s.graphs = nil, nil, nil
}

// gone tells workers that a session has ended, and its process with it.
func (st *State) gone(s *session, why error) {
	to := st.connsOf(s.told)
	if st.comeback != nil { // it is not known who was told of it
		to = st.connsHere()
	}
	st.send(to, wire.KindDrop, &wire.Drop{Session: s.id, Status: wire.Of(why)})
	st.send(to, wire.KindPeers, &wire.Peers{Gone: []uint64{s.process.Number}, Clients: true,
		Why: wire.Of(status.New(status.Unavailable, "client %s is gone: %w", s.name, why))})
}

// connsHere returns the connections of all workers.
func (st *State) connsHere() (to []uint64) {
	for _, w := range st.present {
		to = append(to, w.to[0])
	}
	return to
}

// onlyHere removes workers that have gone from a set.
func (st *State) onlyHere(workers set) {
	workers.each(func(slot int) {
		if st.peers[slot].conn == 0 {
			workers.remove(slot)
		}
	})
}

// connsOf returns the connections of these workers, except those that are gone.
func (st *State) connsOf(workers set) []uint64 {
	to := make([]uint64, 0, workers.count())
	workers.each(func(slot int) {
		if conn := st.peers[slot].conn; conn != 0 {
			to = append(to, conn)
		}
	})
	return to
}

// tell introduces the session to those workers that do not know it.
func (st *State) tell(s *session, workers set) {
	if s.told.covers(workers) {
		return
	}
	var fresh set
	workers.each(func(slot int) {
		if !s.told.has(slot) {
			fresh.add(slot)
			st.workers[slot].users++
		}
	})
	s.told.union(fresh)
	st.tellDevices(s, fresh)
}

// tellDevices tells each of these workers which of the session's devices are its own. Moves and programs say which
// other workers it exchanges bytes with.
func (st *State) tellDevices(s *session, workers set) {
	type row struct {
		w            *worker
		first, local uint32
		count        uint32
	}
	rows := make([]row, 0, workers.count())
	for i, span := range s.spans {
		if w := s.at[i]; workers.has(w.slot) && w.gone == nil {
			rows = append(rows, row{w, s.first(i), span.Local, span.Count})
		}
	}
	if len(rows) == 0 {
		return
	}
	bySlot := func(a, b row) int { return cmp.Compare(a.w.slot, b.w.slot) }
	if !slices.IsSortedFunc(rows, bySlot) { // it mostly is
		slices.SortStableFunc(rows, bySlot)
	}
	st.out = slices.Grow(st.out, len(rows))
	head := wire.Encode(nil, &wire.Session{Session: s.id, Client: s.process, Settles: st.config.Keeps})
	st.room(len(rows) * (len(head) + wire.MaxOwnDevices))
	for i := 0; i < len(rows); {
		w, from := rows[i].w, len(st.buffer)
		st.buffer = append(st.buffer, head...)
		for ; i < len(rows) && rows[i].w == w; i++ {
			st.buffer = wire.AppendOwnDevices(st.buffer, rows[i].first, rows[i].local, rows[i].count)
		}
		st.deliver(w.to[:], wire.KindSession, st.buffer[from:])
	}
}

// place returns the session's place of these virtual devices.
//
// Errors: INVALID_ARGUMENT.
func (st *State) place(s *session, rows []uint32) (*place, error) {
	if len(rows) == 0 || len(rows) > s.len() {
		return nil, s.notDevices(len(rows))
	}
	if len(rows) == 1 {
		if p := s.alone(rows[0]); p != nil {
			return p, nil
		}
	}
	key := appendRows(st.buffer[len(st.buffer):], rows)
	if p := s.places[string(key)]; p != nil {
		return p, nil
	}
	p, err := s.newPlace(s, rows)
	if err == nil {
		err = st.keepPlace(s, p, string(key))
	}
	if err != nil {
		return nil, err
	}
	return p, nil
}

// alone returns the session's place of one virtual device; nil if it was not needed yet.
func (s *session) alone(d uint32) *place {
	if int(d) < len(s.single) {
		return s.single[d]
	}
	return nil
}

// placeMade is place, for devices whose place may have been made beforehand.
func (st *State) placeMade(s *session, rows []uint32, made *place) (*place, error) {
	if made == nil || len(rows) == 1 {
		return st.place(s, rows)
	}
	key := appendRows(st.buffer[len(st.buffer):], rows)
	if p := s.places[string(key)]; p != nil {
		return p, nil
	}
	return made, st.keepPlace(s, made, string(key))
}

// appendRows appends the key of a place.
func appendRows(key []byte, rows []uint32) []byte {
	key = slices.Grow(key, 4*len(rows))
	for _, d := range rows {
		key = binary.LittleEndian.AppendUint32(key, d)
	}
	return key
}

// keepPlace adds a place to the session's, under its key.
func (st *State) keepPlace(s *session, p *place, key string) (err error) {
	if p.memory, err = st.ledger.PlaceSorted(ledger.Owner(s.id), p.sorted); err != nil {
		return err
	}
	p.conns = make([]uint64, 0, p.workers.count())
	p.workers.each(func(slot int) {
		conn := st.peers[slot].conn
		if conn == 0 {
			conn = st.workers[slot].to[0]
		}
		p.conns = append(p.conns, conn)
	})
	p.checked = ^uint64(0)
	if len(p.rows) == 1 {
		if s.single == nil {
			s.single = make([]*place, s.len())
		}
		s.single[p.rows[0]] = p
		return nil
	}
	if len(s.places) >= maxPlaces {
		clear(s.places) // those in use stay; a new one is as good
	}
	s.places[key] = p
	return nil
}

// alive returns why a place cannot be used: one of its workers has gone, or another session has a device for itself, or
// is about to. It returns nil if the place can be used.
func (st *State) alive(p *place) error {
	if p.checked == st.reach {
		return p.err
	}
	if p.checked, p.err = st.reach, p.past; p.err != nil {
		return p.err
	}
	p.workers.each(func(slot int) {
		if p.err == nil && st.peers[slot].conn == 0 {
			p.err = st.workers[slot].gone
		}
	})
	if p.err == nil {
		p.err = st.excluded(p)
	}
	return p.err
}

// end tells the client how an operation ended, with the next Flush.
func (st *State) end(s *session, op uint64, err error) {
	if err == nil {
		s.ok = append(s.ok, op)
	} else {
		s.failed = append(s.failed, &wire.Failure{Number: op, Status: wire.Of(err)})
	}
	st.markDirty(s)
}

// markDirty has a session's ends told with the next Flush.
func (st *State) markDirty(s *session) {
	if !s.dirty {
		s.dirty = true
		st.dirty = append(st.dirty, s)
	}
}

// fromClient handles a message of a session. An error ends the session.
func (st *State) fromClient(s *session, ev *Event) error {
	switch m := ev.Message.(type) {
	case *wire.Heartbeat:
	case *wire.Compile:
		st.compileFor(s, m, ev.request)
	case *wire.Abort:
		st.abortOf(s, m.Gang, m.Status.Err())
	case *wire.SliceRequest:
		st.slice(s, m)
	case *wire.SliceRelease:
		st.releaseSlices(s, m.Slices)
	case *wire.Settled:
		st.letSettled(s, m)
		m.Session = s.id
		st.send(st.connsOf(s.told), wire.KindSettled, m)
	case *wire.Profile:
		st.profile(s, m)
	case *wire.Trace:
		st.traceComes(s, m, ev.trace)
	case *wire.Graph:
		st.define(s, m, ev)
	case *wire.Run:
		return st.operation(s, ev, m.Op, 0)
	case *wire.Play:
		if m.Nodes == 0 || m.Nodes > graphs.MaxNodes {
			return status.New(status.InvalidArgument, "a play has %d nodes; expected 1 to %d", m.Nodes, graphs.MaxNodes)
		}
		return st.operation(s, ev, m.Op, int(m.Nodes))
	case *wire.Put:
		return st.operation(s, ev, m.Op, 0)
	case *wire.Transfer:
		return st.operation(s, ev, m.Op, 0)
	case *wire.Fetch:
		return st.operation(s, ev, m.Op, 0)
	case *wire.Free:
		return st.freeLater(s, ev, m)
	case *wire.Assemble:
		return st.assembleLater(s, ev, m)
	case *wire.Forget:
		return st.forgetLater(s, ev, m)
	case *wire.Rebind:
		return st.rebindLater(s, ev, m)
	default:
		return status.New(status.InvalidArgument, "a client sent a message of kind %v, which is not a client's to send",
			ev.Wire)
	}
	return nil
}
