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

// serve is ServeWorker. Joined is not nil where the driver is a member of an epoch.
func (c WorkerConfig) serve(ctx context.Context, o stream.Options, in *joined) error {
	_, partitions := c.Driver.(device.Partitioner)
	e := &entry{
		WorkerConfig: c, options: o, in: in,
		partitions: partitions && in == nil, // the interconnect of an epoch's drivers carries what spans workers
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
	c.Log.Info("the worker is in the cluster", "process", e.welcome.Process, "devices", len(c.Driver.Devices()), "listens", e.hello.Worker.Addresses)
	return e.work(ctx, w)
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
