package cluster_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"testing"
	"time"

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
	for _, cost := range []time.Duration{40, 330, 1040, 2400} {
		cost *= time.Microsecond
		for _, clients := range []int{1, 2, 4, 8, 16, 64} {
			b.Run(fmt.Sprintf("cost=%v/clients=%d", cost, clients), func(b *testing.B) {
				l := share(b, cluster.InProcess{}, sharedWorkers, sharedEach)
				var all []*stream
				for i := range clients {
					name := fmt.Sprintf("client-%d", i)
					all = append(all, occupy(connect(b, l, name), name, sharedWorkers*sharedEach, cost))
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
// A A B B …, by turns. "x-apart" is the time of the first by that of the second; switches are how often a device went
// from one client to the other, by its gangs.
func BenchmarkSwitch(b *testing.B) {
	for _, cost := range []time.Duration{0, 330 * time.Microsecond} {
		b.Run(fmt.Sprintf("cost=%v", cost), func(b *testing.B) {
			const turn = 512
			l := share(b, cluster.InProcess{Heartbeat: 100 * time.Millisecond}, sharedWorkers, sharedEach)
			pair := []*stream{occupy(connect(b, l, "a"), "a", sharedWorkers*sharedEach, cost),
				occupy(connect(b, l, "b"), "b", sharedWorkers*sharedEach, cost)}
			var took [3]time.Duration
			b.ResetTimer()
			for i := range b.N {
				for k := range 2 {
					inRow := 1 + (i+k)%2 // who is first takes turns, too
					took[inRow] += alternate(b, pair, turn, inRow)
				}
			}
			b.StopTimer()
			b.ReportMetric(took[1].Seconds()/took[2].Seconds(), "x-apart")
			b.ReportMetric(took[1].Seconds()*1e6/float64(b.N)/turn, "µs/gang")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// alternate runs gangs of two clients, so many of one and then as many of the other, and returns how long they take.
func alternate(b *testing.B, pair []*stream, gangs, inRow int) time.Duration {
	begun := time.Now()
	for i := range gangs {
		m := pair[i/inRow%2]
		if len(m.tokens) == underWay {
			m.end(b)
		}
		m.start()
	}
	for _, m := range pair {
		for len(m.tokens) > 0 {
			m.end(b)
		}
	}
	return time.Since(begun)
}

// What it costs that people look at a cluster with 100,000 arrays on 2,048 devices once a second, by `pathways top`,
// the web page, and a scrape of its metrics: "x-watched" is the time of a gang by that of one while it is not looked
// at, by turns of a second; "%look" is the processor time of what is asked in a second, as a part of all processors.
func BenchmarkWatching(b *testing.B) {
	const workers, each, arrays = 512, 4, 100_000
	l := share(b, cluster.InProcess{}, workers, each)
	s := connect(b, l, "client")
	holds(b, s, arrays, workers*each)
	m := occupy(s, "step", workers*each, 0)
	site := watch.New(watch.Config{Source: l, Open: true})
	defer site.Close()
	looks := func() {
		l.Answer(new(wire.Ask), wire.Viewer{})  // what the history has made, each second
		l.Answer(watch.Recent(), wire.Viewer{}) // top
		for _, path := range []string{"/metrics", "/api/status", "/api/history", "/api/events", "/api/timeline"} {
			w := httptest.NewRecorder()
			site.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://localhost"+path, nil))
			if w.Code != http.StatusOK {
				b.Fatal(path, w.Code)
			}
		}
	}
	const turn, few = time.Second, 8
	m.run(b, few, few)
	looks()
	var took [2]time.Duration
	var ran [2]int
	var look time.Duration
	b.ResetTimer()
	for i := range b.N {
		for k := range 2 {
			watched := (i + k) % 2
			if watched == 1 {
				cpu := processTime(b)
				looks() // between gangs, so that what it takes is known
				look += processTime(b) - cpu
			}
			begun := time.Now()
			for time.Since(begun) < turn {
				m.run(b, few, few)
				ran[watched] += few
			}
			took[watched] += time.Since(begun)
		}
	}
	b.StopTimer()
	b.ReportMetric(took[1].Seconds()/float64(ran[1])/(took[0].Seconds()/float64(ran[0])), "x-watched")
	b.ReportMetric(100*look.Seconds()/float64(b.N)/turn.Seconds()/float64(runtime.NumCPU()), "%look")
	b.ReportMetric(0, "ns/op")
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
