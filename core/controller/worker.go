package controller

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/placement"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// worker is a worker that is there, or one that has gone but still has devices of a session.
type worker struct {
	slot    int
	to      [1]uint64 // its connection
	process *wire.Process
	hello   *wire.Hello
	offer   *wire.WorkerOffer // of hello
	island  *island
	name    string
	gone    error // why it is not there any more
	why     error // the same, without what a user can do
	views   int   // sessions that have devices of it; the slot is free when they and it have gone
	users   int   // sessions that it was told of: they have begun to use it
	spot    spot
	last    *wire.Heartbeat
	doing   doing // while it is looked at
	heard   int64
	beat    int64 // when last came
	base    int   // number of its first device in the ledger
	remains []*remains
	hadGang uint64   // the last that it had been sent when the controller started again
	refused uint64   // gangs that were admitted and for which it had no memory all the same
	lacked  shortage // the last of them

	// From offer, copied here for loops over all workers: the name of its platform, and whether every process may be able
	// to dial one of its addresses.
	platform string
	anywhere bool
}

// shortage is a gang that was admitted and failed for lack of memory.
type shortage struct {
	what               string
	session            uint32
	client, user, host string
	at                 int64 // State.now
	why                error
}

// refuses records that a worker had no memory for an admitted gang.
func (w *worker) refuses(g *gang, why error, now int64) {
	w.refused++
	w.lacked = shortage{what: g.name(), session: g.s.id, client: g.s.name, user: g.s.user, host: g.s.host, at: now,
		why: why}
}

// report returns the refusals that refuses recorded, nil if there are none.
func (r *shortage) report(now int64) *wire.Report_Refusal {
	if r.why == nil {
		return nil
	}
	return &wire.Report_Refusal{What: r.what, Session: r.session, Client: r.client, User: r.user, Host: r.host,
		SinceMs: (now - r.at) / 1e6, Why: r.why.Error()}
}

const (
	maxLocal = 4096 // devices of a worker
	maxPath  = 4096 // bytes of a board's path
)

func (st *State) workerJoins(number uint64, h *wire.Hello) error {
	if err := checkOffer(h); err != nil {
		return err
	}
	if err := st.apartFrom(h); err != nil {
		return err
	}
	if len(st.present) >= st.limits.Workers {
		return status.New(status.ResourceExhausted, "the cluster has %d workers, which is its limit", len(st.present))
	}
	w, board, err := st.admitWorker(number, h)
	if err != nil {
		return err
	}
	st.out = append(st.out, Action{
		Kind: Welcome, To: w.to[:], Message: &wire.Welcome{Process: st.process, Cluster: st.config.Cluster,
			Proof: st.config.Key, HeartbeatMs: uint32(st.config.Heartbeat / 1e6), Board: board}})
	st.stir()
	st.workers[w.slot], st.processes[w.process.Number] = w, w
	st.devices += len(w.offer.Devices)
	st.countSharing(w, +1)
	st.present = append(st.present, w)
	st.countConfined(w, +1)
	st.conns.Set(number, &conn{number: number, w: w})
	st.makeRoom()
	st.note(w.about(wire.EventJoined), workerNamed(w.name)+" came to island "+quoted(w.island.name), nil)
	if w.name != h.Name {
		st.warn(w.about(wire.EventJoined), "two workers are named "+h.Name+": the second is called "+w.name, nil)
	}
	st.offerAll()
	return nil
}

// checkOffer refuses impossible offers.
func checkOffer(h *wire.Hello) error {
	o := h.GetWorker()
	if o == nil || len(o.Devices) > maxLocal || len(o.Addresses) > 16 || len(o.Board) > maxPath {
		return status.New(status.InvalidArgument,
			"worker %s offers nothing, more than %d devices, more than 16 addresses, or a path of more than %d bytes",
			h.GetName(), maxLocal, maxPath)
	}
	for i, d := range o.Devices {
		if d == nil || int(d.Local) != i {
			return status.New(status.InvalidArgument, "worker %s does not number its devices 0, 1, 2 …", h.Name)
		}
	}
	for _, a := range o.Addresses {
		if err := wire.CheckAddress(a); err != nil {
			return status.Wrap(err, "worker %s", h.Name)
		}
	}
	return nil
}

// admitWorker assigns a worker its number, its place in an island, a slot, and a board if it shares a host.
func (st *State) admitWorker(number uint64, h *wire.Hello) (*worker, *wire.Board, error) {
	st.process++
	st.keepNumbers()
	w, err := st.newWorker(h, st.apart(h.Name, st.process), st.process)
	if err != nil {
		return nil, nil, err
	}
	w.to[0] = number
	placed, err := st.layout.Join(w.placed())
	if err != nil {
		st.unnumber(w)
		return nil, nil, err
	}
	st.seat(w, placed)
	board := st.board(w.process.Host, w.offer.Board)
	w.process.Board, w.process.Slot = board.GetNumber(), board.GetSlot()
	st.makePeer(w)
	return w, board, nil
}

// newWorker makes a worker of this name and process number, and numbers its devices.
func (st *State) newWorker(h *wire.Hello, name string, process uint64) (*worker, error) {
	o := h.Worker
	if o.Platform == nil {
		o.Platform = new(wire.Platform)
	}
	w := &worker{slot: slices.Index(st.workers, nil), hello: h, offer: o, name: name, spot: spotOf(h),
		platform: o.Platform.Name, anywhere: spot{"a", "a"}.reaches(spot{"b", "b"}, o.Addresses),
		heard: st.now, process: &wire.Process{Number: process, Name: name, Addresses: o.Addresses,
			Host: cmp.Or(o.Host, h.Host), Epoch: o.Epoch, Node: o.Node, Pieces: o.Pieces}}
	return w, st.number(w)
}

// placed returns a worker's offer to placement.
func (w *worker) placed() placement.Offer {
	o := w.offer
	kinds, memories := make([]string, len(o.Devices)), make([]string, len(o.Devices))
	for i, d := range o.Devices {
		kinds[i], memories[i] = d.Kind, fmt.Sprint(d.Memories, d.DefaultMemory)
	}
	return placement.Offer{Worker: w.process.Number, Name: w.name, Island: o.Island, Platform: o.Platform.Name,
		Fingerprint: o.Fingerprint, Versions: w.hello.Versions, Devices: len(o.Devices), Kinds: kinds, Memories: memories,
		First: w.base}
}

// seat assigns a worker its island and a slot.
func (st *State) seat(w *worker, placed *placement.Worker) {
	for len(st.islands) <= placed.Island.Index {
		st.addIsland(placed.Island.Name)
	}
	w.island = st.islands[placed.Island.Index]
	if w.slot < 0 {
		w.slot = len(st.workers)
		st.workers, st.busy, st.peers = append(st.workers, nil), append(st.busy, 0), append(st.peers, peer{})
	}
	st.peers[w.slot] = peer{}
}

// apart returns the name of a worker that joins: its own, or, if another worker has that name, one with its process
// number, so that messages are unambiguous.
func (st *State) apart(name string, process uint64) string {
	taken := func(name string) bool {
		return slices.ContainsFunc(st.workers, func(w *worker) bool { return w != nil && w.gone == nil && w.name == name })
	}
	if name == "" || !taken(name) {
		return name
	}
	for name = fmt.Sprintf("%s-%d", name, process); taken(name); {
		name += "'"
	}
	return name
}

// BoardSlots is how many workers of a host share a board; further ones begin another.
const BoardSlots = 64

// board assigns the worker that joins as st.process a place on a board of its host: on its own board if the host has
// none with a place left. Places are not reused. The worker that made a board has to be there when others open it.
func (st *State) board(host, own string) *wire.Board {
	if own == "" || host == "" {
		return nil
	}
	b := st.boards[host]
	if b == nil || b.Slot+1 >= BoardSlots {
		b = &wire.Board{Number: st.process, Path: own}
		st.boards[host] = b
	} else {
		b.Slot++ // the place given last
	}
	st.keepBoard(host)
	return proto.CloneOf(b)
}

func quoted(s string) string { return `"` + s + `"` }

// afterLoss says what a user can do after a worker is lost.
const afterLoss = "arrays on its devices are lost, others are not; if another worker takes its place, " +
	"pathways.events() tells, and this script can then make them again and go on"

// errStopped is why a worker has gone that was told to stop, and said so.
var errStopped = status.New(status.Unavailable, "it was stopped")

// Stopped is why the arrays of a worker that was told to stop are lost.
func Stopped(name string) error {
	return status.New(status.Unavailable, "worker %s was stopped, and has left the cluster in order; %s", name, afterLoss)
}

// goes records why a worker has gone, in the words that its operations report.
func (w *worker) goes(err error) {
	w.why = err
	switch {
	case errors.Is(err, errStopped):
		w.gone = Stopped(w.name)
	case w.saysAll():
		w.gone = err
	default:
		w.gone = status.New(status.Unavailable, "worker %s is gone: %w; %s", w.name, err, afterLoss)
	}
}

// saysAll reports whether the reason for a worker's loss already says what is lost, or was never there, and what to do.
func (w *worker) saysAll() bool {
	code := status.CodeOf(w.why)
	return code == status.DataLoss || code == status.NotFound
}

// workerNamed returns what events call a worker: the word and its name, or the name alone if it begins with the word,
// as those that `pathways up` gives do.
func workerNamed(name string) string {
	if strings.HasPrefix(name, "worker") {
		return name
	}
	return "worker " + name
}

// noteLoss records why a worker has gone, in the words that its operations and the events report.
func (st *State) noteLoss(w *worker, err error) {
	w.goes(err)
	if errors.Is(err, errStopped) {
		st.note(w.about(wire.EventLeft), workerNamed(w.name)+" left", nil)
	} else {
		tell := st.warn
		if st.stopping {
			tell = st.note
		}
		tell(w.about(wire.EventLost), "lost "+workerNamed(w.name), err)
	}
}

// workerLost removes a worker that has gone from the cluster.
func (st *State) workerLost(w *worker, err error) {
	st.noteLoss(w, err)
	st.peers[w.slot].conn = 0
	st.reach++
	st.serve = true
	st.devices -= len(w.offer.Devices)
	st.countSharing(w, -1)
	delete(st.processes, w.process.Number)
	if b := st.boards[w.process.Host]; b != nil && b.Number == w.process.Number {
		delete(st.boards, w.process.Host)
		st.keepBoard(w.process.Host)
	}
	st.layout.Leave(w.process.Number)
	st.present = slices.DeleteFunc(slices.Clone(st.present), func(o *worker) bool { return o == w })
	st.countConfined(w, -1)
	// Peers first, so that operations that wait for its bytes end with its name.
	known := st.peers[w.slot].knows.all()
	to := st.connsOf(known)
	if st.comeback != nil { // it is not known who was told of it
		to = st.connsHere()
	}
	for _, id := range slices.Sorted(maps.Keys(st.sessions)) {
		if s := st.sessions[id]; s.conn != 0 && s.workers.has(w.slot) {
			to = append(to, s.conn)
		}
	}
	st.send(to, wire.KindPeers, &wire.Peers{Gone: []uint64{w.process.Number}, Why: wire.Of(w.gone)})
	known.each(func(slot int) { st.peers[slot].knows.remove(w.slot) })
	st.giveUpOn(w)
	st.letRemains(w)
	st.compileElsewhere(w)
	if w.views > 0 {
		st.keepLoss(w)
	}
	st.lose(w)
}

// giveUpOn fails what is held and would run on a worker that has gone.
func (st *State) giveUpOn(w *worker) {
	for _, g := range slices.Clone(st.held) {
		switch {
		case g.held == nil || !g.to.has(w.slot):
		case st.goesOn(g):
			st.shrink(g, w)
		default:
			st.giveUp(g, st.lossOf(g, w))
		}
	}
}

// compileElsewhere moves the compilations of a worker that has gone to other workers.
func (st *State) compileElsewhere(w *worker) {
	for _, op := range slices.Sorted(maps.Keys(st.compiles)) {
		if c := st.compiles[op]; c.by == w {
			delete(st.compiles, op)
			if c.by = nil; c.ready {
				c.asked = nil // its text may be had from the same client
				if st.artifacts[op] == c {
					st.give(c)
				}
			} else {
				st.begin(c)
			}
		}
	}
}

// release frees the slot of a worker that has gone and that no session needs.
func (st *State) release(w *worker) {
	if w.gone != nil && w.views == 0 {
		st.unnumber(w)
		st.workers[w.slot] = nil
		st.keep(tableLosses, processKey(w.process.Number), nil)
	}
}

// partDone ends the worker's part of a gang, number i of those that it reports to have succeeded. The gang is nil if it
// is none of a session that is there.
func (st *State) partDone(g *gang, w *worker, m *wire.Completed, i int) {
	spent := uint64(0)
	if i < len(m.Busy) {
		spent = m.Busy[i]
	}
	w.hasDone(m.Ok[i])
	if g != nil {
		st.through(g, w, spent, nil)
	} else {
		st.outlived(st.leaving.Get(m.Ok[i]), w, spent, nil)
	}
}

// hasDone removes a gang that has succeeded from the worker's last report of what it runs. Otherwise a worker that is
// silent from then on would seem to run the gang forever, and to keep others waiting for it.
func (w *worker) hasDone(gang uint64) {
	runs := func(r *wire.Running) bool { return r.GetGang() == gang }
	stands := func(m *wire.Standing) bool { return m.GetGang() == gang }
	if !slices.ContainsFunc(w.last.GetRunning(), runs) && !slices.ContainsFunc(w.last.GetStanding(), stands) {
		return
	}
	w.last = proto.CloneOf(w.last) // an Answer may have it
	w.last.Running = slices.DeleteFunc(w.last.Running, runs)
	w.last.Standing = slices.DeleteFunc(w.last.Standing, stands)
}

// addFirstCalls adds the lines that called programs first to a worker's report of what its devices do, for runs that
// came without a line, and of which the worker knows none: it may have joined after the first call.
func (st *State) addFirstCalls(m *wire.Heartbeat) {
	of := func(number uint64) (string, bool) {
		g := cmp.Or(st.gangs.Get(number), st.leaving.Get(number))
		if g == nil || !g.firstCall {
			return "", false
		}
		return wire.Line(g.line), true
	}
	for _, r := range m.Running {
		if r.Line == "" {
			r.Line, r.FirstCall = of(r.Gang)
		}
	}
	for _, s := range m.Standing {
		if s.Line == "" {
			s.Line, s.FirstCall = of(s.Gang)
		}
	}
}

func (st *State) fromWorker(w *worker, ev *Event) error {
	w.heard = st.now
	switch m := ev.Message.(type) {
	case *wire.Heartbeat:
		st.compareApart(w, m)
		st.addFirstCalls(m)
		w.last, w.beat = m, st.now
	case *wire.Completed:
		for i, n := range m.Ok {
			st.endsThere(w, n)
			st.partDone(st.gangs.Get(n), w, m, i)
		}
		for _, f := range m.Failed {
			err := f.GetStatus().Err()
			if err == nil {
				err = status.New(status.Internal, "the run failed on worker %s, which gave no reason", w.name)
			}
			st.endsThere(w, f.GetNumber())
			if g := st.gangs.Get(f.GetNumber()); g != nil {
				if f.GetNoMemory() && g.err == nil && g.waits.has(w.slot) {
					w.refuses(g, err, st.now)
					a := g.about(wire.EventFault)
					a.worker = w.process.Number
					st.warn(a, workerNamed(w.name)+" had no memory for "+g.name()+" of "+g.s.owner()+", which was admitted", err)
				}
				st.through(g, w, f.GetBusy(), err)
			} else {
				st.outlived(st.leaving.Get(f.GetNumber()), w, f.GetBusy(), err)
			}
		}
	case *wire.Compiled:
		if c := st.compiles[m.Op]; c != nil && c.by == w {
			delete(st.compiles, m.Op)
			st.compiledBy(c, m)
		} else if c == nil && m.Loadable.GetKept() { // for an earlier start of the controller
			st.have(w, &wire.Have{Artifact: m.Op})
		}
	case *wire.Want:
		st.want(w, m.Artifact)
	case *wire.Have:
		st.have(w, m)
	case *wire.Loaded:
		st.loadedBy(w, m)
	case *wire.Profiled:
		return st.profiled(w, m, ev)
	case *wire.Doing:
		st.keepDoing(w, m)
	case *wire.HostCall:
		// If the client is gone, its end is also the end of the run.
		if s := st.sessions[m.Session]; s != nil {
			st.forward(s.to(), ev)
		}
	default:
		return status.New(status.InvalidArgument, "worker %s sent a message of kind %v, which is not a worker's to send",
			w.name, ev.Wire)
	}
	return nil
}

// compareApart logs which processes a worker can no longer reach since its last heartbeat, and which it reaches again.
func (st *State) compareApart(w *worker, m *wire.Heartbeat) {
	has := func(m *wire.Heartbeat, process uint64) bool {
		return slices.ContainsFunc(m.GetApart(), func(a *wire.Apart) bool { return a.GetProcess() == process })
	}
	for _, a := range m.Apart {
		if !has(w.last, a.GetProcess()) {
			st.warn(w.about(wire.EventApart), workerNamed(w.name)+" cannot reach "+describe(a.GetName(), "a client"),
				status.New(status.Unavailable, "%s", a.GetWhy()))
		}
	}
	for _, a := range w.last.GetApart() {
		if !has(m, a.GetProcess()) {
			st.note(w.about(wire.EventReached),
				workerNamed(w.name)+" reaches "+describe(a.GetName(), "a client")+" again, or has no need to", nil)
		}
	}
}
