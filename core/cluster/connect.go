package cluster

import (
	"context"
	"os"
	"os/user"
	"strconv"
	"strings"
	"time"

	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/bulk"
	"github.com/openpathways/pathways/transport/shm"
	"github.com/openpathways/pathways/transport/stream"
)

// ClientConfig configures a session.
type ClientConfig struct {
	Address   string // of the controller
	Secret    Secret
	Name      string   // of the client, for people
	Devices   int      // exact number; 0 means all
	Elastic   bool     // where the cluster has fewer, the others have no worker yet
	Platforms []string // of the devices, in this order; with none, the controller chooses one
	Heartbeat time.Duration
	Silence   time.Duration // where the controller or a worker does not say its own
	Versions  map[string]string
	Software  string
	Alone     bool        // whether each operation is sent separately, even if several are queued
	Pool      *shm.Pool   // memory for blocks; the session's own
	Hurry     func() bool // see client.Config, like the four below
	Held      func(*wire.Held)
	Moment    func(client.Moment)
	Thread    func() int32
	Processor func(thread int32) (took time.Duration, runs bool)
	Waits     func(why string) // as transport.Credentials.Waits
}

// Connect begins a session on a cluster of processes.
//
// Errors: those of client.Connect.
func Connect(ctx context.Context, c ClientConfig, notify client.Notify) (session client.Cluster, err error) {
	err = c.Secret.show(c.Address, func(s Secret) (err error) {
		session, err = c.connect(ctx, s, notify)
		return err
	})
	if err != nil {
		return nil, advise(c.Address, err, "; scripts without PATHWAYS_ADDRESS use this machine's devices")
	}
	return session, nil
}

// connect begins a session with a secret.
func (c ClientConfig) connect(ctx context.Context, secret Secret, notify client.Notify) (client.Cluster, error) {
	secure, err := secret.tls()
	if err != nil {
		return nil, err
	}
	o := stream.Options{
		Credentials: transport.Credentials{Token: secret.Token, Software: c.Software, Versions: c.Versions, Waits: c.Waits},
		Config:      stream.Config{Heartbeat: c.Heartbeat, Silence: c.Silence, Follows: true}, TLS: secure,
	}
	calls := o
	if c.Alone {
		calls.MaxPending = 1 // so that the next call waits until this one is being written
	}
	peers := o
	peers.Token = "" // peers ask for a proof instead
	host := Host()
	machine, _ := os.Hostname() // for people; "" is acceptable
	hello := &wire.Hello{Name: c.Name, Host: host, Network: network(), Alone: c.Alone, Devices: uint32(c.Devices),
		Elastic: c.Elastic, Platforms: c.Platforms, User: userName(), Machine: machine}
	sayWho(hello)
	return client.Connect(ctx, client.Config{
		Dialer: calls, Address: c.Address, Notify: notify, Hurry: c.Hurry, Held: c.Held, Moment: c.Moment,
		Thread: c.Thread, Processor: c.Processor, Hello: hello,
		Exchange: func(w *wire.Welcome) (transport.Exchange, error) {
			return bulk.New(bulk.Config{
				Self: w.Process, Host: host, Options: peers, Pool: c.Pool,
				Hello: &wire.Hello{Name: c.Name, Cluster: w.Cluster, Proof: w.Proof},
			})
		},
	})
}

// userName returns the name of the user who runs this process, for people.
func userName() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return strconv.Itoa(os.Getuid()) // the user has no name, as in some containers
}

// SecretOf returns the credentials of a client: PATHWAYS_TOKEN, or the content of the file PATHWAYS_TOKEN_FILE, or the
// token that a controller on this machine keeps (see Secret.Directory); and PATHWAYS_TLS_CERT, PATHWAYS_TLS_KEY and
// PATHWAYS_TLS_CA.
//
// Errors: NOT_FOUND if a named file cannot be read.
func SecretOf(lookup func(variable string) (string, bool)) (Secret, error) {
	get := func(name string) string {
		v, _ := lookup(name)
		return v
	}
	s := Secret{
		Token: get("PATHWAYS_TOKEN"), Directory: directoryOf(lookup),
		Cert: get("PATHWAYS_TLS_CERT"), Key: get("PATHWAYS_TLS_KEY"), CA: get("PATHWAYS_TLS_CA"),
	}
	var err error
	if path := get("PATHWAYS_TOKEN_FILE"); path != "" && s.Token == "" {
		s.Token, err = ReadToken(path)
	}
	return s, err
}

// AloneOf reads PATHWAYS_BATCH, whose default is true, for ClientConfig.Alone.
//
// Errors: INVALID_ARGUMENT if it is neither true nor false.
func AloneOf(lookup func(variable string) (string, bool)) (bool, error) {
	v, _ := lookup("PATHWAYS_BATCH")
	if v == "" {
		return false, nil
	}
	batch, err := strconv.ParseBool(v)
	if err != nil {
		return false, status.New(status.InvalidArgument, "PATHWAYS_BATCH is %q; expected true or false", v)
	}
	return !batch, nil
}

// Host identifies this machine and its view of the file system: two processes have the
// same one if each can open the other's sockets and share memory with it.
func Host() string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		name, _ := os.Hostname() // without a name, Host equals no other process's
		return name
	}
	files, _ := os.Readlink("/proc/self/ns/mnt")
	return strings.TrimSpace(string(boot)) + " " + files
}

// network identifies this machine and its network namespace: two processes have the same
// one if a loopback address means the same to both. It is "" if the system does not say.
func network() string {
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	space, err := os.Readlink("/proc/self/ns/net")
	if err != nil || len(boot) == 0 {
		return ""
	}
	return strings.TrimSpace(string(boot)) + " " + space
}
