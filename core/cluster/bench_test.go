package cluster_test

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/cluster"
	"github.com/openpathways/pathways/core/cluster/clustertest"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/sim"
	"github.com/openpathways/pathways/transport/inproc"
)

// stream is a client that keeps gangs under way, each of which reads the results
// of the one before.
type stream struct {
	s      *session
	step   *client.Remote
	x      uint64
	tokens []uint64
	took   time.Duration
}

func newStream(b testing.TB, workers int, delay time.Duration, sequential bool) *stream {
	return newStreamOf(b, simulated(b, workers, 4), 4*workers, 0, delay, sequential)
}

// newStreamOf is of computations that take cost on so many devices.
func newStreamOf(b testing.TB, drivers []device.Driver, devices int, cost, delay time.Duration,
	sequential bool) *stream {
	c := cluster.InProcess{Drivers: drivers, Sequential: sequential}
	if delay > 0 {
		c.Network = &inproc.Conditions{Delay: func(string, string) time.Duration { return delay }}
	}
	return newStreamIn(b, c, devices, cost)
}

func newStreamIn(b testing.TB, c cluster.InProcess, devices int, cost time.Duration) *stream {
	s := connect(b, start(b, c), "client")
	all := clustertest.UpTo(devices)
	return &stream{s: s, x: s.vector(all, ramp),
		step: s.program(sim.Program{Name: "step", Gang: true, Cost: &cost, Params: vectorParam, Results: []sim.Result{
			{Op: "zeros", DType: "f32", Dims: []int64{4}}}}, all...)}
}

// run runs gangs, of which so many are under way at once.
func (m *stream) run(b testing.TB, gangs, depth int) {
	begun := time.Now()
	for range gangs {
		if m.start(); len(m.tokens) > depth {
			m.end(b)
		}
	}
	for len(m.tokens) > 0 {
		m.end(b)
	}
	m.took += time.Since(begun)
}

// start submits a gang.
func (m *stream) start() {
	token, y := m.s.Start(m.step, m.x)
	m.s.Free([]uint64{m.x})
	m.x = y
	m.tokens = append(m.tokens, token)
}

func (m *stream) end(b testing.TB) {
	statustest.OK(b, m.s.Wait(m.tokens[0]))
	m.tokens = m.tokens[1:]
}

// Gangs a second through the whole control plane: a client, the controller, and
// workers with four simulated devices each, whose computations take no time. One
// computation is on all devices and reads the results of the one before; 64 are
// under way at once. Beside it, in turns, a cluster that dispatches a gang when
// the one before has ended: ratio is how many times slower it is.
func BenchmarkGangs(b *testing.B) {
	for _, delay := range []time.Duration{0, 100 * time.Microsecond} {
		for _, workers := range []int{1, 2, 16, 128, 512} {
			b.Run(fmt.Sprintf("delay=%v/workers=%d", delay, workers), func(b *testing.B) {
				const depth, turn = 64, 256
				parallel, sequential := newStream(b, workers, delay, false), newStream(b, workers, delay, true)
				for _, m := range []*stream{parallel, sequential} {
					m.run(b, 2, depth)
					m.took = 0
				}
				b.ReportAllocs()
				b.ResetTimer()
				for left := b.N; left > 0; left -= turn {
					parallel.run(b, min(left, turn), depth)
					sequential.run(b, min(left, turn), depth)
				}
				b.StopTimer()
				b.ReportMetric(float64(b.N)/parallel.took.Seconds(), "gangs/s")
				b.ReportMetric(float64(b.N)/sequential.took.Seconds(), "sequential/s")
				b.ReportMetric(sequential.took.Seconds()/parallel.took.Seconds(), "ratio")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// What a lease costs: as BenchmarkGangs, in turns on a cluster whose connections to the controller are links and on one
// whose are not. ratio is how many times slower the former is.
func BenchmarkLease(b *testing.B) {
	for _, workers := range []int{1, 16} {
		for _, depth := range []int{0, 64} {
			b.Run(fmt.Sprintf("workers=%d/depth=%d", workers, depth), func(b *testing.B) {
				const turn = 64
				var streams [2]*stream
				for i, lease := range []time.Duration{0, 10 * time.Second} {
					streams[i] = newStreamIn(b, cluster.InProcess{Drivers: simulated(b, workers, 4), Lease: lease}, 4*workers, 0)
					streams[i].run(b, turn, depth)
					streams[i].took = 0
				}
				b.ReportAllocs()
				b.ResetTimer()
				for left := b.N; left > 0; left -= turn {
					for _, m := range streams {
						m.run(b, min(left, turn), depth)
					}
				}
				b.StopTimer()
				off, on := streams[0].took.Seconds(), streams[1].took.Seconds()
				b.ReportMetric(off/float64(b.N)*1e6, "off-µs")
				b.ReportMetric(on/float64(b.N)*1e6, "on-µs")
				b.ReportMetric(on/off, "ratio")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// What a trace costs: as BenchmarkGangs, in turns with and without one. Its beginning and end are not measured. ratio
// is how many times slower a gang is with it.
func BenchmarkTrace(b *testing.B) {
	for _, workers := range []int{1, 2, 16} {
		b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) {
			const turn, depth = 4096, 64
			m := newStreamOf(b, simulated(b, workers, 2), 2*workers, 0, 0, false)
			var took [2]time.Duration
			m.run(b, turn, depth)
			b.ReportAllocs()
			b.ResetTimer()
			for left := b.N; left > 0; left -= turn {
				for i := range took {
					m.took = 0
					if i == 0 {
						m.run(b, min(left, turn), depth)
					} else {
						b.StopTimer()
						stop := statustest.Value(m.s.StartProfile(b.Context())).OK(b)
						b.StartTimer()
						m.run(b, min(left, turn), depth)
						b.StopTimer()
						stop(b.Context())
						b.StartTimer()
					}
					took[i] += m.took
				}
			}
			b.StopTimer()
			off, on := took[0].Seconds(), took[1].Seconds()
			b.ReportMetric(off/float64(b.N)*1e6, "off-µs")
			b.ReportMetric(on/float64(b.N)*1e6, "on-µs")
			b.ReportMetric(on/off, "ratio")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// A chain of 128 computations that add one to an array on all devices, which are
// simulated: defined once and played, and submitted one by one, in turns. Each play or chain ends before the next
// begins. Ratio is how many times faster the play is.
func BenchmarkPlay(b *testing.B) {
	const nodes = 128
	for _, size := range []struct{ workers, each int }{{1, 1}, {8, 1}, {4, 4}, {32, 4}, {128, 4}, {512, 4}} {
		b.Run(fmt.Sprintf("workers=%d/each=%d", size.workers, size.each), func(b *testing.B) {
			l, _ := open(b, size.workers, size.each)
			s := connect(b, l, "client")
			devices, step := clustertest.UpTo(size.workers*size.each), addOne
			step.Gang = true
			one, x := s.program(step, devices...), s.vector(devices, ramp)
			d := draw(1)
			y := uint64(1)
			for range nodes {
				y = d.run(one, y)
			}
			g := d.keeps(y)
			id := s.define(g)
			s.play(id, g, x).good()
			var play, runs, playCPU, runsCPU time.Duration
			b.ReportAllocs()
			for b.Loop() {
				begun, cpu := time.Now(), processTime(b)
				p := s.play(id, g, x)
				p.good()
				p.freeKept()
				play, playCPU = play+time.Since(begun), playCPU+processTime(b)-cpu

				begun, cpu = time.Now(), processTime(b)
				y, last := x, uint64(0)
				for range nodes {
					token, z := s.Start(one, y)
					if y != x {
						s.Free([]uint64{y})
					}
					y, last = z, token
				}
				statustest.OK(b, s.Wait(last))
				s.Free([]uint64{y})
				runs, runsCPU = runs+time.Since(begun), runsCPU+processTime(b)-cpu
			}
			b.StopTimer()
			b.ReportMetric(nodes*float64(b.N)/play.Seconds(), "nodes/s")
			b.ReportMetric(nodes*float64(b.N)/runs.Seconds(), "runs/s")
			b.ReportMetric(runs.Seconds()/play.Seconds(), "ratio")
			b.ReportMetric(float64(playCPU.Microseconds())/float64(b.N)/nodes, "cpu-µs/node")
			b.ReportMetric(float64(runsCPU.Microseconds())/float64(b.N)/nodes, "cpu-µs/run")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// processTime is what this process has used of the processors.
func processTime(b *testing.B) time.Duration {
	var t unix.Timespec
	statustest.OK(b, unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t))
	return time.Duration(t.Nano())
}

// How much of the time devices compute, where a computation takes so long on all of
// them and each reads the results of the one before: 1 is what a program of its own
// on every host would reach at best. The devices are simulated, and take the time
// that they say; client, controller and workers share this machine.
func BenchmarkParity(b *testing.B) {
	for _, size := range []struct {
		workers, each int
		costs         []time.Duration // in microseconds
	}{{16, 8, []time.Duration{100, 200, 500, 1000, 2000, 5000}},
		{512, 4, []time.Duration{1000, 3000, 5000, 10000, 20000, 35000}}} {
		for _, cost := range size.costs {
			cost *= time.Microsecond
			b.Run(fmt.Sprintf("workers=%d/cost=%v", size.workers, cost), func(b *testing.B) {
				drivers := simulatedOn(b, size.workers, sim.Options{Devices: size.each, Island: sim.NewIsland(sim.Real, 1)})
				m := newStreamOf(b, drivers, size.workers*size.each, cost, 0, false)
				m.run(b, 2, 64)
				m.took = 0
				b.ResetTimer()
				m.run(b, b.N, 64)
				b.StopTimer()
				b.ReportMetric(float64(b.N)*cost.Seconds()/m.took.Seconds(), "share")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}
