package cluster

import (
	"context"
	"log/slog"
	"time"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/worker"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/link"
	"github.com/openpathways/pathways/transport/stream"
)

// WorkerConfig configures the process of a worker.
type WorkerConfig struct {
	Address string   // of the controller
	Listen  []string // addresses at which other processes transfer bytes to and from this one; at least one
	Secret  Secret
	Name    string
	Island  string
	Driver  device.Driver // the caller owns it
	Cache   string        // directory of compiled programs; "" means none
	// CacheBytes bounds what is in that directory; 0 means no bound.
	CacheBytes int64
	Handler    func(*wire.Handler) error // see worker.Config
	// MemoryLimit bounds the bytes of arrays on each device; 0 means the driver's own limit.
	MemoryLimit int64
	Heartbeat   time.Duration
	Silence     time.Duration
	Wait        time.Duration // for the controller to answer
	// EvictAfter, Evict and Ending: see worker.Config.
	EvictAfter time.Duration
	Evict      func(why error)
	Ending     func(why error)
	Stuck      time.Duration // of members: how long a failed run may wait for others; 0 means stuckAfter
	Piece      int64         // see worker.Config
	Versions   map[string]string
	// Joined is called when the worker has joined its cluster, with the number of its devices; nil is not.
	Joined   func(devices int)
	Software string
	Log      *slog.Logger
}

// redial is the pause of ServeWorker between attempts to reach the controller.
const redial = 100 * time.Millisecond

// identitySize is the number of bytes of WorkerOffer.identity: enough that no two workers have the same one, and that
// none can be guessed.
const identitySize = 16

// stuckAfter is the default of WorkerConfig.Stuck.
const stuckAfter = 10 * time.Second

// ServeWorker runs a worker until ctx ends or its controller is gone. The end of ctx is
// not an error.
//
// Errors: those of listening; the controller's refusal; UNAVAILABLE if the controller
// cannot be reached within Wait, or for the controller's lease after the connection to it broke.
func ServeWorker(ctx context.Context, c WorkerConfig) error {
	o, err := c.options()
	if err != nil {
		return err
	}
	return c.serve(ctx, o, nil)
}

// options returns the options of the worker's connections.
func (c WorkerConfig) options() (stream.Options, error) {
	secure, err := c.Secret.tls()
	return stream.Options{
		Credentials: transport.Credentials{Token: c.Secret.Token, Software: c.Software, Versions: c.Versions,
			Waits: func(why string) { c.Log.Info("the worker has to wait", "reason", why) }},
		Config: stream.Config{Heartbeat: c.Heartbeat, Silence: c.Silence}, TLS: secure,
	}, err
}

// serve implements ServeWorker. in is not nil if the driver is a member of an epoch.
func (c WorkerConfig) serve(ctx context.Context, o stream.Options, in *joined) error {
	if c.Cache != "" {
		var err error
		if c.Cache, err = keepCache(c.Cache); err != nil {
			return err
		}
	}
	_, partitions := c.Driver.(device.Partitioner)
	e := &entry{
		WorkerConfig: c, options: o, in: in,
		partitions: partitions && in == nil, // otherwise the interconnect of the epoch's drivers carries them
	}
	defer e.close()
	if err := e.introduce(); err != nil {
		return err
	}
	if err := e.listen(); err != nil {
		return err
	}
	if err := e.join(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	if err := e.meetPeers(); err != nil {
		e.conn.Close()
		return err
	}
	w, err := worker.New(e.config())
	if err != nil {
		e.conn.Close()
		return err
	}
	c.Log.Info("the worker is in the cluster", "process", e.welcome.Process, "devices", len(c.Driver.Devices()), "listens",
		e.hello.Worker.Addresses)
	if c.Joined != nil {
		c.Joined(len(c.Driver.Devices()))
	}
	return e.work(ctx, w)
}

// dial connects to the controller, and tries again while it cannot be reached.
func (c WorkerConfig) dial(ctx context.Context, hello *wire.Hello, o stream.Options) (conn transport.Conn,
	welcome *wire.Welcome, err error) {
	err = c.reach(ctx, o, func(o stream.Options) (err error) {
		conn, welcome, err = link.Dial(ctx, o, c.Address, hello)
		return err
	})
	return conn, welcome, err
}

// reach tries to reach the controller until Wait is over. It looks for the token each time, because a controller that
// has just started may have made it.
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
			return status.Wrap(advise(c.Address, err, ""), "the controller at %s was not reached within %v", c.Address, c.Wait)
		}
		timer := time.NewTimer(redial)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return status.New(status.Cancelled, "stopped before the controller was reached")
		}
	}
}
