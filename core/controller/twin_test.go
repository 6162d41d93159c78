package controller

import (
	"flag"
	"maps"
	"os"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/openpathways/pathways/core/series"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/wire/wiretest"
)

// twin drives a State with peers that do what they like, and knows what must hold
// whatever they do.
type twin struct {
	t        *rapid.T
	bare     *testing.T
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
	weight   int64                       // see State.Weigh: others come in between
	ending   bool                        // no more
	inOrder  bool                        // workers end gangs in an order in which devices can
	// Of a controller that may start again, see twin_restart_test.go:
	hellos  map[uint64]*wire.Hello
	of      map[uint64]string // clients' tenants
	disk    map[string]map[string][]byte
	behind  []Action        // facts that are on their way to the disk
	refused map[uint64]bool // transfers that their senders refuse
	deaf    map[uint64]bool // to whom nothing comes any more
	mute    map[uint64]bool // of whom nothing comes any more
}

type twinWorker struct {
	met       map[uint64]bool    // processes of workers that it was told of
	assembled map[[2]uint64]bool // arrays, by session
	process   uint64
	devices   map[uint32]map[uint32]uint32 // its own of a session's virtual devices: which they are here
	graphs    map[[2]uint64]*wire.Graph
	last      uint64
	known     map[uint32]bool
	loaded    map[[2]uint64]bool
	places    map[[2]uint64][]*wire.Span // of those that are loaded and were told of others' devices
	loads     []twinLoad                 // to be told
	artifacts twinArtifacts
	gangs     map[uint64]*twinGang // to be reported
	compiles  map[uint64]*twinCompile
	first     map[[2]uint64]uint64 // the last operation dispatched, by session and virtual device
	did       map[[2]uint64]bool   // operations, by session
	ended     map[uint64]*twinGang // and not settled
	arrays    map[[2]uint64]*twinArray
	donates   map[[2]uint64]bool // programs, by session
	// The controller has started again, and has yet to tell of these:
	stale  map[[2]uint64]*wire.Graph
	untold map[uint32]bool
}

type twinClient struct {
	conn     uint64
	session  uint32
	devices  int
	islands  []uint32 // by device
	op       uint64
	object   uint64
	program  uint64
	ended    map[uint64]error // operations; nil is success
	programs map[uint64][]uint32
	rows     map[uint64][]uint32 // of programs that were forgotten, too: graphs go on to run them
	waiting  map[uint64][]uint32
	graph    uint64
	graphs   map[uint64]*wire.Graph
	failing  map[uint64]bool     // operations that name what is not there
	live     []uint64            // objects that were made and not freed
	where    map[uint64][]uint32 // devices of objects
	// The epoch of an offer to be answered, 0 if there is none; and whether the answer is in the queue.
	offered   uint64
	rebinding bool
	// What it says to the next start of the controller.
	epoch      uint64
	lacks      []uint32 // devices of the offer
	rebound    map[uint32]uint64
	messages   map[uint64]twinMessage
	compiles   map[uint64]*wire.Compile
	everyGraph map[uint64]*wire.Graph
	assembles  map[uint64]*wire.Assemble
	frees      []twinMessage
	slices     twinSlices
}

func (w *twin) step(ev Event) {
	w.now += 1e6
	ev.Now = w.now
	if m, is := ev.Message.(*wire.Completed); is && rapid.Bool().Draw(w.t, "as a part") && w.st.TakePart(ev.Conn, m) {
		statustest.OKf(w.t, w.st.Check(), "after a part")
		return
	}
	for _, a := range apart(w.st.Step(&ev, nil)) {
		w.see(a)
	}
	w.letLinks()
	for w.st.More() && (w.ending || rapid.IntRange(0, 2).Draw(w.t, "go on") > 0) {
		w.step(Event{Kind: Continue})
	}
	statustest.OKf(w.t, w.st.Check(), "after an event of kind %d", ev.Kind)
	running := 0
	for _, is := range w.st.islands {
		running += is.sched.Running()
		if n := is.sched.Running(); w.config.FirstCome && n > w.st.limits.Window {
			w.t.Fatalf("%d runs have been given to an island, the window is %d", n, w.st.limits.Window)
		}
	}
	on := map[[2]int]int{} // runs by island and device, whose window it is where shares count
	for _, all := range []*series.Of[gang]{&w.st.gangs, &w.st.leaving} {
		for _, g := range all.All() {
			if w.config.FirstCome || g.island == nil {
				continue
			}
			for _, row := range g.place.rows {
				if in := g.place.in; g.waits.has(in.slot(row)) { // else it has ended there, and may have left the device
					on[[2]int{g.island.index, in.view.Device(int(row)).Number}]++
				}
			}
		}
	}
	for at, n := range on {
		if n > w.st.limits.Window {
			w.t.Fatalf("%d runs have been given to device %d of island %d, the window is %d", n, at[1], at[0],
				w.st.limits.Window)
		}
	}
	if there := w.st.gangs.Len() + w.st.leaving.Len(); running > there {
		w.t.Fatalf("the schedules know %d gangs under way, there are %d", running, there)
	}
}

func (w *twin) say(conn uint64, kind wire.Kind, m proto.Message) {
	if c := w.clients[conn]; c != nil {
		c.remembers(kind, m)
	}
	if w.mute[conn] {
		return
	}
	payload := statustest.Value(proto.Marshal(m)).OK(w.t)
	got := statustest.Value(Decode(kind, payload)).OK(w.t)
	w.step(Event{Kind: Message, Conn: conn, Wire: kind, Message: got, Payload: payload})
}

// see checks an action and has the peers take it in.
func (w *twin) see(a Action) {
	if a.Kind == Welcome {
		w.behind = append(w.behind, w.link(a.To[0]))
	}
	if a.Kind == Welcome || a.AfterKept {
		w.syncs(len(w.behind))
	}
	switch a.Kind {
	case Welcome:
		if c := w.clients[a.To[0]]; c != nil {
			a.Complete()
			c.session, c.devices, c.epoch = a.Message.Session, len(a.Message.Devices), 1
			for _, d := range a.Message.Devices {
				c.islands = append(c.islands, d.Slice)
			}
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
	case Keep:
		w.behind = append(w.behind, a)
		return
	case Send:
	default:
		return
	}
	for _, to := range a.To {
		if w.deaf[to] {
			continue
		}
		worker, client := w.workers[to], w.clients[to]
		switch {
		case worker != nil:
			w.workerSees(to, worker, a)
		case client != nil:
			w.clientSees(client, a)
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
		run := wiretest.Decode[wire.Run](w.t, m.Operation)
		if run.Only > 0 {
			return []uint32{run.Only - 1}
		}
		return c.rows[run.Program]
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
	return c.rows[n.Run.Program]
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
func (w *twin) dispatched(worker *twinWorker, gang uint64, what string, session uint32, op uint64, on []uint32) {
	if seen, ok := w.gangs[gang]; ok {
		if seen != what {
			w.t.Fatalf("gang %d is %s for one worker and %s for another", gang, seen, what)
		}
	}
	w.gangs[gang] = what
	for _, d := range on {
		if !worker.has(session, d) {
			continue
		}
		at := [2]uint64{uint64(session), uint64(d)}
		if op < worker.first[at] {
			w.t.Fatalf("operation %d of session %d is dispatched on device %d after operation %d", op, session, d,
				worker.first[at])
		}
		worker.first[at] = op
	}
}

func (w *twin) clientSees(c *twinClient, a Action) {
	switch a.Wire {
	case wire.KindRebind:
		m := wiretest.Decode[wire.Rebind](w.t, sent(a))
		if c.offered != 0 || len(m.Devices) == 0 || len(m.Workers) == 0 {
			w.t.Fatalf("session %d is made the offer %v", c.session, m)
		}
		c.offered, c.lacks = m.Epoch, nil
		for _, d := range m.Devices {
			c.lacks = append(c.lacks, d.Number)
		}
	case wire.KindSliceAnswer:
		m := wiretest.Decode[wire.SliceAnswer](w.t, sent(a))
		w.sliceAnswered(c, m)
	case wire.KindGive:
		m := wiretest.Decode[wire.Give](w.t, sent(a))
		w.givesText(c, m)
	case wire.KindCompleted:
		m := wiretest.Decode[wire.Completed](w.t, sent(a))
		for _, op := range m.Ok {
			w.ends(c, op, nil)
		}
		for _, f := range m.Failed {
			w.ends(c, f.Number, f.Status.Err())
		}
	case wire.KindCompiled:
		m := wiretest.Decode[wire.Compiled](w.t, sent(a))
		rows, ok := c.waiting[m.Program]
		if !ok && w.config.Starts > 1 {
			return
		}
		if !ok {
			w.t.Fatalf("program %d is compiled and was not asked for", m.Program)
		}
		delete(c.waiting, m.Program)
		if m.Status.Err() == nil {
			statustest.MustEqualSlices(w.t, m.Info.Devices, rows, "program %d is for devices", m.Program)
			c.programs[m.Program], c.rows[m.Program] = rows, rows
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
	bare := t
	if seed, ok := os.LookupEnv("PATHWAYS_SEED"); ok {
		statustest.OK(t, flag.Set("rapid.seed", seed))
	}
	rapid.Check(t, func(t *rapid.T) {
		w := newTwin(t, bare)
		for range rapid.IntRange(1, 3).Draw(t, "workers") {
			w.joinWorker()
		}
		w.joinClient()
		for range rapid.IntRange(20, 250).Draw(t, "steps") {
			w.slicesAgree()
			w.happens()
		}
		w.workersReportAll()
		w.step(Event{Kind: Flush})
		w.nothingIsKept()
		w.artifactsAreKnown()
		w.slicesAgree()
		w.sessionsEnd()
		w.now += 1e9
		w.step(Event{Kind: Tick})
		w.noSessionIsLeft()
		w.artifactsAreKnown()
		for _, number := range slices.Sorted(maps.Keys(w.workers)) {
			w.lose(number)
		}
		for slot, worker := range w.st.workers {
			if worker != nil {
				t.Fatalf("worker %s still has slot %d, for %d sessions", worker.name, slot, worker.views)
			}
		}
	})
}

func newTwin(t *rapid.T, bare *testing.T) *twin {
	c := Config{Term: 7, MemoryWait: 20e6, Keeps: rapid.Bool().Draw(t, "keeps"),
		FirstCome: rapid.Bool().Draw(t, "first come"), Sequential: rapid.IntRange(0, 3).Draw(t, "sequential") == 0,
		Limits: Limits{Window: rapid.SampledFrom([]int{1, 2, 3, 16, 64}).Draw(t, "window"),
			Credit: rapid.IntRange(1, 20).Draw(t, "credit"),
			Store:  1}}
	w := &twin{t: t, config: c, inOrder: rapid.Bool().Draw(t, "in order"), of: map[uint64]string{},
		workers: map[uint64]*twinWorker{}, clients: map[uint64]*twinClient{},
		gangs: map[uint64]string{}, sent: map[[2]uint64]proto.Message{}, isWorker: map[uint64]bool{},
		hellos: map[uint64]*wire.Hello{}, refused: map[uint64]bool{}, disk: map[string]map[string][]byte{}, bare: bare,
		memory: rapid.SampledFrom([]int64{0, 12, 40}).Draw(t, "memory"),
		weight: rapid.SampledFrom([]int64{0, 1, 5000}).Draw(t, "weight")}
	if rapid.Bool().Draw(t, "tenants") {
		w.config.Tenants = w.table()
	}
	w.st = New(w.config)
	w.st.Weigh(w.weight)
	return w
}

// happens draws an event. Small numbers are drawn more often.
func (w *twin) happens() {
	switch n := rapid.IntRange(0, 99).Draw(w.t, "event"); {
	case n < 20:
		number, c := pick(w, w.clients, "client")
		for range rapid.SampledFrom([]int{1, 1, 8}).Draw(w.t, "burst") {
			if c != nil && w.clients[number] == c {
				w.submits(c)
			}
		}
	case n < 60:
		if number, worker := pick(w, w.workers, "worker"); worker != nil {
			w.reports(number, worker)
		}
	case n < 62 && w.config.Keeps:
		w.restarts()
	case n < 64 && w.config.Tenants != nil:
		w.tenantsChange()
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
			w.leaves(number)
		}
	default:
		if number, _ := pick(w, w.workers, "worker"); number != 0 {
			w.lose(number)
		}
	}
}

// leaves ends a client's session, one way or the other.
func (w *twin) leaves(number uint64) {
	if rapid.Bool().Draw(w.t, "politely") {
		w.say(number, wire.KindGoodbye, &wire.Goodbye{})
	} else {
		w.lose(number)
	}
}

// workersReportAll goes on until no worker has anything to report, and nothing is held.
func (w *twin) workersReportAll() {
	w.ending = true
	w.step(Event{Kind: Continue})
	for busy, rounds := true, 0; busy; rounds++ {
		if rounds > 1000 {
			w.t.Fatalf("operations wait without end:%s", w.standstill())
		}
		busy = w.somethingWaits()
		w.now = max(w.now, w.st.Due())
		w.step(Event{Kind: Tick})
		for _, number := range slices.Sorted(maps.Keys(w.workers)) {
			for worker := w.workers[number]; w.isBusy(worker); busy = true {
				w.reports(number, worker)
			}
		}
	}
	for _, worker := range w.workers {
		if len(worker.gangs) > 0 {
			w.t.Fatalf("gangs wait for each other:%s", w.standstill())
		}
	}
}

// sessionsEnd checks that every operation has ended, when workers have reported everything, and ends all sessions.
func (w *twin) sessionsEnd() {
	for _, number := range slices.Sorted(maps.Keys(w.clients)) {
		c := w.clients[number]
		for op := uint64(1); op <= c.op; op++ {
			if _, ok := c.ended[op]; !ok {
				w.t.Fatalf("operation %d of session %d has no end; %+v, gangs %v", op, c.session, w.st.sessions[c.session],
					w.st.gangs)
			}
		}
		if s := w.st.sessions[c.session]; s.line.length != 0 || s.underWay != 0 || s.out != 0 || len(s.queue) != 0 ||
			s.waiting != nil || s.play != nil || s.freeing != 0 || len(c.waiting) != 0 {
			w.t.Fatalf("session %d is left with %+v", c.session, s)
		}
		w.leaves(number)
	}
}

// noSessionIsLeft checks that nothing is left of sessions that have gone.
func (w *twin) noSessionIsLeft() {
	for _, worker := range w.workers {
		if len(worker.known) != 0 || len(worker.loaded) != 0 || len(worker.graphs) != 0 {
			w.t.Fatalf("a worker still has sessions %v, programs %v", worker.known, worker.loaded)
		}
	}
	if n := w.st.ledger.Len(); n != 0 || len(w.st.held) != 0 {
		w.t.Fatalf("%d arrays are left in the ledger, and %d gangs are held", n, len(w.st.held))
	}
	if w.st.gangs.Len()+len(w.st.sessions)+len(w.st.compiles)+len(w.st.artifacts)+len(w.st.asked) != 0 {
		w.t.Fatalf("%d gangs, %d sessions, %d compiles, %d artifacts and %d requests for slices are left", w.st.gangs.Len(),
			len(w.st.sessions), len(w.st.compiles), len(w.st.artifacts), len(w.st.asked))
	}
	for _, is := range w.st.islands {
		if is.sched.Queued()+is.sched.Running()+len(is.held) != 0 {
			w.t.Fatalf("island %q has %d runs queued, %d running, %d held", is.name, is.sched.Queued(), is.sched.Running(),
				len(is.held))
		}
	}
	for _, c := range w.st.compiled {
		if !c.ready || c.users != 0 || len(c.waiting) != 0 {
			w.t.Fatalf("a program is left with %d users and %d who wait, ready: %t", c.users, len(c.waiting), c.ready)
		}
	}
}
