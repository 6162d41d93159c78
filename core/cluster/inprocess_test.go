package cluster_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/openpathways/pathways/core/bubble"
	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/cluster"
	"github.com/openpathways/pathways/core/cluster/clustertest"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/sim"
	"github.com/openpathways/pathways/transport/inproc"
)

// simulated makes drivers of one epoch of simulated devices.
func simulated(t testing.TB, workers, each int) []device.Driver {
	t.Helper()
	return simulatedOn(t, workers, sim.Options{Devices: each, Island: sim.NewIsland(sim.Instant, 1)})
}

// simulatedOn makes drivers of one epoch with the same options. They are closed when the test has ended.
func simulatedOn(t testing.TB, workers int, o sim.Options) []device.Driver {
	t.Helper()
	kinds := make([]device.Kind, workers)
	for i := range kinds {
		kinds[i] = sim.Kind{Options: o}
	}
	drivers, leave, err := cluster.Join(t.Context(), kinds)
	statustest.OK(t, err)
	leave()
	t.Cleanup(func() {
		for _, d := range drivers {
			d.Close()
		}
	})
	return drivers
}

// separateOn makes drivers of simulated devices whose collectives between workers the workers carry, as those of CPU
// devices.
func separateOn(t testing.TB, workers int, o sim.Options) (drivers []device.Driver) {
	t.Helper()
	for range workers {
		d := statustest.Value(sim.OpenSeparate(o)).OK(t)
		t.Cleanup(func() { d.Close() })
		drivers = append(drivers, d)
	}
	return drivers
}

// isLoss reports whether an error is that of what was under way on a worker that is lost, or reads an array that was
// there: which of them, depends on when the controller hears of the loss.
func isLoss(err error) bool {
	code := status.CodeOf(err)
	return code == status.Unavailable || code == status.DataLoss
}

// session is a client of a test.
type session struct{ *clustertest.Session }

func connect(t testing.TB, l *cluster.Local, name string) *session {
	t.Helper()
	return begin(t, func(n client.Notify) (client.Cluster, error) { return l.Connect(t.Context(), name, n) })
}

// begin begins a session.
func begin(t testing.TB, connect func(client.Notify) (client.Cluster, error)) *session {
	t.Helper()
	return &session{clustertest.Begin(t, connect)}
}

// program compiles p for the devices.
func (s *session) program(p sim.Program, devices ...int) *client.Remote {
	s.T.Helper()
	r := statustest.Value(s.Compile(s.T.Context(), client.CompileSpec{
		Format: sim.Format, Code: p.Source().Code, Options: sim.CompileOptions(devices)})).OK(s.T)
	return r
}

// vector makes an object of four f32 a device.
func (s *session) vector(devices []int, value func(d int) []float32) uint64 {
	s.T.Helper()
	return s.Array(shape.Shape{DType: shape.F32, Dims: []int64{4}}, devices, func(d int) (b []byte) {
		for _, v := range value(d) {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
		}
		return b
	})
}

// read returns a shard of a vector.
func (s *session) read(object uint64, d int) ([]float32, error) {
	s.T.Helper()
	b, err := s.Read(object, d, 16)
	if err != nil {
		return nil, err
	}
	out := make([]float32, 4)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return out, nil
}

var vectorParam = []sim.Param{{DType: "f32", Dims: []int64{4}}}

var (
	addOne = sim.Program{Name: "add_one", Params: vectorParam, Results: []sim.Result{
		{Op: "add", Args: []int{0}, Value: 1}}}
	sumAll = sim.Program{Name: "sum", Params: vectorParam, Results: []sim.Result{{Op: "all-reduce", Args: []int{0}}}}
)

func ramp(d int) []float32 { f := float32(d); return []float32{f, f + 1, f + 2, f + 3} }

// open starts a cluster of simulated devices.
func open(t testing.TB, workers, each int) (*cluster.Local, []device.Driver) {
	t.Helper()
	drivers := simulated(t, workers, each)
	return start(t, cluster.InProcess{Drivers: drivers}), drivers
}

// start starts a cluster, in which all has to fit together at the test's end.
func start(t testing.TB, c cluster.InProcess) *cluster.Local {
	t.Helper()
	l := statustest.Value(c.Start(t.Context())).OK(t)
	t.Cleanup(func() {
		statustest.Check(t, l.Check())
		l.Close()
	})
	return l
}

// Programs run on any number of workers and give the same.
func TestResultsAreTheSameOnAnyNumberOfWorkers(t *testing.T) {
	for _, workers := range []int{1, 2, 4} {
		t.Run(fmt.Sprint(workers), func(t *testing.T) {
			l, drivers := open(t, workers, 2)
			s := connect(t, l, "client")
			devices := clustertest.UpTo(2 * workers)
			one, sum := s.program(addOne, devices...), s.program(sumAll, devices...)
			x := s.vector(devices, ramp)
			_, y := s.Start(one, x)
			token, z := s.Start(sum, y)
			statustest.OK(t, s.Wait(token))
			want := make([]float32, 4)
			for _, d := range devices {
				for i, v := range ramp(d) {
					want[i] += v + 1
				}
			}
			for _, d := range devices {
				s.expect(z, d, want...)
			}
			s.Free([]uint64{x, y, z})
			clustertest.Free(t, drivers)
		})
	}
}

// A session that asks for a number of devices has exactly that many, also some in
// the middle of a worker's, and computes on them. Those of other such sessions come
// last.
func TestSessionsOfSomeDevices(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		l, drivers := open(t, 2, 4)
		some := func(devices int) *session {
			return begin(t, func(n client.Notify) (client.Cluster, error) {
				return l.ConnectTo(t.Context(), fmt.Sprint(devices), devices, n)
			})
		}
		first, second := some(1), some(1)
		statustest.OK(t, first.Close())
		synctest.Wait() // the controller hears of it
		others := []*session{second, some(3), some(4), some(8)}
		for _, c := range []struct {
			session *session
			want    string // worker and local device
		}{{others[0], "1.1"}, {others[1], "1.0 1.2 1.3"}, {others[2], "2.0 2.1 2.2 2.3"},
			{others[3], "1.0 1.1 1.2 1.3 2.0 2.1 2.2 2.3"}} {
			var got []string
			for _, d := range c.session.Devices() {
				got = append(got, fmt.Sprintf("%d.%d", d.Worker, d.Local))
			}
			statustest.Equal(t, strings.Join(got, " "), c.want, "a session has devices")
			devices := clustertest.UpTo(len(got))
			x := c.session.vector(devices, ramp)
			token, y := c.session.Start(c.session.program(sumAll, devices...), x)
			statustest.OK(t, c.session.Wait(token))
			want := make([]float32, 4)
			for _, d := range devices {
				for i, v := range ramp(d) {
					want[i] += v
				}
			}
			for _, d := range devices {
				c.session.expect(y, d, want...)
			}
			c.session.Free([]uint64{x, y})
		}
		_, err := l.ConnectTo(t.Context(), "greedy", 9, nil)
		statustest.Fails(t, "a session of more devices than there are", err, status.ResourceExhausted,
			"a session of 9 devices was asked for, and the cluster has 8 in 2 workers")
		clustertest.Free(t, drivers)
	})
}

// Sessions that submit collectives in opposite order finish.
func TestCollectivesInOppositeOrderFinish(t *testing.T) {
	l, drivers := open(t, 2, 2)
	devices := clustertest.UpTo(4)
	var clients sync.WaitGroup
	for k := range 2 {
		s := connect(t, l, fmt.Sprint("client ", k))
		programs := []*client.Remote{s.program(sumAll, devices...), s.program(sumAll, 1, 2)}
		x := s.vector(devices, ramp)
		clients.Go(func() {
			var last uint64
			for i := range 100 {
				token, out := s.Start(programs[(i+k)%2], x)
				s.Free([]uint64{out})
				last = token
			}
			statustest.Check(t, s.Wait(last))
			s.Free([]uint64{x})
		})
	}
	clients.Wait()
	clustertest.Free(t, drivers)
}

// A worker that is lost fails what needs it, by its name, and nothing else.
func TestLostWorkerFailsOnlyWhatNeedsIt(t *testing.T) {
	l, _ := open(t, 2, 2)
	s := connect(t, l, "client")
	both, first := s.program(addOne, 0, 1, 2, 3), s.program(addOne, 0, 1)
	x := s.vector(clustertest.UpTo(4), ramp)
	a := s.vector([]int{0, 1}, ramp)
	token, y := s.Start(both, x)
	statustest.OK(t, s.Wait(token))
	l.Lose(1)
	for range 3 {
		token, y = s.Start(both, y)
		if err := s.Wait(token); !isLoss(err) || !strings.Contains(err.Error(), "worker-1") {
			t.Errorf("a run with a part on a worker that was lost: %v", err)
		}
	}
	token, b := s.Start(first, a)
	statustest.Checkf(t, s.Wait(token), "a run beside")
	s.expect(b, 1, 2, 3, 4, 5)
}

// The objects of a client that goes are freed.
func TestObjectsOfDepartedClientAreFreed(t *testing.T) {
	l, drivers := open(t, 2, 2)
	s := connect(t, l, "client")
	x := s.vector(clustertest.UpTo(4), ramp)
	token, _ := s.Start(s.program(addOne, clustertest.UpTo(4)...), x)
	statustest.OK(t, s.Wait(token))
	s.Close()
	clustertest.Free(t, drivers)
}

// A gang of which one part cannot begin ends on the devices that wait for it, and
// they go on.
func TestGangEndsWhereOnePartCannotBegin(t *testing.T) {
	l, drivers := open(t, 2, 1)
	s := connect(t, l, "client")
	sum := s.program(sumAll, 0, 1)
	x := s.vector(clustertest.UpTo(2), ramp)
	statustest.OK(t, drivers[1].(*sim.Driver).FailAlloc(0, 1,
		status.New(status.ResourceExhausted, "there is no room")))
	first, y := s.Start(sum, x)
	second, z := s.Start(sum, x)
	statustest.Fails(t, "a run that has no room on one device", s.Wait(first), status.ResourceExhausted,
		"there is no room")
	statustest.Checkf(t, s.Wait(second), "the run behind it")
	s.expect(z, 1, 1, 3, 5, 7)
	var refused []string
	for _, w := range l.Report().Islands[0].Workers {
		last := w.LastRefused
		refused = append(refused, fmt.Sprint(w.Process.Name, w.Refused, last.GetWhat(), last.GetClient(),
			strings.Contains(last.GetWhy(), "there is no room")))
	}
	statustest.EqualSlices(t, refused, []string{"worker-00false", "worker-11sumclienttrue"},
		"what the report says of refusals")
	s.Free([]uint64{x, y, z})
	clustertest.Free(t, drivers)
}

// What a session had queued behind another's leaves nothing when it goes.
func TestQueuedRunsOfDepartedClientAreDropped(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const heartbeat = time.Second
		l := start(t, cluster.InProcess{Drivers: simulated(t, 1, 1), Heartbeat: heartbeat})
		slow, goes := connect(t, l, "slow"), connect(t, l, "goes")
		first, second := slow.program(addOne, 0), goes.program(addOne, 0)
		y := goes.vector([]int{0}, ramp)
		let := make(chan func(error), 1)
		p := &client.PutSpec{Object: slow.Objects(1), Shape: shape.Shape{DType: shape.F32, Dims: []int64{4}},
			Devices: []uint32{0}, Token: slow.Tokens(1),
			Fill: func(_ uint32, dst []byte, written func(error)) { clear(dst); let <- written }}
		statustest.OK(t, slow.Put(p))
		written := <-let
		token, _ := slow.Start(first, p.Object)
		for range 3 {
			goes.Start(second, y) // behind the other's, which waits for its bytes
		}
		goes.Close()
		objects := func(want uint64) {
			t.Helper()
			time.Sleep(2 * heartbeat) // the worker tells
			r := l.Report()
			if got := r.Islands[0].Workers[0].Last.GetObjects(); got != want || len(r.Sessions) != 1 {
				t.Fatalf("the worker keeps %d objects, want %d; there are %d sessions, want 1", got, want, len(r.Sessions))
			}
		}
		objects(1)
		written(nil)
		statustest.Check(t, slow.Wait(token))
		objects(2)
		// Those of the session that went would come now.
		token, _ = slow.Start(first, p.Object)
		statustest.Check(t, slow.Wait(token))
		objects(3)
	})
}

// A run whose argument fails while it waits for another fails with the argument's
// error.
func TestArgumentFailsMeanwhile(t *testing.T) {
	l, drivers := open(t, 1, 2)
	s := connect(t, l, "client")
	x := s.vector([]int{0}, ramp)
	one, sum := s.program(addOne, 0), s.program(sumAll, 0, 1)
	island := drivers[0].(*sim.Driver).Island()
	island.Settle()
	statustest.OK(t, drivers[0].(*sim.Driver).FailRun(0, 1, status.New(status.DataLoss, "the computation broke")))
	let := make(chan func(error), 1)
	late := &client.PutSpec{Object: s.Objects(1), Shape: shape.Shape{DType: shape.F32, Dims: []int64{4}},
		Devices: []uint32{1}, Token: s.Tokens(1),
		Fill: func(_ uint32, dst []byte, written func(error)) { clear(dst); let <- written }}
	statustest.OK(t, s.Put(late))
	written := <-let
	first, y := s.Start(one, x)
	spec := &client.RunSpec{Program: sum.ID, FirstOutput: s.Objects(1), Inputs: []uint64{0}, Only: -1, Token: s.Tokens(1),
		Mixed: []*wire.Mixed{{Pieces: []*wire.Piece{{Object: y, Rows: 1}, {Object: late.Object, Rows: 1}}}}}
	statustest.OK(t, s.Run(spec))
	statustest.Fails(t, "the run that breaks", s.Wait(first), status.DataLoss)
	written(nil)
	statustest.Fails(t, "the run behind it", s.Wait(spec.Token), status.DataLoss, "the computation broke")
	s.Free([]uint64{x, y, late.Object, spec.FirstOutput})
	clustertest.Free(t, drivers)
}

// A client has a worker compile for the devices of another one, which the controller has let in, and which has yet to
// hear so.
func TestWorkerCompilesForOneWhoseWelcomeIsOnItsWay(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		drivers := simulatedOn(t, 2, sim.Options{Devices: 1, Island: sim.NewIsland(sim.Real, 1)})
		slow := func(from, to string) time.Duration {
			if from == "controller" && to == "late" {
				return time.Second
			}
			return time.Millisecond
		}
		l := start(t, cluster.InProcess{Drivers: drivers[:1], Heartbeat: time.Second,
			Network: &inproc.Conditions{Delay: slow}})
		var joining sync.WaitGroup
		joining.Go(func() {
			statustest.Check(t, l.Join(t.Context(), "late", drivers[1], ""))
		})
		time.Sleep(time.Second / 2) // the controller has let it in
		s := connect(t, l, "c")
		statustest.Check(t, statustest.Of(s.Compile(t.Context(), client.CompileSpec{Format: sim.Format,
			Code: computations[0].program.Source().Code, Options: sim.CompileOptions([]int{1, 0})})))
		joining.Wait()
	})
}
