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
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
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
	key := statustest.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)).OK(a.t)
	c.SerialNumber, c.Subject = big.NewInt(1), pkix.Name{CommonName: "test"}
	parent, by := a.cert, a.key
	if parent == nil {
		parent, by = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, by)
	statustest.OK(a.t, err)
	if c, err = x509.ParseCertificate(der); err != nil {
		a.t.Fatal(err)
	}
	return c, key
}

// config is TLS with a certificate of the authority for a name and URIs, valid for a while.
func (a *authority) config(from, to time.Duration, name string, uris ...string) *tls.Config {
	c := &x509.Certificate{
		NotBefore: time.Now().Add(from), NotAfter: time.Now().Add(to), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, DNSNames: []string{name},
	}
	if ip := net.ParseIP(name); ip != nil {
		c.DNSNames, c.IPAddresses = nil, []net.IP{ip}
	}
	for _, text := range uris {
		uri := statustest.Value(url.Parse(text)).OK(a.t)
		c.URIs = append(c.URIs, uri)
	}
	leaf, key := a.sign(c)
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{leaf.Raw}, PrivateKey: key}},
		RootCAs:      pool, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
	}
}

// A peer that TLS does not let in gets UNAUTHENTICATED, with the reason and what to do.
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
			statustest.OK(t, err)
			defer l.Close()
			for range 10 { // whichever of the sides is the faster
				_, _, err := Dial(t.Context(), l.Address(), &wire.Hello{}, Options{Credentials: cred(), TLS: c.client})
				statustest.Fails(t, "the error", err, status.Unauthenticated)
				for _, s := range c.says {
					if !strings.Contains(err.Error(), s) {
						t.Errorf("%q does not say %q", err, s)
					}
				}
				statustest.Fails(t, "the listener", <-refused, status.Unauthenticated)
			}
		})
	}
}

// A certificate opens no more than the role that it names, whatever the token opens; without a role it opens all.
func TestCertificateOpensItsRole(t *testing.T) {
	here := newAuthority(t)
	as := func(uris ...string) *tls.Config { return here.config(-time.Hour, time.Hour, "127.0.0.1", uris...) }
	const session, devices, look = wire.Role_ROLE_CLIENT, wire.Role_ROLE_WORKER, wire.Role_ROLE_ADMIN
	tenant, worker := transport.Tenant.URI(), transport.Worker.URI()
	for _, c := range []struct {
		name   string
		uris   []string
		token  string
		role   wire.Role
		pass   transport.Pass
		refuse status.Code
		says   string
	}{
		{"not a role", nil, "secret", devices, transport.Operator, status.OK, ""},
		{"a URI of others", []string{"spiffe://cluster/tenant"}, "secret", devices, transport.Operator, status.OK, ""},
		{"an operator", []string{transport.Operator.URI()}, "secret", session, transport.Operator, status.OK, ""},
		{"a tenant's session", []string{tenant}, "secret", session, transport.Tenant, status.OK, ""},
		{"a tenant that looks", []string{tenant}, "secret", look, transport.Tenant, status.OK, ""},
		{"a tenant's devices", []string{tenant}, "secret", devices, 0, status.PermissionDenied, worker},
		{"a tenant in an epoch", []string{tenant}, "secret", wire.Role_ROLE_MEMBER, 0, status.PermissionDenied, worker},
		{"a worker's devices", []string{worker, worker}, "secret", devices, transport.Worker, status.OK, ""},
		{"a worker's session", []string{worker}, "secret", session, 0, status.PermissionDenied, tenant},
		{"a worker that looks", []string{worker}, "secret", look, 0, status.PermissionDenied, tenant},
		{"a tenant's token with a certificate for all", nil, transport.Tenant.Token("secret"), session, transport.Tenant,
			status.OK, ""},
		{"a worker's token with a tenant's certificate", []string{tenant}, transport.Worker.Token("secret"), devices, 0,
			status.PermissionDenied, "tenant's certificate"},
		{"two roles", []string{tenant, worker}, "secret", session, 0, status.Unauthenticated, "one certificate for each"},
		{"a role that is none", []string{"pathways://king"}, "secret", session, 0, status.Unauthenticated,
			"pathways://king, which is not a role"},
		{"a tenant with a name", []string{tenant + "/ada"}, "secret", session, transport.Tenant, status.OK, ""},
		{"a role and more", []string{worker + "/ada"}, "secret", session, 0, status.Unauthenticated, "not a role"},
		{"a role and a query", []string{tenant + "?ada"}, "secret", session, 0, status.Unauthenticated, "not a role"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := Options{Credentials: cred(), TLS: as(c.uris...)}
			o.Token = c.token
			holder, err := admitted(t, Options{Credentials: cred(), TLS: as()}, o, c.role)
			statustest.Fails(t, "who shows it", err, c.refuse, c.says)
			if err == nil {
				statustest.Equal(t, holder.Pass, c.pass, "it opens what is for")
			}
		})
	}
}

// A certificate of a role does not stand in for a process of another: no token is shown to a tenant, or to a worker
// that listens where a controller is dialed.
func TestServerHasACertificateForWhatItIs(t *testing.T) {
	here := newAuthority(t)
	as := func(pass transport.Pass) *tls.Config {
		return here.config(-time.Hour, time.Hour, "127.0.0.1", pass.URI())
	}
	for _, c := range []struct {
		server transport.Pass
		role   wire.Role
		says   string // "" where it is trusted
	}{
		{transport.Operator, wire.Role_ROLE_CLIENT, ""}, {transport.Operator, wire.Role_ROLE_PEER, ""},
		{transport.Worker, wire.Role_ROLE_PEER, ""}, {transport.Worker, wire.Role_ROLE_PROBE, ""},
		{transport.Worker, wire.Role_ROLE_CLIENT, "a worker (pathways://worker), which cannot be a controller"},
		{transport.Worker, wire.Role_ROLE_WORKER, "cannot be a controller"},
		{transport.Tenant, wire.Role_ROLE_ADMIN, "a tenant (pathways://tenant), which cannot be a controller"},
		{transport.Tenant, wire.Role_ROLE_PEER, "cannot be a worker"},
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		statustest.OK(t, err)
		got := make(chan int, 1)
		go func() {
			socket, err := l.Accept()
			if err != nil {
				return
			}
			defer socket.Close()
			n, _ := tls.Server(socket, as(c.server)).Read(make([]byte, 1000))
			got <- n
		}()
		_, _, err = Dial(t.Context(), "tcp:"+l.Addr().String(), &wire.Hello{Role: c.role},
			Options{Credentials: cred(), TLS: as(transport.Operator)})
		if refused := status.CodeOf(err) == status.Unauthenticated; refused != (c.says != "") ||
			refused && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v dialed as %v: %v", c.server, c.role, err)
		}
		if n := <-got; (n == 0) != (c.says != "") {
			t.Errorf("%v dialed as %v was sent %d bytes", c.server, c.role, n)
		}
		l.Close()
	}
}

// Without TLS, no address that other machines reach is dialed or listened at: the token would be sent to be read.
func TestNoPlainConnectionsBetweenMachines(t *testing.T) {
	const far = "tcp:192.0.2.1:8476"
	_, _, dialed := Dial(t.Context(), far, &wire.Hello{}, Options{Credentials: cred()})
	_, listened := Listen(far, Options{Credentials: cred()}, nil)
	for _, err := range []error{dialed, listened} {
		statustest.Fails(t, "the error", err, status.FailedPrecondition,
			far+" can be reached from other machines, and there is no TLS: give the authority by --tls-ca or PATHWAYS_TLS_CA")
	}
}

// A peer that leaves in the middle of a handshake may be trusted all the same: trying again may help.
func TestHandshakeThatBreaks(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	statustest.OK(t, err)
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
	statustest.Fails(t, "the error", err, status.Unavailable, "does it speak TLS")
}

// A token or a certificate of a tenant names it; where both do, they have to agree. It opens what a tenant's opens.
func TestCredentialsNameTheirTenant(t *testing.T) {
	here := newAuthority(t)
	as := func(uris ...string) *tls.Config { return here.config(-time.Hour, time.Hour, "127.0.0.1", uris...) }
	named := transport.Holder{Pass: transport.Tenant, Tenant: "ada"}
	for _, c := range []struct {
		uri, token string
		role       wire.Role
		want       transport.Holder
		refuse     status.Code
		says       string
	}{
		{"", "ada's token", wire.Role_ROLE_CLIENT, named, status.OK, ""},
		{"pathways://tenant/ada", "secret", wire.Role_ROLE_CLIENT, named, status.OK, ""},
		{"pathways://tenant/ada", "ada's token", wire.Role_ROLE_ADMIN, named, status.OK, ""},
		{"pathways://tenant", "ada's token", wire.Role_ROLE_CLIENT, named, status.OK, ""},
		{"pathways://tenant", "secret", wire.Role_ROLE_CLIENT, transport.Holder{Pass: transport.Tenant}, status.OK, ""},
		{"pathways://tenant/bob", "ada's token", wire.Role_ROLE_CLIENT, named, status.PermissionDenied,
			"the token is that of tenant ada, and the certificate that of tenant bob"},
		{"", "ada's token", wire.Role_ROLE_WORKER, named, status.PermissionDenied, "cannot add devices"},
		{"", "bob's token", wire.Role_ROLE_CLIENT, named, status.Unauthenticated, "the token is not this cluster's"},
	} {
		t.Run(c.token+" "+c.uri, func(t *testing.T) {
			listener := cred()
			listener.TenantOf = func(token []byte) (string, bool) { return "ada", string(token) == "ada's token" }
			o := Options{Credentials: cred(), TLS: as()}
			if c.uri != "" {
				o.TLS = as(c.uri)
			}
			o.Token = c.token
			holder, err := admitted(t, Options{Credentials: listener, TLS: as()}, o, c.role)
			statustest.Fails(t, "who shows it", err, c.refuse, c.says)
			if err == nil {
				statustest.Equal(t, holder, c.want, "who shows it")
			}
		})
	}
}

// admitted has a dialer greet a listener in a role, and returns as whom it is admitted, or why not.
func admitted(t *testing.T, listener, dialer Options, role wire.Role) (transport.Holder, error) {
	t.Helper()
	l := statustest.Value(Listen("tcp:127.0.0.1:0", listener, nil)).OK(t)
	defer l.Close()
	holders := make(chan transport.Holder, 1)
	go func() {
		in, err := l.Accept()
		if err != nil {
			return // the dialer is refused
		}
		holders <- in.Holder
		_ = in.Welcome(&wire.Welcome{}) // the dialer says if it fails
		in.Close()
	}()
	conn, _, err := Dial(t.Context(), l.Address(), &wire.Hello{Role: role}, dialer)
	if err != nil {
		return transport.Holder{}, err
	}
	conn.Close()
	return <-holders, nil
}
