package worker_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/cluster/clustertest"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/worker"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/sim"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/inproc"
	"github.com/openpathways/pathways/transport/shm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Process numbers of the tests.
const (
	clientProcess = 1
	firstWorker   = 10
)

// far is how long a test waits for what must happen, on a machine that does much
// else.
const far = time.Minute

// script is a controller and a client that say what a test says.
type script struct {
	t         testing.TB
	conns     []transport.Conn
	workers   []*worker.Worker
	drivers   []device.Driver
	client    transport.Exchange
	pool      *shm.Pool
	hub       *inproc.Hub
	exchanges []transport.Mover
	served    sync.WaitGroup
	each      int  // devices of a worker
	abort     bool // what fails on one worker is ended on the others, as a controller does
	gang      uint64

	mu       sync.Mutex // guards the rest
	changed  *sync.Cond
	ended    []map[uint64]error // by worker, then gang
	spent    []map[uint64]time.Duration
	compiled []*wire.Compiled
	held     []*wire.Holding // of the Rejoins of all workers
	waits    [][]string      // by worker, as it said last
	running  [][]*wire.Running
	goodbye  []error // by worker
	wanted   int     // Wants
	had      []*wire.Have
	doing    []*wire.Doing // of all workers
}

// start makes workers, each with its devices, and session 1 on all of them.
func start(t testing.TB, drivers []device.Driver, change func(*worker.Config)) *script {
	t.Helper()
	return startIn(t, shm.NewPool(shm.Config{}), drivers, change)
}

// startIn is start of workers whose blocks are in this memory.
func startIn(t testing.TB, pool *shm.Pool, drivers []device.Driver, change func(*worker.Config)) *script {
	t.Helper()
	s := &script{t: t, drivers: drivers, each: len(drivers[0].Devices()), pool: pool}
	h := inproc.NewHub(s.pool)
	s.hub = h
	join := func(number uint64) transport.Mover {
		x := statustest.Value(h.Join(number, "")).OK(t)
		s.exchanges = append(s.exchanges, x)
		return x
	}
	s.client = join(clientProcess)
	s.changed = sync.NewCond(&s.mu)
	for i, d := range drivers {
		near, remote := inproc.Pair("controller", "worker")
		c := worker.Config{Name: "w" + string(rune('0'+i)), Conn: remote, Driver: d, Exchange: join(uint64(firstWorker + i)),
			DeviceID: func(w uint64, local int) (int, bool) { return int(w-firstWorker)*s.each + local, true }}
		if change != nil {
			change(&c)
		}
		w := statustest.Value(worker.New(c)).OK(t)
		s.spent = append(s.spent, map[uint64]time.Duration{})
		s.conns, s.workers, s.ended, s.waits = append(s.conns, near), append(s.workers, w),
			append(s.ended, map[uint64]error{}), append(s.waits, nil)
		s.running, s.goodbye = append(s.running, nil), append(s.goodbye, nil)
	}
	for i, w := range s.workers {
		s.served.Go(func() {
			statustest.Checkf(t, w.Serve(), "worker %d", i)
		})
		s.served.Go(func() { s.listen(i) })
	}
	for _, session := range []uint32{1, 2} {
		s.begin(&wire.Session{Session: session, Settles: true})
	}
	t.Cleanup(s.close)
	return s
}

func (s *script) close() {
	s.tell(wire.KindGoodbye, &wire.Goodbye{})
	s.served.Wait()
	for i, w := range s.workers {
		if all := w.Running(); len(all) > 0 {
			s.t.Errorf("worker %d has ended and says that it runs %v", i, all)
		}
	}
	for _, d := range s.drivers {
		statustest.Checkf(s.t, d.Close(), "closing a driver")
	}
	for _, x := range s.exchanges {
		x.Close()
	}
	for i, w := range s.workers {
		if m := w.HostMemory(); m.Assembling != 0 || m.Programs != 0 || len(m.Sessions) != 0 {
			s.t.Errorf("worker %d has ended, and has memory of its host: %v", i, m)
		}
	}
	s.pool.Trim()
	statustest.Equal(s.t, s.pool.Stats().Mapped, 0, "bytes of host memory that stay in use")
}

// listen reads what a worker says.
func (s *script) listen(i int) {
	for {
		kind, payload, err := s.conns[i].Recv()
		if err != nil {
			return
		}
		var m wire.Completed
		s.mu.Lock()
		switch kind {
		case wire.KindCompleted:
			statustest.Check(s.t, wire.Decode(kind, payload, &m))
			for k, g := range m.Ok {
				s.spent[i][g] = time.Duration(m.Busy[k])
				s.end(i, g, nil)
			}
			for _, f := range m.Failed {
				s.end(i, f.Number, f.Status.Err())
			}
		case wire.KindRejoin: // ends that it has are not told by themselves
			m := new(wire.Rejoin)
			statustest.Check(s.t, wire.Decode(kind, payload, m))
			s.held = append(s.held, m.Holdings...)
			for _, h := range m.Holdings {
				for _, g := range h.Gangs {
					if _, told := s.ended[i][g.Gang]; g.Ended && !told {
						s.end(i, g.Gang, g.Failed.Err())
					}
				}
			}
		case wire.KindCompiled:
			m := new(wire.Compiled)
			statustest.Check(s.t, wire.Decode(kind, payload, m))
			s.compiled = append(s.compiled, m)
		case wire.KindHeartbeat:
			m := new(wire.Heartbeat)
			statustest.Check(s.t, wire.Decode(kind, payload, m))
			s.waits[i], s.running[i] = nil, m.Running
			for _, stands := range m.Standing {
				s.waits[i] = append(s.waits[i], stands.WaitText())
			}
		case wire.KindDoing:
			m := new(wire.Doing)
			statustest.Check(s.t, wire.Decode(kind, payload, m))
			s.doing = append(s.doing, m)
		case wire.KindWant:
			s.wanted++
		case wire.KindHave:
			m := new(wire.Have)
			statustest.Check(s.t, wire.Decode(kind, payload, m))
			s.had = append(s.had, m)
		case wire.KindGoodbye:
			m := new(wire.Goodbye)
			statustest.Check(s.t, wire.Decode(kind, payload, m))
			s.goodbye[i] = m.Status.Err()
		}
		s.changed.Broadcast()
		s.mu.Unlock()
		for _, f := range m.Failed {
			if s.abort {
				s.tell(wire.KindAbort, &wire.Abort{Gang: f.Number, Status: f.Status})
			}
		}
	}
}

func (s *script) end(i int, gang uint64, err error) {
	if _, again := s.ended[i][gang]; again {
		s.t.Errorf("worker %d reported gang %d twice", i, gang)
	}
	s.ended[i][gang] = err
}

// tell sends a message to all workers.
func (s *script) tell(kind wire.Kind, m proto.Message) {
	for i := range s.conns {
		s.tellOne(i, kind, m)
	}
}

func (s *script) tellOne(i int, kind wire.Kind, m proto.Message) {
	payload := statustest.Value(proto.Marshal(m)).OK(s.t)
	_ = s.conns[i].Send(kind, payload) // a worker that has gone is the test's doing
}

// until waits for a condition that listen may change.
func (s *script) until(what string, cond func() bool) {
	s.t.Helper()
	late := time.AfterFunc(far, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for i, w := range s.workers {
			what += fmt.Sprintf("; worker %d stands at %+v", i, w.Waits())
		}
		panic("waited too long for " + what)
	})
	defer late.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for !cond() {
		s.changed.Wait()
	}
}

// compile has worker 0 compile a program for the virtual devices and all workers
// with a part load it as program id of the session.
func (s *script) compile(session uint32, id uint64, p device.Program, options []byte, devices ...int) *wire.Compiled {
	s.t.Helper()
	var places []*wire.Place
	load := &wire.Load{Session: session, Program: id}
	var numbers []uint32
	loads := map[int]bool{}
	for _, d := range devices {
		at := &wire.Place{Worker: uint64(firstWorker + d/s.each), Local: uint32(d % s.each)}
		places, numbers = append(places, at), append(numbers, uint32(d))
		load.Places = append(load.Places, &wire.Span{Worker: at.Worker, Local: at.Local, Count: 1})
		loads[d/s.each] = true
	}
	by := devices[0] / s.each
	s.mu.Lock()
	n := len(s.compiled)
	s.mu.Unlock()
	s.tellOne(by, wire.KindCompile, &wire.Compile{Op: id, Program: id, Format: p.Format, Code: p.Code, Options: options,
		Places: places})
	s.until("a compile", func() bool { return len(s.compiled) > n })
	s.mu.Lock()
	m := s.compiled[n]
	s.mu.Unlock()
	if m.Status.Err() != nil {
		return m
	}
	load.Loadable, load.Outputs, load.Name, load.Donated = m.Loadable, m.Info.Outputs, m.Info.Name, m.Info.Donated
	if !m.Loadable.Collective && m.Loadable.Form != wire.Loadable_JOINED {
		load.Places, load.Devices = nil, wire.DevicesOf(numbers)
	}
	for w := range loads {
		s.tellOne(w, wire.KindLoad, load)
	}
	return m
}

// dispatch sends an operation to workers and returns its gang.
func (s *script) dispatch(session uint32, kind wire.Kind, op proto.Message, workers ...int) uint64 {
	s.gang++
	s.dispatchAs(s.gang, session, kind, op, workers...)
	return s.gang
}

// dispatchAs sends an operation to workers, which others have got already. Of a transfer each is sent its own moves.
func (s *script) dispatchAs(gang uint64, session uint32, kind wire.Kind, op proto.Message, workers ...int) {
	for _, w := range workers {
		own := op
		if t, is := op.(*wire.Transfer); is {
			own = s.ownMoves(t, w)
		}
		s.tellOne(w, wire.KindDispatch, &wire.Dispatch{Gang: gang, Session: session, Kind: uint32(kind),
			Operation: statustest.Value(proto.Marshal(own)).OK(s.t), Client: clientProcess})
	}
}

// begin tells all workers of a session on all of their devices.
func (s *script) begin(m *wire.Session) {
	for i := range s.workers {
		m.Devices = []*wire.OwnDevices{{First: uint32(i * s.each), Count: uint32(s.each)}}
		s.tellOne(i, wire.KindSession, m)
	}
}

// ownMoves returns a transfer as a controller sends it to a worker: with the moves that begin or end at its devices.
func (s *script) ownMoves(t *wire.Transfer, worker int) *wire.Transfer {
	part := proto.CloneOf(t)
	part.Moves = nil
	for i, m := range t.Moves {
		from, to := int(m.From)/s.each, int(m.To)/s.each
		if from != worker && to != worker {
			continue
		}
		m = proto.CloneOf(m)
		if m.Index = uint32(i + 1); from != to {
			m.Peer = uint64(firstWorker + from + to - worker)
		}
		part.Moves = append(part.Moves, m)
	}
	return part
}

// wait returns the first error of a gang's workers, once all have reported it.
func (s *script) wait(gang uint64, workers ...int) (err error) {
	s.t.Helper()
	s.until("the end of a gang", func() bool {
		for _, w := range workers {
			e, ok := s.ended[w][gang]
			if !ok {
				return false
			}
			if err == nil {
				err = e
			}
		}
		return true
	})
	return err
}

// put makes an object of one f32 vector a device.
func (s *script) put(session uint32, op, object uint64, devices []int, value func(d int) []float32) uint64 {
	return s.putAs(session, &wire.Put{Op: op, Object: object, Array: &wire.Array{
		Dtype: uint32(shape.F32), Dims: []int64{int64(len(value(devices[0])))}}}, devices, value)
}

// putAs is put of an array of any shape.
func (s *script) putAs(session uint32, m *wire.Put, devices []int, value func(d int) []float32) uint64 {
	for _, d := range devices {
		m.Devices = append(m.Devices, uint32(d))
	}
	g := s.dispatch(session, wire.KindPut, m, s.of(devices)...)
	for _, d := range devices {
		s.client.PushBytes(uint64(firstWorker+d/s.each),
			transport.Key{Space: transport.Transfers(session), ID: m.Op, Part: uint64(d)}, floats(value(d)), nil)
	}
	return g
}

// of returns the workers of devices.
func (s *script) of(devices []int) (workers []int) {
	seen := map[int]bool{}
	for _, d := range devices {
		if w := d / s.each; !seen[w] {
			seen[w] = true
			workers = append(workers, w)
		}
	}
	return workers
}

// fetch reads a shard of n f32s.
func (s *script) fetch(session uint32, op, object uint64, d, n int) ([]float32, error) {
	s.t.Helper()
	got := make(chan []float32, 1)
	space := transport.Transfers(session)
	s.client.Expect(uint64(firstWorker+d/s.each), transport.Key{Space: space, ID: op, Part: uint64(d)}, int64(4*n), nil,
		func(b transport.Block, err error) {
			if err != nil {
				got <- nil
				return
			}
			out := make([]float32, n)
			for i := range out {
				out[i] = math.Float32frombits(binary.LittleEndian.Uint32(b.Data[4*i:]))
			}
			b.Release()
			got <- out
		})
	err := s.wait(s.dispatch(session, wire.KindFetch, &wire.Fetch{Op: op, Object: object, Device: uint32(d)}, d/s.each),
		d/s.each)
	if err != nil {
		s.client.Fail(space, op, err)
		<-got
		return nil, err
	}
	return <-got, nil
}

func floats(v []float32) []byte {
	var b []byte
	for _, f := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(f))
	}
	return b
}

// simDrivers makes workers' drivers of simulated devices on one island.
func simDrivers(t testing.TB, workers, each int, o sim.Options) []device.Driver {
	t.Helper()
	if o.Island == nil {
		o.Island = sim.NewIsland(sim.Instant, 1)
	}
	o.Devices = each
	store := newStore()
	drivers := make([]device.Driver, workers)
	var joins sync.WaitGroup
	for i := range drivers {
		joins.Go(func() {
			d, err := sim.Kind{Options: o}.Join(t.Context(), device.Membership{Epoch: 1, Node: i, Nodes: workers, Store: store})
			statustest.Check(t, err)
			drivers[i] = d
		})
	}
	joins.Wait()
	return drivers
}

// empty fails the test where device memory stays in use.
func (s *script) empty() {
	s.t.Helper()
	clustertest.Free(s.t, s.drivers)
}
