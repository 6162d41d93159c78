package server_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/controller/server"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/device/sim"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/inproc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// mail is the bytes of a test's processes: an exchange in memory.
type mail struct {
	mu     sync.Mutex
	blocks map[route][]byte
	wants  map[route]want
}

type route struct {
	from, to uint64
	key      transport.Key
}

type want struct {
	into    []byte
	arrived func(transport.Block, error)
}

// box is a process's end of the mail.
type box struct {
	*mail
	self uint64
}

func newMail() *mail { return &mail{blocks: map[route][]byte{}, wants: map[route]want{}} }

func (b box) Push(peer uint64, key transport.Key, size int64, fill func([]byte, func(error)), done func(error)) {
	data := make([]byte, size)
	fill(data, func(err error) {
		if err == nil {
			b.deliver(route{b.self, peer, key}, data)
		}
		done(err)
	})
}

func (b box) PushBytes(peer uint64, key transport.Key, data []byte, done func(error)) {
	b.deliver(route{b.self, peer, key}, data)
	if done != nil {
		done(nil)
	}
}

func (b box) Post(uint64, transport.Key, []byte) bool { return false }

func (b box) deliver(r route, data []byte) {
	b.mu.Lock()
	w, ok := b.wants[r]
	if !ok {
		b.blocks[r] = append([]byte(nil), data...)
		b.mu.Unlock()
		return
	}
	delete(b.wants, r)
	b.mu.Unlock()
	w.take(data)
}

func (w want) take(data []byte) {
	if w.into != nil {
		copy(w.into, data)
		data = nil
	}
	w.arrived(transport.Block{Data: data}, nil)
}

func (b box) Expect(peer uint64, key transport.Key, _ int64, into []byte, arrived func(transport.Block, error)) {
	r := route{peer, b.self, key}
	w := want{into, arrived}
	b.mu.Lock()
	data, ok := b.blocks[r]
	if !ok {
		b.wants[r] = w
		b.mu.Unlock()
		return
	}
	delete(b.blocks, r)
	b.mu.Unlock()
	w.take(data)
}

func (b box) Fail(space, id uint64, err error) {
	b.fail(func(r route) bool { return r.to == b.self && r.key.Space == space && r.key.ID == id }, err)
}

func (b box) fail(which func(route) bool, err error) {
	var lost []want
	b.mu.Lock()
	for r, w := range b.wants {
		if which(r) {
			lost = append(lost, w)
			delete(b.wants, r)
		}
	}
	b.mu.Unlock()
	for _, w := range lost {
		w.arrived(transport.Block{}, err)
	}
}

func (b box) Peers(_ []*wire.Process, gone []uint64, why error) {
	for _, g := range gone {
		b.fail(func(r route) bool { return r.to == b.self && r.from == g }, why)
	}
}

func (b box) Self() uint64 { return b.self }

func (b box) Lends(uint64, int64) bool { return false }
func (b box) Close() error             { return nil }

// world is a controller with a network and mail.
type world struct {
	t       testing.TB
	network *inproc.Network
	server  *server.Server
	mail    *mail
}

func newWorld(t testing.TB, c server.Config) *world {
	t.Helper()
	w := &world{t: t, network: inproc.NewNetwork(transport.Credentials{Token: "t", Software: "test"}), mail: newMail()}
	var err error
	if w.server, err = server.New(c); err != nil {
		t.Fatal(err)
	}
	l := statustest.Value(w.network.Listen("controller")).OK(t)
	accepted := make(chan struct{})
	go func() {
		defer close(accepted)
		_ = w.server.Accept(l) // ends with the listener
	}()
	t.Cleanup(func() {
		l.Close()
		<-accepted
		w.server.Close()
	})
	return w
}

// client begins a session whose ended operations come to ends.
func (w *world) client(ends chan<- client.Ended) client.Cluster {
	w.t.Helper()
	c := statustest.Value(client.Connect(context.Background(),
		client.Config{Dialer: w.network, Address: "inproc:controller", Hello: &wire.Hello{Name: "tester"},
			Exchange: func(m *wire.Welcome) (transport.Exchange, error) { return box{w.mail, m.Process}, nil },
			Notify: func(es []client.Ended) {
				for _, e := range es {
					ends <- e
				}
			}})).OK(w.t)
	w.t.Cleanup(func() { c.Close() })
	return c
}

// adder is a worker whose programs add a number to a u64 on each device. It does
// one operation after the other.
type adder struct {
	t        testing.TB
	conn     transport.Conn
	box      box
	self     uint64
	ended    chan struct{}
	mu       sync.Mutex
	did      *sync.Cond // something that it was told
	compiles int
	order    []uint64                          // gangs, as they came
	hold     map[uint64]bool                   // programs of which runs never end
	objects  map[[3]uint64][]byte              // by session, object, virtual device
	spans    map[uint32]map[uint32]*wire.Place // by session, virtual device
	programs map[[2]uint64]*wire.Load
}

func (w *world) worker(name string, devices int) *adder {
	w.t.Helper()
	offer := &wire.WorkerOffer{Platform: &wire.Platform{Name: "sim", Version: "1"}, Fingerprint: "f"}
	for d := range devices {
		offer.Devices = append(offer.Devices, &wire.LocalDevice{
			Local: uint32(d), Kind: "adder", Memories: []string{"device"}})
	}
	conn, m, err := w.network.Dial(context.Background(), "inproc:controller",
		&wire.Hello{Role: wire.Role_ROLE_WORKER, Name: name, Worker: offer})
	statustest.OK(w.t, err)
	a := &adder{t: w.t, conn: conn, box: box{w.mail, m.Process}, self: m.Process, ended: make(chan struct{}),
		hold:    map[uint64]bool{},
		objects: map[[3]uint64][]byte{}, spans: map[uint32]map[uint32]*wire.Place{}, programs: map[[2]uint64]*wire.Load{}}
	a.did = sync.NewCond(&a.mu)
	go a.serve()
	w.t.Cleanup(func() {
		conn.Close()
		<-a.ended
	})
	return a
}

// until waits for what the messages to it bring about.
func (a *adder) until(holds func() bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for !holds() {
		a.did.Wait()
	}
}

func (a *adder) send(kind wire.Kind, m proto.Message) {
	b, err := proto.Marshal(m)
	statustest.Check(a.t, err)
	_ = a.conn.Send(kind, b) // the end of the connection ends serve
}

func (a *adder) serve() {
	defer close(a.ended)
	for {
		kind, payload, err := a.conn.Recv()
		if err != nil {
			return
		}
		into := func(m proto.Message) {
			statustest.Check(a.t, wire.Decode(kind, payload, m))
		}
		a.mu.Lock()
		switch kind {
		case wire.KindSession:
			m := new(wire.Session)
			into(m)
			a.spans[m.Session] = map[uint32]*wire.Place{}
			for _, s := range m.Devices {
				for i := range s.Count {
					a.spans[m.Session][uint32(len(a.spans[m.Session]))] = &wire.Place{Worker: s.Worker, Local: s.Local + i}
				}
			}
		case wire.KindCompile:
			m := new(wire.Compile)
			into(m)
			a.compiles++
			answer := &wire.Compiled{Op: m.Op}
			if _, err := strconv.Atoi(string(m.Code)); err != nil {
				answer.Status = wire.Of(status.New(status.InvalidArgument, "program %q is no number", m.Code))
			} else {
				answer.Info = &wire.ProgramInfo{Name: "add" + string(m.Code), Outputs: []*wire.Array{{Dtype: uint32(shape.U64)}},
					Parameters: []*wire.Array{{Dtype: uint32(shape.U64)}}}
				answer.Loadable = &wire.Loadable{Form: wire.Loadable_PORTABLE, Serialized: m.Code}
			}
			a.send(wire.KindCompiled, answer)
		case wire.KindLoad:
			m := new(wire.Load)
			into(m)
			a.programs[[2]uint64{uint64(m.Session), m.Program}] = m
		case wire.KindDispatch:
			m := new(wire.Dispatch)
			into(m)
			a.order = append(a.order, m.Gang)
			a.dispatch(m)
		case wire.KindDrop:
			m := new(wire.Drop)
			into(m)
			for k := range a.objects {
				if k[0] == uint64(m.Session) {
					delete(a.objects, k)
				}
			}
			for k := range a.programs {
				if k[0] == uint64(m.Session) {
					delete(a.programs, k)
				}
			}
		}
		a.did.Broadcast()
		a.mu.Unlock()
	}
}

func (a *adder) dispatch(d *wire.Dispatch) {
	s := uint64(d.Session)
	mine := func(device uint32) bool { return a.spans[d.Session][device].Worker == a.self }
	done := func(err error) {
		m := &wire.Completed{Ok: []uint64{d.Gang}}
		if err != nil {
			m = &wire.Completed{Failed: []*wire.Failure{{Number: d.Gang, Status: wire.Of(err)}}}
		}
		a.send(wire.KindCompleted, m)
	}
	read := func(m proto.Message) {
		statustest.Check(a.t, proto.Unmarshal(d.Operation, m))
	}
	switch wire.Kind(d.Kind) {
	case wire.KindRun:
		m := new(wire.Run)
		read(m)
		p := a.programs[[2]uint64{s, m.Program}]
		if p == nil {
			a.t.Errorf("program %d was not loaded", m.Program)
			return
		}
		n, _ := strconv.Atoi(string(p.Loadable.Serialized))
		var err error
		for device, place := range a.spans[d.Session] {
			for _, row := range p.Places {
				if place.Worker == a.self && row.Worker == a.self && row.Local == place.Local {
					in := a.objects[[3]uint64{s, m.Inputs[0], uint64(device)}]
					if in == nil {
						err = status.New(status.Internal, "device %d has no array %d", device, m.Inputs[0])
						continue
					}
					a.objects[[3]uint64{s, m.FirstOutput, uint64(device)}] = binary.LittleEndian.AppendUint64(nil,
						binary.LittleEndian.Uint64(in)+uint64(n))
				}
			}
		}
		if n == 13 {
			err = status.New(status.Internal, "bad luck on worker %d", a.self)
		}
		if !a.hold[m.Program] {
			done(err)
		}
	case wire.KindPut:
		m := new(wire.Put)
		read(m)
		for _, device := range m.Devices {
			if mine(device) {
				data := make([]byte, 8)
				arrived := make(chan error, 1)
				a.box.Expect(d.Client, transport.Key{Space: transport.Transfers(d.Session), ID: m.Op, Part: uint64(device)}, 8,
					data,
					func(_ transport.Block, err error) { arrived <- err })
				if err := <-arrived; err != nil {
					done(err)
					return
				}
				a.objects[[3]uint64{s, m.Object, uint64(device)}] = data
			}
		}
		done(nil)
	case wire.KindFetch:
		m := new(wire.Fetch)
		read(m)
		a.box.PushBytes(d.Client, transport.Key{Space: transport.Transfers(d.Session), ID: m.Op, Part: uint64(m.Device)},
			a.objects[[3]uint64{s, m.Object, uint64(m.Device)}], nil)
		done(nil)
	case wire.KindFree:
		m := new(wire.Free)
		read(m)
		for _, o := range m.Objects {
			for device := range a.spans[d.Session] {
				delete(a.objects, [3]uint64{s, o, uint64(device)})
			}
		}
	default:
		done(status.New(status.Unimplemented, "kind %d", d.Kind))
	}
}

// wait returns the ends of so many operations by token.
func wait(t testing.TB, ends <-chan client.Ended, n int) map[uint64]error {
	t.Helper()
	got := map[uint64]error{}
	for range n {
		select {
		case e := <-ends:
			if _, twice := got[e.Token]; twice {
				t.Fatalf("operation %d ended twice", e.Token)
			}
			got[e.Token] = e.Err
		case <-time.After(30 * time.Second):
			t.Fatalf("got %d ends of %d", len(got), n)
		}
	}
	return got
}

func fetch(t testing.TB, c client.Cluster, object uint64, device uint32) (uint64, error) {
	t.Helper()
	dst := make([]byte, 8)
	done := make(chan error, 1)
	if err := c.Fetch(object, device, dst, func(err error) { done <- err }); err != nil {
		return 0, err
	}
	select {
	case err := <-done:
		return binary.LittleEndian.Uint64(dst), err
	case <-time.After(30 * time.Second):
		t.Fatal("a fetch does not end")
		return 0, nil
	}
}

func put(t testing.TB, c client.Cluster, token uint64, devices ...uint32) uint64 {
	t.Helper()
	o := c.Objects(1)
	if err := c.Put(&client.PutSpec{Object: o, Shape: shape.Shape{DType: shape.U64}, Devices: devices, Token: token,
		Fill: func(device uint32, dst []byte, written func(error)) {
			binary.LittleEndian.PutUint64(dst, uint64(device))
			written(nil)
		}}); err != nil {
		t.Fatal(err)
	}
	return o
}

func compile(t testing.TB, c client.Cluster, add int, devices ...int) *client.Remote {
	t.Helper()
	p := statustest.Value(c.Compile(context.Background(), client.CompileSpec{
		Format: "number", Code: []byte(strconv.Itoa(add)), Options: sim.CompileOptions(devices)})).OK(t)
	return p
}

func run(t testing.TB, c client.Cluster, p *client.Remote, token uint64, inputs ...uint64) uint64 {
	t.Helper()
	o := c.Objects(1)
	statustest.OK(t, c.Run(&client.RunSpec{Program: p.ID, FirstOutput: o, Inputs: inputs, Only: -1, Token: token}))
	return o
}

func TestClusterComputes(t *testing.T) {
	w := newWorld(t, server.Config{})
	workers := []*adder{w.worker("a", 2), w.worker("b", 2)}
	ends := make(chan client.Ended, 100)
	c := w.client(ends)
	statustest.MustEqual(t, len(c.Devices()), 4, "devices of the session")
	p := compile(t, c, 5, 0, 1, 2, 3)
	statustest.Equal(t, fmt.Sprintf("%s %v", p.Info.Name, p.Info.Devices), "add5 [0 1 2 3]", "the program")
	x := put(t, c, 1, 0, 1, 2, 3)
	y := run(t, c, p, 2, x)
	z := run(t, c, p, 3, y)
	c.Free([]uint64{y})
	for d := range uint32(4) {
		statustest.Equal(t, statustest.Value(fetch(t, c, z, d)).OK(t), uint64(d)+10, "device %d", d)
	}
	for token, err := range wait(t, ends, 3) {
		statustest.Checkf(t, err, "operation %d", token)
	}
	statustest.Fails(t, "reading a freed array", statustest.Of(fetch(t, c, y, 0)), status.InvalidArgument)
	compiles := 0
	for _, a := range workers {
		a.mu.Lock()
		compiles += a.compiles
		a.mu.Unlock()
	}
	statustest.Equal(t, compiles, 1, "how often the program was compiled")
}

// BenchmarkRoundTrip is a run from submission to its end with two workers in this
// process, one by one and as a stream.
func BenchmarkRoundTrip(b *testing.B) {
	for _, depth := range []int{1, 256} {
		b.Run(fmt.Sprintf("depth=%d", depth), func(b *testing.B) {
			w := newWorld(b, server.Config{})
			w.worker("a", 1)
			w.worker("b", 1)
			ends := make(chan client.Ended, 2000)
			c := w.client(ends)
			p := compile(b, c, 1, 0, 1)
			x := put(b, c, 0, 0, 1)
			<-ends
			under := 0
			b.ReportAllocs()
			for b.Loop() {
				y := run(b, c, p, 1, x)
				c.Free([]uint64{x})
				x = y
				if under++; under == depth {
					<-ends
					under--
				}
			}
			for range under {
				<-ends
			}
		})
	}
}
