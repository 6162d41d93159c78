package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/openpathways/pathways/core/cluster"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/system"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/device"
)

func (p *program) controller() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "controller",
		Short: "run the controller of a cluster until it is stopped",
		Long: `Runs the controller of a cluster: workers add devices to it, and clients run programs on them. Arrays do not pass
through it. SIGTERM or Ctrl-C ends it, with all sessions and workers. So does ` + "`pathways down`" + `, if the controller
listens at the socket in the cluster's directory.

Workers and clients must show a certificate or the cluster's token. Without --token-file and certificates, the
controller makes a token and keeps it in the cluster's directory, readable only by this user; see --dir. Workers and
scripts of the same user on this machine find it there. Others need a copy, named by --token-file or
PATHWAYS_TOKEN_FILE.

With --lease and --state, the cluster survives its controller: workers and sessions wait for the lease, and a controller
that is started again with the same directory restores them, with all arrays and all work in flight.

With --tenants, each session belongs to a tenant in that file, which sets shares and quotas. SIGHUP, or
` + "`pathways tenants apply`" + `, makes the controller read the file again.`,
		Example: `  pathways controller --listen tcp:127.0.0.1:8476     # makes a token for this user's workers and scripts
  pathways controller --listen tcp:10.0.0.5:8476 --tls-cert cert.pem --tls-key key.pem --tls-ca ca.pem`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.serveController(cmd.Context(), settings{cmd.Flags()})
		},
	}
	take(cmd, "address", "cluster", "dir", "listen", "token-file", "tls-cert", "tls-key", "tls-ca", "tls-mutual",
		"heartbeat", "silence", "lease", "state", "stuck-after", "memory-wait", "order", "tenants", "dispatch", "http")
	return cmd
}

func (p *program) serveController(ctx context.Context, s settings) error {
	c, err := p.placeOf(s)
	if err != nil {
		return err
	}
	if s.text("state") != "" && !s.Changed("lease") {
		p.say("--state has no effect without --lease: workers and sessions end with the controller; add --lease 30s, for " +
			"example")
	}
	secret, err := p.secret(s, c)
	if err != nil {
		return err
	}
	listen, err := controllerListens(s, c)
	if err != nil {
		return err
	}
	dispatch := s.text("dispatch")
	if dispatch != "parallel" && dispatch != "sequential" {
		return usage{status.New(status.InvalidArgument, "--dispatch is %q; expected parallel or sequential", dispatch)}
	}
	order := s.text("order")
	if order != "fair" && order != "fifo" {
		return usage{status.New(status.InvalidArgument, "--order is %q; expected fifo or fair", order)}
	}
	log, err := p.logger(s)
	if err != nil {
		return err
	}
	shown := ""
	if secret.Token == "" && (secret.CA == "" || secret.TokenSuffices) { // nothing else says who may connect
		secret.TokenPath = c.directory().TokenPath()
		if secret.Token, err = c.directory().KeepToken(); err != nil {
			return err
		}
		held, err := c.directory().HoldToken()
		if err != nil {
			return err
		}
		defer held.Close()
		shown = "; who connects shows the token in " + secret.TokenPath
	}
	state := s.text("state")
	if state != "" {
		if err := os.MkdirAll(state, 0o700); err != nil {
			return system.Error(err, "the directory of --state cannot be made")
		}
	}
	var again chan os.Signal
	if s.text("tenants") != "" {
		again = make(chan os.Signal, 1)
		signal.Notify(again, syscall.SIGHUP)
		defer signal.Stop(again)
	}
	collectSeldom()
	return cluster.ServeController(ctx, cluster.ControllerConfig{
		Listen: listen, Secret: secret, Heartbeat: s.time("heartbeat"), Silence: s.time("silence"),
		Lease: s.time("lease"), State: state, Sequential: dispatch == "sequential", StuckAfter: s.time("stuck-after"),
		MemoryWait: s.time("memory-wait"),
		FirstCome:  order == "fifo", Tenants: s.text("tenants"), Again: again, HTTP: s.text("http"),
		Listening: func(addresses []string) {
			p.say("the controller listens at %s%s", strings.Join(addresses, ", "), shown)
		},
		LastWords: c.causeOf,
		Versions:  p.Versions, Software: p.software(), Log: log,
	})
}

// controllerListens returns the addresses of a controller: those of --listen, or a socket in the cluster's directory.
func controllerListens(s settings, c place) ([]string, error) {
	if listen := s.list("listen"); len(listen) > 0 {
		return listen, nil
	}
	if address := s.text("address"); address != "" && !strings.HasPrefix(address, "unix:") {
		return nil, usage{status.New(status.InvalidArgument,
			"--listen is missing: the cluster's address is %s; expected an address of this machine, such as --listen %s",
			address, address)}
	}
	if err := c.directory().Make(); err != nil {
		return nil, err
	}
	return []string{c.address()}, nil
}

func (p *program) worker() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "worker",
		Short: "add this machine's devices to a cluster until stopped",
		Long: `Runs a worker, which adds the devices of this machine to the cluster of the controller at --address. It ends within
three seconds of SIGTERM, Ctrl-C or the end of the controller, even if a computation does not end.

A computation cannot be interrupted. If one still runs --evict-after its session has ended, the worker reports that to
the controller and restarts, with the same process ID. Other sessions' arrays on the worker are lost (DATA_LOSS).

With --nodes, the devices of that many workers of an island use their own interconnect, as GPUs do with NCCL. The worker
waits for the others. When one of them leaves, all restart and wait again, each in a new process.`,
		Example: `  pathways worker --address tcp:127.0.0.1:8476 --listen tcp:127.0.0.1:0 --devices 2
  pathways worker --address unix:/run/user/1000/pathways/default/controller.sock --devices 2
  pathways worker --address tcp:10.0.0.5:8476 --listen tcp:10.0.0.6:8477 --tls-cert cert.pem --tls-key key.pem --tls-ca ca.pem`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			s := settings{cmd.Flags()}
			config, err := p.workerConfig(s)
			if err != nil {
				return err
			}
			nodes := s.number("nodes")
			if nodes > 0 && s.number(lifeline) == 0 {
				return p.supervise(cmd.Context(), cmd.Flags(), config.Name, config.Log)
			}
			if p.Kinds == nil {
				return status.New(status.Unimplemented, "this program has no device drivers")
			}
			kind, err := p.Kinds(s.text("driver"), s.number("devices"), s.number("first-device"))
			if err != nil {
				return err
			}
			end, over := p.bounded(cmd.Context())
			defer over()
			config.Ending = end.begins
			if nodes > 0 {
				return p.serveMember(cmd.Context(), config, kind, nodes, s.number(lifeline))
			}
			return p.serveWorker(cmd.Context(), config, kind, cmd.Flags())
		},
	}
	cmd.Flags().Int(lifeline, 0, "")
	_ = cmd.Flags().MarkHidden(lifeline) // cannot fail: the flag exists
	take(cmd, "address", "cluster", "dir", "listen", "token-file", "tls-cert", "tls-key", "tls-ca", "tls-mutual",
		"devices", "first-device", "memory-limit", "nodes", "driver", "island", "import", "name", "cache",
		"cache-bytes", "heartbeat", "silence", "evict-after", "wait")
	return cmd
}

// workerConfig returns the configuration of a worker, without its devices.
//
// Errors: INVALID_ARGUMENT for invalid options, and those of the directory.
func (p *program) workerConfig(s settings) (c cluster.WorkerConfig, err error) {
	address, secret, err := p.reach(s)
	if err != nil {
		return c, err
	}
	name := s.text("name")
	if name == "" {
		host, _ := os.Hostname()
		name = fmt.Sprintf("%s:%d", host, os.Getpid())
	}
	listen, err := p.workerListens(s, address)
	if err != nil {
		return c, err
	}
	if n := s.number("devices"); n < 0 {
		return c, usage{status.New(status.InvalidArgument, "--devices is %d; expected at least 1", n)}
	}
	if n := s.number("first-device"); n < 0 {
		return c, usage{status.New(status.InvalidArgument, "--first-device is %d; expected 0 or more", n)}
	} else if n > 0 && s.number("devices") == 0 {
		return c, usage{status.New(status.InvalidArgument, "--first-device is %d without --devices, with which the worker "+
			"uses all GPUs; expected both: give --devices, the number of GPUs to use from that one on", n)}
	}
	memory, err := s.size("memory-limit")
	if err != nil {
		return c, err
	}
	cacheBytes, err := s.size("cache-bytes")
	if err != nil {
		return c, err
	}
	if n := s.number("nodes"); n < 0 {
		return c, usage{status.New(status.InvalidArgument, "--nodes is %d; expected the number of the island's workers, or 0",
			n)}
	}
	for _, module := range s.list("import") {
		if !slices.Contains(p.Imported, module) {
			return c, usage{status.New(status.InvalidArgument, "the module %s of --import was not imported; only the command "+
				"of the Python package imports modules, and only those that the flag or PATHWAYS_IMPORT names", module)}
		}
	}
	log, err := p.logger(s)
	return cluster.WorkerConfig{
		Address: address, Listen: listen, Secret: secret, Name: name, Island: s.text("island"), Handler: p.Handler,
		MemoryLimit: memory, Cache: s.text("cache"), CacheBytes: cacheBytes,
		Heartbeat: s.time("heartbeat"), Silence: s.time("silence"),
		Wait: s.time("wait"), EvictAfter: s.time("evict-after"), Versions: p.Versions, Software: p.software(), Log: log,
		Joined: func(devices int) {
			p.say("worker %s has joined the cluster at %s with %s", name, address, status.Count(devices, "device"))
		},
	}, err
}

// say prints a line about a process that goes on.
func (p *program) say(format string, args ...any) {
	fmt.Fprintf(p.err, "pathways: "+format+"\n", args...)
}

// workerListens returns the addresses of a worker: those of --listen, or a socket in the cluster's directory.
func (p *program) workerListens(s settings, controller string) ([]string, error) {
	if listen := s.list("listen"); len(listen) > 0 {
		return listen, nil
	}
	if !strings.HasPrefix(controller, "unix:") {
		return nil, usage{status.New(status.InvalidArgument,
			"a worker of a controller at %s needs --listen: an address of this "+
				"machine at which the others reach it, such as tcp:10.0.0.6:8477", controller)}
	}
	c, err := p.placeOf(s)
	if err != nil {
		return nil, err
	}
	if err := c.directory().Make(); err != nil {
		return nil, err
	}
	return []string{"unix:" + c.path(fmt.Sprintf("worker-%d.sock", os.Getpid()))}, nil
}

// serveMember serves as a member of an epoch of nodes workers, in a child whose parent holds the lifeline.
func (p *program) serveMember(ctx context.Context, c cluster.WorkerConfig, kind device.Kind, nodes,
	lifeline int) error {
	c.Evict = func(why error) { p.epochOver(true, why) }
	ctx, cancel := withParent(ctx, lifeline)
	defer cancel()
	return stopped(ctx, cluster.ServeMember(ctx, c, kind, nodes, p.epochOver))
}

// serveWorker serves only the devices of this process. A worker that is evicted restarts with the same flags.
func (p *program) serveWorker(ctx context.Context, c cluster.WorkerConfig, kind device.Kind,
	flags *pflag.FlagSet) (err error) {
	c.Evict = func(error) {
		if ctx.Err() == nil { // otherwise it was stopped and ends
			fmt.Fprintf(p.err, "pathways: %v\n", p.restart(arguments(flags, "--name="+c.Name)))
			os.Exit(ExitFailed)
		}
	}
	if c.Driver, err = kind.Join(ctx, device.Membership{}); err != nil {
		return err
	}
	defer c.Driver.Close()
	collectSeldom()
	return stopped(ctx, cluster.ServeWorker(ctx, c))
}

// stopped returns nil if a server ended because it was stopped, even before it had begun,
// or because its controller was; otherwise it returns err.
func stopped(ctx context.Context, err error) error {
	if ctx.Err() != nil && status.CodeOf(err) == status.Cancelled || errors.Is(err, wire.ErrStopped) {
		return nil
	}
	return err
}

func (p *program) software() string { return "pathways " + p.Version }
