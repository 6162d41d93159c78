package cluster_test

import (
	"encoding/binary"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/cluster"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/device/sim"
	"github.com/openpathways/pathways/transport/inproc"
)

var simulations = flag.Int("simulations", 200, "how many seeds the fault simulation tries")

// seedVariable names the one seed to try, as a failure prints it.
const seedVariable = "PATHWAYS_SEED"

// A controller, workers and clients do random work over links that delay, reorder
// and break, and some of them go: whatever the seed, every operation ends, what
// survives is right, what is gone is freed, and nothing stays.
//
// Time is virtual. A seed decides what is done and what goes wrong when; goroutines
// that are ready at one time run in any order.
func TestSimulation(t *testing.T) {
	if text := os.Getenv(seedVariable); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("%s=%q: want a number", seedVariable, text)
		}
		for range *simulations {
			simulate(t, seed)
		}
		return
	}
	first := rand.Uint64N(1 << 32)
	t.Logf("seeds from %d on", first)
	var running sync.WaitGroup
	next := make(chan uint64)
	for range runtime.GOMAXPROCS(0) {
		running.Go(func() {
			for seed := range next {
				simulate(t, seed)
			}
		})
	}
	for i := range uint64(*simulations) {
		if t.Failed() {
			break
		}
		next <- first + i
	}
	close(next)
	running.Wait()
}

func simulate(t *testing.T, seed uint64) {
	t.Run(fmt.Sprint(seed), func(t *testing.T) {
		defer func() {
			if t.Failed() {
				t.Logf("again: %s=%d go test -run TestSimulation ./core/cluster", seedVariable, seed)
			}
		}()
		synctest.Test(t, func(t *testing.T) { newTrial(t, seed).run() })
	})
}

// The bounds of a trial, in virtual time.
const (
	silence  = time.Second      // until a link that is cut counts as lost
	workTime = 3 * time.Second  // faults happen until then
	patience = 60 * time.Second // of whoever waits for what must happen
)

// trial is one simulation.
type trial struct {
	t       *testing.T
	seed    uint64
	begun   time.Time
	local   *cluster.Local
	drivers []*sim.Driver
	islands []string
	each    int // devices of a worker
	faults  []fault
	// doomed are the workers and clients that some fault may take away: what has
	// to do with them may fail.
	doomed map[string]bool
	// flaky devices fail a computation or an allocation, at some time.
	flaky map[int]bool

	mu     sync.Mutex // guards the rest
	delays *rand.Rand
	lag    time.Duration
}

type fault struct {
	at   time.Duration
	what string
	do   func()
}

func newTrial(t *testing.T, seed uint64) *trial {
	return &trial{t: t, seed: seed, begun: time.Now(), doomed: map[string]bool{}, flaky: map[int]bool{},
		delays: rand.New(rand.NewPCG(seed, 1))}
}

// delay is mostly short, sometimes long.
func (x *trial) delay(string, string) time.Duration {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.delays.IntN(50) == 0 {
		return time.Duration(x.delays.Int64N(int64(silence / 4)))
	}
	return x.lag/2 + time.Duration(x.delays.Int64N(int64(x.lag)))
}

func (x *trial) run() {
	t, r := x.t, rand.New(rand.NewPCG(x.seed, 0))
	workers, clients := 1+r.IntN(4), 1+r.IntN(3)
	x.each = 1 + r.IntN(3)
	x.lag = time.Duration(1 + r.Int64N(int64(2*time.Millisecond)))
	o := sim.Options{Devices: x.each, Island: sim.NewIsland(sim.Real, x.seed), Cost: time.Duration(r.Int64N(int64(time.Millisecond))), Jitter: time.Millisecond,
		Latency: time.Duration(r.Int64N(int64(time.Millisecond)))}
	drivers := simulatedOn(t, workers, o)
	for _, d := range drivers {
		x.drivers = append(x.drivers, d.(*sim.Driver))
		x.islands = append(x.islands, []string{"", "", "other"}[r.IntN(3)])
	}
	lease := time.Duration(-1)
	if r.IntN(2) == 0 {
		lease = time.Second
	}
	var logs *slog.Logger
	if testing.Verbose() && os.Getenv(seedVariable) != "" {
		logs = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	var err error
	x.local, err = cluster.InProcess{Drivers: drivers, Islands: x.islands, Heartbeat: silence / 4, Lease: lease, Log: logs, Sequential: r.IntN(8) == 0,
		Network: &inproc.Conditions{Delay: x.delay, Silence: silence}}.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	x.plan(r, workers, clients)
	var exits sync.WaitGroup
	for i, d := range x.drivers {
		exits.Go(func() {
			<-x.local.Served(i) // the process ends, and its devices are not reached any more
			for k := range x.each {
				if err := d.Lose(k, fmt.Sprintf("the process of w%d has ended", i)); err != nil {
					t.Error(err)
				}
			}
		})
	}

	var running sync.WaitGroup
	for i := range clients {
		a := newActor(x, i)
		running.Go(a.work)
	}
	running.Go(func() {
		for _, f := range x.faults {
			time.Sleep(time.Until(x.begun.Add(f.at)))
			if logs != nil {
				logs.Info("FAULT: " + f.what)
			}
			f.do()
		}
	})
	running.Wait()
	x.check(workers, clients)
	x.local.Close()
	exits.Wait()
	for i, d := range drivers {
		if err := d.Close(); err != nil {
			t.Errorf("closing the driver of w%d: %v", i, err)
		}
	}
	if t.Failed() {
		for _, f := range x.faults {
			t.Logf("fault at %v: %s", f.at, f.what)
		}
		t.Logf("%d workers of %d devices on islands %q, %d clients, lease %v", workers, x.each, x.islands, clients, lease)
	}
}

// plan draws what goes wrong.
func (x *trial) plan(r *rand.Rand, workers, clients int) {
	away := map[string]bool{} // for good; of the goroutine of the faults
	for range r.IntN(5) {
		f := fault{at: time.Duration(r.Int64N(int64(workTime)))}
		n := r.IntN(workers + clients)
		name := fmt.Sprint("w", n)
		if n >= workers {
			name = fmt.Sprint("c", n-workers)
		}
		switch kind := r.IntN(10); {
		case kind < 3: // it comes back before anybody notices
			d := time.Duration(r.Int64N(int64(silence) * 3 / 4))
			f.what = fmt.Sprintf("%s is cut off for %v", name, d)
			f.do = func() {
				if away[name] {
					return
				}
				x.local.Cut(name)
				time.Sleep(d)
				x.local.Heal(name)
			}
		case kind < 5:
			x.doomed[name] = true
			f.what = name + " is cut off for good"
			f.do = func() {
				away[name] = true
				x.local.Cut(name)
			}
		case kind < 7:
			x.doomed[name] = true
			f.what = "the connection of " + name + " breaks"
			f.do = func() { x.local.Break(name) }
		case n < workers && kind < 9:
			x.doomed[name] = true
			f.what = name + " crashes"
			f.do = func() {
				for k := range x.each {
					if err := x.drivers[n].Lose(k, "its process crashed"); err != nil {
						x.t.Error(err)
					}
				}
				x.local.Break(name)
			}
		case n < workers:
			k, nth, alloc := r.IntN(x.each), 1+r.IntN(5), r.IntN(2) == 0
			x.flaky[n*x.each+k] = true
			f.what = fmt.Sprintf("device %d of %s fails", k, name)
			f.do = func() {
				fail := x.drivers[n].FailRun
				if alloc {
					fail = x.drivers[n].FailAlloc
				}
				if err := fail(k, nth, status.New(status.Internal, "simulated bad luck")); err != nil {
					x.t.Error(err)
				}
			}
		default:
			continue
		}
		x.faults = append(x.faults, f)
	}
	slices.SortFunc(x.faults, func(a, b fault) int { return int(a.at - b.at) })
}

// check is after all clients have gone.
func (x *trial) check(workers, clients int) {
	t := x.t
	x.until("the cluster to be empty", func() error {
		if err := x.local.Check(); err != nil {
			return err
		}
		report := x.local.Report()
		if n := len(report.Sessions); n > 0 {
			return fmt.Errorf("%d sessions are left, such as %v", n, report.Sessions[0])
		}
		there := map[string]bool{}
		for _, is := range report.Islands {
			for _, w := range is.Workers {
				there[w.Process.Name] = true
				if w.Gangs > 0 || w.Last.GetObjects() > 0 || len(w.Last.GetWaits()) > 0 {
					return fmt.Errorf("%s has %d gangs, %d objects and waits %q", w.Process.Name, w.Gangs, w.Last.GetObjects(), w.Last.GetWaits())
				}
			}
		}
		for i := range workers {
			name := fmt.Sprint("w", i)
			if there[name] == x.doomed[name] {
				return fmt.Errorf("%s is there: %v, lost: %v", name, there[name], x.doomed[name])
			}
		}
		for i, d := range x.drivers {
			for k := range d.Devices() {
				m, err := d.MemoryStats(k)
				if err != nil || m.InUse != 0 {
					return fmt.Errorf("device %d of w%d keeps %d bytes, %v", k, i, m.InUse, err)
				}
			}
		}
		for purpose, n := range x.local.Memory().Used {
			if n != 0 {
				return fmt.Errorf("%d bytes of host memory are kept for %s", n, purpose)
			}
		}
		return nil
	})
	if err := x.drivers[0].Island().Hang(); err != nil {
		t.Error(err)
	}
}

// until waits until a condition holds.
func (x *trial) until(what string, holds func() error) {
	x.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(silence / 20) {
		err := holds()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			x.t.Errorf("waiting for %s: %v", what, err)
			return
		}
	}
}

// actor is a client with random work and a memory of what must come of it.
type actor struct {
	x       *trial
	t       *testing.T
	name    string
	r       *rand.Rand
	s       client.Cluster
	groups  [][]int // devices by island
	arrays  []*array
	run     map[string]*client.Remote
	risky   map[string]bool
	waiting sync.WaitGroup // fetches

	mu    sync.Mutex // guards the rest
	token uint64
	ended map[uint64][]error
	made  map[uint64]*deed
	told  *sync.Cond
}

// array is an object as it must be.
type array struct {
	object  uint64
	devices []int
	values  map[int]float32 // of device; all elements of a shard have it
	risk    bool            // it may have failed
}

// deed is an operation that was submitted.
type deed struct {
	what string
	risk bool
}

func newActor(x *trial, i int) *actor {
	a := &actor{x: x, t: x.t, name: fmt.Sprint("c", i), r: rand.New(rand.NewPCG(x.seed, uint64(100+i))), run: map[string]*client.Remote{}, risky: map[string]bool{},
		ended: map[uint64][]error{}, made: map[uint64]*deed{}}
	a.told = sync.NewCond(&a.mu)
	return a
}

func (a *actor) notify(batch []client.Ended) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, e := range batch {
		a.ended[e.Token] = append(a.ended[e.Token], e.Err)
	}
	a.told.Broadcast()
}

// risk says that something may be wrong with these devices, for the client at
// least.
func (a *actor) risk(devices ...int) bool {
	if a.x.doomed[a.name] {
		return true
	}
	for _, d := range devices {
		if w := a.worker(d); a.x.doomed[w] || a.x.flaky[a.local(d)] {
			return true
		}
	}
	return false
}

// worker is the name of the worker of a device.
func (a *actor) worker(d int) string {
	number := a.s.Devices()[d].Worker
	return fmt.Sprint("w", number-1)
}

// local is the device's number over all drivers.
func (a *actor) local(d int) int {
	v := a.s.Devices()[d]
	return int(v.Worker-1)*a.x.each + int(v.Local)
}

func (a *actor) begin(what string, risk bool) uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.token++
	a.made[a.token] = &deed{what, risk}
	return a.token
}

// gone takes back a submission that was refused, and says whether the session is
// lost.
func (a *actor) gone(token uint64, err error) bool {
	if err == nil {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	d := a.made[token]
	delete(a.made, token)
	a.blame(d.what+" was refused", err, d.risk)
	if a.s.Lost() == nil {
		a.t.Errorf("%s: %s was refused and the session lives: %v", a.name, d.what, err)
	}
	return true
}

// blame checks an error that a client sees.
func (a *actor) blame(what string, err error, risk bool) {
	if !risk {
		a.t.Errorf("%s: %s, with which nothing is wrong: %v", a.name, what, err)
		return
	}
	if a.x.doomed[a.name] {
		return // whatever its end is
	}
	text := err.Error()
	if strings.Contains(text, "simulated bad luck") {
		return
	}
	for name := range a.x.doomed {
		if strings.Contains(text, name) {
			return
		}
	}
	a.t.Errorf("%s: %s failed and the error names nobody who is lost (%v): %v", a.name, what, slices.Sorted(maps.Keys(a.x.doomed)), err)
}

func (a *actor) work() {
	time.Sleep(time.Duration(a.r.Int64N(int64(workTime / 2))))
	s, err := a.x.local.Connect(a.t.Context(), a.name, a.notify)
	if err != nil {
		if !a.x.doomed[a.name] && len(a.x.doomed) == 0 {
			a.t.Errorf("%s cannot connect: %v", a.name, err)
		}
		return
	}
	a.s = s
	defer s.Close()
	islands := map[uint32][]int{}
	for i, d := range s.Devices() {
		islands[d.Slice] = append(islands[d.Slice], i)
	}
	for _, k := range slices.Sorted(maps.Keys(islands)) {
		a.groups = append(a.groups, islands[k])
	}
	pace := time.Duration(a.r.Int64N(int64(workTime / 20)))
	for range 10 + a.r.IntN(60) {
		if !a.step() {
			break
		}
		if pace > 0 && a.r.IntN(4) > 0 {
			time.Sleep(time.Duration(a.r.Int64N(int64(pace))))
		}
		if a.r.IntN(20) == 0 {
			a.wait()
		}
	}
	if a.r.IntN(4) == 0 {
		return // it goes in the middle of its work
	}
	a.wait()
	for _, y := range a.arrays {
		for _, d := range y.devices {
			a.fetch(y, d)
		}
	}
	a.wait()
	for token, d := range a.made {
		if n := len(a.ended[token]); n != 1 {
			a.t.Errorf("%s: %s ended %d times", a.name, d.what, n)
		} else if err := a.ended[token][0]; err != nil {
			a.blame(d.what, err, d.risk)
		}
	}
	for token := range a.ended {
		if a.made[token] == nil {
			a.t.Errorf("%s: operation %d ended and was never taken", a.name, token)
		}
	}
}

// wait waits for the ends of all that was submitted.
func (a *actor) wait() {
	late := time.AfterFunc(patience, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		var missing []string
		for token, d := range a.made {
			if len(a.ended[token]) == 0 {
				missing = append(missing, d.what)
			}
		}
		slices.Sort(missing)
		report := a.x.local.Report()
		stacks := make([]byte, 1<<20)
		a.t.Logf("%s", stacks[:runtime.Stack(stacks, true)])
		panic(fmt.Sprintf("seed %d: %s waits in vain for %q (or for fetches); faults %+v; cluster: %v", a.x.seed, a.name, missing, a.x.faults, report))
	})
	defer late.Stop()
	a.mu.Lock()
	for {
		open := 0
		for token := range a.made {
			if len(a.ended[token]) == 0 {
				open++
			}
		}
		if open == 0 {
			break
		}
		a.told.Wait()
	}
	a.mu.Unlock()
	a.waiting.Wait()
}

// step does something; false where the session is lost.
func (a *actor) step() bool {
	switch k := a.r.IntN(20); {
	case k < 3 || len(a.arrays) == 0:
		return a.put()
	case k < 14:
		return a.compute()
	case k < 16:
		return a.move()
	case k < 18:
		y := a.arrays[a.r.IntN(len(a.arrays))]
		return a.fetch(y, y.devices[a.r.IntN(len(y.devices))])
	default:
		i := a.r.IntN(len(a.arrays))
		a.free(i)
		return true
	}
}

func (a *actor) free(i int) {
	a.s.Free([]uint64{a.arrays[i].object})
	a.arrays = slices.Delete(a.arrays, i, i+1)
}

// some draws devices of one island.
func (a *actor) some() []int {
	of := slices.Clone(a.groups[a.r.IntN(len(a.groups))])
	a.r.Shuffle(len(of), func(i, j int) { of[i], of[j] = of[j], of[i] })
	return of[:1+a.r.IntN(len(of))]
}

func (a *actor) put() bool {
	y := &array{object: a.s.Objects(1), devices: a.some(), values: map[int]float32{}}
	y.risk = a.risk(y.devices...)
	p := &client.PutSpec{Object: y.object, Shape: shape.Shape{DType: shape.F32, Dims: []int64{4}}}
	for _, d := range y.devices {
		y.values[d] = float32(a.r.IntN(100))
		p.Devices = append(p.Devices, uint32(d))
	}
	p.Fill = func(d uint32, dst []byte, written func(error)) {
		for i := range 4 {
			binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(y.values[int(d)]))
		}
		written(nil)
	}
	p.Token = a.begin(fmt.Sprintf("put of %d to %v", y.object, y.devices), y.risk)
	if a.gone(p.Token, a.s.Put(p)) {
		return false
	}
	a.arrays = append(a.arrays, y)
	return true
}

// The programs of the simulation.
var computations = []struct {
	program sim.Program
	args    int
	value   func(x []float32, sum float32) float32
}{
	{sim.Program{Name: "increment", Params: vectorParam, Results: []sim.Result{{Op: "add", Args: []int{0}, Value: 1}}}, 1,
		func(x []float32, _ float32) float32 { return x[0] + 1 }},
	{sim.Program{Name: "together", Gang: true, Params: vectorParam, Results: []sim.Result{{Op: "add", Args: []int{0}, Value: 2}}}, 1,
		func(x []float32, _ float32) float32 { return x[0] + 2 }},
	{sim.Program{Name: "total", Params: vectorParam, Results: []sim.Result{{Op: "all-reduce", Args: []int{0}}}}, 1,
		func(_ []float32, sum float32) float32 { return sum }},
	{sim.Program{Name: "plus", Params: []sim.Param{vectorParam[0], vectorParam[0]}, Results: []sim.Result{{Op: "add", Args: []int{0, 1}}}}, 2,
		func(x []float32, _ float32) float32 { return x[0] + x[1] }},
	{sim.Program{Name: "replace", Params: []sim.Param{{DType: "f32", Dims: []int64{4}, Donated: true}}, Results: []sim.Result{{Op: "add", Args: []int{0}, Value: 3}}}, 1,
		func(x []float32, _ float32) float32 { return x[0] + 3 }},
}

const replace = 4 // consumes its argument

func (a *actor) compute() bool {
	first := a.r.IntN(len(a.arrays))
	y := a.arrays[first]
	n := a.r.IntN(len(computations))
	c := computations[n]
	key := fmt.Sprint(n, y.devices)
	risk := a.risk(y.devices...)
	if a.run[key] == nil {
		if a.risky[key] {
			return true // it did not compile
		}
		p, err := a.s.Compile(a.t.Context(), sim.Format, c.program.Source().Code, sim.CompileOptions(y.devices))
		if err != nil {
			a.blame("compiling "+key, err, risk)
			a.risky[key] = true
			return a.s.Lost() == nil
		}
		a.run[key] = p
	}
	in := []*array{y}
	for len(in) < c.args {
		var alike []*array
		for _, o := range a.arrays {
			if slices.Equal(o.devices, y.devices) {
				alike = append(alike, o)
			}
		}
		in = append(in, alike[a.r.IntN(len(alike))])
	}
	z := &array{object: a.s.Objects(1), devices: y.devices, values: map[int]float32{}, risk: risk}
	sum := float32(0)
	for _, d := range y.devices {
		sum += y.values[d]
	}
	spec := &client.RunSpec{Program: a.run[key].ID, FirstOutput: z.object, Only: -1}
	for _, o := range in {
		spec.Inputs = append(spec.Inputs, o.object)
		z.risk = z.risk || o.risk
	}
	for _, d := range y.devices {
		var x []float32
		for _, o := range in {
			x = append(x, o.values[d])
		}
		z.values[d] = c.value(x, sum)
	}
	spec.Token = a.begin(fmt.Sprintf("%s of %v on %v into %d", c.program.Name, spec.Inputs, y.devices, z.object), z.risk)
	if a.gone(spec.Token, a.s.Run(spec)) {
		return false
	}
	if n == replace {
		a.free(first)
	}
	a.arrays = append(a.arrays, z)
	return true
}

// move copies shards of an array to other devices.
func (a *actor) move() bool {
	y := a.arrays[a.r.IntN(len(a.arrays))]
	z := &array{object: a.s.Objects(1), devices: a.some(), values: map[int]float32{}, risk: y.risk}
	m := &wire.Transfer{Object: z.object, Array: &wire.Array{Dtype: uint32(shape.F32), Dims: []int64{4}}}
	for _, d := range z.devices {
		from := y.devices[a.r.IntN(len(y.devices))]
		z.values[d] = y.values[from]
		z.risk = z.risk || a.risk(from, d)
		m.Moves = append(m.Moves, &wire.Move{Source: y.object, From: uint32(from), To: uint32(d)})
	}
	token := a.begin(fmt.Sprintf("move of %d on %v to %d on %v", y.object, y.devices, z.object, z.devices), z.risk)
	if a.gone(token, a.s.Transfer(m, token)) {
		return false
	}
	a.arrays = append(a.arrays, z)
	return true
}

// fetch reads a shard and compares.
func (a *actor) fetch(y *array, d int) bool {
	dst := make([]byte, 16)
	what := fmt.Sprintf("fetch of %d from device %d", y.object, d)
	token := a.begin(what, y.risk || a.risk(d))
	want := y.values[d]
	err := a.s.Fetch(y.object, uint32(d), dst, func(err error) {
		for i := 0; i < 4 && err == nil; i++ {
			if got := math.Float32frombits(binary.LittleEndian.Uint32(dst[4*i:])); got != want {
				a.t.Errorf("%s: %s: element %d is %v, want %v", a.name, what, i, got, want)
			}
		}
		a.notify([]client.Ended{{Token: token, Err: err}})
	})
	return !a.gone(token, err)
}
