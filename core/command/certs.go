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
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/openpathways/pathways/core/cluster"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/system"
)

// lifetime is how long test certificates are valid.
const lifetime = 365 * 24 * time.Hour

func (p *program) certs() *cobra.Command {
	var hosts []string
	var roles bool
	var tenants []string
	cmd := &cobra.Command{
		Use:   "certs DIRECTORY",
		Short: "make TLS certificates to try a cluster on several machines",
		Long: `Makes a certificate authority and one certificate, valid for a year, that every process of a cluster can use:

  ca.pem     the authority                  --tls-ca
  cert.pem   the processes' certificate     --tls-cert
  key.pem    their key; keep it secret      --tls-key

With --roles, cert.pem and key.pem are for the controller and for operators. Two more certificates permit less:
worker.pem and worker-key.pem only add devices, tenant.pem and tenant-key.pem only begin sessions and read the status.
With --tenant NAME, NAME.pem and NAME-key.pem are for the tenant of this name in a file of tenants.

The authority's own key is not kept, so you cannot make further certificates. In production use certificates of your own
authority, one per machine.`,
		Example: `  pathways certs ~/certs --host controller.example.org --host 10.0.0.5
  pathways certs ~/certs --host node1 --roles --tenant research --tenant students`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			names, err := makeCerts(args[0], append([]string{"localhost", "127.0.0.1", "::1"}, hosts...), roles, tenants)
			if err != nil {
				return err
			}
			fmt.Fprintf(p.out, "%s has %s and %s\n", args[0], strings.Join(names[:len(names)-1], ", "), names[len(names)-1])
			return nil
		},
	}
	cmd.Flags().BoolVar(&roles, "roles", false, "make certificates for workers and for tenants, too")
	cmd.Flags().StringSliceVar(&tenants, "tenant", nil, "the name of a tenant to make a certificate for; repeat for more")
	cmd.Flags().StringSliceVar(&hosts, "host", nil, "a name or address at which processes are reached; repeat for more")
	return cmd
}

// pemFile is a file of certificates.
type pemFile struct {
	name, kind string
	der        []byte
	mode       os.FileMode
}

// makeCerts writes ca.pem, cert.pem and key.pem for the hosts, and those of the other roles and of tenants if asked
// for. It returns the names of the files.
//
// Errors: INVALID_ARGUMENT for a name that is no tenant's; ALREADY_EXISTS.
func makeCerts(dir string, hosts []string, roles bool, tenants []string) (names []string, err error) {
	for _, name := range tenants {
		if err := cluster.IsTenantName(name); err != nil {
			return nil, usage{err}
		}
	}
	now := time.Now()
	authority := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "Pathways test authority"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(lifetime), BasicConstraintsValid: true,
		IsCA: true, KeyUsage: x509.KeyUsageCertSign}
	ca, caKey, err := sign(authority, nil, nil)
	if err != nil {
		return nil, err
	}
	files := []pemFile{{"ca.pem", "CERTIFICATE", ca.Raw, 0o644}}
	add := func(leaf *x509.Certificate, name, key string) error {
		if slices.ContainsFunc(files, func(f pemFile) bool { return f.name == name || f.name == key }) {
			return usage{status.New(status.InvalidArgument, "two certificates would be named %s; choose another name for the "+
				"tenant", name)}
		}
		leaf.SerialNumber = big.NewInt(int64(len(files) + 1))
		cert, private, err := sign(leaf, ca, caKey)
		if err != nil {
			return err
		}
		der, err := x509.MarshalPKCS8PrivateKey(private)
		files = append(files, pemFile{name, "CERTIFICATE", cert.Raw, 0o644}, pemFile{key, "PRIVATE KEY", der, 0o600})
		return err
	}
	err = add(leafFor("operator", "", hosts), "cert.pem", "key.pem")
	if err == nil && roles {
		err = add(leafFor("worker", "", hosts), "worker.pem", "worker-key.pem")
	}
	if err == nil && roles {
		err = add(leafFor("tenant", "", nil), "tenant.pem", "tenant-key.pem")
	}
	for _, name := range tenants {
		if err == nil {
			err = add(leafFor("tenant", "/"+name, nil), name+".pem", name+"-key.pem")
		}
	}
	if err != nil {
		return nil, err
	}
	return writeAll(dir, files)
}

// writeAll writes files to a directory that has none of them yet, and returns their names.
//
// Errors: ALREADY_EXISTS; those of package system.
func writeAll(dir string, files []pemFile) (names []string, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, system.Error(err, "cannot make the directory")
	}
	for _, f := range files {
		if _, err := os.Lstat(filepath.Join(dir, f.name)); err == nil {
			return nil, status.New(status.AlreadyExists, "%s already contains %s; name another directory or remove it", dir,
				f.name)
		}
	}
	for _, f := range files {
		text := pem.EncodeToMemory(&pem.Block{Type: f.kind, Bytes: f.der})
		if err := os.WriteFile(filepath.Join(dir, f.name), text, f.mode); err != nil {
			return nil, system.Error(err, "cannot write a certificate")
		}
		names = append(names, f.name)
	}
	return names, nil
}

// leafFor returns what a certificate of a role says, whose URI ends with a path. Without hosts its holder can connect,
// and not listen.
func leafFor(role, path string, hosts []string) *x509.Certificate {
	now := time.Now()
	leaf := &x509.Certificate{Subject: pkix.Name{CommonName: "pathways " + role},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(lifetime), BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		URIs:        []*url.URL{{Scheme: "pathways", Host: role, Path: path}}}
	if len(hosts) > 0 {
		leaf.ExtKeyUsage = append(leaf.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			leaf.IPAddresses = append(leaf.IPAddresses, ip)
		} else {
			leaf.DNSNames = append(leaf.DNSNames, h)
		}
	}
	return leaf
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
