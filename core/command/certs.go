package command

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/system"
)

// lifetime is how long test certificates are valid.
const lifetime = 365 * 24 * time.Hour

func (p *program) certs() *cobra.Command {
	var hosts []string
	cmd := &cobra.Command{
		Use:   "certs DIRECTORY",
		Short: "make TLS certificates to try a cluster on several machines",
		Long: `Makes a certificate authority and one certificate, valid for a year, that every process of a cluster can use:

  ca.pem     the authority                  --tls-ca
  cert.pem   the processes' certificate     --tls-cert
  key.pem    its key, to be kept secret     --tls-key

The authority's own key is not kept, so no further certificates can be made. For more than a trial, use certificates of
your own authority, one per machine.`,
		Example: `  pathways certs ~/certs --host controller.example.org --host 10.0.0.5`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := makeCerts(args[0], append([]string{"localhost", "127.0.0.1", "::1"}, hosts...)); err != nil {
				return err
			}
			fmt.Fprintf(p.out, "%s has ca.pem, cert.pem and key.pem\n", args[0])
			return nil
		},
	}
	cmd.Flags().StringSliceVar(&hosts, "host", nil, "a name or address at which processes are reached; repeat for more")
	return cmd
}

// makeCerts writes ca.pem, cert.pem and key.pem for the hosts.
func makeCerts(dir string, hosts []string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return system.Error(err, "cannot make the directory")
	}
	for _, name := range []string{"ca.pem", "cert.pem", "key.pem"} {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			return status.New(status.AlreadyExists, "%s already contains %s; name another directory or remove it", dir, name)
		}
	}
	now := time.Now()
	authority := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "Pathways test authority"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(lifetime), BasicConstraintsValid: true,
		IsCA: true, KeyUsage: x509.KeyUsageCertSign}
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "pathways"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(lifetime), BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			leaf.IPAddresses = append(leaf.IPAddresses, ip)
		} else {
			leaf.DNSNames = append(leaf.DNSNames, h)
		}
	}
	ca, caKey, err := sign(authority, nil, nil)
	if err != nil {
		return err
	}
	cert, key, err := sign(leaf, ca, caKey)
	if err != nil {
		return err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	for _, f := range []struct {
		name, kind string
		der        []byte
		mode       os.FileMode
	}{{"ca.pem", "CERTIFICATE", ca.Raw, 0o644}, {"cert.pem", "CERTIFICATE", cert.Raw, 0o644},
		{"key.pem", "PRIVATE KEY", keyDER, 0o600}} {
		text := pem.EncodeToMemory(&pem.Block{Type: f.kind, Bytes: f.der})
		if err := os.WriteFile(filepath.Join(dir, f.name), text, f.mode); err != nil {
			return system.Error(err, "cannot write a certificate")
		}
	}
	return nil
}

// sign makes a key, and a certificate for it that parent has signed, or the key itself where there is no parent.
func sign(c, parent *x509.Certificate, parentKey *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	if parent == nil {
		parent, parentKey = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, parentKey)
	if err != nil {
		return nil, nil, err
	}
	c, err = x509.ParseCertificate(der)
	return c, key, err
}
