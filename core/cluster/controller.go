// Package cluster assembles the processes of a cluster from their parts: controllers,
// workers, and the connections of clients, over sockets or inside one process.
//
// It makes no decisions about work: core/controller orders it, and core/worker runs it.
package cluster

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"os"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/controller/durable"
	"github.com/openpathways/pathways/core/controller/server"
	"github.com/openpathways/pathways/core/epoch"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/stream"
)

// ControllerConfig configures the process of a controller.
type ControllerConfig struct {
	Listen    []string // addresses; at least one
	Secret    Secret
	Heartbeat time.Duration
	Silence   time.Duration
	Lease     time.Duration
	// State is the directory, which exists, in which the controller keeps what it needs to have its cluster back when it
	// starts again; "" means that its cluster ends with it.
	State      string
	Sequential bool
	StuckAfter time.Duration
	MemoryWait time.Duration
	// FirstCome has runs come in the order in which they were asked for, instead of by their sessions' shares of device
	// time.
	FirstCome bool
	// Tenants is the path of the file of tenants; "" means that there is none, and each session is a tenant of its own.
	Tenants string
	// Again has the file of tenants read again for each signal; nil means never.
	Again <-chan os.Signal
	// LastWords returns what a process of this machine that has just ended said of the reason, such as in its log; ""
	// means that this is not known. If LastWords is nil, that is so for all.
	LastWords func(pid int) string
	// HTTP is the address of the web page, such as "127.0.0.1:8080"; "" means that there is none.
	HTTP string
	// Listening is called when the controller listens at all addresses; nil is not.
	Listening func(addresses []string)
	Versions  map[string]string
	Software  string
	Log       *slog.Logger
}

// ServeController runs a controller until ctx ends or an operator asks it to stop, and
// then ends all processes that are connected to it.
//
// Errors: those of listening, and of the file of tenants; INVALID_ARGUMENT if the token is that of a role, or if the
// web page would be open to other machines without TLS.
func ServeController(ctx context.Context, c ControllerConfig) (err error) {
	if err := transport.IsOwn(c.Secret.Token); err != nil {
		return err
	}
	secure, err := c.Secret.tls()
	if err != nil {
		return err
	}
	tenants, err := readTenants(c.Tenants)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	config := c.server(tenants, cancel)
	// What can fail comes before the server, which ends its cluster when it closes: the next start may still have it.
	var s *server.Server
	if c.State != "" {
		if config.Store, err = durable.Open(c.State); err != nil {
			return err
		}
		defer func() {
			if s == nil {
				err = errors.Join(err, config.Store.Close())
			} else {
				err = errors.Join(err, config.Store.Remove()) // it ends in order, and its cluster with it
			}
		}()
	}
	defer func() {
		if s != nil {
			s.Close()
		}
	}()
	epochs := epoch.NewServer(epoch.Limits{}, c.Log)
	defer epochs.Close()
	var accepting sync.WaitGroup
	defer accepting.Wait()
	o := c.options(secure, tenants)
	var listeners []*stream.Listener
	var addresses []string
	for _, address := range c.Listen {
		l, err := c.listen(address, o)
		if err != nil {
			return err
		}
		defer l.Close()
		listeners, addresses = append(listeners, l), append(addresses, l.Address())
	}
	var page *pageListener
	if c.HTTP != "" {
		if page, err = listenHTTP(c, secure); err != nil {
			return err
		}
		defer page.Close()
	}
	if s, err = server.New(config); err != nil {
		return err
	}
	adm := admission{server: s, epochs: epochs, log: c.Log, probe: stream.Options{
		Credentials: transport.Credentials{Software: c.Software}, Config: stream.Config{MaxFrame: transport.ShortFrame},
		TLS: secure,
	}}
	for _, l := range listeners {
		accepting.Go(func() { adm.accept(ctx, l) })
	}
	if c.Listening != nil {
		c.Listening(addresses)
	}
	if page != nil {
		defer serveHTTP(c, page, s, o.TenantOf).close()
	}
	for {
		select {
		case <-c.Again:
			if tenants != nil {
				s.ReadTenants()
			}
		case <-ctx.Done():
			c.Log.Info("the controller stops")
			return nil
		}
	}
}

// server returns the configuration of the controller's server. Tenants is nil if there is no file of them.
func (c ControllerConfig) server(tenants *tenantFile, stopped func()) server.Config {
	config := server.Config{
		Heartbeat: c.Heartbeat, Silence: c.Silence, Lease: c.Lease, Sequential: c.Sequential,
		StuckAfter: c.StuckAfter, MemoryWait: c.MemoryWait, FirstCome: c.FirstCome, Log: c.Log, Stopped: stopped,
		Died: c.died, KeepTraces: c.HTTP != "",
	}
	if tenants != nil {
		config.Tenants, config.Reload = tenants.table.Load(), tenants.read
	}
	return config
}

// options returns its listeners' demands on those that connect.
func (c ControllerConfig) options(secure *tls.Config, tenants *tenantFile) stream.Options {
	o := stream.Options{
		Credentials: transport.Credentials{Token: c.Secret.Token, TokenPath: c.Secret.TokenPath, Software: c.Software,
			Versions: c.Versions},
		Config: stream.Config{Heartbeat: c.Heartbeat, Silence: c.Silence}, TLS: secure,
	}
	if tenants != nil {
		o.TenantOf = tenants.of
	}
	return o
}

// listen listens at an address, and logs it.
func (c ControllerConfig) listen(address string, o stream.Options) (*stream.Listener, error) {
	l, err := stream.Listen(address, o, func(peer string, err error) {
		c.Log.Warn("a connection was refused", "from", peer, "reason", err)
	})
	if err == nil {
		c.Log.Info("the controller listens", "address", l.Address())
	}
	return l, err
}

// admission admits connections to a controller.
type admission struct {
	server *server.Server
	epochs *epoch.Server
	probe  stream.Options // for dialing workers that join; without the token, see transport.ErrProbed
	log    *slog.Logger
}

// accept accepts a listener's connections until it closes.
func (adm admission) accept(ctx context.Context, l transport.Listener) {
	var probing sync.WaitGroup
	defer probing.Wait()
	for {
		in, err := l.Accept()
		if err != nil {
			return
		}
		addresses := adm.probed(in.Hello)
		switch {
		case in.Hello.Role == wire.Role_ROLE_MEMBER:
			adm.epochs.Take(in)
		case len(addresses) > 0:
			probing.Go(func() { adm.takeProbed(ctx, in, addresses) })
		default:
			adm.server.Take(in)
		}
	}
}

// Ask asks a controller a question about its cluster, or to end it; nil asks for a report.
//
// Errors: UNAVAILABLE, with what to do, if no controller answers; the controller's refusal.
func Ask(ctx context.Context, address string, s Secret, ask *wire.Ask) (*wire.Report, error) {
	var conn *stream.Conn
	err := s.show(address, func(s Secret) error {
		secure, err := s.tls()
		if err != nil {
			return err
		}
		conn, _, err = stream.Dial(ctx, address, &wire.Hello{Role: wire.Role_ROLE_ADMIN}, stream.Options{
			Credentials: transport.Credentials{Token: s.Token}, TLS: secure,
		})
		return err
	})
	if err != nil {
		return nil, advise(address, err, "")
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	payload, err := proto.Marshal(ask)
	if err != nil {
		return nil, status.New(status.Internal, "a request could not be encoded: %w", err)
	}
	if err := conn.Send(wire.KindAsk, payload); err != nil {
		return nil, err
	}
	for {
		kind, payload, err := conn.Recv()
		switch {
		case err != nil && ctx.Err() != nil:
			return nil, status.New(status.DeadlineExceeded, "the controller at %s did not answer in time", address)
		case err != nil:
			return nil, err
		case kind == wire.KindReport:
			var r wire.Report
			return &r, wire.Decode(kind, payload, &r)
		case kind == wire.KindGoodbye: // the answer would not fit, or the controller stops
			var m wire.Goodbye
			if err := cmp.Or(wire.Decode(kind, payload, &m), m.Status.Err()); err != nil {
				return nil, err
			}
		}
	}
}
