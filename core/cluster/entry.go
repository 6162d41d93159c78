package cluster

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/openpathways/pathways/core/controller"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/system"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/worker"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/bulk"
	"github.com/openpathways/pathways/transport/collective"
	"github.com/openpathways/pathways/transport/shm"
	"github.com/openpathways/pathways/transport/stream"
)

// entry brings a worker into a cluster, in steps that serve takes in this order: introduce, listen, join, meetPeers,
// config, work. close closes what the steps have opened.
type entry struct {
	WorkerConfig
	options    stream.Options
	in         *joined // nil if the driver is not a member of an epoch
	partitions bool    // whether this process carries the collectives of programs that span workers

	hello     *wire.Hello
	listeners []transport.Listener // nil once the exchange owns them
	conn      transport.Conn
	welcome   *wire.Welcome
	admitted  atomic.Pointer[wire.Welcome] // welcome, for the goroutines that admit peers
	board     *collective.Board            // nil if blocks of collectives go by sockets
	exchange  *bulk.Exchange
	closers   []func()
}

// onClose makes close call f, before the functions that were passed earlier.
func (e *entry) onClose(f func()) { e.closers = append(e.closers, f) }

func (e *entry) close() {
	for i := len(e.closers) - 1; i >= 0; i-- {
		e.closers[i]()
	}
	for _, l := range e.listeners {
		l.Close()
	}
}

// introduce prepares the worker's Hello to the controller, and memory for a board of this host's workers.
func (e *entry) introduce() error {
	e.hello = &wire.Hello{Role: wire.Role_ROLE_WORKER, Name: e.Name, Host: Host(), Network: network(),
		Worker: worker.Offer(e.Driver)}
	sayWho(e.hello)
	offer := e.hello.Worker
	offer.Island, offer.Host = e.Island, e.hello.Host
	for _, d := range offer.Devices {
		if e.MemoryLimit > 0 && (d.MemoryLimit == 0 || e.MemoryLimit < d.MemoryLimit) {
			d.MemoryLimit = e.MemoryLimit
		}
	}
	if e.in != nil {
		offer.Epoch, offer.Node = e.in.membership.Epoch, uint32(e.in.membership.Node)
	}
	if e.partitions {
		room, err := collective.CreateBoard(controller.BoardSlots)
		if err != nil {
			return err
		}
		e.onClose(func() { room.Close() })
		offer.Board = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), room.Fd())
	}
	return nil
}

// listen opens the addresses at which peers reach this worker. Peers may connect as soon as the controller has
// announced the worker, before this side has read its welcome: they are admitted once the key to check them has
// arrived.
func (e *entry) listen() error {
	from := e.options
	from.Identity = make([]byte, identitySize)
	rand.Read(from.Identity)
	e.hello.Worker.Identity = from.Identity
	from.Proof = func(h *wire.Hello) error {
		w := e.admitted.Load()
		if w == nil {
			return status.New(status.Unavailable, "this worker is not in a cluster yet")
		}
		return wire.CheckProof(w.Proof, w.Cluster, h)
	}
	for _, address := range e.Listen {
		l, err := stream.Listen(address, from, func(peer string, err error) {
			level := slog.LevelWarn
			if e.admitted.Load() == nil { // a worker that has heard of this one before it has read its welcome: it tries again
				level = slog.LevelDebug
			}
			e.Log.Log(context.Background(), level, "a connection was refused", "from", peer, "reason", err)
		})
		if err != nil {
			return err
		}
		e.listeners = append(e.listeners, l)
		e.hello.Worker.Addresses = append(e.hello.Worker.Addresses, l.Address())
	}
	return nil
}

// join connects to the controller, and opens the board that its welcome names.
func (e *entry) join(ctx context.Context) (err error) {
	if e.conn, e.welcome, err = e.dial(ctx, e.hello, e.options); err != nil {
		return err
	}
	if e.welcome.Board != nil {
		if e.board, err = openBoard(e.welcome.Board); err != nil {
			// Some hosts do not let a process open another's files.
			e.Log.Info("blocks of collectives go by sockets", "why", err)
			e.leave()
			e.hello.Worker.Board = ""
			if e.conn, e.welcome, err = e.dial(ctx, e.hello, e.options); err != nil {
				return err
			}
		} else {
			e.onClose(func() { e.board.Close() })
		}
	}
	e.admitted.Store(e.welcome)
	return nil
}

// leave gives up this worker's place in the cluster, which would otherwise be kept for the controller's lease.
func (e *entry) leave() {
	_ = transport.SayGoodbye(e.conn, nil) // a controller that has gone need not know
	e.conn.Close()
}

// meetPeers makes the exchange of blocks with other processes, which then owns the listeners.
func (e *entry) meetPeers() (err error) {
	peers, pool := e.options, shm.NewPool(shm.Config{Pin: e.pin()})
	lends := false
	if l, ok := e.Driver.(device.Lender); ok && e.board != nil {
		file, memory := l.Lent()
		e.board.Lend(file, memory, pool)
		lends = memory != nil
	}
	peers.Token = "" // peers ask for a proof instead
	e.exchange, err = bulk.New(bulk.Config{
		Self: e.welcome.Process, Host: e.hello.Host, Options: peers, Listeners: e.listeners, Log: e.Log, Here: true,
		Hello: &wire.Hello{Name: e.Name, Cluster: e.welcome.Cluster, Proof: wire.Prove(e.welcome.Proof, e.welcome.Process)},
		Pool:  pool, Lends: lends,
	})
	if err != nil {
		return err
	}
	e.listeners = nil
	e.onClose(func() { e.exchange.Close() })
	return nil
}

// pin returns the function that announces memory for arrays to the devices, nil if they do not need to know.
func (e *entry) pin() func(data []byte) (unpin func()) {
	driver, ok := e.Driver.(device.Pinner)
	if !ok {
		return nil
	}
	return func(data []byte) func() {
		unpin, err := driver.Pin(data)
		if err != nil && status.CodeOf(err) != status.Unimplemented {
			e.Log.Info("memory for arrays could not be pinned; they go by a copy", "bytes", len(data), "reason", err)
		}
		return unpin
	}
}

// config returns the configuration of the worker, with everything that carries blocks for it.
func (e *entry) config() worker.Config {
	config := worker.Config{
		Name: e.Name, Conn: e.conn, Driver: e.Driver, Exchange: e.exchange, Threads: Threads(e.Driver),
		Heartbeat:   time.Duration(e.welcome.HeartbeatMs) * time.Millisecond / 2,
		Cache:       e.Cache,
		CacheBytes:  e.CacheBytes,
		MemoryLimit: e.MemoryLimit, Memory: e.exchange.Memory, Apart: e.exchange.Apart,
		Breaks: e.exchange.Breaks, Connected: e.exchange.Connected, Handler: e.Handler, Log: e.Log,
		EvictAfter: e.EvictAfter, Evict: e.Evict, Ending: e.Ending, Piece: e.Piece,
	}
	if e.partitions {
		engine := collective.New(e.exchange, 0, e.board)
		e.onClose(engine.Close)
		config.Engine = engine
		config.Moved = func(gang uint64) int64 { return e.exchange.Moved(transport.Collectives(0), gang) }
	}
	if e.board != nil {
		e.board.Meet(e.welcome.Process, int(e.welcome.Board.Slot))
		config.Memory = func() transport.Memory {
			m := e.exchange.Memory()
			m.Free += e.board.Memory()
			return m
		}
		config.Exchange = neighbors{e.exchange, e.board, e.welcome.Board.Number}
	}
	if e.in != nil {
		e.in.come(&wire.Process{Number: e.welcome.Process, Epoch: e.in.membership.Epoch, Node: uint32(e.in.membership.Node)})
		config.Exchange, config.DeviceID = fellows{e.exchange, e.in}, e.in.device
		config.Stuck, config.StuckAfter = e.in.member.Leave, cmp.Or(e.Stuck, stuckAfter)
	}
	return config
}

// work serves until ctx ends or the controller is gone, and tells peers why this worker leaves, since they may notice
// it before the controller tells them.
func (e *entry) work(ctx context.Context, w *worker.Worker) error {
	over := func() (why error) { // nil if this worker was stopped
		if e.in != nil {
			_, why = e.in.member.Err()
		}
		return why
	}
	defer context.AfterFunc(ctx, func() { w.Leave(over()) })()
	err := w.Serve()
	if ctx.Err() != nil {
		why := over()
		if why == nil {
			why = controller.Stopped(e.Name)
		}
		e.exchange.Leave(why)
		return nil
	}
	if err != nil {
		e.exchange.Leave(err)
	}
	return err
}

// openBoard maps this worker's part of a board.
func openBoard(b *wire.Board) (*collective.Board, error) {
	f, err := os.OpenFile(b.Path, os.O_RDWR, 0)
	if err != nil {
		return nil, system.Error(err, "the host's memory for collectives cannot be opened")
	}
	defer f.Close()
	return collective.OpenBoard(f, int(b.Slot))
}

// neighbors is an exchange that tells a board which other workers use it.
type neighbors struct {
	transport.Mover
	board  *collective.Board
	number uint64
}

// Peers implements transport.Exchange.
func (n neighbors) Peers(come []*wire.Process, gone []uint64, why error) {
	for _, p := range come {
		if p.Board == n.number {
			n.board.Meet(p.Number, int(p.Slot))
		}
	}
	n.Mover.Peers(come, gone, why)
}
