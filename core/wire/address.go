package wire

import (
	"net"
	"net/netip"
	"strings"

	"github.com/openpathways/pathways/core/status"
)

// CheckAddress returns why other processes cannot dial an address of a Process, by its form alone, or nil: an address
// that names no host is where a process listens, not where others reach it.
//
// Errors: INVALID_ARGUMENT.
func CheckAddress(address string) error {
	at, ok := strings.CutPrefix(address, "tcp:")
	if !ok {
		return nil
	}
	host, _, err := net.SplitHostPort(at)
	if err != nil {
		return status.New(status.InvalidArgument, "%q is not an address: expected tcp:host:port", address)
	}
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		return status.New(status.InvalidArgument, "other processes cannot reach it at %s, which names no host; listen at an "+
			"address or a name of this machine that they can, such as tcp:node2.example.com:0", address)
	}
	return nil
}

// Where says from where an address can be dialed.
type Where uint8

// The answers.
const (
	Anywhere       Where = iota // as far as its form tells
	FromItsHost                 // a unix socket: by processes that see the same files, see Hello.host
	FromItsNetwork              // a loopback address: within the network namespace of its machine, see Hello.network
)

// WhereFrom returns from where an address of a Process can be dialed, by its form alone.
func WhereFrom(address string) Where {
	if strings.HasPrefix(address, "unix:") {
		return FromItsHost
	}
	if at, ok := strings.CutPrefix(address, "tcp:"); ok {
		host, _, _ := net.SplitHostPort(at)
		if ip, err := netip.ParseAddr(host); host == "localhost" || err == nil && ip.IsLoopback() {
			return FromItsNetwork
		}
	}
	return Anywhere
}
