package stream

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// authority signs certificates.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t}
	a.cert, a.key = a.sign(&x509.Certificate{
		NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: time.Now().Add(48 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	})
	return a
}

func (a *authority) sign(c *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	c.SerialNumber, c.Subject = big.NewInt(1), pkix.Name{CommonName: "test"}
	parent, by := a.cert, a.key
	if parent == nil {
		parent, by = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, by)
	if err != nil {
		a.t.Fatal(err)
	}
	if c, err = x509.ParseCertificate(der); err != nil {
		a.t.Fatal(err)
	}
	return c, key
}

// config is TLS with a certificate of the authority for a name, valid for a while.
func (a *authority) config(from, to time.Duration, name string) *tls.Config {
	c := &x509.Certificate{
		NotBefore: time.Now().Add(from), NotAfter: time.Now().Add(to), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, DNSNames: []string{name},
	}
	if ip := net.ParseIP(name); ip != nil {
		c.DNSNames, c.IPAddresses = nil, []net.IP{ip}
	}
	leaf, key := a.sign(c)
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{leaf.Raw}, PrivateKey: key}},
		RootCAs:      pool, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
	}
}

// Who is not let in by TLS hears UNAUTHENTICATED, why, and what to do.
func TestTLSRefusalsSayWhyAndWhatToDo(t *testing.T) {
	const day = 24 * time.Hour
	here := newAuthority(t)
	good := here.config(-day, day, "127.0.0.1")
	early, late := here.config(day, 2*day, "127.0.0.1"), here.config(-2*day, -day, "127.0.0.1")
	none := &tls.Config{RootCAs: good.RootCAs}
	other := newAuthority(t).config(-day, day, "127.0.0.1")
	strange := good.Clone() // known here, and itself of another authority
	strange.Certificates = other.Certificates
	for _, c := range []struct {
		name           string
		server, client *tls.Config
		says           []string
	}{
		{"server's not yet valid", early, good, []string{"its certificate is not valid before", "clocks"}},
		{"server's expired", late, good, []string{"its certificate expired at", "make a new one"}},
		{"server of another authority", other, good, []string{"authority", "--tls-ca"}},
		{"server of another name", here.config(-day, day, "example.org"), good, []string{"other names", "127.0.0.1"}},
		{"client's not yet valid", good, early, []string{"this side's certificate is not valid before", "clocks"}},
		{"client's expired", good, late, []string{"this side's certificate expired at", "make a new one"}},
		{"client of another authority", good, strange, []string{"does not accept this side's certificate"}},
		{"client without a certificate", good, none, []string{"asks for a certificate", "--tls-cert", "--tls-mutual=false"}},
		{"plain to TLS", good, nil, []string{"asks for TLS", "came without", "--tls-ca"}},
		{"TLS to plain", nil, good, []string{"answers without TLS", "without TLS options"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			refused := make(chan error, 10)
			l, err := Listen("tcp:127.0.0.1:0", Options{Credentials: cred(), TLS: c.server}, func(_ string, err error) {
				refused <- err
			})
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			for range 10 { // whichever of the sides is the faster
				_, _, err := Dial(t.Context(), l.Address(), &wire.Hello{}, Options{Credentials: cred(), TLS: c.client})
				if status.CodeOf(err) != status.Unauthenticated {
					t.Fatalf("%v (%v), expected UNAUTHENTICATED", err, status.CodeOf(err))
				}
				for _, s := range c.says {
					if !strings.Contains(err.Error(), s) {
						t.Errorf("%q does not say %q", err, s)
					}
				}
				if err := <-refused; status.CodeOf(err) != status.Unauthenticated {
					t.Errorf("the listener says %v (%v)", err, status.CodeOf(err))
				}
			}
		})
	}
}

// Without TLS, no address that other machines reach is dialled or listened at: the token would be sent to be read.
func TestNoPlainConnectionsBetweenMachines(t *testing.T) {
	const far = "tcp:192.0.2.1:8476"
	_, _, dialled := Dial(t.Context(), far, &wire.Hello{}, Options{Credentials: cred()})
	_, listened := Listen(far, Options{Credentials: cred()}, nil)
	for _, err := range []error{dialled, listened} {
		if status.CodeOf(err) != status.FailedPrecondition || !strings.Contains(err.Error(),
			far+" can be reached from other machines, and there is no TLS: give the authority by --tls-ca or PATHWAYS_TLS_CA") {
			t.Errorf("%v (%v), expected FAILED_PRECONDITION and what to give", err, status.CodeOf(err))
		}
	}
}

// Who goes in the middle of a handshake is not one whom nobody trusts: trying again may help.
func TestHandshakeThatBreaks(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			socket, err := l.Accept()
			if err != nil {
				return
			}
			socket.Close()
		}
	}()
	_, _, err = Dial(t.Context(), "tcp:"+l.Addr().String(), &wire.Hello{},
		Options{TLS: newAuthority(t).config(-time.Hour, time.Hour, "127.0.0.1")})
	if status.CodeOf(err) != status.Unavailable || !strings.Contains(err.Error(), "does it speak TLS") {
		t.Errorf("%v (%v), expected UNAVAILABLE", err, status.CodeOf(err))
	}
}
