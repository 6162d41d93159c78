package controller

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/placement"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// A controller keeps facts on disk for its next start: which processes are in the cluster, which workers are behind
// each session's devices, and the slices and compiled programs of sessions. They change when a process joins or leaves,
// when a slice is granted or released, and when a program is compiled. Arrays and operations are not kept: workers and
// clients still have them, and report them to the next start (comeback.go).
//
// State returns Keep actions, and core/controller/server writes them in their order, without holding its lock. So
// after a crash the newest facts may be missing, but no older ones. A process is admitted once its link is on disk, and
// with it all facts before. A session whose program is missing ends with an error; it never gets a wrong result.

// The tables of facts.
const (
	TableLinks    = "links"    // KeptLink, by number: its caller keeps them
	tableSessions = "sessions" // KeptSession
	tablePrograms = "programs" // KeptProgram
	tableCompiled = "compiled" // KeptCompiled, by its key
	tableLosses   = "losses"   // KeptLoss, by process number
	tableSlices   = "slices"   // KeptSlice, by session and number
	tableIslands  = "islands"  // KeptIsland, by index
	tableBoards   = "boards"   // KeptBoard, by host
	tableNumbers  = "numbers"  // KeptLink, whose process and session are the numbers given last
)

// startShift is how many low bits of the numbers of compiles and transfers count within one start. The bits above them
// hold the start's own number, since workers keep these numbers and no two starts may give the same one.
const startShift = 40

// keep stores a fact under a key, or removes it if fact is nil.
func (st *State) keep(table, key string, fact proto.Message) {
	if st.config.Keeps {
		st.out = append(st.out, Action{Kind: Keep, Table: table, Key: key, Fact: fact})
	}
}

func processKey(number uint64) string { return fmt.Sprintf("%020d", number) }

func sessionKey(id uint32) string { return fmt.Sprintf("%010d", id) }

func programKey(session uint32, program uint64) string {
	return fmt.Sprintf("%010d/%020d", session, program)
}

// keepNumbers keeps the last numbers that a process and a session were given.
func (st *State) keepNumbers() {
	if st.config.Keeps {
		st.keep(tableNumbers, "last", &wire.KeptLink{Process: st.process, Session: st.session})
	}
}

// keepSession keeps which workers are behind a session's devices, and which it is offered.
func (st *State) keepSession(s *session) {
	if !st.config.Keeps {
		return
	}
	k := &wire.KeptSession{Session: s.id, Devices: s.spans, Sized: s.view.Sized(), Epoch: s.view.Epoch()}
	if s.offered != nil {
		k.Offered = s.offered.spans
	}
	st.keep(tableSessions, sessionKey(s.id), k)
}

// keepLoss keeps the record of a lost worker, until no session needs it.
func (st *State) keepLoss(w *worker) {
	if st.config.Keeps {
		st.keep(tableLosses, processKey(w.process.Number), &wire.KeptLoss{Hello: w.hello, Process: w.process.Number,
			Name: w.name, Why: wire.Of(w.why), Stopped: errors.Is(w.why, errStopped)})
	}
}

func (st *State) keepIsland(is *island) {
	if st.config.Keeps {
		st.keep(tableIslands, fmt.Sprintf("%010d", is.index), &wire.KeptIsland{Name: is.name})
	}
}

// keepProgram keeps a session's program.
func (st *State) keepProgram(s *session, p *program) {
	if st.config.Keeps {
		st.keep(tablePrograms, programKey(s.id, p.id), &wire.KeptProgram{Session: s.id, Program: p.id, Op: p.op,
			Key: p.of.key, Devices: p.place.rows, Portable: p.portable})
	}
}

// keepCompiled keeps the result of a compilation.
func (st *State) keepCompiled(c *compiled) {
	if st.config.Keeps {
		st.keep(tableCompiled, c.key, &wire.KeptCompiled{Key: c.key, Format: c.format, Text: c.text, Code: c.code,
			Options: c.options, Handlers: c.handlers, Info: c.info, Loadable: c.loadable, Places: c.madeFor, Number: c.number})
	}
}

// letCompiled removes that fact, unless another compilation has its key, or sessions have programs of one that had it:
// the next start takes the newest for all of them.
func (st *State) letCompiled(c *compiled) {
	if st.compiled[c.key] == nil && st.discarded[c.key] == 0 {
		st.keep(tableCompiled, c.key, nil)
	}
}

// keepBoard keeps the board of a host if it has places left, and which of them was given last. The place of a worker
// that has left is not given again: others may still be sending blocks to it.
func (st *State) keepBoard(host string) {
	switch b := st.boards[host]; {
	case !st.config.Keeps:
	case b == nil:
		st.keep(tableBoards, host, nil)
	default:
		st.keep(tableBoards, host, &wire.KeptBoard{Host: host, Board: proto.CloneOf(b)})
	}
}

// Kept holds the facts of an earlier start.
type Kept struct {
	Links    []KeptLink
	Losses   []*wire.KeptLoss
	Numbers  *wire.KeptLink // nil if there is none
	Slices   []*wire.KeptSlice
	Islands  []*wire.KeptIsland // by index
	Boards   []*wire.KeptBoard
	Sessions map[uint32]*wire.KeptSession
	Programs []*wire.KeptProgram
	Compiled map[string]*wire.KeptCompiled
}

// KeptLink is a link, and the number of its connection in this start.
type KeptLink struct {
	Conn  uint64
	Lease int64 // as in Event
	*wire.KeptLink
}

// ReadKept reads what an earlier start has kept. Its argument calls a function for each entry of a table.
func ReadKept(entries func(table string, each func(key string, value []byte) error) error) (*Kept, error) {
	k := &Kept{Sessions: map[uint32]*wire.KeptSession{}, Compiled: map[string]*wire.KeptCompiled{}}
	var sessions []*wire.KeptSession
	var programs []*wire.KeptCompiled
	read := func(table string, m func() proto.Message) error {
		return entries(table, func(key string, value []byte) error {
			fact := m()
			err := proto.Unmarshal(value, fact)
			if err == nil {
				err = checkNumbers(fact)
			}
			if err != nil {
				return status.New(status.DataLoss, "%s %q does not decode: %w; move the file away to begin a new cluster", table,
					key, err)
			}
			return nil
		})
	}
	err := read(TableLinks, func() proto.Message {
		m := new(wire.KeptLink)
		k.Links = append(k.Links, KeptLink{KeptLink: m})
		return m
	})
	for _, of := range []struct {
		table string
		next  func() proto.Message
	}{
		{tableLosses, anotherOf(&k.Losses)}, {tableSessions, anotherOf(&sessions)}, {tablePrograms, anotherOf(&k.Programs)},
		{tableCompiled, anotherOf(&programs)}, {tableIslands, anotherOf(&k.Islands)}, {tableBoards, anotherOf(&k.Boards)},
		{tableSlices, anotherOf(&k.Slices)},
		{tableNumbers, func() proto.Message { k.Numbers = new(wire.KeptLink); return k.Numbers }},
	} {
		if err == nil {
			err = read(of.table, of.next)
		}
	}
	for _, m := range sessions {
		k.Sessions[m.Session] = m
	}
	for _, m := range programs {
		k.Compiled[m.Key] = m
	}
	return k, err
}

// The highest numbers of links, processes and sessions that a fact may have, so that those given next do not begin
// again at 0.
const (
	mostProcess = math.MaxUint64 - 1<<32 // and of links
	mostSession = math.MaxUint32 - 1<<20
)

// checkNumbers refuses a fact whose numbers are too high.
func checkNumbers(fact proto.Message) error {
	var link, process uint64
	var session uint32
	switch m := fact.(type) {
	case *wire.KeptLink:
		link, process, session = m.Id, m.Process, m.Session
	case *wire.KeptSession:
		session = m.Session
	}
	if max(link, process) > mostProcess || session > mostSession {
		return fmt.Errorf("link %d, process %d and session %d; expected at most %d, %[4]d and %[5]d", link, process, session,
			uint64(mostProcess), uint32(mostSession))
	}
	return nil
}

// anotherOf returns a function that adds an empty message to a list, and returns it.
func anotherOf[M any, P interface {
	*M
	proto.Message
}](list *[]P) func() proto.Message {
	return func() proto.Message {
		m := P(new(M))
		*list = append(*list, m)
		return m
	}
}

// Restore fills a new State with the facts of an earlier start. It must be called before Step. Each connection is Cut
// at first; then it comes back, by Mended and a Rejoin, or is Lost. Until the last of them has, State accepts no other
// messages from clients and workers: see IsComingBack. Restore returns the connections that cannot come back, each with
// the reason, and the actions to carry out.
func (st *State) Restore(k *Kept) (refused map[uint64]error, out []Action) {
	st.comeback = &comeback{away: map[uint64]bool{}, of: map[uint64][]*wire.Rejoin{}}
	for _, is := range k.Islands { // before the workers, which come in another order
		st.layout.AddIsland(is.Name)
		st.addIsland(is.Name)
	}
	refused = st.restoreLinks(k, st.restoreLosses(k.Losses))
	st.letSessions(k.Sessions)
	st.restoreSlices(k.Slices)
	st.releaseUnused()
	st.process = max(st.process, k.Numbers.GetProcess())
	st.session = max(st.session, k.Numbers.GetSession())
	st.keepWhole(k.Boards)
	st.restorePrograms(k)
	out = st.beginComeback()
	st.noteEnds(k.Links, refused)
	out, st.out = append(out, st.out...), nil
	return refused, out
}

// noteEnds tells of the sessions that cannot come back.
func (st *State) noteEnds(links []KeptLink, refused map[uint64]error) {
	for _, l := range links {
		if err := refused[l.Conn]; err != nil && l.Session != 0 {
			st.note(about{kind: wire.EventEnded, session: l.Session, tenant: l.Tenant},
				wire.Owner(l.Session, cmp.Or(l.Hello.GetName(), "a client"), l.Hello.GetUser(), l.Hello.GetMachine())+" ended", err)
		}
	}
}

// restoreLosses makes the records of lost workers, and returns their places, by process.
func (st *State) restoreLosses(all []*wire.KeptLoss) map[uint64]*placement.Worker {
	left := map[uint64]*placement.Worker{}
	for _, l := range all {
		if placed, err := st.restoreLoss(l); err == nil { // otherwise its sessions will miss it
			left[l.Process] = placed
		}
	}
	return left
}

// restoreLinks has those that had a connection be in the cluster and away. It returns the connections of those that
// cannot be, each with the reason.
func (st *State) restoreLinks(k *Kept, left map[uint64]*placement.Worker) (refused map[uint64]error) {
	refused = map[uint64]error{}
	links := slices.SortedFunc(slices.Values(k.Links), func(a, b KeptLink) int {
		return cmp.Or(cmp.Compare(b.Hello.GetRole(), a.Hello.GetRole()), cmp.Compare(a.Process, b.Process))
	})
	for _, l := range links { // workers first
		err := status.New(status.Internal, "its role was not kept")
		switch l.Hello.GetRole() {
		case wire.Role_ROLE_WORKER:
			if err = st.errLost(l.Process); err == nil {
				err = st.restoreWorker(l)
			}
		case wire.Role_ROLE_CLIENT:
			err = st.restoreSession(l, k.Sessions[l.Session], left)
		}
		if err != nil {
			refused[l.Conn] = err
			continue
		}
		st.conns.Get(l.Conn).cuts.lease = l.Lease
		st.comeback.away[l.Conn] = true
	}
	return refused
}

// letSessions removes the facts of sessions that were not restored. Their numbers are not given again.
func (st *State) letSessions(kept map[uint32]*wire.KeptSession) {
	for _, id := range slices.Sorted(maps.Keys(kept)) {
		st.session = max(st.session, id)
		if st.sessions[id] == nil {
			st.keep(tableSessions, sessionKey(id), nil)
		}
	}
}

// keepWhole keeps the last numbers, the boards and the sessions as they are now. While these were restored one by one,
// facts were kept of them that were not whole: none of those may be the last on disk, so it drops them.
func (st *State) keepWhole(boards []*wire.KeptBoard) {
	st.out = slices.DeleteFunc(st.out, func(a Action) bool {
		return a.Kind == Keep && a.Fact != nil &&
			(a.Table == tableNumbers || a.Table == tableSessions || a.Table == tableBoards)
	})
	st.keepNumbers()
	st.restoreBoards(boards)
	for _, id := range slices.Sorted(maps.Keys(st.sessions)) {
		st.keepSession(st.sessions[id])
	}
}

// beginComeback returns the actions of a restore that are still to be done: facts are kept, and one line says which
// processes are away. Others get no message yet, and their joining is no event.
func (st *State) beginComeback() []Action {
	out := slices.DeleteFunc(st.out, func(a Action) bool { return a.Kind != Keep })
	st.out, st.events, st.happened = nil, nil, 0
	if len(st.comeback.away) == 0 {
		st.comeback = nil
		return out
	}
	st.warn(about{kind: wire.EventCut}, st.AwayText(), nil)
	out, st.out = append(out, st.out...), nil
	return out
}

// restoreLoss makes the record of a lost worker.
func (st *State) restoreLoss(l *wire.KeptLoss) (*placement.Worker, error) {
	if err := checkOffer(l.Hello); err != nil {
		return nil, err
	}
	w, placed, err := st.leftWorker(l.Hello, l.Name, l.Process)
	if err != nil {
		return nil, err
	}
	if w.goes(l.Why.Err()); l.Stopped {
		w.goes(errStopped)
	}
	return placed, nil
}

// errLost returns why the worker with a process number has gone; nil if it has not.
func (st *State) errLost(process uint64) error {
	if w := st.memberOf(process); w != nil {
		return w.gone
	}
	return nil
}

func (st *State) restoreWorker(l KeptLink) error {
	st.process = l.Process - 1
	if err := st.workerJoins(l.Conn, l.Hello); err != nil {
		return err
	}
	w := st.processes[l.Process]
	w.process.Board, w.process.Slot = l.Board.GetNumber(), l.Board.GetSlot()
	st.makePeer(w) // others would be told the place that a new worker would get
	return nil
}

// restoreBoards replaces the boards that restoreWorker has made by those of the earlier start, so that workers that
// join get places that no worker had before. A board whose maker has gone can no longer be opened, and is dropped.
func (st *State) restoreBoards(kept []*wire.KeptBoard) {
	hosts := maps.Clone(st.boards)
	clear(st.boards)
	for _, k := range kept {
		hosts[k.Host] = k.Board
		if st.processes[k.Board.GetNumber()] != nil {
			st.boards[k.Host] = k.Board
		}
	}
	for _, host := range slices.Sorted(maps.Keys(hosts)) {
		st.keepBoard(host)
	}
}

func (st *State) restoreSession(l KeptLink, k *wire.KeptSession, left map[uint64]*placement.Worker) error {
	if k == nil {
		return status.New(status.Unavailable, "the controller has started again, and does not know the session's devices")
	}
	owner, err := st.tenantOf(l.Tenant)
	if err != nil {
		return err
	}
	view := st.layout.ViewAs(placedSpans(k.Devices), k.Sized, k.Epoch, left)
	if view == nil {
		return status.New(status.Unavailable, "the controller has started again, and does not know all of the session's "+
			"workers")
	}
	process, session := st.process, st.session
	st.process, st.session = l.Process, l.Session
	s, _, _, err := st.begins(l.Conn, l.Hello, owner, view)
	st.process, st.session = max(process, l.Process), max(session, l.Session)
	if err != nil {
		st.layout.Retire(view)
		return err
	}
	s.restored = true
	if len(k.Offered) == 0 {
		return nil
	}
	next := st.layout.ViewAs(placedSpans(k.Offered), k.Sized, k.Epoch+1, left)
	if next != nil && next.Len() == view.Len() {
		st.layout.Retire(view) // as Rebind does
		st.keepOffer(s, st.bind(next))
	}
	return nil
}

// placedSpans is the inverse of spans.
func placedSpans(all []*wire.Span) []placement.Span {
	out := make([]placement.Span, len(all))
	for i, span := range all {
		out[i] = placement.Span{Worker: span.Worker, Local: int(span.Local), Count: int(span.Count)}
	}
	return out
}

// restorePrograms restores the programs of sessions.
func (st *State) restorePrograms(k *Kept) {
	var all []*compiled
	for _, p := range k.Programs {
		s, of := st.sessions[p.Session], k.Compiled[p.Key]
		if s == nil || of == nil {
			st.keep(tablePrograms, programKey(p.Session, p.Program), nil)
			continue
		}
		if s.programs[p.Program] != nil {
			continue // in a damaged file, two facts say the same
		}
		place, err := st.place(s, p.Devices)
		c := st.compiled[p.Key]
		if c == nil && err == nil {
			if c, err = st.restoreCompiled(of); err == nil {
				all = append(all, c)
			}
		}
		if err != nil {
			st.keep(tablePrograms, programKey(p.Session, p.Program), nil)
			continue // its session will miss it
		}
		c.users++
		st.newProgram(c, waiter{s: s, op: p.Op, program: p.Program, place: place, portable: p.Portable})
	}
	for _, key := range slices.Sorted(maps.Keys(k.Compiled)) {
		if st.compiled[key] == nil {
			st.keep(tableCompiled, key, nil)
		}
	}
	for _, c := range all {
		st.let(c) // the user that restoreCompiled counted
	}
}

// restoreCompiled restores the result of a compilation. It counts one user itself, until all programs are restored.
func (st *State) restoreCompiled(k *wire.KeptCompiled) (*compiled, error) {
	c := &compiled{key: k.Key, format: k.Format, text: k.Text, code: k.Code, options: k.Options, handlers: k.Handlers,
		madeFor: k.Places, ready: true, users: 1}
	if err := c.fill(&wire.Compiled{Info: k.Info, Loadable: k.Loadable}, k.Number); err != nil {
		return nil, err
	}
	st.compiled[c.key] = c
	if c.loadable.Kept {
		st.newArtifact(c)
	}
	st.enlist(c)
	return c, nil
}
