// Package server is the shell around the controller's state machine: connections of clients and workers, their links, a
// clock, and the facts on disk.
//
// Each connection has a goroutine that reads it, passes its messages to controller.State under one lock, and carries
// out the actions that follow. Nothing waits under that lock: messages that do not fit into a connection wait in its
// outbox, and facts for the disk in the keeper. All methods of Server may be called from any goroutine. core/cluster
// assembles it.
package server

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/controller"
	"github.com/openpathways/pathways/core/controller/durable"
	"github.com/openpathways/pathways/core/series"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/tenant"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
	linking "github.com/openpathways/pathways/transport/link"
)

// Config configures a Server. Zero fields take the defaults.
type Config struct {
	Heartbeat time.Duration // told to clients and workers; 1 s
	// Lease is how long a client or worker stays in the cluster without a connection; 0: it is lost with its connection.
	Lease time.Duration
	// Died is as in link.Config.
	Died func(ctx context.Context, hello *wire.Hello) error
	// Silence is how long a worker may send nothing over an open connection, at least 4 heartbeats;
	// controller.SilentBeats are added. After that it is lost. 0: it is never lost for that.
	Silence    time.Duration
	Sequential bool
	FirstCome  bool          // as in controller.Config
	StuckAfter time.Duration // after which a gang that stands still is aborted, at least 4 heartbeats; 0 is never
	KeepTraces bool          // as in controller.Config
	MemoryWait time.Duration // that a run waits for memory that other sessions have; 0: it does not
	Limits     controller.Limits
	Tenants    *tenant.Table                 // as in controller.Config
	Reload     func() (*tenant.Table, error) // reads the file of tenants again; nil if Tenants is
	Log        *slog.Logger                  // nil is quiet
	// Store keeps what the next start needs to restore the cluster, if there is a Lease; nil: the cluster ends with this
	// Server. The caller closes it, after Close.
	Store *durable.Store
	// Disk returns how much longer each write to the Store takes, for simulation; nil adds nothing.
	Disk func() time.Duration
	// Stopped is called once, when an operator has asked the cluster to stop. It must
	// not wait.
	Stopped func()
}

// Server is State with connections and a clock.
type Server struct {
	log     *slog.Logger
	stopped func()
	reload  func() (*tenant.Table, error)
	begun   time.Time

	recent recent // what those that look all the time are told

	reloading sync.Mutex // held while the file of tenants is read and until State has it; taken before mu

	keeper  *keeper // nil without a Store
	links   *linking.Acceptor
	lease   time.Duration // of links
	running sync.WaitGroup
	done    chan struct{}
	due     *time.Timer // for a Tick before the next heartbeat

	mu      sync.Mutex
	state   *controller.State
	conns   series.Of[link]
	last    uint64 // connection
	actions []controller.Action
	whole   []byte  // scratch of send
	handed  int     // cost of send's messages since run began, see maxHanded
	armed   int64   // when due fires, on State's clock; 0: it does not
	full    []*link // have frames that wait for leave
	closed  bool
	away    chan struct{} // closed once all have come back; nil when they have, or need not
}

// link is a connection, with the messages that wait to be sent.
type link struct {
	full   bool   // in Server.full; beside the outbox, since a message to thousands fetches both from memory
	outbox outbox // which begins with what it needs then
	number uint64
	in     *transport.Incoming
	// Of its reader, which State lets in: the messages that it is sent first.
	let      bool
	welcome  *wire.Welcome
	complete func()
	kept     uint64  // number of its link, if that is kept on disk
	restored bool    // it was begun by an earlier start
	flush    []*link // its reader's, for those to be flushed
	// Its reader's, for the next report of ends.
	ends  wire.Completed
	ended controller.Event
}

// New makes a controller: a new cluster, with a new term.
func New(c Config) (*Server, error) {
	if c.Heartbeat <= 0 {
		c.Heartbeat = time.Second
	}
	silence := c.Silence
	if silence > 0 {
		silence = max(silence, 4*c.Heartbeat)
		// The state machine is only for workers that hang while their connections are open.
		silence += controller.SilentBeats * c.Heartbeat
	}
	stuckAfter := max(c.StuckAfter, 0)
	if stuckAfter > 0 {
		stuckAfter = max(stuckAfter, 4*c.Heartbeat)
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{log: c.Log, stopped: c.Stopped, reload: c.Reload, begun: time.Now(), lease: c.Lease,
		done: make(chan struct{}), due: time.NewTimer(time.Hour)}
	s.due.Stop()
	var random [40]byte
	rand.Read(random[:])
	who := durable.Identity{Cluster: hex.EncodeToString(random[:8]), Key: random[8:], Term: uint64(s.begun.UnixNano())}
	var kept *controller.Kept
	if c.Store != nil {
		var err error
		if who, err = c.Store.Start(); err != nil {
			return nil, err
		}
		if kept, err = controller.ReadKept(c.Store.Read); err != nil {
			return nil, err
		}
		if c.Lease > 0 { // otherwise no process comes back
			s.keeper = newKeeper(c.Store, c.Disk, func(err error) {
				s.log.Error("what the next start needs cannot be kept", "reason", err)
			})
		}
	}
	s.links = linking.NewAcceptor(linking.Config{Lease: c.Lease, Term: who.Term, Died: c.Died})
	s.state = controller.New(controller.Config{Cluster: who.Cluster, Term: who.Term, Key: who.Key, Starts: who.Starts,
		Keeps: s.keeper != nil, Heartbeat: int64(c.Heartbeat), Silence: int64(silence), Sequential: c.Sequential,
		StuckAfter: int64(stuckAfter), FirstCome: c.FirstCome, MemoryWait: int64(max(c.MemoryWait, 0)),
		Unix: s.begun.UnixNano(), Limits: c.Limits, Tenants: c.Tenants, KeepTraces: c.KeepTraces})
	s.state.Weigh(controller.StepWeight)
	if kept != nil {
		s.away = make(chan struct{})
		s.restore(kept)
	}
	s.running.Add(1)
	go s.tick(c.Heartbeat)
	return s, nil
}

func (s *Server) tick(every time.Duration) {
	defer s.running.Done()
	t := time.NewTicker(every)
	defer t.Stop()
	defer s.due.Stop()
	for {
		select {
		case <-s.done:
			return
		case <-t.C:
			s.step(nil, &controller.Event{Kind: controller.Tick}, true)
		case <-s.due.C:
			s.step(nil, &controller.Event{Kind: controller.Tick}, true)
		}
	}
}

// Accept takes a listener's connections until it closes.
func (s *Server) Accept(l transport.Listener) error {
	for {
		in, err := l.Accept()
		if err != nil {
			return err
		}
		s.Take(in)
	}
}

// Take handles a connection that has said hello. It does not wait.
func (s *Server) Take(in *transport.Incoming) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		in.Refuse(status.New(status.Unavailable, "the controller stops"))
		return
	}
	if resumes, refuse := s.links.Take(in); resumes {
		if refuse != nil {
			s.running.Go(refuse)
		}
		s.mu.Unlock()
		return
	}
	s.last++
	c := &link{number: s.last, in: in}
	c.outbox.open(in, &s.running)
	s.conns.Set(c.number, c)
	s.running.Add(1)
	s.mu.Unlock()
	go s.read(c)
}

// sendWelcome lets a connection in, and then sends the messages that were put for it meanwhile.
func (c *link) sendWelcome() error {
	if c.complete != nil {
		c.complete()
	}
	err := c.in.Welcome(c.welcome)
	c.welcome, c.complete = nil, nil
	c.outbox.start()
	return err
}

// read passes a connection's messages to State until it ends.
func (s *Server) read(c *link) {
	defer s.running.Done()
	lease := time.Duration(0)
	if w, ok := c.in.Conn.(transport.Watched); ok {
		lease = s.lease
		w.Watch(func(why error) {
			kind := controller.Cut
			if why == nil {
				kind = controller.Mended
			}
			s.step(nil, &controller.Event{Kind: kind, Conn: c.number, Err: transport.ByName(why)}, true) // see readEarly
		})
	}
	if c.restored {
		if !s.readRejoin(c) {
			return
		}
	} else if !s.join(c, lease) {
		return
	}
	for n := 0; ; { // messages since clients heard of ends
		kind, payload, err := c.in.Recv()
		if err == nil {
			// One lock per message, and one Completed for all messages that are at hand.
			flush := n >= wire.MaxBurst || !c.in.Buffered() || c.in.Hello.Alone
			if flush {
				n = 0
			}
			n, err = s.bring(c, kind, payload, n, flush)
		}
		if err != nil {
			s.lose(c, err)
			return
		}
	}
}

// lose handles the end of a connection.
func (s *Server) lose(c *link, err error) {
	s.step(c, &controller.Event{Kind: controller.Lost, Conn: c.number, Err: transport.ByName(err)}, true)
	s.hangUp(c)
}

// join passes a new connection to State. It reports whether State let it in.
func (s *Server) join(c *link, lease time.Duration) bool {
	if c.in.Hello.Role != wire.Role_ROLE_ADMIN {
		s.supersede(c)
		s.awaitOthers(c)
	}
	ev := s.prepare(c, controller.Event{Kind: controller.Join, Conn: c.number, Message: c.in.Hello, Peer: c.in.Peer(),
		Tenant: c.in.Pass == transport.Tenant, Of: c.in.Tenant, Lease: int64(lease)})
	s.step(c, &ev, true)
	if !c.let {
		return false // it was refused
	}
	s.keepLink(c, c.welcome)
	if err := c.sendWelcome(); err != nil {
		s.step(c, &controller.Event{Kind: controller.Lost, Conn: c.number, Err: err}, true)
		s.hangUp(c)
		return false
	}
	return true
}

// bring passes a message, or those of a burst, to State. It adds their number to n.
func (s *Server) bring(c *link, kind wire.Kind, payload []byte, n int, flush bool) (int, error) {
	if kind == wire.KindBurst {
		return s.burst(c, payload, n, flush)
	}
	return n + 1, s.take(c, kind, payload, flush)
}

// burst passes the messages of a burst to State. It adds their number to n.
func (s *Server) burst(c *link, messages []byte, n int, flush bool) (int, error) {
	for ; ; n++ {
		kind, payload, rest, err := wire.NextFrame(messages)
		if err == nil {
			err = s.take(c, kind, payload, flush && len(rest) == 0)
		}
		if err != nil || len(rest) == 0 {
			return n + 1, err
		}
		messages = rest
	}
}

// longPut is how many bytes of a put may name so many devices that there is work to do without the lock.
const longPut = 64

// take passes a message to State. An error means that it is invalid.
func (s *Server) take(c *link, kind wire.Kind, payload []byte, flush bool) error {
	if kind == wire.KindCompleted {
		return s.takeEnds(c, payload, flush)
	}
	m, err := controller.Decode(kind, payload)
	if err != nil {
		return err
	}
	s.takeFirst(c, kind, m)
	ev := controller.Arrived(c.number, kind, m, payload)
	switch kind {
	case wire.KindCompile, wire.KindGraph, wire.KindTransfer, wire.KindTrace, wire.KindAsk:
		ev = s.prepare(c, ev)
	case wire.KindPut:
		if len(payload) >= longPut {
			ev = s.prepare(c, ev)
		}
	}
	s.step(c, &ev, flush)
	return nil
}

// takeEnds is take for a worker's report of ends, of which there is one a worker and gang. It allocates nothing.
func (s *Server) takeEnds(c *link, payload []byte, flush bool) error {
	if err := c.ends.Parse(payload); err != nil {
		return err
	}
	ok, busy := c.ends.Ok, c.ends.Busy
	s.takeFirst(c, wire.KindCompleted, &c.ends)
	if c.ended.Message == nil { // Step does not change it
		c.ended = controller.Event{Kind: controller.Message, Conn: c.number, Wire: wire.KindCompleted, Message: &c.ends}
	}
	s.mu.Lock()
	if s.takePart(c, flush) {
		s.mu.Unlock()
	} else {
		s.stepLocked(c, &c.ended, flush)
	}
	c.ends.Ok, c.ends.Busy = ok, busy // takeFirst leaves their ends, which have no room before them
	return nil
}

// takePart takes a report from which nothing follows, unless something else waits to be sent with it. Called with the
// lock.
func (s *Server) takePart(c *link, flush bool) bool {
	waits := flush && (len(s.full) > 0 || s.state.Dirty())
	return !waits && s.state.TakePart(c.number, &c.ends)
}

// takeFirst passes all parts of a long message but the last to State, which m then is. Others come in between.
func (s *Server) takeFirst(c *link, kind wire.Kind, m proto.Message) {
	for first := controller.Split(kind, m); first != nil; first = controller.Split(kind, m) {
		s.step(c, &controller.Event{Kind: controller.Message, Conn: c.number, Wire: kind, Message: first}, false)
	}
}

// prepare does the work on a message or a hello that does not need the lock. It takes the event by value, since most
// messages do not come here, and their events would be allocated, too.
func (s *Server) prepare(c *link, ev controller.Event) controller.Event {
	if m, ok := ev.Message.(*wire.Ask); ok {
		if c.in.Hello.Role == wire.Role_ROLE_ADMIN && !m.ApplyTenants {
			to := wire.Viewer{IsTenant: c.in.Pass == transport.Tenant, Tenant: c.in.Tenant}
			ev.Answer(s.encoded(m, to))
		}
		return ev
	}
	s.mu.Lock()
	work := s.state.Survey(&ev)
	s.mu.Unlock()
	if work != nil {
		work()
	}
	for first := ev.Introduce(); first != nil; first = ev.Introduce() { // others come in between
		s.step(c, first, false)
	}
	return ev
}

// step passes an event to State, on behalf of a link's reader or of none, and carries out the actions. With flush,
// which says that no more messages are at hand, clients are told which operations have ended, and frames are sent.
func (s *Server) step(by *link, ev *controller.Event, flush bool) {
	s.mu.Lock()
	s.stepLocked(by, ev, flush)
}

// stepLocked is step. Called with the lock, which it releases.
func (s *Server) stepLocked(by *link, ev *controller.Event, flush bool) {
	ev.Now = int64(time.Since(s.begun))
	s.run(ev)
	for s.state.More() && !s.closed { // others come in between, and what was decided so far leaves
		if s.state.Dirty() {
			s.run(&controller.Event{Kind: controller.Flush, Now: ev.Now})
		}
		full := s.takeFull(nil)
		s.mu.Unlock()
		s.leave(full)
		s.mu.Lock()
		s.run(&controller.Event{Kind: controller.Continue, Now: int64(time.Since(s.begun))})
	}
	if s.away != nil {
		s.cameBack()
	}
	var full []*link
	if flush {
		if s.state.Dirty() {
			s.run(&controller.Event{Kind: controller.Flush, Now: ev.Now})
		}
		if by != nil {
			full = by.flush[:0]
		}
		full = s.takeFull(full)
	}
	if due := s.state.Due(); due != s.armed {
		if s.armed = due; due != 0 {
			s.due.Reset(time.Duration(due) - time.Since(s.begun))
		}
	}
	s.mu.Unlock()
	s.leave(full)
	if by != nil && flush {
		clear(full)
		by.flush = full
	}
}

// takeFull takes the links whose frames wait, for leave. Called with the lock.
func (s *Server) takeFull(into []*link) []*link {
	if len(s.full) > 0 {
		s.running.Add(1)
	}
	for _, c := range s.full {
		c.full = false
		into = append(into, c)
	}
	clear(s.full)
	s.full = s.full[:0]
	return into
}

// flushedHere is how many connections the calling goroutine writes to. If there are more, other processors take part.
const flushedHere = 16

// leave sends what waits in the outboxes that takeFull took, without the lock.
func (s *Server) leave(full []*link) {
	if len(full) == 0 {
		return
	}
	defer s.running.Done()
	for i := len(full) - 1; i >= 0; i-- { // the others begin first
		full[i].outbox.leave(i < flushedHere)
	}
}

// Close says goodbye to all peers, ends their connections, and waits until that is done. Listeners belong to the
// caller, who closes them first.
func (s *Server) Close() {
	var full []*link
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.done)
		s.run(&controller.Event{Kind: controller.Closing, Now: int64(time.Since(s.begun))})
		for _, number := range s.conns.Numbers() { // those that State has yet to hear of
			c := s.conns.Get(number)
			s.letLink(c)
			c.outbox.end()
		}
		full = s.takeFull(nil)
	}
	s.mu.Unlock()
	s.leave(full)
	s.running.Wait()
	s.keeper.wait()
}

func (s *Server) hangUp(c *link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns.Delete(c.number)
	s.letLink(c)
	c.outbox.end()
}

func (s *Server) run(ev *controller.Event) {
	s.handed = 0
	s.actions = s.state.Step(ev, s.actions[:0])
	for i := range s.actions {
		s.do(&s.actions[i])
	}
	clear(s.actions)
}

// do carries out an action. It never waits: messages that do not fit wait in outboxes.
func (s *Server) do(a *controller.Action) {
	switch a.Kind {
	case controller.Send:
		if a.AfterKept {
			s.sendKept(a)
		} else {
			s.send(a)
		}
	case controller.Welcome:
		c := s.conns.Get(a.To[0])
		c.let, c.welcome, c.complete = true, a.Message, a.Complete // which its reader sends
	case controller.Refuse:
		c := s.conns.Get(a.To[0])
		s.conns.Delete(c.number)
		s.letLink(c)
		why := a.Err
		s.running.Go(func() { c.in.Refuse(why) }) // closing takes time
	case controller.Close:
		if c := s.conns.Get(a.To[0]); c != nil {
			s.conns.Delete(c.number)
			s.letLink(c)
			c.outbox.end()
		}
	case controller.Keep:
		s.keeper.put(factOf(a))
	case controller.Reload:
		asked := a.To[0]
		s.running.Go(func() { s.readTenants(asked) })
	case controller.Log:
		s.say(a.Event, a.Err)
	case controller.Stop:
		if s.stopped != nil {
			s.stopped()
		}
	}
}

// ReadTenants reads the file of tenants again; its terms apply from then on. If it is invalid, that is logged, and its
// previous contents stay in force.
func (s *Server) ReadTenants() { s.readTenants(0) }

func (s *Server) readTenants(asked uint64) {
	s.reloading.Lock()
	defer s.reloading.Unlock()
	table, err := s.reload()
	s.step(nil, &controller.Event{Kind: controller.Tenants, Conn: asked, Table: table, Err: err}, true)
}

// say logs an event.
func (s *Server) say(e *wire.Report_Event, err error) {
	level := slog.LevelInfo
	if e.Warn {
		level = slog.LevelWarn
	}
	attrs := []slog.Attr{slog.String("event", e.Kind)}
	if e.Session != 0 {
		attrs = append(attrs, slog.Uint64("session", uint64(e.Session)))
	}
	if e.Worker != 0 {
		attrs = append(attrs, slog.Uint64("worker", e.Worker))
	}
	if e.Gang != 0 {
		attrs = append(attrs, slog.Uint64("gang", e.Gang))
	}
	if e.Line != "" {
		attrs = append(attrs, slog.String("line", e.Line))
	}
	if e.FirstCall { // the line is not that of the gang itself
		attrs = append(attrs, slog.Bool("first_call", true))
	}
	if err != nil {
		attrs = append(attrs, slog.Any("reason", err))
	}
	s.log.LogAttrs(context.Background(), level, e.Text, attrs...)
}

// Check looks for contradictions: see State.Check.
func (s *Server) Check() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.Check()
}
