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
	"github.com/openpathways/pathways/transport/stream"
)

// WorkerConfig is what a worker's process is made from.
type WorkerConfig struct {
	Address string   // of the controller
	Listen  []string // addresses at which other processes reach this one's bytes; at least one
	Secret  Secret
	Name    string
	Island  string
	Driver  device.Driver             // stays the caller's
	Handler func(*wire.Handler) error // see worker.Config
	// MemoryLimit is the bytes that arrays may have on each device; 0: as many as
	// the driver has room for.
	MemoryLimit int64
	Heartbeat   time.Duration
	Silence     time.Duration
	Wait        time.Duration // for the controller to be there
	// EvictAfter, Evict and Ending: see worker.Config.
	EvictAfter time.Duration
	Evict      func(why error)
	Ending     func(why error)
	Stuck      time.Duration // of members: how long a run that has failed may wait for others; 0 is 10 s
	Versions   map[string]string
	Software   string
	Log        *slog.Logger
}

// How long ServeWorker waits between attempts to reach the controller.
const redial = 100 * time.Millisecond

// identitySize is the bytes of WorkerOffer.identity: enough that no two workers have the same, and that none can be guessed.
const identitySize = 16

const stuckAfter = 10 * time.Second

// ServeWorker runs a worker until ctx ends or its controller goes. The end of ctx
// is no error.
//
// Errors: those of listening, the controller's refusal, UNAVAILABLE where it
// cannot be reached within Wait or has gone without a word.
func ServeWorker(ctx context.Context, c WorkerConfig) error {
	o, err := c.options()
	if err != nil {
		return err
	}
	return c.serve(ctx, o, nil)
}

// options are those of the worker's connections.
func (c WorkerConfig) options() (stream.Options, error) {
	secure, err := c.Secret.tls()
	return stream.Options{
		Credentials: transport.Credentials{Token: c.Secret.Token, Software: c.Software, Versions: c.Versions},
		Config:      stream.Config{Heartbeat: c.Heartbeat, Silence: c.Silence}, TLS: secure,
	}, err
}

// serve is ServeWorker. Joined is not nil where the driver is a member of an
// epoch.
func (c WorkerConfig) serve(ctx context.Context, o stream.Options, in *joined) error {
	var err error
	hello := &wire.Hello{Role: wire.Role_ROLE_WORKER, Name: c.Name, Host: Host(), Network: network(), Worker: worker.Offer(c.Driver)}
	hello.Worker.Island, hello.Worker.Host = c.Island, hello.Host
	for _, d := range hello.Worker.Devices {
		if c.MemoryLimit > 0 && (d.MemoryLimit == 0 || c.MemoryLimit < d.MemoryLimit) {
			d.MemoryLimit = c.MemoryLimit
		}
	}
	_, partitions := c.Driver.(device.Partitioner)
	if in != nil {
		partitions = false // the driver's own interconnect carries what spans workers
		hello.Worker.Epoch, hello.Worker.Node = in.membership.Epoch, uint32(in.membership.Node)
	}
	var own *os.File // room for a board, for this host's workers
	if partitions {
		if own, err = collective.CreateBoard(controller.BoardSlots); err != nil {
			return err
		}
		defer own.Close()
		hello.Worker.Board = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), own.Fd())
	}

	// Peers may come as soon as the controller has told them, which is before this
	// side has its answer; they are let in when the key is there to check them.
	var let atomic.Pointer[wire.Welcome]
	from := o
	from.Identity = make([]byte, identitySize)
	rand.Read(from.Identity)
	hello.Worker.Identity = from.Identity
	from.Proof = func(h *wire.Hello) error {
		w := let.Load()
		if w == nil {
			return status.New(status.Unavailable, "this worker is not in a cluster yet")
		}
		return wire.CheckProof(w.Proof, w.Cluster, h)
	}
	var listeners []transport.Listener
	closeAll := func() {
		for _, l := range listeners {
			l.Close()
		}
	}
	for _, address := range c.Listen {
		l, err := stream.Listen(address, from, func(peer string, err error) {
			c.Log.Warn("a connection was refused", "from", peer, "reason", err)
		})
		if err != nil {
			closeAll()
			return err
		}
		listeners = append(listeners, l)
		hello.Worker.Addresses = append(hello.Worker.Addresses, l.Address())
	}
	conn, welcome, err := c.dial(ctx, hello, o)
	var board *collective.Board
	if err == nil && welcome.Board != nil {
		if board, err = openBoard(welcome.Board); err != nil {
			// Not every host lets a process open another's files.
			c.Log.Info("small blocks of collectives go by sockets", "why", err)
			conn.Close()
			hello.Worker.Board = ""
			conn, welcome, err = c.dial(ctx, hello, o)
		} else {
			defer board.Close()
		}
	}
	if err != nil {
		closeAll()
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	let.Store(welcome)
	peers := o
	peers.Token = "" // they ask for the proof
	exchange, err := bulk.New(bulk.Config{
		Self: welcome.Process, Host: hello.Host, Options: peers, Listeners: listeners, Log: c.Log, Here: true,
		Hello: &wire.Hello{Name: c.Name, Cluster: welcome.Cluster, Proof: wire.Prove(welcome.Proof, welcome.Process)},
	})
	if err != nil {
		closeAll()
		conn.Close()
		return err
	}
	defer exchange.Close()
	config := worker.Config{
		Name: c.Name, Conn: conn, Driver: c.Driver, Exchange: exchange, Threads: Threads(c.Driver),
		Heartbeat: time.Duration(welcome.HeartbeatMs) * time.Millisecond / 2, MemoryLimit: c.MemoryLimit, HostBytes: exchange.HostBytes, Apart: exchange.Apart, Handler: c.Handler, Log: c.Log,
		EvictAfter: c.EvictAfter, Evict: c.Evict, Ending: c.Ending,
	}
	if partitions {
		engine := collective.New(exchange, 0, board)
		defer engine.Close()
		config.Engine = engine
	}
	if board != nil {
		board.Meet(welcome.Process, int(welcome.Board.Slot))
		config.Exchange = neighbours{exchange, board, welcome.Board.Number}
	}
	if in != nil {
		in.come(&wire.Process{Number: welcome.Process, Epoch: in.membership.Epoch, Node: uint32(in.membership.Node)})
		config.Exchange, config.DeviceID = fellows{exchange, in}, in.device
		config.Stuck, config.StuckAfter = in.member.Leave, cmp.Or(c.Stuck, stuckAfter)
	}
	w, err := worker.New(config)
	if err != nil {
		conn.Close()
		return err
	}
	c.Log.Info("the worker is in the cluster", "process", welcome.Process, "devices", len(c.Driver.Devices()), "listens", hello.Worker.Addresses)
	over := func() (why error) { // nil: this worker was told to stop
		if in != nil {
			_, why = in.member.Err()
		}
		return why
	}
	defer context.AfterFunc(ctx, func() { w.Leave(over()) })()
	err = w.Serve()
	if ctx.Err() != nil {
		why := over()
		if why == nil {
			why = controller.Stopped(c.Name)
		}
		exchange.Leave(why) // others may hear of it before the controller has told them
		return nil
	}
	if err != nil {
		exchange.Leave(err)
	}
	return err
}

// openBoard maps this worker's place on a board.
func openBoard(b *wire.Board) (*collective.Board, error) {
	f, err := os.OpenFile(b.Path, os.O_RDWR, 0)
	if err != nil {
		return nil, system.Error(err, "the host's memory for collectives cannot be opened")
	}
	defer f.Close()
	return collective.OpenBoard(f, int(b.Slot))
}

// neighbours is an exchange that tells a board who else is on it.
type neighbours struct {
	transport.Exchange
	board  *collective.Board
	number uint64
}

// Peers implements transport.Exchange.
func (n neighbours) Peers(come []*wire.Process, gone []uint64, why error) {
	for _, p := range come {
		if p.Board == n.number {
			n.board.Meet(p.Number, int(p.Slot))
		}
	}
	n.Exchange.Peers(come, gone, why)
}

// dial says hello to the controller, and again while it is not there.
func (c WorkerConfig) dial(ctx context.Context, hello *wire.Hello, o stream.Options) (conn *stream.Conn, welcome *wire.Welcome, err error) {
	err = c.reach(ctx, o, func(o stream.Options) (err error) {
		conn, welcome, err = stream.Dial(ctx, c.Address, hello, o)
		return err
	})
	return conn, welcome, err
}

// reach tries to reach the controller until Wait is over. Its token is looked for each time: it may have been made
// with the controller, just now.
func (c WorkerConfig) reach(ctx context.Context, o stream.Options, dial func(stream.Options) error) error {
	end := time.Now().Add(c.Wait)
	for {
		err := c.Secret.show(c.Address, func(s Secret) error {
			o.Token = s.Token
			return dial(o)
		})
		if code := status.CodeOf(err); code != status.Unavailable && code != status.DeadlineExceeded {
			return err
		}
		if time.Now().After(end) {
			return status.Wrap(advise(c.Address, err), "the controller at %s was not reached within %v", c.Address, c.Wait)
		}
		timer := time.NewTimer(redial)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return status.New(status.Cancelled, "told to stop before the controller was reached")
		}
	}
}
