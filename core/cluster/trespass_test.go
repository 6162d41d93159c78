package cluster_test

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/cluster"
	"github.com/openpathways/pathways/core/grant"
	"github.com/openpathways/pathways/core/graph"
	"github.com/openpathways/pathways/core/placement"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/device/sim"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/bulk"
	streams "github.com/openpathways/pathways/transport/stream"
)

// victim is a session on two devices that has one of everything: an array, a program, a graph and a slice.
type victim struct {
	*session
	id    uint32
	array uint64
	adds  *client.Remote
	graph uint64
	drawn *graph.Graph
}

// robbed starts a cluster of real sockets with a victim, and returns the controller's address.
func robbed(t *testing.T) (address string, v *victim) {
	t.Helper()
	address, _ = sockets(t)
	driver := simulatedOn(t, 1, sim.Options{Devices: 2, Island: sim.NewIsland(sim.Real, 1)})[0]
	w := serve(t, func(ctx context.Context) error {
		return cluster.ServeWorker(ctx, cluster.WorkerConfig{
			Address: address, Listen: []string{"unix:" + filepath.Join(t.TempDir(), "w")}, Name: "w", Driver: driver,
			Heartbeat: 100 * time.Millisecond, Wait: 20 * time.Second, Log: slog.New(slog.DiscardHandler)})
	})
	t.Cleanup(func() { statustest.Check(t, w.end()) })
	workers(t, address, 1)
	v = &victim{session: begin(t, func(n client.Notify) (client.Cluster, error) {
		return cluster.Connect(t.Context(), cluster.ClientConfig{
			Address: address, Name: "victim", Heartbeat: 100 * time.Millisecond}, n)
	})}
	v.array = v.vector([]int{0, 1}, ramp)
	v.adds = v.program(addOne, 0, 1)
	d := draw(1)
	v.drawn = d.keeps(d.run(v.adds, 1))
	v.graph = v.define(v.drawn)
	asked, err := v.Ask(placement.Want{Devices: 1}, grant.Terms{})
	if err == nil {
		_, err = asked.Wait(t.Context())
	}
	statustest.OK(t, err)
	r, err := cluster.Ask(t.Context(), address, cluster.Secret{}, nil)
	if err != nil || len(r.Sessions) != 1 {
		t.Fatal(r, err)
	}
	v.id = r.Sessions[0].Session
	return address, v
}

// unharmed says that all the victim has is there and is what it was.
func (v *victim) unharmed(address string) {
	v.T.Helper()
	for _, d := range []int{0, 1} {
		v.expect(v.array, d, ramp(d)...)
	}
	token, y := v.Start(v.adds, v.array)
	statustest.OK(v.T, v.Wait(token))
	p := v.play(v.graph, v.drawn, v.array)
	p.good()
	for _, object := range []uint64{y, p.first} {
		v.expect(object, 1, 2, 3, 4, 5)
	}
	v.Free([]uint64{y, p.first})
	r := statustest.Value(cluster.Ask(v.T.Context(), address, cluster.Secret{}, nil)).OK(v.T)
	i := slices.IndexFunc(r.Sessions, func(s *wire.Report_SessionReport) bool { return s.Session == v.id })
	if i < 0 || len(r.Sessions[i].Slices) != 1 {
		v.T.Errorf("its session is not there, or not its slice: %v", r.Sessions)
	}
}

// intruder is a client that says what it likes.
type intruder struct {
	t       *testing.T
	conn    *streams.Conn
	welcome *wire.Welcome
	op      uint64
}

func intrude(t *testing.T, address string) *intruder {
	t.Helper()
	conn, welcome, err := streams.Dial(t.Context(), address,
		&wire.Hello{Role: wire.Role_ROLE_CLIENT, Name: "intruder", Host: cluster.Host()}, streams.Options{})
	statustest.OK(t, err)
	t.Cleanup(func() { conn.Close() })
	return &intruder{t: t, conn: conn, welcome: welcome}
}

// next returns a number for an operation.
func (x *intruder) next() uint64 { x.op++; return x.op }

func (x *intruder) send(kind wire.Kind, m proto.Message) {
	x.t.Helper()
	payload := statustest.Value(proto.Marshal(m)).OK(x.t)
	statustest.OK(x.t, x.conn.Send(kind, payload))
}

// until reads what the controller says up to a message of a kind.
func (x *intruder) until(kind wire.Kind, m proto.Message) {
	x.t.Helper()
	for {
		got, payload, err := x.conn.Recv()
		switch {
		case err != nil:
			x.t.Fatal(err)
		case got == kind:
			statustest.OK(x.t, wire.Decode(kind, payload, m))
			return
		}
	}
}

// fails waits for the end of the operations so far, of which those from one on all have failed.
func (x *intruder) fails(from uint64) {
	x.t.Helper()
	for left := x.op - from + 1; left > 0; {
		var m wire.Completed
		x.until(wire.KindCompleted, &m)
		for _, op := range m.Ok {
			if op >= from {
				x.t.Errorf("operation %d, on what is another session's, succeeded", op)
				left--
			}
		}
		for _, f := range m.Failed {
			if f.Number >= from {
				left--
			}
		}
	}
}

// names are those that a session would give what it makes: the first numbers.
var names = []uint64{1, 2, 3, 4, 5, 6, 7, 8}

// A client cannot name what is another's: numbers of arrays, programs, graphs and slices are a session's own, and a
// session's number in a message means nothing.
func TestTenantCannotNameWhatIsAnothers(t *testing.T) {
	address, v := robbed(t)
	x := intrude(t, address)
	vector := &wire.Array{Dtype: uint32(shape.F32), Dims: []int64{4}}
	for _, n := range names {
		x.send(wire.KindFetch, &wire.Fetch{Op: x.next(), Object: n})
		x.send(wire.KindTransfer, &wire.Transfer{Op: x.next(), Object: 100 + n, Array: vector,
			Moves: []*wire.Move{{Source: n}}})
		x.send(wire.KindRun, &wire.Run{Op: x.next(), Program: n, FirstOutput: 200 + n, Inputs: []uint64{n}})
		x.send(wire.KindPlay, &wire.Play{Op: x.next(), Graph: n, Nodes: 1, First: 300 + n, Inputs: []uint64{n}})
	}
	x.fails(1)

	// Its own program runs, and does not on the victim's array; its graph does not take the place of the victim's.
	other := addOne
	other.Name, other.Results = "add_hundred", []sim.Result{{Op: "add", Args: []int{0}, Value: 100}}
	x.send(wire.KindCompile, &wire.Compile{Op: 1, Program: 50, Format: sim.Format, Code: other.Source().Code,
		Options: sim.CompileOptions([]int{0, 1})})
	var compiled wire.Compiled
	if x.until(wire.KindCompiled, &compiled); compiled.Status.Err() != nil {
		t.Fatal(compiled.Status.Err())
	}
	drawn := draw(1)
	g := drawn.keeps(drawn.run(&client.Remote{ID: 50, Info: compiled.Info}, 1))
	m := wire.GraphOf(v.graph, g)
	m.Session = v.id
	x.send(wire.KindGraph, m)
	from := x.op + 1
	for _, n := range names {
		x.send(wire.KindRun, &wire.Run{Op: x.next(), Program: 50, FirstOutput: 400 + n, Inputs: []uint64{n}})
		x.send(wire.KindPlay,
			&wire.Play{Op: x.next(), Graph: v.graph, Nodes: 1, First: 500 + n, Inputs: []uint64{n}})
	}
	x.fails(from)

	x.send(wire.KindFree, &wire.Free{Objects: names})
	x.send(wire.KindForget, &wire.Forget{Session: v.id, Programs: names, Graphs: names, Artifacts: names, Compiles: names})
	x.send(wire.KindSliceRelease, &wire.SliceRelease{Slices: names})
	for _, n := range names {
		x.send(wire.KindAbort, &wire.Abort{Gang: n, Status: wire.Of(status.New(status.Aborted, "not yours"))})
	}
	x.send(wire.KindProfile, &wire.Profile{Id: 1, Session: v.id, Client: x.welcome.Process})
	var profiled wire.Profiled
	if x.until(wire.KindProfiled, &profiled); profiled.Session != x.welcome.Session {
		t.Errorf("a profile of session %d began", profiled.Session)
	}
	v.unharmed(address)
}

// What workers, the controller and operators say is not a client's to say: it loses its connection, and harms no other
// session.
func TestTenantCannotSpeakAsAnother(t *testing.T) {
	address, v := robbed(t)
	w := intrude(t, address).welcome.Workers[0].Number
	free := statustest.Value(proto.Marshal(&wire.Free{Objects: names})).OK(t)
	for _, c := range []struct {
		kind wire.Kind
		m    proto.Message
	}{
		{wire.KindDispatch, &wire.Dispatch{Gang: 1000, Session: v.id, Kind: uint32(wire.KindFree), Operation: free}},
		{wire.KindDrop, &wire.Drop{Session: v.id}},
		{wire.KindSession, &wire.Session{Session: v.id}},
		{wire.KindLoad, &wire.Load{Session: v.id, Program: 1}},
		{wire.KindPlayed, &wire.Played{Session: v.id, Graph: v.graph, Count: 1}},
		{wire.KindCompleted, &wire.Completed{Ok: names}},
		{wire.KindPeers, &wire.Peers{Gone: []uint64{w}}},
		{wire.KindHave, &wire.Have{Artifact: 1}},
		{wire.KindLoaded, &wire.Loaded{Session: v.id, Program: 1}},
		{wire.KindWant, &wire.Want{Artifact: 1}},
		{wire.KindHostCall, &wire.HostCall{Session: v.id, Op: 1, Worker: w}},
		{wire.KindAsk, &wire.Ask{Stop: true}},
	} {
		x := intrude(t, address)
		x.send(c.kind, c.m)
		for err := error(nil); err == nil; {
			_, _, err = x.conn.Recv() // until the controller hangs up
		}
		v.unharmed(address)
	}
}

// exchange is what the intruder has of its own.
func (x *intruder) exchange() *bulk.Exchange {
	x.t.Helper()
	e := statustest.Value(bulk.New(bulk.Config{Self: x.welcome.Process, Host: cluster.Host(),
		Hello: &wire.Hello{Name: "intruder", Cluster: x.welcome.Cluster, Proof: x.welcome.Proof}})).OK(x.t)
	x.t.Cleanup(func() { e.Close() })
	e.Peers(x.welcome.Workers, nil, nil)
	return e
}

// On a worker's own address a client is who its controller let in, and no other: bytes under the keys of another's
// transfers are not taken for that one's, and none of them come here.
func TestTenantCannotSendOrReceiveAnothersBytes(t *testing.T) {
	address, v := robbed(t)
	x := intrude(t, address)
	w := x.welcome.Workers[0]
	victims := x.welcome.Process - 1 // numbers are easy to guess
	for _, c := range []struct {
		name string
		says *wire.Hello
	}{
		{"the victim, with the intruder's proof", &wire.Hello{Process: victims, Proof: x.welcome.Proof}},
		{"the victim, without a proof", &wire.Hello{Process: victims}},
		{"the victim, with the proof of a key that is guessed", &wire.Hello{Process: victims,
			Proof: wire.Prove(nil, victims)}},
		{"the worker", &wire.Hello{Process: w.Number, Proof: x.welcome.Proof}},
		{"the controller", &wire.Hello{Process: 0, Proof: x.welcome.Proof}},
		{"itself, in another cluster", &wire.Hello{Process: x.welcome.Process, Cluster: "another", Proof: x.welcome.Proof}},
		{"a client", &wire.Hello{Role: wire.Role_ROLE_CLIENT, Proof: x.welcome.Proof}},
		{"an operator", &wire.Hello{Role: wire.Role_ROLE_ADMIN, Proof: x.welcome.Proof}},
	} {
		hello := proto.CloneOf(c.says)
		if hello.Role == wire.Role_ROLE_NONE {
			hello.Role = wire.Role_ROLE_PEER
		}
		if hello.Cluster == "" {
			hello.Cluster = x.welcome.Cluster
		}
		if conn, _, err := streams.Dial(t.Context(), w.Addresses[0], hello, streams.Options{}); err == nil {
			conn.Close()
			t.Errorf("a worker let the intruder in as %s", c.name)
		}
	}

	mine := x.exchange()
	came := make(chan string, 1000)
	for op := range uint64(20) {
		for part := range uint64(2) {
			key := transport.Key{Space: transport.Transfers(v.id), ID: op, Part: part}
			wrong := make([]byte, 16)
			mine.PushBytes(w.Number, key, wrong, nil)
			mine.Expect(w.Number, key, 16, nil, func(b transport.Block, err error) {
				if err == nil {
					came <- fmt.Sprint(key, b.Data)
					b.Release()
				}
			})
		}
	}
	// What the worker has of it by now, it has before the victim's operations below: its answer shows that.
	done := make(chan error, 1)
	own := transport.Key{Space: transport.Transfers(x.welcome.Session), ID: 1}
	x.send(wire.KindPut, &wire.Put{Op: x.next(), Object: 1, Array: &wire.Array{Dtype: uint32(shape.F32), Dims: []int64{4}},
		Devices: []uint32{0}})
	mine.PushBytes(w.Number, own, make([]byte, 16), func(err error) { done <- err })
	statustest.OK(t, <-done)
	array := v.vector([]int{0, 1}, func(d int) []float32 { return []float32{float32(d), 7, 7, 7} })
	for d := range 2 {
		v.expect(array, d, float32(d), 7, 7, 7)
	}
	v.unharmed(address)
	select {
	case what := <-came:
		t.Errorf("bytes of the victim came to the intruder: %s", what)
	default:
	}
}

// Only an operator stops the cluster, and only an operator's token makes others.
func TestOnlyAnOperatorStopsTheCluster(t *testing.T) {
	const own = "open sesame"
	address := "unix:" + filepath.Join(t.TempDir(), "c")
	c := listening(t, cluster.ControllerConfig{
		Listen: []string{address}, Secret: cluster.Secret{Token: own}, Heartbeat: time.Second})
	ask := func(token string, stop bool) error {
		_, err := cluster.Ask(t.Context(), address, cluster.Secret{Token: token}, &wire.Ask{Stop: stop})
		return err
	}
	for _, role := range []string{"tenant", "worker"} {
		token := statustest.Value(cluster.RoleToken(own, role)).OK(t)
		statustest.Fails(t, fmt.Sprintf("a %s stops the cluster", role), ask(token, true), status.PermissionDenied)
		statustest.Fails(t, fmt.Sprintf("a %s's token makes others", role),
			statustest.Of(cluster.RoleToken(token, "operator")), status.InvalidArgument)
	}
	statustest.Check(t, ask(own, true))
	statustest.Check(t, c.wait())
}
