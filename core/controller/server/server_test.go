package server_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/bubble"
	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/controller"
	"github.com/openpathways/pathways/core/controller/server"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/device/sim"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/stream"
)

// A controller that stops in order has nothing to warn of.
func TestStopIsQuiet(t *testing.T) {
	var said bytes.Buffer
	w := newWorld(t, server.Config{
		Log: slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelInfo}))})
	w.worker("steady", 1)
	w.server.Close()
	if text := said.String(); strings.Contains(text, "WARN") || !strings.Contains(text, "steady") {
		t.Errorf("it logs %q; want to hear of the worker, and no warning", text)
	}
}

// A worker that is lost fails what it has a part in, with its name, and nothing
// hangs.
func TestWorkerIsLost(t *testing.T) {
	w := newWorld(t, server.Config{FirstCome: true})
	w.worker("steady", 1)
	frail := w.worker("frail", 1)
	ends := make(chan client.Ended, 100)
	c := w.client(ends)
	p := compile(t, c, 1, 0, 1)
	x := put(t, c, 1, 0, 1)
	statustest.OK(t, wait(t, ends, 1)[1])
	frail.mu.Lock()
	frail.hold[p.ID] = true
	frail.mu.Unlock()
	y := run(t, c, p, 2, x)
	run(t, c, p, 3, y)
	frail.until(func() bool { return len(frail.order) == 3 }) // the run is there
	frail.conn.Close()
	for token, err := range wait(t, ends, 2) {
		statustest.Fails(t, fmt.Sprintf("operation %d", token), err, status.Unavailable, "worker frail is gone")
	}
	// Devices are numbered by their workers' names.
	statustest.Equal(t, statustest.Value(fetch(t, c, x, 1)).OK(t), 1, "the steady worker's shard")
	statustest.Fails(t, "the frail worker's shard", statustest.Of(fetch(t, c, x, 0)), status.DataLoss, "worker frail")
}

// An error of a run reaches what depends on it with its code and text.
func TestErrorOfRunReachesDependents(t *testing.T) {
	w := newWorld(t, server.Config{})
	w.worker("a", 1)
	ends := make(chan client.Ended, 100)
	c := w.client(ends)
	x := put(t, c, 1, 0)
	y := run(t, c, compile(t, c, 13, 0), 2, x)
	got := wait(t, ends, 2)
	statustest.Fails(t, "the run", got[2], status.Internal, "bad luck")
	statustest.Fails(t, "what it made", statustest.Of(fetch(t, c, y, 0)), status.Internal, "bad luck")
	statustest.Fails(t, "a bad program", statustest.Of(c.Compile(context.Background(), client.CompileSpec{
		Format: "number", Code: []byte("NaN")})), status.InvalidArgument)
}

// A client that goes, politely or not, leaves nothing.
func TestDepartedClientLeavesNothing(t *testing.T) {
	w := newWorld(t, server.Config{})
	a := w.worker("a", 1)
	for _, politely := range []bool{true, false} {
		ends := make(chan client.Ended, 100)
		conn, m, err := w.network.Dial(context.Background(), "inproc:controller",
			&wire.Hello{Role: wire.Role_ROLE_CLIENT, Name: "cut"})
		statustest.OK(t, err)
		c, err := client.Connect(context.Background(), client.Config{Dialer: dialled{conn, m}, Hello: &wire.Hello{},
			Exchange: func(m *wire.Welcome) (transport.Exchange, error) { return box{w.mail, m.Process}, nil },
			Notify: func(es []client.Ended) {
				for _, e := range es {
					ends <- e
				}
			}})
		statustest.OK(t, err)
		p := compile(t, c, 1, 0)
		x := put(t, c, 1, 0)
		run(t, c, p, 2, x)
		wait(t, ends, 2)
		a.mu.Lock()
		statustest.Equal(t, len(a.objects), 2, "arrays of the worker")
		a.hold[p.ID] = true
		a.mu.Unlock()
		run(t, c, p, 3, x)
		if politely {
			c.Close()
		} else {
			conn.Close() // it is cut off
		}
		statustest.Fails(t, "a run under way", wait(t, ends, 1)[3], status.Unavailable)
		if err := c.Run(&client.RunSpec{Program: p.ID, FirstOutput: c.Objects(1), Inputs: []uint64{x},
			Only: -1}); status.CodeOf(err) != status.Unavailable || c.Lost() == nil {
			t.Errorf("a run after the end returns %v, and Lost %v", err, c.Lost())
		}
		c.Close()
		a.until(func() bool { return len(a.objects)+len(a.programs) == 0 })
		a.mu.Lock()
		clear(a.hold)
		a.mu.Unlock()
		if r := w.server.Report(); len(r.Sessions) != 0 || r.Islands[0].Workers[0].Gangs != 0 {
			t.Errorf("the controller still has %v", r)
		}
	}
}

// Without a lease nothing takes a session up again, so what it has queued is dropped with its connection.
func TestSessionEndsWithItsConnection(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t, server.Config{})
		w.worker("a", 1)
		conn, welcome, err := w.network.Dial(context.Background(), "inproc:controller",
			&wire.Hello{Role: wire.Role_ROLE_CLIENT, Name: "cut"})
		statustest.OK(t, err)
		if welcome.Link != nil {
			t.Errorf("a controller without a lease offers a link: %v", welcome.Link)
		}
		begun := time.Now()
		conn.Close()
		for len(w.server.Report().Sessions) > 0 {
			time.Sleep(time.Millisecond) // of the bubble's time
		}
		if took := time.Since(begun); took > 2*time.Second {
			t.Errorf("the session ended %v after its connection", took)
		}
	})
}

// dialled is a Dialer that has dialled.
type dialled struct {
	conn    transport.Conn
	welcome *wire.Welcome
}

func (d dialled) Dial(context.Context, string, *wire.Hello) (transport.Conn, *wire.Welcome, error) {
	return d.conn, d.welcome, nil
}

// More operations than the credit wait at the client, and all end.
func TestClientWaitsForCredit(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t, server.Config{Limits: controller.Limits{Credit: 4, Window: 2}})
		w.worker("a", 1)
		w.worker("b", 1)
		ends := make(chan client.Ended, 1000)
		c := w.client(ends)
		p := compile(t, c, 1, 0, 1)
		x := put(t, c, 0, 0, 1)
		const n = 300
		for i := range n {
			y := run(t, c, p, uint64(i+1), x)
			c.Free([]uint64{x})
			x = y
		}
		for token, err := range wait(t, ends, n+1) {
			statustest.OKf(t, err, "operation %d", token)
		}
		statustest.Equal(t, statustest.Value(fetch(t, c, x, 1)).OK(t), n+1, "got")
		synctest.Wait() // the last frees go by themselves
		statustest.Equal(t, w.server.Report().Sessions[0].Objects, 1, "arrays are left")
	})
}

// Compiling can be given up, and a client that waits is told when the controller
// stops.
func TestCompileEndsWhereItIsGivenUpOrTheControllerStops(t *testing.T) {
	w := newWorld(t, server.Config{})
	conn, _, err := w.network.Dial(context.Background(), "inproc:controller",
		&wire.Hello{Role: wire.Role_ROLE_WORKER, Name: "idle",
			Worker: &wire.WorkerOffer{Devices: []*wire.LocalDevice{{}}}})
	statustest.OK(t, err)
	defer conn.Close()
	c := w.client(nil)
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
		if kind, _, err = conn.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	w.server.Close()
	statustest.Fails(t, "compiling at the controller's end", <-done, status.Unavailable)
}

// A worker that does not read holds up no other: what is for it waits, others go on.
func TestWorkerDoesNotRead(t *testing.T) {
	w := newWorld(t, server.Config{Limits: controller.Limits{Window: 1 << 20, Credit: 1 << 20}})
	w.worker("good", 1)
	stuck, _, err := w.network.Dial(context.Background(), "inproc:controller",
		&wire.Hello{Role: wire.Role_ROLE_WORKER, Name: "stuck",
			Worker: &wire.WorkerOffer{
				Platform: &wire.Platform{Name: "sim"}, Fingerprint: "f", Devices: []*wire.LocalDevice{{}}}})
	statustest.OK(t, err)
	ends := make(chan client.Ended, 100)
	c := w.client(ends)
	p := compile(t, c, 1, 0)
	x := put(t, c, 1, 0)
	wait(t, ends, 1)
	// Operations with long traces for the one that does not read, far past what a
	// connection holds.
	for i := range 40 {
		statustest.OK(t, c.Transfer(&wire.Transfer{
			Object: c.Objects(1), Array: &wire.Array{Dtype: 8, Memory: strings.Repeat("m", 1<<20)},
			Moves: []*wire.Move{{Source: x, From: 0, To: 1}}}, uint64(1000+i)))
	}
	run(t, c, p, 2, x)
	for {
		e := <-ends
		if e.Token == 2 {
			statustest.Check(t, e.Err)
			break
		}
	}
	stuck.Close()
	go func() { // the rest of the ends
		for range ends {
		}
	}()
	c.Close()
	close(ends)
}

// Over sockets the same happens.
func TestServerOverSockets(t *testing.T) {
	server := statustest.Value(server.New(server.Config{})).OK(t)
	defer server.Close()
	cred := transport.Credentials{Token: "secret", Software: "test"}
	address := "unix:" + filepath.Join(t.TempDir(), "c")
	dialer := stream.Options{Credentials: cred}
	l := statustest.Value(stream.Listen(address, dialer, nil)).OK(t)
	accepted := make(chan struct{})
	go func() {
		defer close(accepted)
		_ = server.Accept(l) // ends with the listener
	}()
	defer func() {
		l.Close()
		<-accepted
	}()
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
