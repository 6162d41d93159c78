package stream

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
)

// distrust says why a TLS connection to a peer could not be made, and what to do. Own is the configuration of this
// side.
//
// Errors: UNAUTHENTICATED where a side does not accept the other; UNAVAILABLE and DEADLINE_EXCEEDED where the peer went
// or did not answer.
func distrust(peer string, err error, own *tls.Config) error {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return status.New(status.DeadlineExceeded, "%s did not end the TLS handshake in time", peer)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET),
		errors.Is(err, syscall.EPIPE), errors.Is(err, net.ErrClosed):
		return status.New(status.Unavailable, "%s closed the connection during the TLS handshake; does it speak TLS?", peer)
	}
	return status.New(status.Unauthenticated, "%s and this side do not trust each other: %w", peer,
		explain(err, own, time.Now()))
}

// explain puts an error of TLS into words that name what to do.
func explain(err error, own *tls.Config, now time.Time) error {
	var plain tls.RecordHeaderError
	var invalid x509.CertificateInvalidError
	var name x509.HostnameError
	var authority x509.UnknownAuthorityError
	switch {
	case errors.As(err, &plain):
		return status.New(status.Unauthenticated,
			"it answers without TLS; connect without TLS options (--tls-ca, PATHWAYS_TLS_CA), or start it with certificates")
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return status.New(status.Unauthenticated, "its certificate %s: %w", lifetime(invalid.Cert, now), err)
	case errors.As(err, &name):
		return status.New(status.Unauthenticated,
			"its certificate is for other names; connect by one of them, or give it a certificate with this one: %w", err)
	case errors.As(err, &authority):
		return status.New(status.Unauthenticated,
			"its certificate is of an authority that this side does not know; --tls-ca or PATHWAYS_TLS_CA names the "+
				"authority's file: %w", err)
	case !RefusedByPeer(err):
		return err
	}
	leaf := ownCertificate(own)
	switch text := err.Error(); {
	case leaf == nil && strings.Contains(text, "certificate"):
		return status.New(status.Unauthenticated, "it asks for a certificate, and this side shows none; give --tls-cert "+
			"and --tls-key (PATHWAYS_TLS_CERT, PATHWAYS_TLS_KEY), or start the cluster with a token and --tls-mutual=false: %w",
			err)
	case leaf != nil && (now.Before(leaf.NotBefore) || now.After(leaf.NotAfter)):
		return status.New(status.Unauthenticated, "this side's certificate %s: %w", lifetime(leaf, now), err)
	case strings.Contains(text, "expired"):
		return status.New(status.Unauthenticated,
			"this side's certificate is valid here and not there; compare the clocks of both machines: %w", err)
	}
	return status.New(status.Unauthenticated, "it does not accept this side's certificate or TLS version: %w", err)
}

// lifetime says what is wrong with when a certificate is valid, and what to do.
func lifetime(c *x509.Certificate, now time.Time) string {
	at := func(t time.Time) string { return t.UTC().Format(time.RFC3339) }
	if now.Before(c.NotBefore) {
		return "is not valid before " + at(c.NotBefore) + ", and here it is " + at(now) +
			"; compare the clocks of both machines"
	}
	return "expired at " + at(c.NotAfter) + ", and here it is " + at(now) + "; make a new one"
}

// RefusedByPeer reports whether an error is a TLS alert that the peer sent, such as that it does not accept this side's
// certificate. In TLS 1.3 a dialer has verified the peer's certificate by then.
func RefusedByPeer(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "remote error"
}

// ownCertificate returns the certificate that a configuration shows to others, or nil.
func ownCertificate(own *tls.Config) *x509.Certificate {
	if own == nil || len(own.Certificates) == 0 || len(own.Certificates[0].Certificate) == 0 {
		return nil
	}
	c, err := x509.ParseCertificate(own.Certificates[0].Certificate[0])
	if err != nil {
		return nil
	}
	return c
}

// certified returns who the other side of a connection is by its certificate, an operator without one.
//
// Errors: those of transport.HolderOf.
func certified(socket net.Conn) (transport.Holder, error) {
	secured, ok := socket.(*tls.Conn)
	if !ok {
		return transport.Holder{}, nil
	}
	shown := secured.ConnectionState().PeerCertificates // verified, since each tls.Config here asks for that
	if len(shown) == 0 {
		return transport.Holder{}, nil
	}
	return transport.HolderOf(shown[0])
}

// checkServer checks that the certificate of who listens at an address is for the kind of process that is dialed there
// in a role: a tenant must not stand in for a controller that others show their tokens to.
//
// Errors: UNAUTHENTICATED.
func checkServer(socket net.Conn, address string, role wire.Role) error {
	holder, err := certified(socket)
	if err == nil {
		err = holder.Pass.Serves(role)
	}
	return status.Wrap(err, "%s and this side do not trust each other", address)
}
