package cluster_test

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/cluster"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/sim"
	"github.com/openpathways/pathways/transport"
	streams "github.com/openpathways/pathways/transport/stream"
	"github.com/openpathways/pathways/transport/transporttest"
)

// certificateFiles writes a certificate for localhost and 127.0.0.1, which is its own authority.
func certificateFiles(t *testing.T) cluster.Secret {
	t.Helper()
	own := transporttest.Certificates(t).Certificates[0]
	key := statustest.Value(x509.MarshalPKCS8PrivateKey(own.PrivateKey)).OK(t)
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(t.TempDir(), name)
		statustest.OK(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
		return path
	}
	cert := write("cert.pem", "CERTIFICATE", own.Certificate[0])
	return cluster.Secret{Cert: cert, Key: write("key.pem", "PRIVATE KEY", key), CA: cert}
}

// controllerOf serves a controller on a unix socket with the certificates of a secret.
func controllerOf(t *testing.T, s cluster.Secret) (address string, c *served) {
	t.Helper()
	address = "unix:" + filepath.Join(t.TempDir(), "c")
	return address, listening(t,
		cluster.ControllerConfig{Listen: []string{address}, Secret: s, Heartbeat: 100 * time.Millisecond})
}

// text collects what a process logs.
type text struct {
	mu sync.Mutex
	strings.Builder
	more chan struct{} // closed with the next line, where somebody waits
}

func (w *text) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.more != nil {
		close(w.more)
		w.more = nil
	}
	return w.Builder.Write(b)
}

// until waits until a part is in it, and returns all.
func (w *text) until(part string) string {
	for {
		w.mu.Lock()
		all := w.String()
		if w.more == nil {
			w.more = make(chan struct{})
		}
		more := w.more
		w.mu.Unlock()
		if strings.Contains(all, part) {
			return all
		}
		<-more
	}
}

// listening serves a controller and returns once it listens.
func listening(t *testing.T, c cluster.ControllerConfig) *served {
	t.Helper()
	var log text
	c.Log = slog.New(slog.NewTextHandler(&log, nil))
	s := serve(t, func(ctx context.Context) error { return cluster.ServeController(ctx, c) })
	log.until("the controller listens")
	return s
}

// A worker whose certificate is not for the address that it tells is refused when it joins, with what to do, also as a
// member of an epoch. One whose certificate is for it joins, and logs nothing of having been dialed.
func TestWorkerWhoseCertificateLacksItsAddress(t *testing.T) {
	secret := certificateFiles(t)
	address, controller := controllerOf(t, secret)
	kind := sim.Kind{Options: sim.Options{Devices: 1, Island: sim.NewIsland(sim.Real, 1)}}
	ways := map[string]func(context.Context, cluster.WorkerConfig) error{
		"worker": func(ctx context.Context, c cluster.WorkerConfig) (err error) {
			if c.Driver, err = kind.Join(ctx, device.Membership{}); err != nil {
				return err
			}
			defer c.Driver.Close()
			return cluster.ServeWorker(ctx, c)
		},
		"member": func(ctx context.Context, c cluster.WorkerConfig) error {
			return cluster.ServeMember(ctx, c, kind, 1, nil)
		},
	}
	for name, way := range ways {
		var log text
		begin := func(listen string) *served {
			return serve(t, func(ctx context.Context) error {
				return way(ctx, cluster.WorkerConfig{
					Address: address, Listen: []string{listen}, Secret: secret, Name: name, Wait: 20 * time.Second,
					Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn})),
				})
			})
		}
		err := begin("tcp:127.0.0.2:0").wait()
		statustest.Fails(t, fmt.Sprintf("a %s at an address that its certificate is not for", name), err,
			status.InvalidArgument)
		for _, part := range []string{"worker " + name, "tcp:127.0.0.2:", "certificate is for other names", "--listen"} {
			if err != nil && !strings.Contains(err.Error(), part) {
				t.Errorf("the refusal of a %s lacks %q: %v", name, part, err)
			}
		}
		log.Reset() // it tells that the controller did not trust its certificate
		good := begin("tcp:127.0.0.1:0")
		workers(t, address, 1)
		statustest.Check(t, good.end())
		if log.Len() > 0 {
			t.Errorf("a %s that joined has logged:\n%s", name, log.String())
		}
	}
	statustest.Check(t, controller.end())
}

// A worker that does not accept the controller's certificate, which may be one for servers alone, is at its address all
// the same: its own certificate says so.
func TestWorkerThatAcceptsNoCertificateOfItsController(t *testing.T) {
	own, other := certificateFiles(t), certificateFiles(t)
	address, controller := controllerOf(t, cluster.Secret{Cert: other.Cert, Key: other.Key, CA: own.CA})
	driver, err := sim.Kind{Options: sim.Options{Devices: 1, Island: sim.NewIsland(sim.Real, 1)}}.Join(t.Context(),
		device.Membership{})
	statustest.OK(t, err)
	defer driver.Close()
	w := serve(t, func(ctx context.Context) error {
		return cluster.ServeWorker(ctx, cluster.WorkerConfig{
			Address: address, Listen: []string{"tcp:127.0.0.1:0"}, Secret: own, Driver: driver,
			Log: slog.New(slog.DiscardHandler),
		})
	})
	workers(t, address, 1)
	for _, s := range []*served{w, controller} {
		statustest.Check(t, s.end())
	}
}

// listens begins a listener that answers to an identity. It returns its address.
func listens(t *testing.T, identity string) string {
	t.Helper()
	l := statustest.Value(streams.Listen("tcp:127.0.0.1:0", streams.Options{
		Credentials: transport.Credentials{Identity: []byte(identity)}}, func(peer string, err error) {
		t.Errorf("%s was refused: %v", peer, err)
	})).OK(t)
	t.Cleanup(func() { l.Close() })
	return l.Address()
}

// A controller lets a worker in that answers at one of its addresses, or that is too old to be asked.
func TestWorkerIsDialedWhenItJoins(t *testing.T) {
	address, controller := controllerOf(t, cluster.Secret{})
	join := func(host, identity string, addresses ...string) error {
		conn, _, err := streams.Dial(t.Context(), address,
			&wire.Hello{Role: wire.Role_ROLE_WORKER, Name: "w0", Host: host, Worker: &wire.WorkerOffer{
				Host: host, Identity: []byte(identity), Addresses: addresses, Devices: []*wire.LocalDevice{{Kind: "sim"}},
			}}, streams.Options{})
		if err == nil {
			conn.Close()
		}
		return err
	}
	// The system takes connections for it, and nothing answers there.
	silent := func() (net.Listener, string) {
		l := statustest.Value(net.Listen("tcp", "127.0.0.1:0")).OK(t)
		t.Cleanup(func() { l.Close() })
		return l, "tcp:" + l.Addr().String()
	}
	_, mute := silent()
	gone := statustest.Value(net.Listen("tcp", "127.0.0.1:0")).OK(t)
	closed := "tcp:" + gone.Addr().String()
	gone.Close()
	own, other := listens(t, "own"), listens(t, "other")

	for what, addresses := range map[string][]string{
		"its own": {own}, "one that is closed and its own": {closed, own}, "one that is silent and its own": {mute, own},
		"a unix socket that nothing listens at": {"unix:/nowhere"}, // which only processes of its host dial
	} {
		statustest.Checkf(t, join(cluster.Host(), "own", addresses...), "a worker at %s", what)
	}
	statustest.Checkf(t, join(cluster.Host(), "", closed), "a worker without an identity")
	for _, bad := range []struct{ host, address, why string }{
		{cluster.Host(), closed, "connection refused"},
		{cluster.Host(), other, "another process"},
		{"elsewhere", closed, "a loopback address can be reached only from its own machine"},
		{"elsewhere", other, "a loopback address can be reached only from its own machine"},
		{cluster.Host(), "tcp:0.0.0.0:1", "names no host"}, // by its form
	} {
		err := join(bad.host, "own", bad.address)
		if status.CodeOf(err) != status.InvalidArgument {
			t.Errorf("a worker of %s at %s: %v", bad.host, bad.address, err)
			continue
		}
		for _, part := range []string{"worker w0", bad.address, bad.why} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("the refusal at %s lacks %q: %v", bad.address, part, err)
			}
		}
	}

	// One that is silent keeps neither other workers nor the controller's end.
	l, mute := silent()
	waits := make(chan error, 1)
	go func() { waits <- join(cluster.Host(), "own", mute) }()
	_ = l.(*net.TCPListener).SetDeadline(time.Now().Add(time.Minute)) // against a hang
	probe := statustest.Value(l.Accept()).OK(t)
	defer probe.Close()
	statustest.Checkf(t, join(cluster.Host(), "own", own), "beside one that is silent")
	select {
	case err := <-waits:
		t.Errorf("a worker at a silent address has an answer at once: %v", err)
	default:
	}
	statustest.Check(t, controller.end())
	statustest.Fails(t, "a worker that waits where the controller stops", <-waits, status.Unavailable,
		"the controller stops")
}
