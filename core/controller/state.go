// Package controller decides for a cluster: it keeps the sessions of clients, their programs and the objects that they
// have, gives each run its place in the order of its island, and tells the workers. It never sees the bytes of an
// array.
//
// State is a state machine: it takes one event after the other, and appends the actions that follow. It has no
// goroutine, lock, clock or socket. Time comes with events, and the same events give the same actions, so a log of
// events reproduces a controller. core/controller/server is the shell around it, with connections and a clock.
//
// # What it guarantees
//
// Each operation of a session ends exactly once, with success or an error, whatever clients and workers do. Operations
// of a session that share a device are dispatched in the session's order, and all workers get an island's runs in one
// order, by rising gang numbers. A session cannot name what belongs to another: numbers of objects and programs are its
// own. When it ends, everything that it had is freed, on all workers, its slices included. Everything that a peer can
// make grow has a bound, and only the peer that exceeds it is dropped.
//
// # Costs
//
// A run costs one message to each worker of its gang, encoded once, and nothing per shard: sets of devices are made
// once per program.
//
// # Concurrency
//
// The caller serializes calls of State, except of methods that say otherwise.
package controller

import (
	"cmp"
	"math"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/invariants"
	"github.com/openpathways/pathways/core/ledger"
	"github.com/openpathways/pathways/core/placement"
	"github.com/openpathways/pathways/core/schedule"
	"github.com/openpathways/pathways/core/series"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/tenant"
	"github.com/openpathways/pathways/core/wire"
)

// Limits are the bounds of a cluster. Zero fields take the defaults.
type Limits struct {
	Sessions int   // at one time; 256
	Workers  int   // 16 Ki
	Credit   int   // operations of a session under way; 1024
	Window   int   // runs an island has been given and not ended, or of a device where shares count; 512
	Objects  int   // of a session; 4 Mi
	Programs int   // of a session; 64 Ki
	Graphs   int   // of a session; 16 Ki
	Nodes    int   // of all graphs of a session; 1 Mi
	Compiles int   // of a session, at one time; 64
	Program  int   // bytes of a program's text; 2 GiB, as many as XLA reads
	Store    int64 // bytes of compiled programs, here and in workers, kept when no session has them; 1 GiB
	// Forgotten is a further bound, like Store, for compiled programs that their sessions have forgotten, but whose runs
	// may be sent again to the next start of the controller; 1 GiB
	Forgotten int64
}

func (l Limits) filled() Limits {
	l.Sessions = cmp.Or(l.Sessions, 256)
	l.Workers = cmp.Or(l.Workers, 16<<10)
	l.Credit = cmp.Or(l.Credit, 1024)
	l.Window = cmp.Or(l.Window, 512)
	l.Objects = cmp.Or(l.Objects, 4<<20)
	l.Programs = cmp.Or(l.Programs, 64<<10)
	l.Graphs = cmp.Or(l.Graphs, 16<<10)
	l.Nodes = cmp.Or(l.Nodes, 1<<20)
	l.Compiles = cmp.Or(l.Compiles, 64)
	l.Program = cmp.Or(l.Program, math.MaxInt32)
	l.Store = cmp.Or(l.Store, 1<<30)
	l.Forgotten = cmp.Or(l.Forgotten, 1<<30)
	return l
}

// Config configures a State.
type Config struct {
	Cluster    string // names this start of the controller
	Term       uint64 // higher than those of all starts before
	Key        []byte // makes the proofs by which processes let each other in, see wire.Prove
	Heartbeat  int64  // nanoseconds; told to clients and workers
	Silence    int64  // nanoseconds after which a worker that says nothing is lost, a few heartbeats; 0 is never
	Sequential bool   // a session's operations come one after the other: for comparison with parallel dispatch
	FirstCome  bool   // runs come first come, first served, instead of by their sessions' shares of device time
	// StuckAfter is the nanoseconds for which a gang may stand still before it is aborted; 0 means no limit.
	StuckAfter int64
	MemoryWait int64 // nanoseconds that a gang waits for memory that others have; 0 is not at all
	Unix       int64 // nanoseconds since 1970 at time 0 of the events, for people; 0 is not known
	// Tenants has the tenants in the file of tenants; nil: there is no file, and each session is a tenant of its own.
	Tenants *tenant.Table
	Limits  Limits
	// KeepTraces is set if there is a web page, which shows traces that clients have recorded.
	KeepTraces bool
	Keeps      bool   // facts are kept on disk: see facts.go
	Starts     uint64 // which start of the controller this is, since its facts were first kept; 0 is 1
}

// EventKind says what happened.
type EventKind uint8

// The events.
const (
	Join     EventKind = iota // Conn, whose Hello is Message, wants in
	Message                   // Conn sent Message, of kind Wire; Payload are its bytes
	Lost                      // Conn is no more, for the reason Err
	Cut                       // Conn goes over no socket now, for the reason Err, and stays
	Mended                    // Conn goes over a socket again
	Tick                      // time has passed; once a heartbeat or so
	Flush                     // no more is at hand: tell clients what has ended
	Closing                   // the controller stops
	Continue                  // nothing has happened: see More
	Tenants                   // the file of tenants says Table now, or cannot be used for the reason Err
	Look                      // what the devices of Rows do is looked at
	Meet                      // workers that exchange bytes for Conn's next message are introduced: see Introduce
)

// Event is one input of Step. Now is the time in nanoseconds on a clock that does
// not go back.
type Event struct {
	Kind    EventKind
	Now     int64
	Conn    uint64 // a connection's number, never used again
	Wire    wire.Kind
	Message proto.Message
	Payload []byte // Step does not keep it, see Arrived
	kept    bool   // Payload does not change any more
	again   bool   // the client has sent it to an earlier start of the controller, within its credit
	Peer    string // of Join: where it comes from, for people
	Tenant  bool   // of Join: it may look, but not stop, nor see the lines of others' code
	Of      string // of Join: the name of the tenant that its credential is of; "" names none
	Lease   int64  // of Join: nanoseconds for which Conn may be Cut before it is Lost; 0: it is never Cut
	Table   *tenant.Table
	Rows    []Row // of Look
	Err     error
	sketch  *sketch               // of a Graph's Message: what was drawn of it; nil: Step does it
	report  *Late                 // of an Ask's: the answer; nil: Step makes it
	request *request              // of a Compile's: what was read of it; nil: Step does it
	cut     *cut                  // of a Transfer's: what it was taken apart to; nil: Step does it
	at      *place                // of a Put's: its devices, not the session's yet; nil: Step makes it
	trace   *wholeTrace           // of the last part of a Trace: the whole; nil: Step puts it together
	meet    *meeting              // of a Meet; of a Put or Compile: the workers that Introduce has not told yet
	search  *placement.ViewSearch // of a Join of a client that wants so many devices; nil: Step does it
}

// ActionKind says what to do.
type ActionKind uint8

// The actions.
const (
	Send    ActionKind = iota // Payload of kind Wire to all of To
	Welcome                   // let To in with Message
	Refuse                    // turn To away for the reason Err
	Close                     // close To, when what was sent has left
	Log                       // Event has happened
	Stop                      // an operator has asked the cluster to stop
	Reload                    // read the file of tenants again; Tenants, with To[0] as its Conn, is to follow
	Keep                      // keep Fact under Key of Table on disk; nil removes it. Nothing changes Fact
)

// Action is one output of Step. To and Payload hold until the next Step.
type Action struct {
	Kind    ActionKind
	Wire    wire.Kind
	To      []uint64
	Payload []byte
	Own     [][]byte // of Send: what each of To is sent after Payload, which does not change; nil is nothing
	Late    *Late    // of Send: in place of Payload
	// Of Welcome: fills in the devices, which takes time in proportion to them; nil if there are none. It may be called in
	// parallel with Step, once, before the message is sent.
	Complete func()
	Message  *wire.Welcome
	Event    *wire.Report_Event
	Err      error
	Table    string
	Key      string
	Fact     proto.Message
	// Of Send: the message is sent once all facts kept before are on disk. Such messages are sent in their order.
	AfterKept bool
}

// State is the state of a controller. The zero value is not usable; use New.
type State struct {
	config Config
	limits Limits
	now    int64
	begun  int64
	ticked int64 // the last Tick
	// resumed is when Ticks last came again after a pause: what workers said before that is out of date.
	resumed int64
	muted   muted
	traces  keptTraces

	comeback *comeback // nil unless the controller has started again, and not all have come back: see comeback.go
	known    *known    // the gang that is being made known again, then

	conns     series.Of[conn]
	process   uint64 // number given last
	layout    placement.Map
	workers   []*worker              // by slot; nil where free
	processes map[uint64]*worker     // those that are there, by process
	peers     []peer                 // by slot: what workers know of each other
	busy      []uint32               // by slot: gangs of sessions that are there which the worker has yet to report
	devices   int                    // of workers that are there
	sharing   map[string]int64       // of them, by host, those that have no memory but their machine's
	boards    map[string]*wire.Board // by host: the one that has places left, and the place given last
	present   []*worker              // that are there, in the order of coming; what is in the list does not change
	confined  int                    // of them, those that not every process can dial
	reach     uint64                 // changes when a worker is lost, and with exclusive slices: see alive
	stopping  bool                   // the cluster stops: all are told to leave
	islands   []*island              // by index
	bound     *binding               // what bind returned last
	offers    offers                 // of new bindings, that clients were told last
	offering  []uint32               // sessions that have yet to be made offers
	sessions  map[uint32]*session
	session   uint32     // number given last
	leftovers []*session // that have ended, and still have programs, the first one first
	losing    []*losing  // workers that have gone, the first one first
	waiting   []waiting  // for devices, those that asked last at the end

	gangs   series.Of[gang]
	leaving series.Of[gang] // of sessions that have ended, until their workers have reported them
	gang    uint64          // number given last
	tickets uint64

	compiled  map[string]*compiled // by key
	compiles  map[uint64]*compiled // by the operation under way
	answering []*compiled          // that are ready, and that sessions still wait for
	compile   uint64               // operation given last
	artifacts map[uint64]*compiled // those whose bytes are with workers, by number
	away      artifacts            // theirs, in the order in which they were made
	taught    map[string]*program  // by which workers know devices, by place.spansKey: see like
	moved     uint64               // number of a transfer given last
	idle      []*compiled          // programs that no session has, oldest first
	made      []*compiled          // those of compiled that are ready
	kept      int64                // bytes of these
	keptAway  int64                // of these bytes, those that are with workers
	unkept    unkeptPrograms       // that sessions have forgotten, and that stay on disk
	discarded map[string]int       // by key, those that sessions have and no others may come to use, see discard

	looked   int64  // until when what devices do is looked at; 0: it is not
	told     uint64 // of what workers have reported of it, see keepDoing
	spent    uint64 // device time of all sessions so far
	table    *tenant.Table
	tenants  map[string]*tenancy // those of the table, and others that still have sessions
	tenant   uint32              // number given last
	happened uint64              // number of an event given last
	events   []occurrence        // the newest; number n is at (n-1) % keepsEvents

	// Requests for slices that wait.
	asked     map[*placement.Request]*sliceWait
	serve     bool   // something has happened that may let one of them go on
	looking   bool   // a look for them is under way
	untold    int    // how many of them may have to be told of their places
	tellNext  int    // the place of the first of these
	until     int64  // when the first of them ends
	lookedAt  uint64 // occupancy.found of the last look
	keeping   uint64 // placement.Map.Kept of the last look
	occupancy occupancy
	left      uint64 // counts sessions that have ended, and of their gangs those that came into leaving, and went

	// Admission.
	ledger    *ledger.Ledger
	remaining uint32        // remains so far
	held      []*gang       // that wait for admission, those that came last at the end
	stirred   bool          // something has happened that may let one of them go on
	round     look          // at them
	due       int64         // when one of them has to be looked at
	code      []int64       // bytes of programs' code, by number in the ledger
	numbered  int           // devices that have numbers in the ledger
	numbers   map[int][]int // first numbers of so many devices, of workers that have gone
	need      []ledger.Spec // scratch of needOf
	awaits    []uint64      // puts whose bytes the operation that is performed has to wait for
	performed any           // that operation, nil of a node of a play
	blocked   []int         // scratch of judge

	intros  introductions
	open    stretch // nodes of a play that are under way and whose workers are not told yet
	out     []Action
	buffer  []byte // of payloads of this Step
	dirty   []*session
	ready   []*session // may go on with their queues
	weight  int64      // see Weigh
	weighed int64      // so far in this Step
	freeOps []*gang
	// Of sessions' lines:
	freeEntries *entry
	passing     []*entry // that have gone, and whose followers may go on
	rest        set      // scratch of lineUp
	freeObj     []*object
}

// conn is a connection that was let in.
type conn struct {
	number uint64
	viewer wire.Viewer // of an operator's command, or a tenant's
	w      *worker
	s      *session
	cuts   cuts
}

// New makes a State without workers and sessions.
func New(c Config) *State {
	st := &State{config: c, limits: c.Limits.filled(), sessions: map[uint32]*session{},
		boards: map[string]*wire.Board{}, processes: map[uint64]*worker{}, sharing: map[string]int64{},
		compiled: map[string]*compiled{}, compiles: map[uint64]*compiled{},
		artifacts: map[uint64]*compiled{}, taught: map[string]*program{}, discarded: map[string]int{},
		ledger: ledger.New(), numbers: map[int][]int{},
		tenants: map[string]*tenancy{}, asked: map[*placement.Request]*sliceWait{}}
	if err := st.ledger.AddOwner(programs, "programs"); err != nil {
		panic(err) // the ledger is empty
	}
	if c.Tenants != nil {
		st.apply(c.Tenants)
	}
	if c.Starts > 1 {
		st.compile, st.moved = (c.Starts-1)<<startShift, (c.Starts-1)<<startShift
	}
	return st
}

// maxScratch bounds the memory that is kept for the next Step, in bytes: far more than usual ones need.
const maxScratch = 1 << 20

// Step handles one event and appends the actions to carry out, in order.
func (st *State) Step(ev *Event, out []Action) []Action {
	st.now = max(st.now, ev.Now)
	if st.begun == 0 {
		st.begun = st.now
	}
	st.out, st.buffer, st.weighed, st.round.weighed = out, st.buffer[:0], 0, 0
	if cap(st.buffer) > maxScratch {
		st.buffer = nil
	}
	switch ev.Kind {
	case Join:
		st.join(ev)
	case Message:
		if c := st.conns.Get(ev.Conn); c != nil { // otherwise it was dropped
			st.message(c, ev)
		}
	case Lost:
		if c := st.conns.Get(ev.Conn); c != nil {
			st.lost(c, ev.Err)
		}
	case Cut, Mended:
		st.breaks(ev)
	case Tick:
		st.tick()
	case Flush:
		st.flush()
	case Tenants:
		st.setTable(ev.Table, ev.Err, ev.Conn)
	case Look:
		st.look(ev.Rows)
	case Meet:
		st.meet(st.conns.Get(ev.Conn), ev.meet)
	case Closing:
		st.stop(cmp.Or(ev.Err, error(status.New(status.Unavailable, "the controller stops"))))
	}
	st.failLost()
	st.letLeftovers()
	st.answerWaiting()
	// Offers and searches take time in proportion to the cluster, and so may the event. So they are done in another Step.
	alone := st.weight == 0 || ev.Kind == Continue
	if alone {
		st.makeOffers()
	}
	st.settle()
	for again := alone; again && st.serves(); again = st.weight == 0 {
		st.serveSlices()
	}
	if invariants.Checked && ev.changesWho() {
		if err := st.Check(); err != nil {
			panic(err)
		}
	}
	out, st.out = st.out, nil
	return out
}

// changesWho reports whether an event changes which workers there are, or which are behind a session's devices.
func (ev *Event) changesWho() bool {
	return ev.Kind == Lost || ev.Kind == Message && (ev.Wire == wire.KindRejoin || ev.Wire == wire.KindRebind)
}

// settle continues with sessions whose turn has come, and then with schedules that wait for what these submit.
func (st *State) settle() {
	for again := true; again; again = len(st.ready) > 0 && !st.isTired() || st.resume() {
		looked := 0
		for ; looked < len(st.ready) && !st.isTired(); looked++ {
			s := st.ready[looked]
			s.ready = false
			st.pump(s)
		}
		left := copy(st.ready, st.ready[looked:])
		clear(st.ready[left:])
		st.ready = st.ready[:left]
		for st.looks() && st.mayLook() {
			st.lookAtHeld()
		}
	}
	st.shut()
}

// More reports whether more work can be done now, by a Step with Continue. Other events may come in between.
func (st *State) More() bool {
	return len(st.ready) > 0 || len(st.offering) > 0 || st.isEnding() || st.looks() || st.serves()
}

// isEnding reports whether the end of a session, of a compilation, or of a worker is still being handled.
func (st *State) isEnding() bool {
	return len(st.leftovers) > 0 || len(st.losing) > 0 || len(st.answering) > 0
}

// StepWeight is the argument for Weigh, in nanoseconds: a third of the time that others may have to wait.
const StepWeight = 300e3

// Weigh bounds how long a Step performs operations and nodes of plays, checks held gangs, makes offers, handles the
// losses of workers, and drops the programs of sessions that have ended: for about so many nanoseconds each, as the
// constants below estimate. More reports whether something is left. Without Weigh, a Step does everything.
func (st *State) Weigh(most int64) { st.weight = most }

// The time that Steps take, in nanoseconds, by what is performed: measured by BenchmarkSteps.
const (
	weightOfOne    = 700
	weightOfWorker = 4
	weightOfByte   = 25 // of the client's message
)

// tire records that something was performed.
func (st *State) tire(workers, bytes int) {
	st.weighed += weightOfOne + int64(workers)*weightOfWorker + int64(bytes)*weightOfByte
}

// isTired reports whether this Step has performed enough.
func (st *State) isTired() bool { return st.weight > 0 && st.weighed >= st.weight }

func (st *State) join(ev *Event) {
	h, ok := ev.Message.(*wire.Hello)
	if !ok || st.conns.Get(ev.Conn) != nil {
		st.refuse(ev.Conn, status.New(status.InvalidArgument, "a connection begins with one hello"))
		return
	}
	h.CleanNames() // people see them, in events, reports and errors
	var err error
	switch h.Role {
	case wire.Role_ROLE_WORKER:
		err = st.workerJoins(ev.Conn, h)
	case wire.Role_ROLE_CLIENT:
		if err = st.clientJoins(ev, h); err == nil {
			st.stopsWaiting(describe(h.Name, ev.Peer))
		}
	case wire.Role_ROLE_ADMIN:
		st.conns.Set(ev.Conn, &conn{number: ev.Conn, viewer: wire.Viewer{IsTenant: ev.Tenant, Tenant: ev.Of}})
		st.out = append(st.out,
			Action{Kind: Welcome, To: []uint64{ev.Conn}, Message: &wire.Welcome{Cluster: st.config.Cluster}})
	default:
		err = status.New(status.InvalidArgument, "role %v is not for a controller; is this the address of a worker's?",
			h.Role)
	}
	if err != nil {
		st.refuse(ev.Conn, err)
		st.turnAway(h, ev.Peer, err)
		return
	}
	if c := st.conns.Get(ev.Conn); c != nil {
		c.cuts.lease = ev.Lease
	}
}

func (st *State) message(c *conn, ev *Event) {
	if ev.Wire == wire.KindGoodbye {
		why := errLeft
		if c.w != nil {
			why = errStopped
		}
		if m, ok := ev.Message.(*wire.Goodbye); ok && m.Status.Err() != nil {
			why = m.Status.Err()
			if c.w == nil || status.CodeOf(why) != status.DataLoss { // see workerLost
				why = status.New(status.CodeOf(why), "it said goodbye: %w", why)
			}
		}
		if c.s != nil {
			st.drop(c.s, why)
		}
		st.lost(c, why)
		st.hangUp(c.number)
		return
	}
	var err error
	switch {
	case ev.Wire == wire.KindRejoin:
		err = st.rejoins(c, ev)
	case c.s != nil:
		err = st.fromClient(c.s, ev)
	case c.w != nil:
		err = st.fromWorker(c.w, ev)
	default:
		err = st.fromAdmin(c, ev)
	}
	if err != nil {
		st.expel(c, err)
	}
}

// expel drops a peer that violates the protocol, after telling it why.
func (st *State) expel(c *conn, err error) {
	who, what := "a connection", about{kind: wire.EventDropped}
	if c.s != nil {
		who, what = "the connection of "+c.s.owner(), c.s.about(wire.EventDropped)
	} else if c.w != nil {
		who, what = "the connection of worker "+c.w.name, c.w.about(wire.EventDropped)
	}
	st.warn(what, "dropped "+who, err)
	st.send([]uint64{c.number}, wire.KindGoodbye, &wire.Goodbye{Status: wire.Of(err)})
	if c.s != nil {
		st.drop(c.s, err)
	}
	st.lost(c, err)
	st.hangUp(c.number)
}

func (st *State) hangUp(number uint64) {
	st.out = append(st.out, Action{Kind: Close, To: []uint64{number}})
}

// lost forgets a connection.
func (st *State) lost(c *conn, err error) {
	if st.conns.Get(c.number) != c {
		return
	}
	st.conns.Delete(c.number)
	switch {
	case c.w != nil:
		st.workerLost(c.w, err)
	case c.s != nil && st.sessions[c.s.id] == c.s:
		c.s.conn = 0
		st.drop(c.s, err)
	}
	st.comesBack(c.number)
}

func (st *State) tick() {
	st.listen()
	st.endStuck()
	for _, is := range st.islands {
		if due := is.sched.Due(); due != 0 && due <= st.now {
			st.feed(is, schedule.Event{Kind: schedule.Resume})
		}
	}
	st.lookAway()
	st.tellSlow()
	st.tellHeld()
	st.stir()
	st.offerAll() // others may have let go of a worker that can take a place
	st.serve = st.serve || st.isSliceDue()
}

// listen drops workers that hang: their connections are open, but nothing comes.
func (st *State) listen() {
	silence, last := st.config.Silence, st.ticked
	st.ticked = st.now
	patience := silence // the shorter of the two that count
	if stuck := st.config.StuckAfter; stuck > 0 && (patience <= 0 || stuck < patience) {
		patience = stuck
	}
	// If the controller itself did not run, workers may have sent heartbeats all the time.
	paused := patience > 0 && st.now-last > patience/2
	if paused {
		st.resumed = st.now
	}
	for _, w := range st.present {
		switch c := st.conns.Get(w.to[0]); {
		case paused || st.comeback != nil: // then nothing is taken of what those say that have come back
			w.heard = st.now
		case c.cuts.isCut(): // its link bounds that
		case silence > 0 && st.now-w.heard >= silence:
			st.expel(c, status.New(status.Unavailable, "worker %s has said nothing for %.1f s; it is stopped or hangs, "+
				"other work leaves it no processor, or its machine cannot be reached", w.name, float64(st.now-w.heard)/1e9))
		}
	}
}

func (st *State) stop(why error) {
	st.stopping = true
	for _, number := range st.conns.Numbers() {
		st.send([]uint64{number}, wire.KindGoodbye, &wire.Goodbye{Status: wire.Of(why), Stops: true})
		st.hangUp(number)
	}
}
