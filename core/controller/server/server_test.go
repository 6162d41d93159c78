package server_test

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/bubble"
	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/controller/server"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/device/sim"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/inproc"
	"github.com/openpathways/pathways/transport/shm"
	"github.com/openpathways/pathways/transport/stream"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a controller with a network.
type world struct {
	t       *testing.T
	network *inproc.Network
	server  *server.Server
}

func newWorld(t *testing.T, c server.Config) *world {
	t.Helper()
	w := &world{t: t, network: inproc.NewNetwork(transport.Credentials{Token: "t", Software: "test"}),
		server: statustest.Value(server.New(c)).OK(t)}
	l := statustest.Value(w.network.Listen("controller")).OK(t)
	server.AcceptUntilEnd(t, w.server, l)
	return w
}

// worker joins a worker of one device, of which the test has the connection.
func (w *world) worker(name string) transport.Conn {
	w.t.Helper()
	conn, _, err := w.network.Dial(context.Background(), "inproc:controller", &wire.Hello{Role: wire.Role_ROLE_WORKER,
		Name: name, Worker: &wire.WorkerOffer{Devices: []*wire.LocalDevice{{}}}})
	statustest.OK(w.t, err)
	w.t.Cleanup(func() { conn.Close() })
	return conn
}

// A controller that stops in order has nothing to warn of.
func TestStopIsQuiet(t *testing.T) {
	var said bytes.Buffer
	w := newWorld(t, server.Config{
		Log: slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelInfo}))})
	w.worker("steady")
	w.server.Close()
	if text := said.String(); strings.Contains(text, "WARN") || !strings.Contains(text, "steady") {
		t.Errorf("it logs %q; want to hear of the worker, and no warning", text)
	}
}

// Without a lease nothing takes a session up again, so what it has queued is dropped with its connection.
func TestSessionEndsWithItsConnection(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t, server.Config{})
		w.worker("a")
		conn, welcome, err := w.network.Dial(context.Background(), "inproc:controller",
			&wire.Hello{Role: wire.Role_ROLE_CLIENT, Name: "cut"})
		statustest.OK(t, err)
		if welcome.Link != nil {
			t.Errorf("a controller without a lease offers a link: %v", welcome.Link)
		}
		begun := time.Now()
		conn.Close()
		statustest.Soon(t, func() int { return len(w.server.Report().Sessions) }, 0, "sessions")
		if took := time.Since(begun); took > 2*time.Second {
			t.Errorf("the session ended %v after its connection", took)
		}
	})
}

// Compiling can be given up, and a client that waits is told when the controller
// stops.
func TestCompileEndsWhereItIsGivenUpOrTheControllerStops(t *testing.T) {
	w := newWorld(t, server.Config{})
	conn := w.worker("idle")
	c := statustest.Value(client.Connect(context.Background(), client.Config{Dialer: w.network,
		Address: "inproc:controller", Hello: &wire.Hello{Name: "tester"},
		Exchange: func(m *wire.Welcome) (transport.Exchange, error) {
			return inproc.NewHub(shm.NewPool(shm.Config{})).Join(m.Process, "tester")
		}})).OK(t)
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	statustest.Fails(t, "compiling that was cancelled", statustest.Of(c.Compile(ctx, client.CompileSpec{
		Format: "number", Code: []byte("1"), Options: sim.CompileOptions([]int{0})})), status.Cancelled)
	done := make(chan error, 1)
	go func() {
		_, err := c.Compile(context.Background(), client.CompileSpec{
			Format: "number", Code: []byte("2"), Options: sim.CompileOptions([]int{0})})
		done <- err
	}()
	for kind := wire.Kind(0); kind != wire.KindCompile; { // the program comes to the worker
		var err error
		kind, _, err = conn.Recv()
		statustest.OK(t, err)
	}
	w.server.Close()
	statustest.Fails(t, "compiling at the controller's end", <-done, status.Unavailable)
}

// Over sockets a server answers, refuses a client that gets no device, and ends with a peer that sends rubbish.
func TestServerOverSockets(t *testing.T) {
	s := statustest.Value(server.New(server.Config{})).OK(t)
	cred := transport.Credentials{Token: "secret", Software: "test"}
	address := "unix:" + filepath.Join(t.TempDir(), "c")
	dialer := stream.Options{Credentials: cred}
	l := statustest.Value(stream.Listen(address, dialer, nil)).OK(t)
	server.AcceptUntilEnd(t, s, l)
	admin, _, err := dialer.Dial(context.Background(), address, &wire.Hello{Role: wire.Role_ROLE_ADMIN})
	statustest.OK(t, err)
	defer admin.Close()
	b := statustest.Value(proto.Marshal(&wire.Ask{})).OK(t)
	statustest.OK(t, admin.Send(wire.KindAsk, b))
	kind, payload, err := admin.Recv()
	m := new(wire.Report)
	if err != nil || kind != wire.KindReport || wire.Decode(kind, payload, m) != nil || m.Cluster == "" {
		t.Errorf("got kind %d, %v, %v", kind, m, err)
	}
	// A client with no devices to have, and one that sends rubbish.
	statustest.Fails(t, "a client of an empty cluster", statustest.Of(client.Connect(context.Background(), client.Config{
		Dialer: dialer, Address: address, Hello: &wire.Hello{}})), status.ResourceExhausted)
	raw := statustest.Value(net.Dial("unix", strings.TrimPrefix(address, "unix:"))).OK(t)
	defer raw.Close()
	statustest.OK(t, statustest.Of(raw.Write([]byte("GET / HTTP/1.1\r\n\r\n"))))
	statustest.OK(t, admin.Send(wire.KindRun, []byte{0xff}))
	for {
		if _, _, err := admin.Recv(); err != nil {
			break
		}
	}
}
