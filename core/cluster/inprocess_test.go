package cluster_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/cluster"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/sim"
)

// simulated makes drivers of one epoch of simulated devices.
func simulated(t testing.TB, workers, each int) []device.Driver {
	t.Helper()
	drivers := simulatedOn(t, workers, sim.Options{Devices: each, Island: sim.NewIsland(sim.Instant, 1)})
	t.Cleanup(func() {
		for _, d := range drivers {
			d.Close()
		}
	})
	return drivers
}

// simulatedOn makes drivers of one epoch with the same options. The caller closes
// them.
func simulatedOn(t testing.TB, workers int, o sim.Options) []device.Driver {
	t.Helper()
	kinds := make([]device.Kind, workers)
	for i := range kinds {
		kinds[i] = sim.Kind{Options: o}
	}
	drivers, leave, err := cluster.Join(t.Context(), kinds)
	if err != nil {
		t.Fatal(err)
	}
	leave()
	return drivers
}

// session is a client of a test.
type session struct {
	client.Cluster
	t testing.TB

	mu      sync.Mutex // guards the rest
	changed *sync.Cond
	ended   map[uint64]error
	token   uint64
}

func connect(t testing.TB, l *cluster.Local, name string) *session {
	t.Helper()
	return begin(t, func(n client.Notify) (client.Cluster, error) { return l.Connect(t.Context(), name, n) })
}

// begin begins a session.
func begin(t testing.TB, connect func(client.Notify) (client.Cluster, error)) *session {
	t.Helper()
	s := &session{t: t, ended: map[uint64]error{}}
	s.changed = sync.NewCond(&s.mu)
	c, err := connect(func(batch []client.Ended) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, e := range batch {
			s.ended[e.Token] = e.Err
		}
		s.changed.Broadcast()
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Cluster = c
	t.Cleanup(func() { c.Close() })
	return s
}

func (s *session) next() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.token++
	return s.token
}

// wait waits for the end of an operation.
func (s *session) wait(token uint64) error {
	s.t.Helper()
	late := time.AfterFunc(20*time.Second, func() { panic(fmt.Sprintf("operation %d has not ended", token)) })
	defer late.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		if err, ok := s.ended[token]; ok {
			delete(s.ended, token)
			return err
		}
		s.changed.Wait()
	}
}

// program compiles p for the devices.
func (s *session) program(p sim.Program, devices ...int) *client.Remote {
	s.t.Helper()
	r, err := s.Compile(s.t.Context(), client.CompileSpec{Format: sim.Format, Code: p.Source().Code, Options: sim.CompileOptions(devices)})
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

// vector makes an object of four f32 a device.
func (s *session) vector(devices []int, value func(d int) []float32) uint64 {
	s.t.Helper()
	p := &client.PutSpec{Object: s.Objects(1), Shape: shape.Shape{DType: shape.F32, Dims: []int64{4}}, Token: s.next()}
	for _, d := range devices {
		p.Devices = append(p.Devices, uint32(d))
	}
	p.Fill = func(d uint32, dst []byte, written func(error)) {
		for i, v := range value(int(d)) {
			binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(v))
		}
		written(nil)
	}
	if err := s.Put(p); err != nil {
		s.t.Fatal(err)
	}
	if err := s.wait(p.Token); err != nil {
		s.t.Fatal(err)
	}
	return p.Object
}

// start submits a run and gives its token and first output.
func (s *session) start(r *client.Remote, inputs ...uint64) (token, output uint64) {
	s.t.Helper()
	spec := &client.RunSpec{Program: r.ID, FirstOutput: s.Objects(len(r.Info.Outputs)), Inputs: inputs, Only: -1, Token: s.next()}
	if err := s.Run(spec); err != nil {
		s.t.Fatal(err)
	}
	return spec.Token, spec.FirstOutput
}

// read gives a shard.
func (s *session) read(object uint64, d int) ([]float32, error) {
	s.t.Helper()
	dst := make([]byte, 16)
	done := make(chan error, 1)
	if err := s.Fetch(object, uint32(d), dst, func(err error) { done <- err }); err != nil {
		return nil, err
	}
	if err := <-done; err != nil {
		return nil, err
	}
	out := make([]float32, 4)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(dst[4*i:]))
	}
	return out, nil
}

var vectorParam = []sim.Param{{DType: "f32", Dims: []int64{4}}}

var (
	addOne = sim.Program{Name: "add_one", Params: vectorParam, Results: []sim.Result{{Op: "add", Args: []int{0}, Value: 1}}}
	sumAll = sim.Program{Name: "sum", Params: vectorParam, Results: []sim.Result{{Op: "all-reduce", Args: []int{0}}}}
)

func ramp(d int) []float32 { f := float32(d); return []float32{f, f + 1, f + 2, f + 3} }

func upTo(n int) (list []int) {
	for i := range n {
		list = append(list, i)
	}
	return list
}

// open starts a cluster of simulated devices.
func open(t testing.TB, workers, each int) (*cluster.Local, []device.Driver) {
	t.Helper()
	drivers := simulated(t, workers, each)
	l, err := cluster.InProcess{Drivers: drivers, Lease: -1}.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l, drivers
}

// free waits until the devices' memory is free.
func free(t *testing.T, drivers []device.Driver) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for i, d := range drivers {
		for k := range d.Devices() {
			for {
				m, err := d.MemoryStats(k)
				if err != nil {
					t.Fatal(err)
				}
				if m.InUse == 0 {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("worker %d device %d keeps %d bytes", i, k, m.InUse)
				}
				time.Sleep(time.Millisecond)
			}
		}
	}
}

// Programs run on any number of workers and give the same.
func TestInProcess(t *testing.T) {
	for _, workers := range []int{1, 2, 4} {
		t.Run(fmt.Sprint(workers), func(t *testing.T) {
			l, drivers := open(t, workers, 2)
			s := connect(t, l, "client")
			devices := upTo(2 * workers)
			one, sum := s.program(addOne, devices...), s.program(sumAll, devices...)
			x := s.vector(devices, ramp)
			_, y := s.start(one, x)
			token, z := s.start(sum, y)
			if err := s.wait(token); err != nil {
				t.Fatal(err)
			}
			want := make([]float32, 4)
			for _, d := range devices {
				for i, v := range ramp(d) {
					want[i] += v + 1
				}
			}
			for _, d := range devices {
				if got, err := s.read(z, d); err != nil || !slices.Equal(got, want) {
					t.Errorf("device %d: %v, %v, want %v", d, got, err, want)
				}
			}
			s.Free([]uint64{x, y, z})
			free(t, drivers)
		})
	}
}

// Sessions that submit collectives in opposite order finish.
func TestOppositeOrder(t *testing.T) {
	l, drivers := open(t, 2, 2)
	devices := upTo(4)
	var clients sync.WaitGroup
	for k := range 2 {
		s := connect(t, l, fmt.Sprint("client ", k))
		programs := []*client.Remote{s.program(sumAll, devices...), s.program(sumAll, 1, 2)}
		x := s.vector(devices, ramp)
		clients.Go(func() {
			var last uint64
			for i := range 100 {
				token, out := s.start(programs[(i+k)%2], x)
				s.Free([]uint64{out})
				last = token
			}
			if err := s.wait(last); err != nil {
				t.Error(err)
			}
			s.Free([]uint64{x})
		})
	}
	clients.Wait()
	free(t, drivers)
}

// A worker that is lost fails what needs it, by its name, and nothing else.
func TestWorkerLost(t *testing.T) {
	l, _ := open(t, 2, 2)
	s := connect(t, l, "client")
	both, first := s.program(addOne, 0, 1, 2, 3), s.program(addOne, 0, 1)
	x := s.vector(upTo(4), ramp)
	a := s.vector([]int{0, 1}, ramp)
	token, y := s.start(both, x)
	if err := s.wait(token); err != nil {
		t.Fatal(err)
	}
	l.Lose(1)
	for range 3 {
		token, y = s.start(both, y)
		if err := s.wait(token); status.CodeOf(err) != status.Unavailable || !strings.Contains(err.Error(), "w1") {
			t.Errorf("a run with a part on a worker that was lost: %v", err)
		}
	}
	token, b := s.start(first, a)
	if err := s.wait(token); err != nil {
		t.Errorf("a run beside: %v", err)
	}
	if got, err := s.read(b, 1); err != nil || !slices.Equal(got, []float32{2, 3, 4, 5}) {
		t.Errorf("a run beside: %v, %v", got, err)
	}
}

// The objects of a client that goes are freed.
func TestClientGoes(t *testing.T) {
	l, drivers := open(t, 2, 2)
	s := connect(t, l, "client")
	x := s.vector(upTo(4), ramp)
	token, _ := s.start(s.program(addOne, upTo(4)...), x)
	if err := s.wait(token); err != nil {
		t.Fatal(err)
	}
	s.Close()
	free(t, drivers)
}

// A gang of which one part cannot begin ends on the devices that wait for it, and
// they go on.
func TestPartRefused(t *testing.T) {
	l, drivers := open(t, 2, 1)
	s := connect(t, l, "client")
	sum := s.program(sumAll, 0, 1)
	x := s.vector(upTo(2), ramp)
	if err := drivers[1].(*sim.Driver).FailAlloc(0, 1, status.New(status.ResourceExhausted, "there is no room")); err != nil {
		t.Fatal(err)
	}
	first, y := s.start(sum, x)
	second, z := s.start(sum, x)
	if err := s.wait(first); status.CodeOf(err) != status.ResourceExhausted || !strings.Contains(err.Error(), "there is no room") {
		t.Errorf("a run that has no room on one device: %v", err)
	}
	if err := s.wait(second); err != nil {
		t.Errorf("the run behind it: %v", err)
	}
	if got, err := s.read(z, 1); err != nil || !slices.Equal(got, []float32{1, 3, 5, 7}) {
		t.Errorf("the run behind it: %v, %v", got, err)
	}
	s.Free([]uint64{x, y, z})
	free(t, drivers)
}

// What a session had queued behind another's leaves nothing when it goes.
func TestClientGoesWhileItsRunsWait(t *testing.T) {
	l, err := cluster.InProcess{Drivers: simulated(t, 1, 1), Lease: -1, Heartbeat: 20 * time.Millisecond}.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	slow, goes := connect(t, l, "slow"), connect(t, l, "goes")
	first, second := slow.program(addOne, 0), goes.program(addOne, 0)
	y := goes.vector([]int{0}, ramp)
	let := make(chan func(error), 1)
	p := &client.PutSpec{Object: slow.Objects(1), Shape: shape.Shape{DType: shape.F32, Dims: []int64{4}}, Devices: []uint32{0}, Token: slow.next(),
		Fill: func(_ uint32, dst []byte, written func(error)) { clear(dst); let <- written }}
	if err := slow.Put(p); err != nil {
		t.Fatal(err)
	}
	written := <-let
	token, _ := slow.start(first, p.Object)
	for range 3 {
		goes.start(second, y) // behind the other's, which waits for its bytes
	}
	goes.Close()
	objects := func(want uint64) {
		t.Helper()
		var got uint64
		for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
			r := l.Report()
			if got = r.Islands[0].Workers[0].Last.GetObjects(); got == want && len(r.Sessions) == 1 {
				return
			}
		}
		t.Fatalf("the worker keeps %d objects, want %d", got, want)
	}
	objects(1)
	written(nil)
	if err := slow.wait(token); err != nil {
		t.Error(err)
	}
	objects(2)
	// Those of the session that went would come now.
	token, _ = slow.start(first, p.Object)
	if err := slow.wait(token); err != nil {
		t.Error(err)
	}
	objects(3)
}

// A run whose argument fails while it waits for another fails with the argument's
// error.
func TestArgumentFailsMeanwhile(t *testing.T) {
	drivers := simulated(t, 1, 2)
	l, err := cluster.InProcess{Drivers: drivers, Lease: -1}.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	s := connect(t, l, "client")
	x := s.vector([]int{0}, ramp)
	one, sum := s.program(addOne, 0), s.program(sumAll, 0, 1)
	island := drivers[0].(*sim.Driver).Island()
	island.Settle()
	if err := drivers[0].(*sim.Driver).FailRun(0, 1, status.New(status.DataLoss, "the computation broke")); err != nil {
		t.Fatal(err)
	}
	let := make(chan func(error), 1)
	late := &client.PutSpec{Object: s.Objects(1), Shape: shape.Shape{DType: shape.F32, Dims: []int64{4}}, Devices: []uint32{1}, Token: s.next(),
		Fill: func(_ uint32, dst []byte, written func(error)) { clear(dst); let <- written }}
	if err := s.Put(late); err != nil {
		t.Fatal(err)
	}
	written := <-let
	first, y := s.start(one, x)
	spec := &client.RunSpec{Program: sum.ID, FirstOutput: s.Objects(1), Inputs: []uint64{0}, Only: -1, Token: s.next(),
		Mixed: []*wire.Mixed{{Pieces: []*wire.Piece{{Object: y, Rows: 1}, {Object: late.Object, Rows: 1}}}}}
	if err := s.Run(spec); err != nil {
		t.Fatal(err)
	}
	if err := s.wait(first); status.CodeOf(err) != status.DataLoss {
		t.Errorf("the run that breaks: %v", err)
	}
	written(nil)
	if err := s.wait(spec.Token); status.CodeOf(err) != status.DataLoss || !strings.Contains(err.Error(), "the computation broke") {
		t.Errorf("the run behind it: %v", err)
	}
	s.Free([]uint64{x, y, late.Object, spec.FirstOutput})
	free(t, drivers)
}
