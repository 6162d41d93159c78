package cluster

import (
	"crypto/tls"
	"crypto/x509"
	"os"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/system"
)

// Secret holds the credentials of a process of a cluster: a token that all of them share,
// or certificates, or both.
type Secret struct {
	Token     string
	TokenPath string // the token's file, which a controller names to clients without the token; "" if unknown
	// Directory is the directory of this user's cluster. A process without a token that connects to a controller on
	// this machine finds the token there or beside the controller's socket. "" means none.
	Directory     string
	Cert, Key, CA string // PEM files; "" if tcp is not secured
	// TokenSuffices allows clients that show the token and no certificate.
	TokenSuffices bool
}

// found returns the secret with the token to show at an address.
func (s Secret) found(address string) (Secret, error) {
	var err error
	if s.Token == "" {
		s.Token, err = findToken(address, s.Directory)
	}
	return s, err
}

// show calls dial with the secret to show at an address. If the controller makes its token, or begins to listen, after
// show has looked for the token, it refuses the call; show then calls dial again with the token that exists by then.
func (s Secret) show(address string, dial func(Secret) error) error {
	before, err := s.found(address)
	if err != nil {
		return err
	}
	err = dial(before)
	if status.CodeOf(err) != status.Unauthenticated {
		return err
	}
	if after, wrong := s.found(address); wrong == nil && after.Token != before.Token {
		return dial(after)
	}
	return err
}

// tls returns the configuration of both sides of a connection: each shows its certificate
// and asks for the other's. A client with a token needs no certificate if the server has
// TokenSuffices.
//
// Errors: INVALID_ARGUMENT if files are missing or one cannot be used.
func (s Secret) tls() (*tls.Config, error) {
	if s.Cert == "" && s.Key == "" && s.CA == "" {
		return nil, nil
	}
	if s.CA == "" || (s.Cert == "") != (s.Key == "") || s.Cert == "" && s.Token == "" {
		return nil, status.New(status.InvalidArgument,
			"TLS needs a certificate, its key and an authority (--tls-cert, --tls-key, --tls-ca), or an authority and a "+
				"token; got %q, %q and %q", s.Cert, s.Key, s.CA)
	}
	if s.TokenSuffices && s.Token == "" {
		return nil, status.New(status.InvalidArgument,
			"clients need no certificate (--tls-mutual=false), but there is no token; name one with --token-file")
	}
	var own []tls.Certificate
	if s.Cert != "" {
		cert, err := tls.LoadX509KeyPair(s.Cert, s.Key)
		if err != nil {
			return nil, status.New(status.InvalidArgument, "the certificate %s and key %s cannot be used: %w", s.Cert, s.Key,
				err)
		}
		own = append(own, cert)
	}
	pem, err := os.ReadFile(s.CA)
	if err != nil {
		return nil, system.Error(err, "the authority's certificate cannot be read")
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, status.New(status.InvalidArgument, "%s contains no certificate in PEM form", s.CA)
	}
	asks := tls.RequireAndVerifyClientCert
	if s.TokenSuffices {
		asks = tls.VerifyClientCertIfGiven
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: own, RootCAs: pool, ClientCAs: pool, ClientAuth: asks},
		nil
}
