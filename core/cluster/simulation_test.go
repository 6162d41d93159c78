package cluster_test

import (
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/cluster"
	"github.com/openpathways/pathways/core/controller"
	"github.com/openpathways/pathways/core/controller/durable"
	"github.com/openpathways/pathways/core/controller/server"
	"github.com/openpathways/pathways/core/status/statustest"
	tenants "github.com/openpathways/pathways/core/tenant"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/sim"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/inproc"
)

var (
	simulations       = flag.Int("simulations", usually(4, 200), "how many seeds the fault simulation tries")
	simulationsOfMany = flag.Int("simulations-of-many", usually(1, 3), "how many seeds the large fault simulation tries")
	many              = flag.Int("many", usually(32, 64), "how many workers, of four devices, the large one has")
)

// usually returns how often something random is tried, and how often by make test-all; make soak tries many more. Each
// run draws its own seeds, so that many runs together try as many.
func usually(often, thorough int) int {
	if os.Getenv("PATHWAYS_TEST_THOROUGH") != "" {
		return thorough
	}
	return often
}

// seedVariable names the one seed to try, as a failure prints it.
const seedVariable = "PATHWAYS_SEED"

// A controller, workers and clients do random work over links that delay, reorder
// and break, and some of them go: whatever the seed, every operation ends, what
// survives is right, what is gone is freed, and nothing stays.
//
// Time is virtual. A seed decides what is done, what goes wrong and when, and in which order: see seen_test.go.
func TestSimulation(t *testing.T) {
	if seed, ok := givenSeed(t); ok {
		for range *simulations {
			simulate(t, seed, 0)
		}
		return
	}
	first := rand.Uint64N(1 << 32)
	t.Logf("seeds from %d on", first)
	var simulated time.Duration
	begun := time.Now()
	for i := range uint64(*simulations) {
		if simulated += simulate(t, first+i, 0); t.Failed() {
			break
		}
	}
	t.Logf("%.0f s of simulated time in %.0f s", simulated.Seconds(), time.Since(begun).Seconds())
}

// The same with many workers, few of which go.
func TestSimulationOfMany(t *testing.T) {
	for range *simulationsOfMany {
		seed, ok := givenSeed(t)
		if !ok {
			seed = rand.Uint64N(1 << 32)
		}
		simulate(t, seed, *many)
	}
}

func givenSeed(t *testing.T) (seed uint64, ok bool) {
	text := os.Getenv(seedVariable)
	if text == "" {
		return 0, false
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s=%q: want a number", seedVariable, text)
	}
	return seed, true
}

// simulate tries a seed, with as many workers as it draws where none are said. It returns how long that took in virtual
// time.
func simulate(t *testing.T, seed uint64, workers int) (took time.Duration) {
	t.Run(fmt.Sprint(seed), func(t *testing.T) {
		defer func() {
			if t.Failed() {
				name, _, _ := strings.Cut(t.Name(), "/")
				t.Logf("again: %s=%d go test -run %s$ ./core/cluster", seedVariable, seed, name)
			}
		}()
		dir := t.TempDir()
		inBubble(t, seed, func(t *testing.T) {
			begun := time.Now()
			newTrial(t, seed, dir).run(workers)
			took = time.Since(begun)
		})
	})
	return took
}

// The bounds of a trial, in virtual time.
const (
	silence  = time.Second      // until a link that is cut counts as lost
	workTime = 3 * time.Second  // faults happen until then
	apartFor = time.Second      // until two processes that are apart give up what is under way
	patience = 60 * time.Second // how long to wait for something that must happen
	// Longer than a computation waits for others that are lost.
	evictAfter = 4 * silence
	// In which a process ends that was told to stop or has lost its controller.
	endGrace = 3 * time.Second
	// In which a connection to the controller is made again, where there is a lease: longer than any is cut off. A worker
	// that joins while the controller waits for one that does not come back waits, too: for less than it would.
	lease = transport.HelloTime - 2*time.Second
	// In which an operation gets room or fails: all that a client has submitted may have to wait, one after the other.
	memoryWait = 100 * time.Millisecond
)

// What is drawn: of shards, how often each element stands in one, so that they have 16 bytes, 16 KiB or 256 KiB, of
// which the first fit into a message and the last into no letter of a board; and of the network, its bytes a second,
// and after how many messages a connection to the controller breaks.
var (
	wides   = []int64{1, 1, 1 << 10, 1 << 14}
	rates   = []float64{0, 0, 20e6, 200e6}
	fragile = []int{0, 0, 1000, 100, 20}
)

// trial is one simulation.
type trial struct {
	t       *testing.T
	seed    uint64
	begun   time.Time
	local   *cluster.Local
	drivers []*sim.Driver   // of the workers, and then of the spares
	offers  []device.Driver // with which they join
	islands []string
	// separate: collectives between workers go by their engines and the board of their host, and not by an interconnect
	// of the devices.
	separate bool
	each     int           // devices of a worker
	lease    time.Duration // 0 or lease
	// restarts: the controller may die and start again, with what it has kept in dir.
	restarts bool
	dir      string
	store    *durable.Store
	dead     []*server.Server
	faults   []fault
	// doomed are the workers and clients that some fault may take away: what has
	// to do with them may fail.
	doomed map[string]bool
	// endless are those of the workers that restart if a client comes as far as to
	// have them compute without end.
	endless map[string]bool
	clients sync.WaitGroup // that have them do so
	// apart are pairs of workers, or of a worker and a client, that some fault cuts apart
	// for so long that what is between them may fail. All of them meet again.
	apart map[[2]string]bool
	// flaky devices fail a computation or an allocation, at some time.
	flaky map[int]bool
	// memory is the limit of each device, which is so low that clients wait for room, some in vain; 0 of one that is never
	// reached.
	memory int64
	// tenants: clients belong to tenants with quotas and shares, and all of that changes.
	tenants bool
	// alone: some slices are exclusive, so that others wait for them, and do not get their devices in time.
	alone bool
	// credit is how many operations a session may have under way; 0 is the usual number.
	credit int
	// wide is how often each of the four elements of a shard stands in it: long arrays go other ways than short ones.
	wide int64
	// rate is how many bytes a second go from one process to another; 0 is any number.
	rate float64
	// fragile: of so many messages between a process and the controller one is the last that its connection brings, where
	// that is made again; 0: none is.
	fragile int

	mu      sync.Mutex            // guards the rest
	chances map[string]*rand.Rand // by purpose
	lag     time.Duration
	calm    bool  // no connection breaks any more
	seen    *seen // nil: nothing is recorded
}

type fault struct {
	at   time.Duration
	what string
	do   func()
}

func newTrial(t *testing.T, seed uint64, dir string) *trial {
	return &trial{t: t, seed: seed, dir: dir, begun: time.Now(), doomed: map[string]bool{}, endless: map[string]bool{},
		apart: map[[2]string]bool{}, flaky: map[int]bool{},
		chances: map[string]*rand.Rand{}}
}

// delay is mostly short, sometimes long.
func (x *trial) delay(from, to string) time.Duration {
	x.mu.Lock()
	defer x.mu.Unlock()
	r := x.chance("delay", from, to)
	if r.IntN(50) == 0 {
		return time.Duration(r.Int64N(int64(silence / 4)))
	}
	return x.lag/2 + time.Duration(r.Int64N(int64(x.lag)))
}

// breaksBehind reports whether a message is the last that arrives over its connection.
func (x *trial) breaksBehind(from, to string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.fragile > 0 && !x.calm && x.chance("breaks", from, to).IntN(x.fragile) == 0
}

// repeats tells after how long a greeting comes once more, in a third of them.
func (x *trial) repeats(from string) time.Duration {
	x.mu.Lock()
	defer x.mu.Unlock()
	r := x.chance("repeats", from)
	if x.fragile == 0 || x.calm || r.IntN(3) > 0 {
		return 0
	}
	return time.Duration(1 + r.Int64N(int64(silence)))
}

// disk is how long the controller's disk takes for a write. It depends on the moment alone: a controller that has died
// goes on to write beside the next one.
func (x *trial) disk() time.Duration {
	r := rand.New(rand.NewPCG(x.seed^hashOf("disk"), uint64(time.Since(x.begun))))
	return 1 + time.Duration(r.Int64N(int64(x.lag)))
}

// later reports whether a client takes time.
func (x *trial) later(of string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.chance("later", of).IntN(4) == 0
}

// run starts a cluster, has clients work on it while its faults happen, and checks what is left.
func (x *trial) run(many int) {
	t, r := x.t, rand.New(rand.NewPCG(x.seed, 0))
	workers, clients := 1+r.IntN(4), 1+r.IntN(3)
	x.each = 1 + r.IntN(3)
	if many > 0 {
		workers, x.each = many, 4
	}
	var logs *slog.Logger
	if testing.Verbose() && os.Getenv(seedVariable) != "" {
		logs = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	spares := 1 + r.IntN(2)
	x.wide = 1
	if many == 0 {
		x.wide = wides[r.IntN(len(wides))]
		x.rate = rates[r.IntN(len(rates))]
	}
	x.start(r, workers, spares, logs)
	x.plan(r, workers, clients, many > 0)
	for i := range spares {
		x.planSpare(r, workers+i)
	}
	var exits sync.WaitGroup
	for i := range workers {
		served := x.local.Served(i)
		exits.Go(func() {
			<-served // the process ends, and its devices are not reached any more
			x.lose(i, "has ended")
		})
	}
	x.work(clients, logs)
	x.workAfterRestart(workers, clients)
	x.mu.Lock()
	x.calm = true
	x.mu.Unlock()
	x.probe()
	x.check(workers)
	x.local.Close()
	for _, server := range x.dead {
		server.Close()
	}
	if x.store != nil {
		x.store.Close()
	}
	exits.Wait()
	for i, d := range x.drivers {
		statustest.Checkf(t, d.Close(), "closing the driver of worker-%d", i)
	}
	if t.Failed() {
		for _, f := range x.faults {
			t.Logf("fault at %v: %s", f.at, f.what)
		}
		t.Log(x.drawn(clients))
	}
}

// piece bounds the bytes of a piece of an array that moves: there are one, three or more of an array.
func (x *trial) piece() int64 {
	return x.shape().Bytes() / []int64{1, 3, 20}[x.seed%3]
}

// drawn says what the cluster is like.
func (x *trial) drawn(clients int) string {
	return fmt.Sprintf("%d workers and spares of %d devices on islands %q, separate: %v, %d clients, lease %v, "+
		"memory %d, shards of %d bytes, tenants: %v, credit %d, %g bytes a second, connections of %d messages, "+
		"pieces of %d bytes",
		len(x.drivers), x.each, x.islands, x.separate, clients, x.lease, x.memory, x.shape().Bytes(), x.tenants, x.credit,
		x.rate, x.fragile, x.piece())
}

// start draws what the cluster is like, and starts it.
func (x *trial) start(r *rand.Rand, workers, spares int, logs *slog.Logger) {
	if r.IntN(2) == 0 {
		x.lease = lease
		x.restarts = r.IntN(2) == 0
		x.fragile = fragile[r.IntN(len(fragile))]
	}
	if x.restarts {
		x.store = x.open()
	}
	if r.IntN(3) == 0 {
		x.memory = x.shape().Bytes() * (3 + r.Int64N(16))
	}
	if r.IntN(3) == 0 {
		x.credit = 1 + r.IntN(16)
	}
	x.tenants, x.alone = r.IntN(2) == 0, r.IntN(4) == 0
	x.lag = time.Duration(1 + r.Int64N(int64(2*time.Millisecond)))
	o := sim.Options{Devices: x.each, Island: sim.NewIsland(sim.Real, x.seed),
		Cost: time.Duration(r.Int64N(int64(time.Millisecond))), Jitter: time.Millisecond,
		Latency: time.Duration(r.Int64N(int64(time.Millisecond))), Memory: x.memory}
	if x.separate = r.IntN(2) == 0; x.separate {
		x.offers = separateOn(x.t, workers+spares, o)
	} else {
		x.offers = simulatedOn(x.t, workers+spares, o)
	}
	for _, d := range x.offers {
		if s, ok := d.(sim.Separate); ok {
			d = s.Driver
		}
		x.drivers = append(x.drivers, d.(*sim.Driver))
		x.islands = append(x.islands, []string{"", "", "other", "third"}[r.IntN(4)])
	}
	var err error
	var table *tenants.Table
	if x.tenants {
		table = x.table()
	}
	x.local, err = cluster.InProcess{Drivers: x.offers[:workers], Islands: x.islands[:workers],
		Heartbeat: silence / 4, Log: logs, Sequential: r.IntN(8) == 0, FirstCome: r.IntN(2) == 0,
		Lease: x.lease, Store: x.store, Disk: x.disk, Memory: x.memory, MemoryWait: memoryWait,
		Limits: controller.Limits{Credit: x.credit}, Tenants: table,
		Reload:     func() (*tenants.Table, error) { return x.table(), nil },
		Piece:      x.piece(),
		EvictAfter: evictAfter, Evict: func(i int, _ error) { x.lose(i, "restarts") },
		Ending:   func(i int, _ error) { time.AfterFunc(endGrace, func() { x.lose(i, "has ended") }) },
		Patience: apartFor, Network: &inproc.Conditions{Delay: x.delay, Silence: silence,
			Bandwidth: func(string, string) float64 { return x.rate },
			Breaks:    x.breaksBehind, Repeats: x.repeats, Arrived: x.seen.arrived}}.Start(x.t.Context())
	statustest.OK(x.t, err)
}

// planSpare has a worker join that may take the place of one that is lost: of one that was lost before, or will be.
func (x *trial) planSpare(r *rand.Rand, n int) {
	name := fmt.Sprint("spare-", n)
	x.faults = append(x.faults, fault{at: time.Duration(r.Int64N(int64(workTime))), what: name + " joins",
		do: func() {
			if err := x.local.Join(x.t.Context(), name, x.offers[n], x.islands[n]); err != nil && len(x.doomed) == 0 {
				x.t.Errorf("%s cannot join: %v", name, err)
			}
		}})
	slices.SortFunc(x.faults, func(a, b fault) int { return int(a.at - b.at) })
}

// work has clients work while the faults happen, and waits for both.
func (x *trial) work(clients int, logs *slog.Logger) {
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
	x.clients.Wait()
}

// workAfterRestart restarts the controller while no client works, and then has other clients work without faults. By
// then the workers have forgotten all of the first clients' gangs but their highest number.
func (x *trial) workAfterRestart(workers, clients int) {
	if !x.restarts || x.doomed[fmt.Sprint("c", clients-1)] && len(x.doomed) == workers+clients { // the controller is gone
		return
	}
	x.restartsController(workers, 0).do()
	var running sync.WaitGroup
	for i := range clients {
		a := newActor(x, clients+i)
		running.Go(a.work)
	}
	running.Wait()
}

// plan draws what goes wrong.
func (x *trial) plan(r *rand.Rand, workers, clients int, many bool) {
	away := map[string]bool{} // for good; of the goroutine of the faults
	for range r.IntN(5) {
		at, n := time.Duration(r.Int64N(int64(workTime))), r.IntN(workers+clients)
		name := fmt.Sprint("worker-", n)
		if n >= workers {
			name = fmt.Sprint("c", n-workers)
		}
		var f fault
		switch kind := r.IntN(13); {
		case kind >= 10 && n < workers:
			f = x.parts(r, name, workers, clients)
		case kind >= 10:
			continue
		case kind < 3:
			f = x.isCutOff(r, name, away)
		case kind < 5:
			f = x.isCutOffForGood(name, away)
		case kind < 7:
			f = x.breaks(name)
		case n < workers && kind < 9:
			f = x.crashes(n, name, away)
		case n < workers:
			f = x.fails(r, n, name)
		case many: // or all would be lost in most of the trials
			continue
		default:
			f = x.losesController(workers, clients)
		}
		f.at = at
		x.faults = append(x.faults, f)
	}
	for range r.IntN(3) {
		if x.restarts {
			f := x.restartsController(workers, clients)
			f.at = time.Duration(r.Int64N(int64(workTime)))
			x.faults = append(x.faults, f)
		}
	}
	if x.tenants {
		x.changeTenants(r)
	}
	if r.IntN(4) == 0 {
		x.faults = append(x.faults, x.computesWithoutEnd(r, workers))
	}
	slices.SortFunc(x.faults, func(a, b fault) int { return int(a.at - b.at) })
}

// mends reports whether the connection of a worker or client would be made again: the controller has heard from it
// since it let it in.
func (x *trial) mends(name string) bool {
	report := x.local.Report()
	for _, w := range report.EachWorker() {
		if w.Process.Name == name {
			return w.Last != nil
		}
	}
	for _, s := range report.Sessions {
		if s.Name == name {
			return s.Programs > 0
		}
	}
	return false
}

// vanish breaks the connection of a process that makes no other.
func (x *trial) vanish(name string) {
	if x.lease > 0 {
		x.local.Cut(name)
	}
	x.local.Break(name)
}

// lose takes a worker's devices away with its process.
func (x *trial) lose(worker int, how string) {
	for k := range x.each {
		statustest.Check(x.t, x.drivers[worker].Lose(k, fmt.Sprintf("the process of worker-%d %s", worker, how)))
	}
}

// badLuck is the text of errors that a device was told to return.
const badLuck = "simulated bad luck"

// probe has two workers that were apart, and have met again, exchange arrays.
func (x *trial) probe() {
	t := x.t
	for _, pair := range slices.SortedFunc(maps.Keys(x.apart), func(a, b [2]string) int {
		return slices.Compare(a[:], b[:])
	}) {
		if x.doomed[pair[0]] || x.doomed[pair[1]] || pair[0] == pair[1] || pair[1][0] == 'c' {
			continue
		}
		time.Sleep(4 * apartFor) // they have met, whatever was drawn
		err := thereAndBack(t, x.local, pair[0], pair[1])
		// A fault of a device is drawn for its nth operation, which may be one of these.
		for range x.faults {
			if err == nil || !strings.Contains(err.Error(), badLuck) {
				break
			}
			err = thereAndBack(t, x.local, pair[0], pair[1])
		}
		statustest.Checkf(t, err, "%v have met again", pair)
	}
}

// check is after all clients have gone.
func (x *trial) check(workers int) {
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
				if w.Refused > 0 {
					return fmt.Errorf("%s refused %d operations that were admitted, such as %v", w.Process.Name, w.Refused,
						w.LastRefused)
				}
				if w.Gangs > 0 || w.Last.GetObjects() > 0 || len(w.Last.GetStanding()) > 0 || len(w.Last.GetRunning()) > 0 {
					return fmt.Errorf("%s has %d gangs, %d objects, waits %q and runs %v", w.Process.Name, w.Gangs,
						w.Last.GetObjects(), w.Last.GetStanding(), w.Last.GetRunning())
				}
			}
		}
		for i := range workers {
			name := fmt.Sprint("worker-", i)
			if there[name] == x.doomed[name] && !(there[name] && x.endless[name]) {
				return fmt.Errorf("%s is there: %v, lost: %v", name, there[name], x.doomed[name])
			}
		}
		for i, d := range x.drivers {
			for k := range d.Devices() {
				m, err := d.MemoryStats(k)
				if err != nil || m.InUse != 0 {
					return fmt.Errorf("device %d of worker-%d keeps %d bytes, %v", k, i, m.InUse, err)
				}
			}
		}
		for purpose, n := range x.local.Memory().Used {
			if n != 0 {
				return fmt.Errorf("%d bytes of host memory are kept for %s", n, purpose)
			}
		}
		for i := range workers {
			if m := x.local.HostMemory(i); m.Assembling != 0 { // programs are kept
				return fmt.Errorf("worker-%d keeps %v of its host's memory", i, m)
			}
		}
		return nil
	})
	statustest.Check(t, x.drivers[0].Island().Hang())
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
