package controller

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/wire/wiretest"
)

// stepCase is a kind of event, measured by BenchmarkSteps: how often it is repeated, on how large a cluster, and with
// what around it.
type stepCase struct {
	name             string
	workers, devices int    // devices of each
	sessions         int    // beside the client's own
	memory           string // quota of the tenant that all belong to; "" is none
	begin            func(b *bed)
	again            func(b *bed, i int) // makes the events that are measured
}

func onAll(b *bed) []uint32 {
	all := make([]uint32, b.st.sessions[1].len())
	for i := range all {
		all[i] = uint32(i)
	}
	return all
}

// loads loads for the session a program that has the portable form, which makes no pair of workers known to each other.
func (b *bed) loads(program uint64, kept bool) {
	b.say(b.workers[0], wire.KindCompiled, &wire.Compiled{Op: b.compile(program, b.st.sessions[1].len()),
		Info:     &wire.ProgramInfo{Name: "p", Outputs: []*wire.Array{scalar}},
		Loadable: &wire.Loadable{Serialized: []byte("x"), Kept: kept}})
}

var scalar = &wire.Array{Dtype: uint32(shape.F32)}

var (
	square  = &wire.Array{Dtype: uint32(shape.F32), Dims: []int64{1024, 1024}} // 4 MiB
	square2 = &wire.Array{Dtype: uint32(shape.F32), Dims: []int64{2, 1024, 1024}}
)

// plays plays graph 1, of so many nodes, on an input.
func (b *bed) plays(nodes int, input uint64) {
	b.say(b.client, wire.KindPlay, &wire.Play{Op: b.next(), Graph: 1, Nodes: uint32(nodes), First: b.next() + 1<<20,
		Inputs: []uint64{input}})
	if b.st.gangs.Len() == 0 {
		b.t.Fatal("no node of the play was dispatched")
	}
	for b.st.gangs.Len() > 0 { // later nodes are dispatched when earlier ones have ended on all workers
		under := b.st.gangs.Numbers()
		done := mustMarshal(b.t, &wire.Completed{Ok: under[:min(len(under), endsAtOnce)]})
		for _, w := range b.workers {
			b.frame(w, wire.KindCompleted, done)
		}
	}
	b.step(Event{Kind: Flush})
}

// reportAll has all workers report the gang that was dispatched last.
func (b *bed) reportAll() {
	done := mustMarshal(b.t, &wire.Completed{Ok: []uint64{b.st.gang}})
	for _, w := range b.workers {
		b.frame(w, wire.KindCompleted, done)
	}
	b.step(Event{Kind: Flush})
}

// next returns the number of the client's next operation.
func (b *bed) next() uint64 { return b.st.sessions[1].last + 1 }

func (b *bed) puts(on []uint32) uint64 {
	op := b.next()
	b.say(b.client, wire.KindPut, &wire.Put{Op: op, Object: op, Array: square, Devices: on})
	b.reportAll()
	return op
}

func (b *bed) joinClient() uint64 {
	b.conns++
	b.step(Event{Kind: Join, Conn: b.conns, Message: &wire.Hello{Role: wire.Role_ROLE_CLIENT, Name: "other"}})
	return b.conns
}

// chainOf is a graph of nodes: each runs program 1 on what the one before made, and each eighth moves the array to the
// next host's devices.
func chainOf(name uint64, nodes, devices, onHost int) *wire.Graph {
	g := &wire.Graph{Graph: name, Inputs: 1}
	for i := range nodes {
		if i%8 == 7 {
			t := &wire.Transfer{Array: scalar}
			for d := range devices {
				t.Moves = append(t.Moves, &wire.Move{Source: uint64(i + 1), From: uint32(d),
					To: uint32((d + onHost) % devices)})
			}
			g.Nodes = append(g.Nodes, &wire.Node{Transfer: t, Makes: 1})
			continue
		}
		g.Nodes = append(g.Nodes, &wire.Node{Run: &wire.Run{Program: 1, Inputs: []uint64{uint64(i + 1)}}, Makes: 1})
	}
	g.Outputs = []uint64{uint64(nodes + 1)}
	return g
}

// sliceComesAndGoes has the client ask for an exclusive slice of all devices, which it gets unless others wait, and
// release it.
func sliceComesAndGoes(b *bed, i int) {
	b.say(b.client, wire.KindSliceRequest, &wire.SliceRequest{Slice: uint64(i + 1), Devices: uint32(len(onAll(b))),
		Exclusive: true})
	b.say(b.client, wire.KindSliceRelease, &wire.SliceRelease{Slices: []uint64{uint64(i + 1)}})
}

// eightWait has another client take all devices for itself, and eight more wait for them.
func eightWait(b *bed) {
	for i := range 9 {
		b.say(b.conns-uint64(i), wire.KindSliceRequest, &wire.SliceRequest{Slice: 1, Devices: uint32(len(onAll(b))),
			Exclusive: true, WaitMs: 1 << 40})
	}
}

var stepCases = []stepCase{
	{name: "worker joins", workers: 10000, devices: 4, again: func(b *bed, i int) {
		b.joinWorker(fmt.Sprint("new", i), 1)
	}},
	{name: "worker lost", workers: 10000, devices: 4, sessions: 250, again: func(b *bed, i int) {
		b.step(Event{Kind: Lost, Conn: b.workers[len(b.workers)-1-i], Err: errLeft})
	}},
	{name: "tick, a worker is lost", workers: 10000, devices: 4, sessions: 250,
		begin: func(b *bed) { b.step(Event{Kind: Lost, Conn: b.workers[0], Err: errLeft}) },
		again: func(b *bed, i int) { b.step(Event{Kind: Tick}) }},
	{name: "worker comes back", workers: 10000, devices: 4, sessions: 250, again: func(b *bed, i int) {
		b.step(Event{Kind: Lost, Conn: b.workers[i], Err: errLeft})
		b.joinWorker(fmt.Sprint("w", i), 4)
		for _, s := range b.sessions() { // else there is no second offer
			b.say(s.conn, wire.KindRebind, &wire.Rebind{Epoch: s.offered.view.Epoch()})
		}
	}},
	{name: "heartbeat", workers: 10000, devices: 4, again: func(b *bed, i int) {
		b.say(b.workers[i%len(b.workers)], wire.KindHeartbeat, &wire.Heartbeat{})
	}},
	{name: "tick", workers: 10000, devices: 4, sessions: 250, again: func(b *bed, i int) { b.step(Event{Kind: Tick}) }},
	{name: "client comes and goes", workers: 10000, devices: 4, again: func(b *bed, i int) {
		c := b.joinClient()
		b.say(c, wire.KindGoodbye, &wire.Goodbye{})
	}},
	{name: "the same, a worker has come", workers: 10000, devices: 4, again: func(b *bed, i int) {
		b.joinWorker(fmt.Sprint("new", i), 4)
		c := b.joinClient()
		b.say(c, wire.KindGoodbye, &wire.Goodbye{})
	}},
	{name: "client of 8 devices comes and goes", workers: 10000, devices: 4, again: func(b *bed, i int) {
		b.conns++
		b.step(Event{Kind: Join, Conn: b.conns, Message: &wire.Hello{Role: wire.Role_ROLE_CLIENT, Devices: 8}})
		b.say(b.conns, wire.KindGoodbye, &wire.Goodbye{})
	}},
	{name: "report", workers: 10000, devices: 4, again: func(b *bed, i int) { b.asks(new(wire.Ask)) }},
	{name: "report, sessions", workers: 512, devices: 8, sessions: 255, begin: func(b *bed) { b.puts(onAll(b)) },
		again: func(b *bed, i int) { b.asks(new(wire.Ask)) }},
	{name: "compile", workers: 512, devices: 8, again: func(b *bed, i int) { b.loads(uint64(i+1), false) }},
	{name: "put", workers: 512, devices: 8, again: func(b *bed, i int) { b.puts(onAll(b)) }},
	{name: "run", workers: 512, devices: 8, begin: func(b *bed) { b.loads(1, false); b.puts(onAll(b)) },
		again: func(b *bed, i int) {
			b.say(b.client, wire.KindRun, &wire.Run{Op: b.next(), Program: 1, FirstOutput: b.next(), Inputs: []uint64{1}})
			b.reportAll()
		}},
	{name: "run, 10,000 workers", workers: 10000, devices: 4,
		begin: func(b *bed) { b.loads(1, false); b.puts(onAll(b)) },
		again: func(b *bed, i int) {
			b.say(b.client, wire.KindRun, &wire.Run{Op: b.next(), Program: 1, FirstOutput: b.next(), Inputs: []uint64{1}})
			b.reportAll()
		}},
	{name: "transfer of shards", workers: 512, devices: 8, begin: func(b *bed) { b.puts(onAll(b)) },
		again: func(b *bed, i int) { b.shift(8) }},
	{name: "transfer of regions", workers: 512, devices: 8, begin: func(b *bed) { b.puts(onAll(b)) },
		again: func(b *bed, i int) {
			m := &wire.Transfer{Op: b.next(), Object: b.next(), Array: square}
			all := uint32(len(onAll(b)))
			for d := range all {
				for k := range uint32(2) {
					m.Moves = append(m.Moves, &wire.Move{Source: 1, From: d, To: (d + k*8) % all,
						Start: []int64{0, int64(128 * k)}, Size: []int64{1024, 128}, At: []int64{0, int64(128 * k)}, Shard: square})
				}
			}
			b.say(b.client, wire.KindTransfer, m)
			b.reportAll()
		}},
	{name: "fetch", workers: 512, devices: 8, begin: func(b *bed) { b.puts(onAll(b)) }, again: func(b *bed, i int) {
		b.say(b.client, wire.KindFetch, &wire.Fetch{Op: b.next(), Object: 1, Device: uint32(i % 4096)})
		b.reportAll()
	}},
	{name: "free of a shard", workers: 512, devices: 8, begin: func(b *bed) { b.puts(onAll(b)) },
		again: func(b *bed, i int) {
			b.say(b.client, wire.KindFree, &wire.Free{Rows: []*wire.Rows{{Object: 1, Devices: []uint32{uint32(i)}}}})
		}},
	{name: "graph", workers: 512, devices: 8, begin: func(b *bed) { b.loads(1, false) }, again: func(b *bed, i int) {
		b.say(b.client, wire.KindGraph, chainOf(uint64(i+1), 128, len(onAll(b)), 8))
	}},
	{name: "play", workers: 512, devices: 8,
		begin: func(b *bed) {
			b.loads(1, false)
			b.puts(onAll(b))
			b.say(b.client, wire.KindGraph, chainOf(1, 128, len(onAll(b)), 8))
		},
		again: func(b *bed, i int) {
			b.plays(128, 1)
		}},
	{name: "play of 4,096 nodes", workers: 512, devices: 8,
		begin: func(b *bed) {
			b.install(1, 8*8, false)
			b.puts(onAll(b)[:8*8])
			b.say(b.client, wire.KindGraph, chainOf(1, 4096, 8*8, 8))
		},
		again: func(b *bed, i int) { b.plays(4096, 1) }},
	{name: "run, quota, 4,096 placements", workers: 512, devices: 8, memory: "9MiB",
		begin: func(b *bed) {
			b.loads(1, false)
			b.puts(onAll(b))
			for _, d := range onAll(b) {
				b.puts([]uint32{d})
			}
		},
		again: func(b *bed, i int) {
			b.say(b.client, wire.KindRun, &wire.Run{Op: b.next(), Program: 1, FirstOutput: b.next(), Inputs: []uint64{1}})
			b.reportAll()
		}},
	{name: "free, 255 held for a quota", workers: 512, devices: 8, sessions: 255, memory: "1030MiB",
		begin: func(b *bed) { b.puts(onAll(b)); b.holdsAll() },
		again: func(b *bed, i int) { b.putsAndFrees() }},
	{name: "free, 255 held for memory", workers: 512, devices: 8, sessions: 255,
		begin: func(b *bed) {
			for d := range b.st.numbered {
				statustest.OK(b.t, b.st.ledger.SetLimit(d, 1030<<20))
			}
			b.puts(onAll(b))
			b.holdsAll()
		},
		again: func(b *bed, i int) { b.putsAndFrees() }},
	{name: "slice", workers: 512, devices: 8, sessions: 255, again: sliceComesAndGoes},
	{name: "slice, 10,000 workers", workers: 10000, devices: 4, sessions: 255, again: sliceComesAndGoes},
	{name: "slice, 8 requests wait", workers: 512, devices: 8, sessions: 255, begin: eightWait, again: sliceComesAndGoes},
	{name: "slice, 8 requests wait, 10,000 workers", workers: 10000, devices: 4, sessions: 255, begin: eightWait,
		again: sliceComesAndGoes},
	{name: "tick, 8 requests wait", workers: 512, devices: 8, sessions: 255, begin: eightWait,
		again: func(b *bed, i int) { b.now += 1e9; b.step(Event{Kind: Tick}) }},
	{name: "tick, 8 requests wait, 10,000 workers", workers: 10000, devices: 4, sessions: 255, begin: eightWait,
		again: func(b *bed, i int) { b.now += 1e9; b.step(Event{Kind: Tick}) }},
	{name: "session ends, 16,384 arrays", workers: 16, devices: 8, again: func(b *bed, i int) {
		c := b.joinClient()
		b.putsOn(c, 16384, true)
		b.say(c, wire.KindGoodbye, &wire.Goodbye{})
	}},
	{name: "session ends, 2,048 programs", workers: 16, devices: 8, begin: func(b *bed) {
		for i := range uint64(2048) {
			b.loads(i+1, false)
		}
	}, again: func(b *bed, i int) {
		c := b.joinClient()
		for i := range uint64(2048) {
			b.say(c, wire.KindCompile, compileOf(i+1, len(onAll(b))))
		}
		b.say(c, wire.KindGoodbye, &wire.Goodbye{})
	}},
	{name: "session ends, others have 16,384 gangs", workers: 16, devices: 8, sessions: 16,
		begin: func(b *bed) { b.busies(1024) },
		again: func(b *bed, i int) { b.say(b.joinClient(), wire.KindGoodbye, &wire.Goodbye{}) }},
	{name: "session ends, 1,024 gangs", workers: 16, devices: 8, again: func(b *bed, i int) {
		c := b.joinClient()
		b.putsOn(c, 1024, false)
		b.say(c, wire.KindGoodbye, &wire.Goodbye{})
		for n := b.st.gang - 1023; n <= b.st.gang; n++ {
			b.say(b.workers[0], wire.KindCompleted, &wire.Completed{Ok: []uint64{n}})
		}
	}},
	{name: "worker lost, others have 16,384 gangs", workers: 16, devices: 8, sessions: 16,
		begin: func(b *bed) { b.busies(1024) },
		again: func(b *bed, i int) {
			b.step(Event{Kind: Lost, Conn: b.joinWorker("new", 8), Err: errLeft})
		}},
	{name: "worker lost, 1,024 gangs", workers: 16, devices: 8, sessions: 16, again: func(b *bed, i int) {
		b.busies(64)
		b.step(Event{Kind: Lost, Conn: b.workers[0], Err: errLeft})
		b.workers[0] = b.joinWorker("w0", 8)
		for _, s := range b.sessions() {
			b.say(s.conn, wire.KindRebind, &wire.Rebind{Epoch: s.offered.view.Epoch()})
		}
		b.step(Event{Kind: Flush})
	}},
	{name: "compile, 10,000 workers", workers: 10000, devices: 4,
		again: func(b *bed, i int) { b.loads(uint64(i+1), false) }},
	{name: "collective program", workers: 512, devices: 8, again: func(b *bed, i int) {
		b.install(uint64(i+1), len(onAll(b)), true)
	}},
	{name: "collective program, 10,000 workers", workers: 10000, devices: 4, again: func(b *bed, i int) {
		b.install(uint64(i+1), len(onAll(b)), true)
	}},
	{name: "put, 10,000 workers", workers: 10000, devices: 4, again: func(b *bed, i int) { b.puts(onAll(b)) }},
	{name: "graph, 10,000 workers", workers: 10000, devices: 4, begin: func(b *bed) { b.loads(1, false) },
		again: func(b *bed, i int) {
			b.say(b.client, wire.KindGraph, chainOf(uint64(i+1), 16, len(onAll(b)), 4))
		}},
	{name: "transfer of shards, 10,000 workers", workers: 10000, devices: 4, begin: func(b *bed) { b.puts(onAll(b)) },
		again: func(b *bed, i int) { b.shift(4) }},
	{name: "compile, 255 sessions wait", workers: 512, devices: 8, sessions: 255, again: func(b *bed, i int) {
		var op uint64
		for _, s := range b.sessions() {
			for _, a := range b.say(s.conn, wire.KindCompile, compileOf(uint64(i+1), len(onAll(b)))) {
				if a.Kind == Send && a.Wire == wire.KindCompile {
					op = wiretest.Decode[wire.Compile](b.t, sent(a)).Op
				}
			}
		}
		b.say(b.workers[0], wire.KindCompiled, &wire.Compiled{Op: op,
			Info:     &wire.ProgramInfo{Name: "p", Outputs: []*wire.Array{scalar}},
			Loadable: &wire.Loadable{Serialized: []byte("x")}})
	}},
	{name: "session ends, 20,000 programs", workers: 16, devices: 8, begin: func(b *bed) {
		b.loads(1, false)
	}, again: func(b *bed, i int) {
		c := b.joinClient()
		for i := range uint64(20000) {
			m := compileOf(1, len(onAll(b)))
			m.Op, m.Program = i+1, i+1
			b.say(c, wire.KindCompile, m)
		}
		b.say(c, wire.KindGoodbye, &wire.Goodbye{})
	}},
	{name: "worker lost, 100,000 arrays", workers: 16, devices: 8,
		begin: func(b *bed) { b.putsOn(b.client, 100000, true) },
		again: func(b *bed, i int) {
			b.step(Event{Kind: Lost, Conn: b.workers[0], Err: errLeft})
			b.workers[0] = b.joinWorker("w0", 8)
			for _, s := range b.sessions() {
				b.say(s.conn, wire.KindRebind, &wire.Rebind{Epoch: s.offered.view.Epoch()})
			}
			b.putsOn(b.client, 100000, true)
		}},
	{name: "worker lost, 1,000 artifacts of 1,024 workers", workers: 1024, devices: 1, sessions: 0, begin: func(b *bed) {
		for i := range uint64(1000) {
			b.loads(i+1, true)
			for _, w := range b.workers[1:] {
				b.say(w, wire.KindHave, &wire.Have{Artifact: i + 1})
			}
		}
	}, again: func(b *bed, i int) {
		b.step(Event{Kind: Lost, Conn: b.workers[len(b.workers)-1-i], Err: errLeft})
	}},
	{name: "artifact to 2,048 workers", workers: 2048, devices: 1, begin: func(b *bed) {
		b.loads(1, true)
		for _, w := range b.workers[1:] {
			b.say(w, wire.KindWant, &wire.Want{Artifact: 1})
		}
	}, again: func(b *bed, i int) {
		w := b.workers[1+i%2047] // in the order in which they asked
		if i >= 2047 {
			b.say(w, wire.KindWant, &wire.Want{Artifact: 1})
		}
		b.say(w, wire.KindHave, &wire.Have{Artifact: 1})
	}},
}

func (c *stepCase) config(t testing.TB) Config {
	made := Config{Limits: Limits{Sessions: 300}, MemoryWait: 3600e9}
	if c.memory != "" {
		made.Tenants = tableOf(t, fmt.Sprintf("[tenants.default]\ndevice-memory = %q", c.memory))
	}
	return made
}

// holdsAll has each other session put an array on all devices, and then one of twice its size, which is held.
func (b *bed) holdsAll() {
	on := onAll(b)
	for _, s := range b.others() {
		b.say(s.conn, wire.KindPut, &wire.Put{Op: 1, Object: 1, Array: square, Devices: on})
		b.reportAll()
	}
	for _, s := range b.others() {
		b.say(s.conn, wire.KindPut, &wire.Put{Op: 2, Object: 2, Array: square2, Devices: on})
	}
	statustest.MustEqual(b.t, len(b.st.held), len(b.st.sessions)-1, "gangs are held")
}

// putsOn has a client put so many arrays on the first device, which its worker reports or not.
func (b *bed) putsOn(client uint64, arrays int, report bool) {
	s := b.st.conns.Get(client).s
	for range arrays {
		op := s.last + 1
		b.say(client, wire.KindPut, &wire.Put{Op: op, Object: op, Array: square, Devices: []uint32{0}})
		if report {
			b.say(b.workers[0], wire.KindCompleted, &wire.Completed{Ok: []uint64{b.st.gang}})
			b.step(Event{Kind: Flush})
		}
	}
}

// busies has each other session put so many arrays, which no worker reports.
func (b *bed) busies(arrays int) {
	for _, s := range b.others() {
		b.putsOn(s.conn, arrays, false)
	}
}

// sessions returns all sessions by number, and others those beside the client's.
func (b *bed) sessions() (all []*session) {
	for id := uint32(1); b.st.sessions[id] != nil; id++ {
		all = append(all, b.st.sessions[id])
	}
	return all
}

func (b *bed) others() []*session { return b.sessions()[1:] }

// putsAndFrees has the client put an array on all devices, and free it.
func (b *bed) putsAndFrees() {
	object := b.puts(onAll(b))
	if b.st.sessions[1].waiting != nil {
		b.t.Fatal("the client's put is held")
	}
	b.say(b.client, wire.KindFree, &wire.Free{Objects: []uint64{object}})
	b.step(Event{Kind: Flush})
}

// BenchmarkSteps tells how long one Step takes for each kind of event, on large clusters: all gangs wait meanwhile.
// longest-µs is the longest of all, in processor time, with the collector's part; usual-µs is the median of the longest
// of each repetition.
func BenchmarkSteps(b *testing.B) {
	for _, c := range stepCases {
		b.Run(c.name, func(b *testing.B) {
			runtime.LockOSThread() // for processorTime
			defer runtime.UnlockOSThread()
			d := newBed(b, c.config(b), c.workers, c.devices)
			d.st.Weigh(StepWeight)
			for range c.sessions {
				d.joinClient()
			}
			if c.begin != nil {
				c.begin(d)
			}
			runtime.GC()
			var longest, all time.Duration
			var events int
			d.around = func(step func()) {
				begun := processorTime(b)
				step()
				took := processorTime(b) - begun
				longest = max(longest, took)
				all += took
				events++
			}
			var longestOfEach []time.Duration
			for i := 0; b.Loop(); i++ {
				before := longest
				longest = 0
				c.again(d, i)
				longestOfEach = append(longestOfEach, longest)
				longest = max(longest, before)
			}
			slices.Sort(longestOfEach)
			b.ReportMetric(float64(longestOfEach[len(longestOfEach)/2])/1e3, "usual-µs")
			b.ReportMetric(float64(longest)/1e3, "longest-µs")
			b.ReportMetric(float64(all)/1e3/float64(b.N), "µs/op")
		})
	}
}

// asks has an operator ask, as Server takes it.
func (b *bed) asks(m *wire.Ask) {
	const operator = 1 << 40
	if b.st.conns.Get(operator) == nil {
		b.step(Event{Kind: Join, Conn: operator, Message: &wire.Hello{Role: wire.Role_ROLE_ADMIN}})
	}
	var a *Answer
	b.around(func() { a = b.st.Begin(m) })
	for more := true; more; {
		b.around(func() { more = a.Look() })
	}
	b.step(Event{Kind: Message, Conn: operator, Wire: wire.KindAsk, Message: m,
		report: EncodedReport(a.Report(), wire.Viewer{})})
}

// shift has each shard of the first array sent to the device so many places further.
func (b *bed) shift(by uint32) {
	m := &wire.Transfer{Op: b.next(), Object: b.next(), Array: square}
	all := uint32(len(onAll(b)))
	for d := range all {
		m.Moves = append(m.Moves, &wire.Move{Source: 1, From: d, To: (d + by) % all})
	}
	b.say(b.client, wire.KindTransfer, m)
	b.reportAll()
}
