package cluster

import (
	"context"
	"os"
	"path/filepath"
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

// ClientConfig is what a session is made from.
type ClientConfig struct {
	Address   string // of the controller
	Secret    Secret
	Name      string // of the client, for people
	Heartbeat time.Duration
	Silence   time.Duration
	Versions  map[string]string
	Software  string
	Alone     bool      // each operation goes by itself, also where many queue up
	Pool      *shm.Pool // memory of blocks; one of its own
}

// Connect begins a session on a cluster of processes.
//
// Errors: those of client.Connect.
func Connect(ctx context.Context, c ClientConfig, notify client.Notify) (client.Cluster, error) {
	secure, err := c.Secret.tls()
	if err != nil {
		return nil, err
	}
	o := stream.Options{
		Credentials: transport.Credentials{Token: c.Secret.Token, Software: c.Software, Versions: c.Versions},
		Config:      stream.Config{Heartbeat: c.Heartbeat, Silence: c.Silence}, TLS: secure,
	}
	calls := o
	if c.Alone {
		calls.MaxPending = 1 // so that the next waits until this one is being written
	}
	host := Host()
	return client.Connect(ctx, client.Config{
		Dialer: calls, Address: c.Address, Hello: &wire.Hello{Name: c.Name, Host: host, Alone: c.Alone}, Notify: notify,
		Exchange: func(w *wire.Welcome) (transport.Exchange, error) {
			return bulk.New(bulk.Config{
				Self: w.Process, Host: host, Options: o, Pool: c.Pool,
				Hello: &wire.Hello{Name: c.Name, Cluster: w.Cluster, Proof: w.Proof},
			})
		},
	})
}

// SecretOf finds what a client shows a controller: PATHWAYS_TOKEN, or the file
// PATHWAYS_TOKEN_FILE, or that beside a controller's unix socket; and
// PATHWAYS_TLS_CERT, PATHWAYS_TLS_KEY and PATHWAYS_TLS_CA.
//
// Errors: NOT_FOUND where a file that was named cannot be read.
func SecretOf(address string, lookup func(variable string) (string, bool)) (Secret, error) {
	get := func(name string) string {
		v, _ := lookup(name)
		return v
	}
	s := Secret{Token: get("PATHWAYS_TOKEN"), Cert: get("PATHWAYS_TLS_CERT"), Key: get("PATHWAYS_TLS_KEY"), CA: get("PATHWAYS_TLS_CA")}
	if s.Token != "" {
		return s, nil
	}
	var err error
	if path := get("PATHWAYS_TOKEN_FILE"); path != "" {
		s.Token, err = ReadToken(path)
	} else if socket, ok := strings.CutPrefix(address, "unix:"); ok {
		s.Token, err = ReadToken(filepath.Join(filepath.Dir(socket), TokenFile))
		if status.CodeOf(err) == status.NotFound { // the controller may ask for none
			err = nil
		}
	}
	return s, err
}

// AloneOf reads PATHWAYS_BATCH, whose default is true, for ClientConfig.Alone.
//
// Errors: INVALID_ARGUMENT where it is neither true nor false.
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

// TokenFile is the name of the secret's file in a cluster's directory.
const TokenFile = "token"

// ReadToken reads a secret from a file.
//
// Errors: NOT_FOUND, PERMISSION_DENIED, INVALID_ARGUMENT where it is empty.
func ReadToken(path string) (string, error) {
	b, err := os.ReadFile(path)
	switch token := strings.TrimSpace(string(b)); {
	case os.IsPermission(err):
		return "", status.New(status.PermissionDenied, "the token file cannot be read: %w", err)
	case err != nil:
		return "", status.New(status.NotFound, "the token file cannot be read: %w", err)
	case token == "":
		return "", status.New(status.InvalidArgument, "the token file %s is empty", path)
	default:
		return token, nil
	}
}

// Host names this machine and its view of files: equal in two processes where one
// can open the other's sockets and share memory with it.
func Host() string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		name, _ := os.Hostname() // "" is equal to nobody's
		return name
	}
	files, _ := os.Readlink("/proc/self/ns/mnt")
	return strings.TrimSpace(string(boot)) + " " + files
}
