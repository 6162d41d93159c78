package cluster_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/cluster"
	"github.com/openpathways/pathways/core/cluster/clustertest"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/watch"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/device/sim"
)

// The paper's experiments on sharing, with simulated devices that take the time that they say: 16 workers of eight, on
// all of which each computation is. Client, controller and workers share this machine.
const (
	sharedWorkers = 16
	sharedEach    = 8
)

// How many gangs a client has under way at a time: as many as a loop that does not wait for its results may well have,
// and where shares are measured, always more than a device is given ahead, which is 50 ms.
const (
	underWay = 16
	backlog  = 256
)

// share starts a cluster that shares its devices by time.
func share(b testing.TB, c cluster.InProcess, workers, each int) *cluster.Local {
	c.Drivers = simulatedOn(b, workers, sim.Options{Devices: each, Island: sim.NewIsland(sim.Real, 1)})
	return start(b, c)
}

// occupy makes a client whose computations take cost on so many devices.
func occupy(s *session, name string, devices int, cost time.Duration) *stream {
	all := clustertest.UpTo(devices)
	return &stream{s: s, x: s.vector(all, ramp),
		step: s.program(sim.Program{Name: name, Gang: true, Cost: &cost, Params: vectorParam, Results: []sim.Result{
			{Op: "zeros", DType: "f32", Dims: []int64{4}}}}, all...)}
}

// runAll has clients run so many gangs together, as fast as each can, and returns how long they take.
func runAll(b testing.TB, clients []*stream, gangs int) time.Duration {
	var all sync.WaitGroup
	begun := time.Now()
	for i, m := range clients {
		all.Go(func() { m.run(b, (gangs+i)/len(clients), underWay) })
	}
	all.Wait()
	return time.Since(begun)
}

// Computations a second of so many clients together, and the part of the time that devices compute.
func BenchmarkClients(b *testing.B) {
	benchmarkClients(b, sharedWorkers, sharedEach, 40, 330, 1040, 2400)
}

// The same with so few devices that these do not take all processors.
func BenchmarkClientsOfTwoDevices(b *testing.B) { benchmarkClients(b, 2, 1, 40, 330) }

func benchmarkClients(b *testing.B, workers, each int, costs ...time.Duration) {
	for _, cost := range costs {
		cost *= time.Microsecond
		for _, clients := range []int{1, 2, 4, 8, 16, 64} {
			b.Run(fmt.Sprintf("cost=%v/clients=%d", cost, clients), func(b *testing.B) {
				l := share(b, cluster.InProcess{}, workers, each)
				var all []*stream
				for i := range clients {
					name := fmt.Sprintf("client-%d", i)
					all = append(all, occupy(connect(b, l, name), name, workers*each, cost))
				}
				runAll(b, all, 2*clients) // what a program takes is measured once
				b.ResetTimer()
				took := runAll(b, all, b.N)
				b.StopTimer()
				b.ReportMetric(float64(b.N)/took.Seconds(), "gangs/s")
				b.ReportMetric(float64(b.N)*cost.Seconds()/took.Seconds(), "use")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// What it costs that a device goes on to another client's computation: two clients whose gangs come A B A B …, and
// A A B B …, by turns. "x-apart" is the time of the first by that of the second, the median of all turns, of which
// "x-least" and "x-most" are the ends; "x-processor" is the same median of the process's processor time.
// "ABAB-switches" and "AABB-switches" are how often the first device went from one client to the other, by its gangs,
// in a turn of each that is looked at and not timed. So that devices have this order, too, the cluster dispatches in
// order of arrival, and each gang is submitted when the controller has the one before.
func BenchmarkSwitch(b *testing.B) {
	for _, cost := range []time.Duration{0, 330 * time.Microsecond} {
		b.Run(fmt.Sprintf("cost=%v", cost), func(b *testing.B) {
			const turn = 512
			const devices = sharedWorkers * sharedEach
			l := share(b, cluster.InProcess{Heartbeat: 100 * time.Millisecond, FirstCome: true}, sharedWorkers, sharedEach)
			pair := []*stream{occupy(connect(b, l, "a"), "a", devices, cost), occupy(connect(b, l, "b"), "b", devices, cost)}
			alternate(b, l, pair, turn, 1) // what a program takes is measured once
			var took time.Duration
			var ratios, processor []float64
			b.ResetTimer()
			for i := range b.N {
				var turns, used [3]time.Duration
				for k := range 2 {
					inRow := 1 + (i+k)%2 // who is first takes turns, too
					cpu := processTime(b)
					turns[inRow] = alternate(b, l, pair, turn, inRow)
					used[inRow] = processTime(b) - cpu
				}
				took += turns[1]
				ratios = append(ratios, turns[1].Seconds()/turns[2].Seconds())
				processor = append(processor, used[1].Seconds()/used[2].Seconds())
			}
			b.StopTimer()
			reportRatios(b, ratios, "x-apart")
			b.ReportMetric(median(processor), "x-processor")
			b.ReportMetric(took.Seconds()*1e6/float64(b.N)/turn, "µs/gang")
			b.ReportMetric(switches(b, l, pair, turn, 1), "ABAB-switches")
			b.ReportMetric(switches(b, l, pair, turn, 2), "AABB-switches")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// median sorts values and returns the one in the middle.
func median(values []float64) float64 {
	slices.Sort(values)
	n := len(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}

// reportRatios reports the median of some ratios as a unit, and the least and the most of them.
func reportRatios(b *testing.B, ratios []float64, unit string) {
	b.ReportMetric(median(ratios), unit)
	b.ReportMetric(ratios[0], "x-least")
	b.ReportMetric(ratios[len(ratios)-1], "x-most")
}

// switches returns how often the first device goes from one client to the other while alternate runs gangs, by their
// number.
func switches(b *testing.B, l *cluster.Local, pair []*stream, gangs, inRow int) float64 {
	var all []did
	var looking sync.WaitGroup
	after := l.Timeline(&wire.Look{Most: 1}).Newest // what was done before is not counted
	looking.Go(func() { all = firstDevice(l, after, 2*time.Second) })
	time.Sleep(time.Second) // until it is looked at
	alternate(b, l, pair, gangs, inRow)
	looking.Wait()
	n := 0
	for i, d := range all {
		if i > 0 && d.session != all[i-1].session {
			n++
		}
	}
	return float64(n) / float64(gangs)
}

// did is what a device did, in nanoseconds.
type did struct {
	session    uint32
	begin, end int64
}

// firstDevice returns what the first device does for so long, and what it did since a number of its timeline.
func firstDevice(l *cluster.Local, after uint64, during time.Duration) (all []did) {
	for begun := time.Now(); time.Since(begun) < during+2*time.Second; time.Sleep(time.Second) {
		t := l.Timeline(&wire.Look{Most: 1, After: after})
		after = t.Newest
		for _, m := range t.Rows[0].Doing {
			for _, lane := range m.Lanes {
				at := m.AheadNs
				for i, session := range lane.Sessions {
					begin := at + int64(lane.GapNs[i])
					at = begin + int64(lane.Ns[i])
					all = append(all, did{session, begin, at})
				}
			}
		}
	}
	return all
}

// alternate runs gangs of two clients, so many of one and then as many of the other, and returns how long they take.
func alternate(b *testing.B, l *cluster.Local, pair []*stream, gangs, inRow int) time.Duration {
	taken := func() uint64 { return l.Answer(&wire.Ask{OnlyEvents: true}, wire.Viewer{}).Gangs } // much less than a report
	begun := time.Now()
	for i := range gangs {
		m := pair[i/inRow%2]
		if len(m.tokens) == underWay {
			m.end(b)
		}
		sent := taken()
		for m.start(); taken() == sent; {
			runtime.Gosched()
		}
	}
	for _, m := range pair {
		for len(m.tokens) > 0 {
			m.end(b)
		}
	}
	return time.Since(begun)
}

// What it costs that people look at a cluster with 100,000 arrays on 2,048 devices once a second, by `pathways top`,
// the web page, and a scrape of its metrics: "x-watched" is the time of a gang while it is looked at, beside gangs, by
// that in the turns of a second before and after, the median of all of these, of which "x-least" and "x-most" are the
// ends. "%look" is the processor time of an idle second in which it is looked at, less that of one in which it is not,
// as a part of all processors, the median of all turns. It counts the collection of garbage by how much garbage there
// is: a collection takes a tenth of a second, and it is chance which second it is in. Answers are encoded, but neither
// sent nor drawn.
func BenchmarkWatching(b *testing.B) {
	const workers, each, arrays = 512, 4, 100_000
	l := share(b, cluster.InProcess{}, workers, each)
	s := connect(b, l, "client")
	holds(b, s, arrays, workers*each)
	m := occupy(s, "step", workers*each, 0)
	var told uint64                  // what of the timeline the page has
	look := func(site *watch.Site) { // beside what the site's history asks for
		top := l.Answer(watch.Recent(), wire.Viewer{})
		if _, err := proto.Marshal(top); err != nil {
			b.Error(err)
		}
		events, timeline := fmt.Sprint("/api/events?after=", top.NewestEvent), fmt.Sprint("/api/timeline?after=", told)
		for _, path := range []string{"/metrics", "/api/status", "/api/history", events, timeline} {
			w := &unsent{header: http.Header{}}
			site.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://localhost"+path, nil))
			if w.code != 0 || w.bytes == 0 {
				b.Error(path, w.code)
			}
		}
		told = l.Timeline(&wire.Look{Most: 1}).Newest
	}
	const turn, few = time.Second, 8
	gangs := func(beside func()) float64 {
		ran := 0
		var all sync.WaitGroup
		begun := time.Now()
		all.Go(beside)
		for time.Since(begun) < turn {
			m.run(b, few, few)
			ran += few
		}
		all.Wait()
		return time.Since(begun).Seconds() / float64(ran)
	}
	idle := func(beside func()) float64 {
		var before, after runtime.MemStats
		cpu := processTime(b)
		runtime.GC()
		collection := processTime(b) - cpu
		runtime.ReadMemStats(&before)
		cpu, end := processTime(b), time.After(turn)
		beside()
		<-end
		cpu = processTime(b) - cpu
		runtime.ReadMemStats(&after)
		garbage := float64(after.TotalAlloc-before.TotalAlloc) / float64(before.NextGC-before.HeapAlloc) // in collections
		return cpu.Seconds() + garbage*collection.Seconds()
	}
	nothing := func() {}
	m.run(b, few, few)
	var ratios, looking []float64
	b.ResetTimer()
	for range b.N {
		before, unseen := gangs(nothing), idle(nothing)
		site := watch.New(watch.Config{Source: l, Open: true})
		looks := func() { look(site) }
		watched, seen := gangs(looks), idle(looks)
		site.Close()
		ratios = append(ratios, 2*watched/(before+gangs(nothing)))
		looking = append(looking, seen-unseen)
	}
	b.StopTimer()
	reportRatios(b, ratios, "x-watched")
	b.ReportMetric(100*median(looking)/turn.Seconds()/float64(runtime.NumCPU()), "%look")
	b.ReportMetric(0, "ns/op")
}

// unsent is an answer that is encoded and not sent.
type unsent struct {
	header      http.Header
	code, bytes int // the code is 0 unless it is an error's
}

func (u *unsent) Header() http.Header  { return u.header }
func (u *unsent) WriteHeader(code int) { u.code = code }

func (u *unsent) Write(b []byte) (int, error) {
	u.bytes += len(b)
	return len(b), nil
}

// holds makes arrays of one device each, which the session keeps.
func holds(b *testing.B, s *session, arrays, devices int) {
	const burst = 512
	var tokens []uint64
	for i := range arrays {
		p := &client.PutSpec{Object: s.Objects(1), Shape: shape.Shape{DType: shape.F32, Dims: []int64{1}},
			Devices: []uint32{uint32(i % devices)}, Token: s.Tokens(1),
			Fill: func(_ uint32, _ []byte, written func(error)) { written(nil) }}
		statustest.OK(b, s.Put(p))
		if tokens = append(tokens, p.Token); len(tokens) == burst || i == arrays-1 {
			for _, token := range tokens {
				statustest.OK(b, s.Wait(token))
			}
			tokens = tokens[:0]
		}
	}
}
