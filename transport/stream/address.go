package stream

import (
	"context"
	"crypto/tls"
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/openpathways/pathways/core/status"
)

// split takes an address apart.
func split(address string) (network, at string, err error) {
	network, at, _ = strings.Cut(address, ":")
	switch {
	case network == "unix" && at != "":
		if len(at) > 107 {
			return "", "", status.New(status.InvalidArgument,
				"the path of %q has %d bytes, a unix socket's at most 107; choose a shorter directory", address, len(at))
		}
		return network, at, nil
	case network == "tcp":
		if _, _, err := net.SplitHostPort(at); err == nil {
			return network, at, nil
		}
	}
	return "", "", status.New(status.InvalidArgument,
		"%q is not an address: expected unix:/path or tcp:host:port", address)
}

// loopback reports whether a host is reached without leaving the machine.
func loopback(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		return false
	}
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

// Local reports whether an address is reached from its own machine alone: a unix socket, or loopback.
func Local(address string) bool {
	network, at, err := split(address)
	return err == nil && (network == "unix" || loopback(at))
}

// secure returns the TLS to use for an address, nil for none.
func secure(network, at string, with *tls.Config) (*tls.Config, error) {
	if network == "unix" {
		return nil, nil
	}
	if with == nil {
		if !loopback(at) {
			return nil, status.New(status.FailedPrecondition, "tcp:%s can be reached from other machines, and there is no TLS: "+
				"give the authority by --tls-ca or PATHWAYS_TLS_CA, and a certificate (PATHWAYS_TLS_CERT, PATHWAYS_TLS_KEY), in "+
				"whose place a client may show the token; "+
				"or use a loopback address or a unix socket", at)
		}
		return nil, nil
	}
	with = with.Clone()
	with.MinVersion = tls.VersionTLS13
	return with, nil
}

// connect makes a socket to an address.
func connect(ctx context.Context, address string, with *tls.Config) (net.Conn, error) {
	network, at, err := split(address)
	if err != nil {
		return nil, err
	}
	with, err = secure(network, at, with)
	if err != nil {
		return nil, err
	}
	socket, err := new(net.Dialer).DialContext(ctx, network, at)
	if err != nil {
		return nil, unreached(ctx, address, err)
	}
	if with == nil {
		return socket, nil
	}
	if with.ServerName == "" {
		with.ServerName, _, _ = net.SplitHostPort(at)
	}
	secured := tls.Client(socket, with)
	if err := secured.HandshakeContext(ctx); err != nil {
		socket.Close()
		if ctx.Err() != nil {
			return nil, unreached(ctx, address, err)
		}
		return nil, distrust(address, err, with)
	}
	return secured, nil
}

func unreached(ctx context.Context, address string, err error) error {
	code := status.Unavailable
	switch ctx.Err() {
	case context.Canceled:
		code = status.Cancelled
	case context.DeadlineExceeded:
		code = status.DeadlineExceeded
	}
	if dial := (*net.OpError)(nil); errors.As(err, &dial) {
		err = withoutAddress{dial}
	}
	return status.New(code, "%s cannot be reached: %w", address, err)
}

// withoutAddress is an error of dialing whose text leaves the address to its caller.
type withoutAddress struct{ dial *net.OpError }

func (e withoutAddress) Error() string { return e.dial.Err.Error() }

func (e withoutAddress) Unwrap() error { return e.dial }

// bind makes a listening socket.
func bind(network, at string) (net.Listener, error) {
	var config net.ListenConfig
	if network == "unix" {
		if err := clearSocket(at); err != nil {
			return nil, err
		}
		// The mode that a socket has when it is bound is that of its file: there is
		// no moment in which others could connect.
		config.Control = func(_, _ string, raw syscall.RawConn) (err error) {
			if e := raw.Control(func(fd uintptr) { err = syscall.Fchmod(int(fd), 0o600) }); e != nil {
				return e
			}
			return err
		}
	}
	l, err := config.Listen(context.Background(), network, at)
	if err != nil {
		code := status.Unavailable
		switch {
		case errors.Is(err, syscall.EADDRINUSE):
			code = status.AlreadyExists
		case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
			code = status.ResourceExhausted
		}
		return nil, status.New(code, "cannot listen at %s:%s: %w", network, at, err)
	}
	return l, nil
}

// clearSocket removes a socket file that has no listener any more.
func clearSocket(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return status.New(status.PermissionDenied, "cannot listen at unix:%s: %w", path, err)
	}
	if info.Mode().Type() != fs.ModeSocket {
		return status.New(status.AlreadyExists,
			"cannot listen at unix:%s: there is a file that is not a socket; choose another path", path)
	}
	if socket, err := net.DialTimeout("unix", path, time.Second); err == nil {
		socket.Close()
		return status.New(status.AlreadyExists,
			"cannot listen at unix:%s: another process does; stop it or choose another path", path)
	} else if !errors.Is(err, syscall.ECONNREFUSED) {
		return status.New(status.AlreadyExists, "cannot listen at unix:%s: there is a socket that cannot be asked: %w", path,
			err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return status.New(status.PermissionDenied, "cannot remove the stale socket %s: %w", path, err)
	}
	return nil
}
