package executor_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"

	"github.com/openpathways/pathways/core/executor"
	"github.com/openpathways/pathways/core/schedule"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/sim"
)

const collectiveDevices = 8

// duel is two threads that run two collective programs over the same devices in
// opposite order, phase by phase: in each, one runs the first program and the
// other the second. A launch that has joined the queue of one device goes on to
// the next only when the other thread's launch of that phase has done the same,
// or has been told to wait for its turn. This is the worst that threads of a host
// can do to each other, and it happens in every phase.
type duel struct {
	phases   int
	driver   *sim.Driver
	programs [2]device.Executable
	half     []sync.WaitGroup // by phase: launches that are half way, or wait
	through  []sync.WaitGroup // by phase: launches that have ended

	mu     sync.Mutex // guards the rest
	phase  map[int32]int
	joined map[int32]int // queues that a launch has reached
	order  [collectiveDevices][]int32
	runs   [2][]*device.Results // by thread
}

func newDuel(t *testing.T, phases int) *duel {
	d := &duel{phases: phases, phase: map[int32]int{}, joined: map[int32]int{},
		half: make([]sync.WaitGroup, phases), through: make([]sync.WaitGroup, phases)}
	for p := range phases {
		d.half[p].Add(2)
		d.through[p].Add(2)
	}
	for k := range d.runs {
		d.runs[k] = make([]*device.Results, phases)
	}
	var err error
	if d.driver, err = sim.Open(sim.Options{Devices: collectiveDevices, Launch: d.join}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.driver.Close() })
	devices := make([]int, collectiveDevices)
	for i := range devices {
		devices[i] = i
	}
	for k, name := range []string{"ascending", "descending"} { // the order in which a launch comes to them
		sum := sim.Program{Name: name, Params: []sim.Param{{DType: "f32", Dims: []int64{1}}},
			Results: []sim.Result{{Op: "all-reduce", Args: []int{0}}}}
		if d.programs[k], err = d.driver.Compile(context.Background(), sum.Source(),
			sim.CompileOptions(devices)); err != nil {
			t.Fatal(err)
		}
		slices.Reverse(devices)
	}
	return d
}

// join is called before a launch joins the queue of a device.
func (d *duel) join(launch int32, dev int) {
	d.mu.Lock()
	phase, own := d.phase[launch]
	n := d.joined[launch]
	d.joined[launch]++
	d.mu.Unlock()
	if own && n == 1 {
		d.half[phase].Done()
		d.half[phase].Wait()
	}
	d.mu.Lock()
	d.order[dev] = append(d.order[dev], launch)
	d.mu.Unlock()
}

// argument is what a device passes to a thread's program in a phase.
func argument(thread, phase, dev int) float32 { return float32(1 + dev*dev + 100*phase + 50*thread) }

// launch passes a phase's program of a thread to the driver.
func (d *duel) launch(t *testing.T, thread, phase int, id int32) {
	defer d.through[phase].Done()
	exe := d.programs[(thread+phase)%2]
	var rows [][]device.Buffer
	for _, dev := range exe.Devices() {
		data := binary.NativeEndian.AppendUint32(nil, math.Float32bits(argument(thread, phase, dev)))
		b, err := d.driver.FromHost(device.Host{Shape: shape.Shape{DType: shape.F32, Dims: []int64{1}}, Data: data,
			Device: dev})
		if err != nil {
			t.Error(err)
			return
		}
		rows = append(rows, []device.Buffer{b})
	}
	r, err := exe.Execute(device.Run{LaunchID: id, Inputs: rows, Only: -1})
	statustest.Checkf(t, err, "Execute")
	d.runs[thread][phase] = r
}

// meets marks a launch that waits for the other thread's half way.
func (d *duel) meets(id int32, phase int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.phase[id] = phase
}

// fight runs both threads to their end: run is one phase of one.
func (d *duel) fight(run func(thread, phase int)) {
	var threads sync.WaitGroup
	for thread := range 2 {
		threads.Go(func() {
			for phase := range d.phases {
				if phase > 0 {
					d.through[phase-1].Wait()
				}
				run(thread, phase)
			}
		})
	}
	threads.Wait()
	d.through[d.phases-1].Wait()
}

// Two threads that run two collective programs over the same devices in opposite
// order always finish, with the right results, where the island orders them.
func TestOppositeOrderFinishes(t *testing.T) {
	for _, c := range []struct {
		name  string
		cells int
		await bool
	}{{"Arm", 4, false}, {"Await", 4, true}, {"NoCells", 0, false}} {
		t.Run(c.name, func(t *testing.T) {
			d := newDuel(t, 200)
			is := executor.NewIsland(newCells(c.cells), schedule.Config{})
			defer is.Close()
			d.fight(func(thread, phase int) {
				turn := enter(t, is, span(0, collectiveDevices))
				if turn.Now {
					d.meets(int32(turn.Gang), phase)
					d.launch(t, thread, phase, int32(turn.Gang))
					end(is, turn)
					return
				}
				d.half[phase].Done()
				if !c.await {
					is.Arm(turn.Gang, &work{body: func(gang uint64) { d.launch(t, thread, phase, int32(gang)) }})
					return
				}
				statustest.Check(t, is.Await(turn.Gang))
				d.launch(t, thread, phase, int32(turn.Gang))
				end(is, turn)
			})
			d.driver.Island().Settle()
			statustest.OKf(t, d.driver.Island().Hang(), "under the scheduler")
			for thread, runs := range d.runs {
				for phase, r := range runs {
					var want float32
					for dev := range collectiveDevices {
						want += argument(thread, phase, dev)
					}
					for i, row := range r.Outputs {
						statustest.Equal(t, scalar(t, row[0]), want, "thread %d, phase %d, device %d: the sum", thread, phase, i)
					}
				}
			}
			for dev, order := range d.order {
				if len(order) != 2*d.phases || !slices.Equal(order, d.order[0]) {
					t.Errorf("device %d saw launches %v, and device 0 %v", dev, order, d.order[0])
				}
			}
			if _, ever := is.Queued(); ever < int64(d.phases) {
				t.Errorf("%d gangs had to wait in %d phases, want one in each", ever, d.phases)
			}
		})
	}
}

// With the scheduler switched off the same programs hang, and the devices say
// which.
func TestOppositeOrderHangsUnscheduled(t *testing.T) {
	d := newDuel(t, 200)
	d.fight(func(thread, phase int) {
		id := int32(2*phase + thread + 1)
		d.meets(id, phase)
		d.launch(t, thread, phase, id)
	})
	d.driver.Island().Settle()
	hang := d.driver.Island().Hang()
	for what, err := range map[string]error{"Hang": hang, "Close": d.driver.Close()} {
		statustest.Fails(t, what, err, status.Aborted, `launch 1 of "ascending"`, `launch 2 of "descending"`)
	}
	for thread, runs := range d.runs {
		for phase, r := range runs {
			for i, e := range r.Done {
				statustest.Fails(t, fmt.Sprintf("thread %d, phase %d, device %d", thread, phase, i),
					e.Wait(context.Background()), status.Aborted)
			}
		}
	}
}

func scalar(t *testing.T, b device.Buffer) float32 {
	t.Helper()
	dst := make([]byte, 4)
	e, err := b.ToHost(dst)
	statustest.OKf(t, err, "ToHost")
	statustest.OKf(t, e.Wait(context.Background()), "ToHost's event")
	return math.Float32frombits(binary.NativeEndian.Uint32(dst))
}
