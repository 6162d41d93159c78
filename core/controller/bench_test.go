package controller

import (
	"fmt"
	"runtime"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/wire/wiretest"
	"github.com/openpathways/pathways/device/sim"
)

// bed is a State with workers and one client, without connections.
type bed struct {
	t       testing.TB
	st      *State
	now     int64
	actions []Action
	workers []uint64 // connections
	client  uint64
	conns   uint64
	memory  int64             // bytes, the limit of each device of workers that join; 0 is none
	around  func(step func()) // measures, or nil
}

func newBed(t testing.TB, c Config, workers, devices int) *bed {
	return newBedOf(t, c, workers, devices, 0)
}

// newBedOf returns a bed whose devices have so many bytes of memory, which the ledger counts; 0 is no limit.
func newBedOf(t testing.TB, c Config, workers, devices int, memory int64) *bed {
	b := &bed{t: t, st: New(c), memory: memory}
	for i := range workers {
		b.workers = append(b.workers, b.joinWorker("w"+strconv.Itoa(i), devices))
	}
	b.conns++
	b.client = b.conns
	b.step(Event{Kind: Join, Conn: b.client, Message: &wire.Hello{Role: wire.Role_ROLE_CLIENT, Name: "client"}})
	return b
}

// joinWorker has a worker join that has so many devices, and returns its connection.
func (b *bed) joinWorker(name string, devices int) uint64 {
	offer := &wire.WorkerOffer{Platform: &wire.Platform{Name: "sim"}}
	for d := range devices {
		offer.Devices = append(offer.Devices, &wire.LocalDevice{Local: uint32(d), MemoryLimit: b.memory})
	}
	b.conns++
	b.step(Event{Kind: Join, Conn: b.conns, Message: &wire.Hello{
		Role: wire.Role_ROLE_WORKER, Name: name, Worker: offer}})
	return b.conns
}

func (b *bed) step(ev Event) []Action {
	b.now += 1000
	ev.Now = b.now
	if b.around != nil {
		b.measured(ev)
	} else {
		b.actions = b.st.Step(&ev, b.actions[:0])
	}
	b.actions = apart(b.actions)
	b.load()
	return b.actions
}

// load has the workers that are to load a program say that they have.
func (b *bed) load() {
	for _, a := range b.actions {
		m := new(wire.Load)
		if a.Kind != Send || a.Wire != wire.KindLoad || proto.Unmarshal(sent(a), m) != nil {
			continue
		}
		for _, w := range a.To {
			b.actions = b.st.Step(&Event{Kind: Message, Now: b.now, Conn: w, Wire: wire.KindLoaded,
				Message: &wire.Loaded{Session: m.Session, Program: m.Program}}, b.actions)
		}
	}
}

// measured is step, with what Server does without its lock left out of what is measured.
func (b *bed) measured(ev Event) {
	var work func()
	if b.around(func() { work = b.st.Survey(&ev) }); work != nil {
		work()
	}
	for first := ev.Introduce(); first != nil; first = ev.Introduce() {
		first.Now = b.now
		b.around(func() { b.actions = b.st.Step(first, b.actions[:0]) })
	}
	b.around(func() { b.actions = b.st.Step(&ev, b.actions[:0]) })
	for b.st.More() {
		b.around(func() { b.actions = b.st.Step(&Event{Kind: Continue, Now: b.now}, b.actions[:0]) })
	}
}

// say has a connection send a message, which is decoded as the shell does.
func (b *bed) say(conn uint64, kind wire.Kind, m proto.Message) []Action {
	payload := statustest.Value(proto.Marshal(m)).OK(b.t)
	return b.frame(conn, kind, payload)
}

func (b *bed) frame(conn uint64, kind wire.Kind, payload []byte) []Action {
	m := statustest.Value(Decode(kind, payload)).OK(b.t)
	return b.step(Arrived(conn, kind, m, payload))
}

// program loads for the session a program that adds to an array on all devices, and
// the array. How long it takes is known.
func (b *bed) program(devices int) {
	b.install(1, devices, true)
	b.st.sessions[1].programs[1].of.usual = 1000
	on := make([]uint32, devices)
	for i := range on {
		on[i] = uint32(i)
	}
	b.say(b.client, wire.KindPut, &wire.Put{Op: 1, Object: 1, Array: scalar, Devices: on})
	for _, w := range b.workers {
		b.say(w, wire.KindCompleted, &wire.Completed{Ok: []uint64{1}})
	}
	b.step(Event{Kind: Flush})
}

// install loads a program on the session's first devices, and returns what follows from its being compiled.
func (b *bed) install(program uint64, devices int, collective bool) []Action {
	return b.say(b.workers[0], wire.KindCompiled, &wire.Compiled{Op: b.compile(program, devices),
		Info:     &wire.ProgramInfo{Name: "p", Outputs: []*wire.Array{scalar}, Collective: collective},
		Loadable: &wire.Loadable{Serialized: []byte("x")}})
}

// compileOf compiles a program for a session's first devices.
func compileOf(program uint64, devices int) *wire.Compile {
	all := make([]int, devices)
	for i := range all {
		all[i] = i
	}
	return &wire.Compile{Op: program, Program: program, Format: "sim", Code: fmt.Append(nil, program),
		Options: sim.CompileOptions(all)}
}

// compile has the client compile a program for the session's first devices, and returns the operation that a worker
// answers.
func (b *bed) compile(program uint64, devices int) (op uint64) {
	for _, a := range b.say(b.client, wire.KindCompile, compileOf(program, devices)) {
		if a.Kind == Send && a.Wire == wire.KindCompile {
			m := wiretest.Decode[wire.Compile](b.t, sent(a))
			op = m.Op
		}
	}
	return op
}

// heap returns the bytes that are in use.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// A report on a cluster whose client has many arrays. Everything else waits for it.
func BenchmarkReport(b *testing.B) {
	const workers, devices, objects, burst = 16, 128, 100_000, 500
	d := newBed(b, Config{}, workers, devices)
	all := make([]uint32, workers*devices)
	for i := range all {
		all[i] = uint32(i)
	}
	var gangs []uint64
	for op := uint64(1); op <= objects; op++ {
		d.say(d.client, wire.KindPut, &wire.Put{Op: op, Object: op, Devices: all,
			Array: &wire.Array{Dtype: uint32(shape.F32), Dims: []int64{10}}})
		if gangs = append(gangs, d.st.gang); len(gangs) == burst {
			for _, w := range d.workers {
				d.say(w, wire.KindCompleted, &wire.Completed{Ok: gangs})
			}
			gangs = gangs[:0]
			d.step(Event{Kind: Flush})
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		d.st.Report()
	}
	if got := d.st.Report().Sessions[0].Bytes[7]; got != 40*objects {
		b.Errorf("device 7 has %d bytes", got)
	}
}

// One run of a gang over all devices, from the client's frame to its end: decoding,
// State, and encoding of all that is sent, with a report of each worker by itself. Devices have
// a limit, so the ledger admits each run. Processor-µs
// is the thread's processor time of a run, whatever else the machine does. MiB is what the
// State takes with all its workers, and a program on them.
func BenchmarkGang(b *testing.B) {
	for _, n := range []struct{ workers, devices int }{{1, 1}, {16, 1}, {16, 8}, {128, 4}, {512, 4}, {10000, 4}} {
		b.Run(fmt.Sprintf("workers=%d/devices=%d", n.workers, n.workers*n.devices), func(b *testing.B) {
			before := heap()
			d := newBedOf(b, Config{}, n.workers, n.devices, 16<<30)
			d.program(n.workers * n.devices)
			taken := heap() - before
			op, object, gang := uint64(1), uint64(1), d.st.gang
			var run, completed, free []byte
			var ends wire.Completed
			messages := 0
			runtime.LockOSThread() // for processorTime
			defer runtime.UnlockOSThread()
			begun := processorTime(b)
			b.ReportAllocs()
			for b.Loop() {
				op++
				object++
				gang++
				run = append(run[:0],
					mustMarshal(b, &wire.Run{Op: op, Program: 1, FirstOutput: object, Inputs: []uint64{object - 1}})...)
				for _, a := range d.frame(d.client, wire.KindRun, run) {
					if a.Kind == Send {
						messages += len(a.To)
					}
				}
				gang++
				free = append(free[:0], mustMarshal(b, &wire.Free{Objects: []uint64{object - 1}})...)
				d.frame(d.client, wire.KindFree, free)
				completed = append(completed[:0], mustMarshal(b, &wire.Completed{Ok: []uint64{gang - 1}})...)
				for _, w := range d.workers { // the shell has a message for each connection, too, into which it reads
					statustest.OK(b, ends.Parse(completed))
					d.step(Event{Kind: Message, Conn: w, Wire: wire.KindCompleted, Message: &ends})
				}
				if got := d.step(Event{Kind: Flush}); len(got) != 1 || got[0].Wire != wire.KindCompleted {
					b.Fatalf("got %v, want one word to the client", got)
				}
			}
			took := processorTime(b) - begun
			b.StopTimer()
			if d.st.gangs.Len() != 0 || len(d.st.sessions[1].objects) != 1 {
				b.Fatalf("%d gangs and %d objects are left", d.st.gangs.Len(), len(d.st.sessions[1].objects))
			}
			if use := d.st.ledger.Device(0); use.InUse != 4 || use.Limit == 0 {
				b.Fatalf("the ledger says %+v, want one float32 below a limit", use)
			}
			b.ReportMetric(took.Seconds()*1e6/float64(b.N), "processor-µs")
			b.ReportMetric(float64(messages)/float64(b.N), "messages/op")
			b.ReportMetric(float64(taken)/(1<<20), "MiB")
		})
	}
}

func mustMarshal(t testing.TB, m proto.Message) []byte {
	payload := statustest.Value(proto.Marshal(m)).OK(t)
	return payload
}

// processorTime is what this thread has used of a processor, whatever else runs on
// the machine.
func processorTime(b *testing.B) time.Duration {
	var t unix.Timespec
	statustest.OK(b, unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t))
	return time.Duration(t.Nano())
}

// What a Tick costs while a worker is silent and 10,000 operations are under way: on all workers, of which one was
// silent for a short time; on others than the one that was silent for long; and on that one alone, which may compute.
func BenchmarkTickWhileAWorkerIsSilent(b *testing.B) {
	const gangs, workers = 10_000, 8
	for _, c := range []struct {
		name   string
		on     uint32 // 1 + the device that they are on; 0 is all
		silent int64  // seconds
	}{{"on all, not for long", 0, 30}, {"on others", 1, 600}, {"on it alone", workers, 600}} {
		b.Run(c.name, func(b *testing.B) {
			bed := newBed(b, Config{Heartbeat: 1e9, StuckAfter: 60e9, FirstCome: true,
				Limits: Limits{Credit: 2 * gangs, Window: 4 * gangs, Objects: 4 * gangs}}, workers, 1)
			bed.loads(1, false)
			bed.puts(onAll(bed))
			for range gangs {
				if op := bed.next(); c.on == 0 {
					bed.say(bed.client, wire.KindRun, &wire.Run{Op: op, Program: 1, FirstOutput: op, Inputs: []uint64{1}})
				} else {
					bed.say(bed.client, wire.KindPut, &wire.Put{Op: op, Object: op, Array: scalar, Devices: []uint32{c.on - 1}})
				}
			}
			if n := bed.st.gangs.Len(); n != gangs {
				b.Fatalf("%d gangs are under way, want %d", n, gangs)
			}
			tick := func() { // all but the last are heard of
				bed.now += 1e9
				for _, w := range bed.workers[:workers-1] {
					bed.frame(w, wire.KindHeartbeat, nil)
				}
				bed.step(Event{Kind: Tick})
			}
			for range c.silent {
				tick()
			}
			b.ResetTimer()
			for range b.N {
				bed.step(Event{Kind: Tick})
			}
			b.StopTimer()
			if n := bed.st.gangs.Len(); n != gangs {
				b.Fatalf("%d gangs are under way after the ticks, want %d", n, gangs)
			}
		})
	}
}
