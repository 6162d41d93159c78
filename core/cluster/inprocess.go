package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/controller"
	"github.com/openpathways/pathways/core/controller/durable"
	"github.com/openpathways/pathways/core/controller/server"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/tenant"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/worker"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/collective"
	"github.com/openpathways/pathways/transport/inproc"
	"github.com/openpathways/pathways/transport/link"
	"github.com/openpathways/pathways/transport/shm"
)

// InProcess configures a whole cluster in one process: a controller, workers and their
// clients, connected by queues instead of sockets. It is for tests and simulation; only
// the connections differ from those of a cluster of processes.
type InProcess struct {
	// Drivers are the workers' devices, one driver per worker. The caller owns them and
	// closes them after the cluster. Drivers with an interconnect of their own are members
	// of one epoch, in this order.
	Drivers []device.Driver
	// Islands names each worker's island; nil puts all of them into one.
	Islands    []string
	Memory     int64         // MemoryLimit of worker.Config; the controller admits by the drivers' own limits
	Heartbeat  time.Duration // see server.Config, as what follows
	Silence    time.Duration
	Lease      time.Duration
	Store      *durable.Store
	Disk       func() time.Duration
	Sequential bool
	FirstCome  bool
	Tenants    *tenant.Table                 // clients belong to the tenants whose tokens they show
	Reload     func() (*tenant.Table, error) // as in server.Config, as what follows
	Limits     controller.Limits
	MemoryWait time.Duration
	// Evict replaces the restart of a worker's process, given by its index: its devices
	// are then lost. Ending is called when a worker begins to end, which its devices may
	// delay. See EvictAfter and what follows in worker.Config.
	Evict, Ending func(index int, why error)
	EvictAfter    time.Duration
	Piece         int64
	// Network simulates a network between machines. Its nodes are "controller", the
	// workers "worker-0", "worker-1" …, and clients by their names.
	Network *inproc.Conditions
	// Patience is how long, with a Network, transfers between two processes wait while
	// these cannot reach each other.
	Patience time.Duration
	Log      *slog.Logger
	// Of clients, see client.Config:
	Hurry     func() bool
	Section   int
	Thread    func() int32
	Processor func(thread int32) (took time.Duration, runs bool)
}

// Local is a running InProcess.
type Local struct {
	network   *inproc.Network
	listener  *inproc.Listener
	server    atomic.Pointer[server.Server]
	hub       *inproc.Hub
	pool      *shm.Pool
	config    InProcess
	in        *joined                            // the epoch of the drivers that have an interconnect of their own
	boards    map[uint64]*collective.InprocBoard // of the others, by number
	workers   []*member
	accepting sync.WaitGroup

	mu    sync.Mutex // guards the rest
	parts map[string]uint64
	names map[uint64]string // the other way
}

// member is a worker of a Local.
type member struct {
	worker   *worker.Worker
	exchange *inproc.Exchange
	engine   *collective.Engine // nil if the driver has an interconnect of its own, and board with it
	board    *collective.Board
	served   chan struct{}
}

const inProcessName = "controller"

// Start makes the cluster. All workers have joined when it returns.
//
// Errors: INVALID_ARGUMENT for invalid fields; the reason why a worker was refused.
func (c InProcess) Start(ctx context.Context) (_ *Local, err error) {
	if len(c.Drivers) == 0 || c.Islands != nil && len(c.Islands) != len(c.Drivers) {
		return nil, status.New(status.InvalidArgument,
			"a cluster needs a driver for each worker, and an island for each or for none: got %d drivers and %d islands",
			len(c.Drivers), len(c.Islands))
	}
	server, err := c.controller()
	if err != nil {
		return nil, err
	}
	pool := shm.NewPool(shm.Config{})
	credentials := transport.Credentials{Software: "pathways"}
	if c.Tenants != nil {
		credentials.TenantOf = c.Tenants.OfToken
	}
	l := &Local{network: inproc.NewNetwork(credentials), hub: inproc.NewHub(pool), pool: pool,
		config: c, parts: map[string]uint64{}, names: map[uint64]string{},
		boards: map[uint64]*collective.InprocBoard{},
		in:     &joined{membership: device.Membership{Epoch: 1}, nodes: map[uint64]int{}}}
	l.server.Store(server)
	if c.Network != nil {
		l.network.Conditions = c.Network
		l.hub.Patience = c.Patience
		l.hub.Delay = func(from, to uint64) time.Duration { return c.Network.Delay(l.name(from), l.name(to)) }
		if see := c.Network.Arrived; see != nil {
			l.hub.Arrived = func(from, to uint64, key transport.Key, size int64) {
				see(l.name(from), l.name(to), 0, fmt.Appendf(nil, "%v %d", key, size))
			}
		}
		if c.Network.Bandwidth != nil {
			l.hub.Bandwidth = func(from, to uint64) float64 { return c.Network.Bandwidth(l.name(from), l.name(to)) }
		}
	}
	defer func() {
		if err != nil {
			l.Close()
		}
	}()
	if l.listener, err = l.network.Listen(inProcessName); err != nil {
		return nil, err
	}
	l.accepting.Go(func() { _ = server.Accept(l.listener) }) // ends with the listener
	for i, d := range c.Drivers {
		island := ""
		if c.Islands != nil {
			island = c.Islands[i]
		}
		if err := l.Join(ctx, fmt.Sprintf("worker-%d", i), d, island); err != nil { // as pathways up names them
			return nil, status.Wrap(err, "worker %d of %d", i, len(c.Drivers))
		}
	}
	return l, nil
}

// controller makes the controller.
func (c *InProcess) controller() (*server.Server, error) {
	return server.New(server.Config{
		Heartbeat: c.Heartbeat, Silence: c.Silence, Lease: c.Lease, Store: c.Store, Disk: c.Disk, Sequential: c.Sequential,
		FirstCome: c.FirstCome, Tenants: c.Tenants, Reload: c.Reload, Limits: c.Limits, MemoryWait: c.MemoryWait,
		Log: c.Log})
}

// Join adds a worker with these devices, whose index is the number of those that joined before. It must not be called
// in parallel with methods that name workers by their indices.
func (l *Local) Join(ctx context.Context, name string, d device.Driver, island string) error {
	c, index := &l.config, len(l.workers)
	offer := worker.Offer(d)
	offer.Island, offer.Host = island, "here"
	_, partitions := d.(device.Partitioner)
	if partitions {
		offer.Board = "memory of this process"
	} else {
		offer.Epoch, offer.Node = l.in.membership.Epoch, l.in.add(d)
	}
	conn, welcome, err := link.Dial(ctx, l.network, "inproc:"+inProcessName,
		&wire.Hello{Role: wire.Role_ROLE_WORKER, Name: name, Worker: offer})
	if err != nil {
		return err
	}
	l.part(name, welcome.Process)
	m := &member{served: make(chan struct{})}
	exchange, err := l.hub.Join(welcome.Process, name)
	if err != nil {
		conn.Close()
		return err
	}
	m.exchange = exchange
	config := worker.Config{
		Name: name, Conn: conn, Driver: d, Exchange: m.exchange, MemoryLimit: c.Memory, Log: c.Log,
		Heartbeat: time.Duration(welcome.HeartbeatMs) * time.Millisecond / 2,
		Threads:   Threads(d), EvictAfter: c.EvictAfter, Piece: c.Piece, Apart: m.exchange.Apart,
	}
	if c.Evict != nil {
		config.Evict = func(why error) { c.Evict(index, why) }
	}
	if c.Ending != nil {
		config.Ending = func(why error) { c.Ending(index, why) }
	}
	if partitions {
		if m.board, err = l.board(welcome); err != nil {
			conn.Close()
			m.exchange.Close()
			return err
		}
		m.engine = collective.New(m.exchange, 0, m.board)
		config.Engine, config.Exchange = m.engine, neighbors{m.exchange, m.board, welcome.Board.Number}
	} else {
		l.in.come(&wire.Process{Number: welcome.Process, Epoch: offer.Epoch, Node: offer.Node})
		config.Exchange, config.DeviceID = fellows{m.exchange, l.in}, l.in.device
	}
	if m.worker, err = worker.New(config); err != nil {
		conn.Close()
		m.end()
		return err
	}
	l.workers = append(l.workers, m)
	go func() {
		defer close(m.served)
		m.worker.Serve()
		m.end()
	}()
	return nil
}

// board returns a worker's part of the board that its welcome names.
func (l *Local) board(w *wire.Welcome) (*collective.Board, error) {
	all := l.boards[w.Board.Number]
	if all == nil {
		var err error
		if all, err = collective.NewInprocBoard(controller.BoardSlots); err != nil {
			return nil, err
		}
		l.boards[w.Board.Number] = all
	}
	board, err := all.Open(int(w.Board.Slot))
	if err == nil {
		board.Meet(w.Process, int(w.Board.Slot))
	}
	return board, err
}

// Threads returns the size of the pool of threads that a driver's devices share, as the
// CPU client of XLA chooses it; 0 if the devices are queues.
func Threads(d device.Driver) int {
	if d.Platform() != "cpu" {
		return 0
	}
	return max(runtime.NumCPU(), len(d.Devices()))
}

// Connect begins a session with all devices.
func (l *Local) Connect(ctx context.Context, name string, notify client.Notify) (client.Cluster, error) {
	return l.ConnectTo(ctx, name, 0, notify)
}

// ConnectTo begins a session with exactly the given number of devices; 0 means all.
func (l *Local) ConnectTo(ctx context.Context, name string, devices int, notify client.Notify) (client.Cluster, error) {
	return l.ConnectAsking(ctx, &wire.Hello{Name: name, Devices: uint32(devices)}, notify)
}

// ConnectAsking begins a session with what its Hello asks for: a name, and which devices.
func (l *Local) ConnectAsking(ctx context.Context, hello *wire.Hello, notify client.Notify) (client.Cluster, error) {
	name := hello.Name
	return client.Connect(ctx, client.Config{
		Dialer: l.network, Address: "inproc:" + inProcessName, Hello: hello, Notify: notify,
		Hurry: l.config.Hurry, Section: l.config.Section, Thread: l.config.Thread, Processor: l.config.Processor,
		Exchange: func(w *wire.Welcome) (transport.Exchange, error) {
			l.part(name, w.Process)
			return l.hub.Join(w.Process, name)
		},
	})
}

// part records the name of a process.
func (l *Local) part(name string, process uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.parts[name], l.names[process] = process, name
}

func (l *Local) name(process uint64) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.names[process]
}

// Memory returns the host memory of bytes in transit, by purpose.
func (l *Local) Memory() shm.Stats { return l.pool.Stats() }

// Answer returns what a viewer is told, as Server.Answer does.
func (l *Local) Answer(ask *wire.Ask, to wire.Viewer) *wire.Report {
	return l.server.Load().Answer(ask, to)
}

// Timeline returns what some devices did, as Server.Timeline does.
func (l *Local) Timeline(look *wire.Look) *wire.Timeline { return l.server.Load().Timeline(look) }

// Traces lists traces, as Server.Traces does.
func (l *Local) Traces() []*wire.Report_Trace { return l.server.Load().Traces() }

// Trace returns a trace, as Server.Trace does.
func (l *Local) Trace(number uint64) []byte { return l.server.Load().Trace(number) }

// Report returns the controller's report.
func (l *Local) Report() *wire.Report { return l.server.Load().Report() }

// Lose ends a worker as if its process had died.
func (l *Local) Lose(index int) {
	m := l.workers[index]
	m.worker.Close()
	<-m.served
}

func (m *member) end() {
	if m.engine != nil {
		m.engine.Close()
	}
	m.exchange.Close()
	if m.board != nil {
		m.board.Close()
	}
}

// Close ends the cluster and all its sessions.
func (l *Local) Close() {
	if l.listener != nil {
		l.listener.Close()
	}
	l.accepting.Wait()
	l.server.Load().Close()
	for _, m := range l.workers {
		<-m.served
	}
	for _, b := range l.boards {
		b.Close()
	}
	l.pool.Trim()
}
