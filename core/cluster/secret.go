package cluster

import (
	"crypto/tls"
	"crypto/x509"
	"os"

	"github.com/openpathways/pathways/core/status"
)

// Secret is what lets processes into a cluster: a word that all of them know, or
// certificates, or both.
type Secret struct {
	Token         string
	Cert, Key, CA string // PEM files; "" where tcp is not secured
}

// tls is the configuration of both sides of a connection: each shows its
// certificate and asks for the other's.
//
// Errors: INVALID_ARGUMENT where only some of the files are named or one cannot
// be used.
func (s Secret) tls() (*tls.Config, error) {
	if s.Cert == "" && s.Key == "" && s.CA == "" {
		return nil, nil
	}
	if s.Cert == "" || s.Key == "" || s.CA == "" {
		return nil, status.New(status.InvalidArgument, "TLS needs a certificate, its key and an authority (--tls-cert, --tls-key, --tls-ca); got %q, %q and %q", s.Cert, s.Key, s.CA)
	}
	cert, err := tls.LoadX509KeyPair(s.Cert, s.Key)
	if err != nil {
		return nil, status.New(status.InvalidArgument, "the certificate %s and key %s cannot be used: %w", s.Cert, s.Key, err)
	}
	pem, err := os.ReadFile(s.CA)
	if err != nil {
		return nil, status.New(status.NotFound, "the authority's certificate cannot be read: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, status.New(status.InvalidArgument, "%s holds no certificate in PEM form", s.CA)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert},
		RootCAs: pool, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
	}, nil
}
