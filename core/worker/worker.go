// Package worker is the process that owns devices: it keeps its shards of the
// cluster's objects and runs its part of every gang.
//
// A Worker stands between four things: a connection to the controller, a driver
// of devices, an exchange that brings bytes from and to other processes, and an
// engine for collectives between processes.
//
// # Guarantees
//
// Operations that share a device begin on it in the order in which they came. One
// that waits, for bytes or for another gang, holds back what comes after it on
// that device and nothing else. An operation that reads a failed shard fails with
// the same error and nothing of it begins on that device.
//
// Every gang that was dispatched is reported once, when all its devices here are
// through with it; Free, which cannot fail, is not reported.
//
// # Waits
//
// A queue waits for bytes (until their sender has gone), for a program to be
// loaded, for the other devices of a gang, and for the driver to be through with
// earlier work. Abort ends the waits of a gang, Drop those of a session, and the
// end of the connection all of them. Waits returns what each queue waits for, and for
// which process or device a device waits in a collective or in a call of its client.
//
// # Concurrency
//
// One goroutine reads the connection and takes operations apart. Each device has a queue,
// which has one owner at a time: mostly a goroutine of its own. What the device does next is
// decided by a state machine without goroutines or clock, core/worker/devicequeue. mailbox.go
// says who owns a queue when, queue.go why nothing that can begin is left behind, gang.go how
// an operation ends, run.go and together.go how a computation reaches the driver. The lock of
// a queue's mailbox is held for moments only, never while the driver is called.
//
// Exported methods may be called from any goroutine. Cluster assembly and command lines
// import it.
package worker

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/openpathways/pathways/core/executor"
	"github.com/openpathways/pathways/core/observe"
	"github.com/openpathways/pathways/core/schedule"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/collective"
)

// Engine carries collectives of gangs with devices in other processes.
type Engine interface {
	// Begin makes a gang known, before any of its devices enters a collective.
	Begin(g collective.Gang)
	// Enter is a device's arrival at a collective.
	Enter(c collective.Call)
	// Abort ends the calls of a gang, and those to come, with err.
	Abort(gang uint64, err error)
	// Failure is why the calls of a gang were ended; nil if they were not.
	Failure(gang uint64) error
	// End forgets a gang.
	End(gang uint64)
	// Lost ends the calls of all gangs that have a rank on a process which has
	// gone.
	Lost(process uint64, why error)
	// Waits lists the collectives that devices are in.
	Waits() []collective.Wait
	// Counts returns how many collectives devices have called.
	Counts() []collective.Count
}

// Config configures a worker.
type Config struct {
	Name     string // for people
	Conn     transport.Conn
	Driver   device.Driver
	Exchange transport.Mover
	Engine   Engine // nil: programs whose collectives span processes are refused, but for the driver's own
	// Threads is the pool that the devices share, where they are threads and not
	// queues; see schedule.Threads. 0: they are queues.
	Threads int
	// DeviceID returns the driver's number for a place, of this or of other members
	// of the driver's epoch. nil: only places of this worker have one.
	DeviceID func(worker uint64, local int) (id int, ok bool)
	// Stuck is told where a run over several members of the driver's epoch has failed
	// and has not ended in StuckAfter, since the driver cannot end it (see
	// device.Aborter). It may be called more than once. nil: the run stays.
	Stuck      func(error)
	StuckAfter time.Duration
	// Evict restarts this process, where a computation of a session that has gone
	// has run for EvictAfter since. It need not return. nil, or 0: it runs on.
	Evict      func(why error)
	EvictAfter time.Duration
	// Ending is told once that the connection has ended and why, before the worker ends
	// what is under way. That may take any time where a computation does not end, so
	// Ending may begin to bound it. nil: nothing is told.
	Ending func(why error)
	// Heartbeat is how often the controller is to hear of this worker; 0: only
	// when there is something to say.
	Heartbeat time.Duration
	// MemoryLimit is the bytes that arrays may have on each device; 0: as many as
	// the driver has room for.
	MemoryLimit int64
	// Cache is a folder that only this user may write to, in which compiled programs survive this process; "": none.
	Cache string
	// CacheBytes bounds the programs in Cache: those that were used least recently go. 0: there is no bound.
	CacheBytes int64
	// Memory is the host memory that the exchange has, for reports. nil: it is not known.
	Memory func() transport.Memory
	// Apart lists the processes that the exchange cannot reach, for reports. nil: it is
	// not known.
	Apart func() []transport.Apart
	// Breaks lists the processes whose connections to the exchange have broken, for reports. nil: it is not known.
	Breaks func() []transport.Breaks
	// Connected returns how many processes the exchange has a connection to, for reports. nil: it is not known.
	Connected func() int
	// Moved returns how many bytes have come so far for a gang's collectives, of blocks that are on their way. nil: it is
	// not known.
	Moved func(gang uint64) int64
	// Handler makes a handler of custom calls, which a client has registered, one of
	// this process. nil: it has them all, or does without.
	Handler func(*wire.Handler) error
	// Piece bounds the bytes of a piece of an array that moves in pieces, see pieces.go; all workers have the same. 0: 4
	// MiB.
	Piece int64
	Log   *slog.Logger // nil: nothing is logged
}

// window bounds the computations under way on one device. It keeps a device busy and is half of what XLA's CPU client
// takes before its Execute blocks.
const window = 16

// How long Close waits for the driver's work to end after all its waits have
// been ended.
const closeWait = 30 * time.Second

// Gangs of several devices whose collectives are the plugin's, under way at
// once, on drivers whose devices share a pool of threads. XLA's CPU client
// deadlocks when more than 32 wait on its threads.
const threadWindow = 16

// Worker runs a part of a cluster's gangs.
type Worker struct {
	config   Config
	conn     transport.Conn
	driver   device.Driver
	log      *slog.Logger
	self     uint64
	queues   []*queue
	island   *executor.Island // nil where devices are queues
	report   report
	recorder observe.Recorder
	since    time.Time // when it was made, for elapsed
	// epoch is elapsed's zero in nanoseconds since the Unix epoch, as the clock said when a profile last began.
	epoch   atomic.Int64
	limited bool // the memory of some device has a limit

	artifacts artifacts
	host      hostMemory

	ctx    context.Context // ends with the connection
	cancel context.CancelCauseFunc
	beside sync.WaitGroup // compiles, loads, heartbeats
	slots  chan struct{}  // of compiles and loads

	// Of the goroutine that reads the connection.
	programs   map[programKey]*program
	sessions   map[uint32]*session
	graphs     map[programKey]*graph
	recordings map[recordingKey]*observe.Recording
	dispatch   wire.Dispatch
	run        wire.Run
	played     wire.Played
	posts      posts
	newest     uint64 // the highest number of a gang that it was sent

	mu      sync.Mutex // guards the rest
	gangs   map[uint64]*gang
	idle    *sync.Cond // gangs is empty
	started bool
	closing bool
	specs   specs
	giveUp  map[uint64]context.CancelCauseFunc // of compiles under way
	names   map[uint64]string                  // of workers and clients, by process
	// Workers to and from which long moves go in pieces, by process.
	piecewise map[uint64]bool
	clients   map[uint32]client  // of sessions that live, or have work under way
	calls     map[uint64]calling // of functions of clients, by their numbers

	hostCalls atomic.Uint64 // numbers given to calls, by twos

	closed sync.Once
	unread chan struct{} // closed once the goroutine that reads the connection touches nothing more
}

// New makes a worker. Serve runs it; Close is owed in any case.
//
// Errors: INVALID_ARGUMENT, or why the driver does not take a collective handler.
func New(c Config) (*Worker, error) {
	if c.Conn == nil || c.Driver == nil || c.Exchange == nil || c.Threads < 0 || c.MemoryLimit < 0 {
		return nil, status.New(status.InvalidArgument,
			"a worker needs a connection, a driver and an exchange, and bounds that are not negative")
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Piece == 0 {
		c.Piece = defaultPiece
	}
	w := &Worker{
		config: c, conn: c.Conn, driver: c.Driver, log: c.Log, self: c.Exchange.Self(),
		programs: map[programKey]*program{}, sessions: map[uint32]*session{}, graphs: map[programKey]*graph{},
		recordings: map[recordingKey]*observe.Recording{}, gangs: map[uint64]*gang{},
		giveUp: map[uint64]context.CancelCauseFunc{}, names: map[uint64]string{}, clients: map[uint32]client{},
		calls: map[uint64]calling{}, piecewise: map[uint64]bool{},
		slots: make(chan struct{}, 2), since: time.Now(), unread: make(chan struct{}),
	}
	w.idle = sync.NewCond(&w.mu)
	w.boundCache()
	w.report.conn = c.Conn
	w.report.sent.L = &w.report.mu
	w.host.session = map[uint32]int64{}
	if p, ok := c.Driver.(device.Partitioner); ok && c.Engine != nil {
		if err := p.ServeCollectives(w.collective); err != nil {
			return nil, status.Wrap(err, "worker %s", c.Name)
		}
	}
	if h, ok := c.Driver.(device.HostCaller); ok && c.Engine != nil {
		if err := h.ServeHostCalls(w.hostCall); err != nil {
			return nil, status.Wrap(err, "worker %s", c.Name)
		}
	}
	if c.Threads > 0 {
		cells := make([]executor.Cell, 4*threadWindow)
		free := make([]*executor.Cell, len(cells))
		for i := range cells {
			free[i] = &cells[i]
		}
		w.island = executor.NewIsland(free, schedule.Config{Policy: &schedule.Threads{Pool: c.Threads,
			Apart: c.Engine != nil}})
		w.island.Bound(threadWindow)
	}
	w.ctx, w.cancel = context.WithCancelCause(context.Background())
	w.artifacts.init(w.ctx)
	w.limited = c.MemoryLimit > 0
	for i := range c.Driver.Devices() {
		if s, err := c.Driver.MemoryStats(i); err == nil && s.Limit > 0 {
			w.limited = true
		}
		w.queues = append(w.queues, newQueue(w, i))
	}
	return w, nil
}

// Serve reads the connection until it ends, and then ends all that is under way.
// It returns why; a controller that said goodbye without an error is nil, and so is
// a worker that was closed before.
func (w *Worker) Serve() error {
	if started, err := w.start(); !started {
		return err
	}
	err := w.read()
	close(w.unread)
	if err != nil {
		err = status.Wrap(err, "worker %s", w.config.Name)
	}
	if w.config.Ending != nil {
		w.config.Ending(err)
	}
	w.Close()
	return err
}

// start starts the queues and the heartbeats, unless the worker is closed already: Close, which may come at the same
// time, ends either all of them or finds none.
func (w *Worker) start() (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.started {
		return false, status.New(status.FailedPrecondition, "a worker serves once")
	}
	if w.closing {
		return false, nil
	}
	w.started = true
	for _, q := range w.queues {
		go q.serve()
	}
	if w.config.Heartbeat > 0 {
		w.beside.Go(w.heartbeats)
	}
	return true, nil
}

// Close ends the connection and all that is under way. The driver, the exchange
// and the engine stay the caller's.
func (w *Worker) Close() {
	w.closed.Do(w.close)
}

// Leave is Close of a worker that is to end: it tells the controller first, and the reason, unless it was just told to
// stop.
func (w *Worker) Leave(why error) {
	w.goodbye(why)
	w.Close()
}

// goodbye tells the controller that this worker ends.
func (w *Worker) goodbye(why error) {
	_ = transport.SayGoodbye(w.conn, why) // a controller that has gone need not know
}

func (w *Worker) close() {
	ended := status.New(status.Unavailable, "worker %s has lost its controller", w.config.Name)
	w.cancel(ended)
	w.conn.Close()
	w.mu.Lock()
	w.closing = true
	started := w.started
	w.mu.Unlock()
	w.failAll(ended)
	if started {
		// The reader may be acting on a message, even inside the driver, where it waits for a gang that has failed by
		// now. It may also have begun another gang since.
		<-w.unread
		w.failAll(ended)
	}
	if w.island != nil {
		w.island.Close()
	}
	w.beside.Wait()
	if !started {
		w.artifacts.close()
		return
	}
	// Every callback of the driver and of the exchange belongs to a gang, so that
	// the queues may stop once there are no gangs.
	late := time.AfterFunc(closeWait, func() {
		waits, running := w.Waits(), w.Running()
		w.mu.Lock()
		gangs := len(w.gangs)
		clear(w.gangs)
		w.idle.Broadcast()
		w.mu.Unlock()
		w.log.Error("work of the driver does not end; its memory is given up", "worker", w.config.Name, "gangs", gangs,
			"waits", fmt.Sprint(waits),
			"running", fmt.Sprint(running))
	})
	w.mu.Lock()
	for len(w.gangs) > 0 {
		w.idle.Wait()
	}
	w.mu.Unlock()
	late.Stop()
	for _, q := range w.queues {
		q.stop()
	}
	for _, q := range w.queues {
		<-q.stopped
	}
	for _, p := range w.programs {
		p.release()
	}
	w.artifacts.close()
}

// under returns some of the gangs that are under way, in their order. The caller holds mu.
func (w *Worker) under(which func(*gang) bool) (some []*gang) {
	for _, g := range w.gangs {
		if which(g) {
			some = append(some, g)
		}
	}
	slices.SortFunc(some, func(a, b *gang) int { return cmp.Compare(a.ID, b.ID) })
	return some
}

// failAll fails all gangs that are under way.
func (w *Worker) failAll(why error) {
	w.mu.Lock()
	under := w.under(func(*gang) bool { return true })
	w.mu.Unlock()
	for _, g := range under {
		g.fail(why)
	}
}

// read is the loop over the controller's messages.
func (w *Worker) read() error {
	for n := 0; ; n++ {
		// Ends are held back while there is more to begin.
		if n%32 == 0 || !w.conn.Buffered() {
			w.posts.leave(true)
			w.report.rest()
		} else {
			w.report.hold()
		}
		kind, payload, err := w.conn.Recv()
		if err == nil && kind == wire.KindRestarted {
			err = w.rejoin()
			if err == nil {
				continue
			}
		}
		if err != nil {
			if w.ctx.Err() != nil {
				return nil
			}
			return err
		}
		if kind == wire.KindGoodbye {
			var m wire.Goodbye
			if err := wire.Decode(kind, payload, &m); err != nil {
				return err
			}
			return wire.Leave(&m)
		}
		if err := w.take(kind, payload); err != nil {
			return err
		}
	}
}

// take acts on one message. An error means that the controller cannot be
// understood.
func (w *Worker) take(kind wire.Kind, payload []byte) error {
	if kind != wire.KindDispatch {
		w.posts.leave(false)
	}
	switch kind {
	case wire.KindDispatch:
		if err := w.dispatch.Parse(payload); err != nil {
			return err
		}
		return w.begin(&w.dispatch)
	case wire.KindPlayed:
		if err := w.played.Parse(payload); err != nil {
			return err
		}
		w.play(&w.played)
	case wire.KindGraph:
		return wire.Decoded(kind, payload, new(wire.Graph), w.graph)
	case wire.KindAbort:
		return wire.Decoded(kind, payload, new(wire.Abort), func(m *wire.Abort) {
			if g := w.gang(m.Gang); g != nil {
				g.fail(reason(m.Status))
			}
		})
	case wire.KindCompile:
		return wire.Decoded(kind, payload, new(wire.Compile), w.compile)
	case wire.KindLoad:
		return wire.Decoded(kind, payload, new(wire.Load), w.load)
	case wire.KindGive:
		return wire.Decoded(kind, payload, new(wire.Give), w.give)
	case wire.KindSource:
		return wire.Decoded(kind, payload, new(wire.Source), w.source)
	case wire.KindForget:
		return wire.Decoded(kind, payload, new(wire.Forget), func(m *wire.Forget) {
			for _, p := range m.Programs {
				w.forget(programKey{m.Session, p})
			}
			for _, g := range m.Graphs {
				delete(w.graphs, programKey{m.Session, g})
			}
			for _, op := range m.Compiles {
				w.unwanted(op)
			}
			w.artifacts.drop(m.Artifacts...)
		})
	case wire.KindProfile:
		return wire.Decoded(kind, payload, new(wire.Profile), w.profile)
	case wire.KindWatch:
		return wire.Decoded(kind, payload, new(wire.Watch), w.watch)
	case wire.KindPeers:
		return wire.Decoded(kind, payload, new(wire.Peers), w.peers)
	case wire.KindDrop:
		return wire.Decoded(kind, payload, new(wire.Drop), w.drop)
	case wire.KindSettled:
		return wire.Decoded(kind, payload, new(wire.Settled), w.report.settle)
	case wire.KindSession:
		return wire.Decoded(kind, payload, new(wire.Session), w.session)
	case wire.KindHeartbeat:
	default:
		w.log.Debug("a message of an unknown kind", "kind", kind)
	}
	return nil
}

// reason is the error of a message that must have one.
func reason(s *wire.Status) error {
	if err := s.Err(); err != nil {
		return err
	}
	return status.New(status.Cancelled, "the controller ended it and gave no reason")
}

// peers records processes.
func (w *Worker) peers(m *wire.Peers) {
	why := m.Why.Err()
	w.mu.Lock()
	for _, p := range m.Come {
		w.names[p.Number] = p.Name
		if p.Pieces {
			w.piecewise[p.Number] = true
		}
	}
	for _, n := range m.Gone {
		delete(w.names, n)
		delete(w.piecewise, n)
	}
	w.mu.Unlock()
	w.config.Exchange.Peers(m.Come, m.Gone, why)
	if w.config.Engine != nil && !m.Clients {
		if why == nil {
			why = status.New(status.Unavailable, "the controller reports that the process is lost")
		}
		for _, n := range m.Gone {
			w.config.Engine.Lost(n, why)
		}
	}
}

// heartbeats tells the controller that this worker lives.
func (w *Worker) heartbeats() {
	t := time.NewTicker(w.config.Heartbeat)
	defer t.Stop()
	logged, seen, moved := journal{}, sightings{}, moves{}
	idle := idleness{looked: time.Now(), used: processorTime(), since: time.Now()}
	for {
		select {
		case <-w.ctx.Done():
			return
		case <-t.C:
		}
		m := &wire.Heartbeat{MemoryInUse: make([]int64, len(w.queues))}
		for i, q := range w.queues {
			if s, err := w.driver.MemoryStats(i); err == nil {
				m.MemoryInUse[i] = s.InUse
			}
			m.Objects += uint64(q.objects.Load())
			m.DeviceNs = append(m.DeviceNs, q.charged.Load())
		}
		m.Host = w.HostMemory()
		m.HostBytes = m.Host.Blocks + m.Host.Collectives + m.Host.Assembling + m.Host.Programs
		waits := w.Waits()
		m.Standing, m.MoreStanding = w.tellWaits(waits, moved, time.Now())
		w.logLong(waits, logged)
		m.Apart, m.MoreApart = w.apart()
		m.Links, m.MoreLinks = w.links()
		if w.config.Connected != nil {
			m.Connected = uint32(w.config.Connected())
		}
		m.Collectives = w.countsCollectives()
		running := w.running(seen, time.Now())
		m.Running, m.MoreRunning = tell(running)
		if w.driver.Platform() == "cpu" {
			m.IdleMs = idle.look(time.Now(), processorTime()).Milliseconds()
		}
		if w.conn.Send(wire.KindHeartbeat, wire.Encode(nil, m)) != nil {
			return // the reader learns why
		}
		if m := w.doing(); m != nil {
			_ = w.conn.Send(wire.KindDoing, wire.Encode(nil, m)) // the next heartbeat learns why
		}
		if r := overdue(running, w.config.EvictAfter); r != nil && w.config.Evict != nil {
			w.evict(r)
			return
		}
	}
}

// background is for reading the errors of events that have fired.
var background = context.Background()
