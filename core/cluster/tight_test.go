package cluster_test

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/bubble"
	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/cluster"
	"github.com/openpathways/pathways/core/cluster/clustertest"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/device/sim"
	"github.com/openpathways/pathways/transport/inproc"
)

var tightSeeds = usually(16, 200)

// What the ledger has admitted, every device has room for: the devices' own limit is the ledger's, and none of them
// ever refuses. Sessions run random programs of two sizes of arrays, with code, temporary memory and donated
// arguments whose memory the result takes over or does not, free, forget, fetch, move, and end in the middle of
// that. The ledger may refuse, and everything ends.
func TestWhatIsAdmittedHasRoom(t *testing.T) {
	seed, ok := givenSeed(t)
	for range tightSeeds {
		if !ok {
			seed = rand.Uint64N(1 << 32)
		}
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) { tight(t, seed) })
			if t.Failed() {
				t.Logf("again: %s=%d go test -run TestWhatIsAdmittedHasRoom$ ./core/cluster", seedVariable, seed)
			}
		})
		if t.Failed() {
			return
		}
	}
}

// The arrays of these programs have 16 or 32 bytes on each device.
var (
	small, large   = []sim.Param{{DType: "f32", Dims: []int64{4}}}, []sim.Param{{DType: "f32", Dims: []int64{8}}}
	smallG, largeG = []sim.Param{{DType: "f32", Dims: []int64{4}, Donated: true}},
		[]sim.Param{{DType: "f32", Dims: []int64{8}, Donated: true}}
	tightPrograms = []tightProgram{
		{sim.Program{Name: "copy", Params: small, Code: 8,
			Results: []sim.Result{{Op: "add", Args: []int{0}, Value: 1}}}, 4, 4, false},
		{sim.Program{Name: "sort", Params: large, Temp: 16, Code: 24,
			Results: []sim.Result{{Op: "add", Args: []int{0}, Value: 1}}}, 8, 8, false},
		{sim.Program{Name: "sum", Params: small, Code: 4,
			Results: []sim.Result{{Op: "all-reduce", Args: []int{0}}}}, 4, 4, false},
		{sim.Program{Name: "step", Params: smallG, Results: []sim.Result{{Op: "add", Args: []int{0}, Value: 1}}}, 4, 4, true},
		{sim.Program{Name: "grow", Params: smallG, Temp: 8,
			Results: []sim.Result{{Op: "zeros", DType: "f32", Dims: []int64{8}}}}, 4, 8, true},
		{sim.Program{Name: "shrink", Params: largeG,
			Results: []sim.Result{{Op: "zeros", DType: "f32", Dims: []int64{4}}}}, 8, 4, true},
	}
)

// tightProgram takes an array of so many elements on each device, and makes another.
type tightProgram struct {
	sim.Program
	takes, makes int64
	donates      bool
}

func tight(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 0))
	var mu sync.Mutex
	delay := func(string, string) time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return time.Duration(r.Int64N(int64(2 * time.Millisecond)))
	}
	workers, each := 1+r.IntN(2), 1+r.IntN(2)
	memory := int64(64 + 16*r.IntN(12))
	drivers := simulatedOn(t, workers, sim.Options{Devices: each, Island: sim.NewIsland(sim.Real, seed),
		Memory: memory, Cost: time.Duration(r.Int64N(int64(3 * time.Millisecond))),
		Jitter: time.Millisecond, Latency: time.Duration(r.Int64N(int64(time.Millisecond)))})
	l, err := cluster.InProcess{Drivers: drivers, Memory: memory, Heartbeat: silence / 4, MemoryWait: 2 * time.Second,
		Sequential: r.IntN(8) == 0, Network: &inproc.Conditions{Delay: delay, Silence: silence}, Patience: apartFor,
	}.Start(t.Context())
	statustest.OK(t, err)
	var running sync.WaitGroup
	for i := range 1 + r.IntN(4) {
		running.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(1+i)))
			for range 1 + r.IntN(3) {
				(&tenant{t: t, r: r, devices: workers * each}).work(l, fmt.Sprint("c", i))
			}
		})
	}
	running.Wait()
	for _, w := range l.Report().Islands[0].Workers {
		if w.Refused > 0 {
			t.Errorf("%s refused %d operations that were admitted, such as %v", w.Process.Name, w.Refused, w.LastRefused)
		}
	}
	clustertest.Free(t, drivers)
	l.Close()
	for _, d := range drivers {
		statustest.Check(t, d.Close())
	}
}

// tenant is a session with random work.
type tenant struct {
	t       *testing.T
	r       *rand.Rand
	devices int
	s       *session
	arrays  []tightArray
	tokens  []tightDeed
}

// tightDeed is an operation.
type tightDeed struct {
	token uint64
	what  string
}

type tightArray struct {
	object uint64
	size   int64 // elements of a shard
	on     []int
}

func (n *tenant) work(l *cluster.Local, name string) {
	n.s = connect(n.t, l, name)
	programs := map[string]*client.Remote{}
	for range 5 + n.r.IntN(40) {
		switch k := n.r.IntN(16); {
		case len(n.arrays) == 0 || k < 3:
			n.put()
		case k < 10:
			n.run(programs)
		case k < 11:
			n.move()
		case k == 11 && len(programs) > 1:
			keys := slices.Sorted(maps.Keys(programs))
			key := keys[n.r.IntN(len(keys))]
			n.s.Forget(programs[key].ID)
			delete(programs, key)
		case k == 12:
			a := n.arrays[n.r.IntN(len(n.arrays))]
			done := make(chan error, 1)
			err := n.s.Fetch(a.object, uint32(a.on[0]), make([]byte, 4*a.size), func(err error) { done <- err })
			if err != nil {
				n.t.Error(err)
			} else if n.r.IntN(2) == 0 {
				n.fine(fmt.Sprint("fetch of ", a.object), <-done)
			}
		default:
			n.free(n.r.IntN(len(n.arrays)))
		}
		for len(n.arrays) > 1+n.r.IntN(3) {
			n.free(n.r.IntN(len(n.arrays)))
		}
		if n.r.IntN(8) == 0 {
			time.Sleep(time.Duration(n.r.Int64N(int64(10 * time.Millisecond))))
		}
	}
	if n.r.IntN(2) == 0 { // otherwise it ends in the middle of its work
		for _, d := range n.tokens {
			late := time.AfterFunc(30*time.Second, func() { n.t.Errorf("%s %s does not end: %v", name, d.what, l.Report()) })
			n.fine(d.what, n.s.Wait(d.token))
			late.Stop()
		}
	}
	n.s.Close()
}

// fine checks how something ended: only the ledger may say that there is no room.
func (n *tenant) fine(what string, err error) {
	if err != nil && (status.CodeOf(err) != status.ResourceExhausted || !strings.Contains(err.Error(), "--memory-limit")) {
		n.t.Errorf("%s: not by the ledger: %v", what, err)
	}
}

func (n *tenant) free(i int) {
	n.s.Free([]uint64{n.arrays[i].object})
	n.arrays = append(n.arrays[:i], n.arrays[i+1:]...)
}

// some draws all devices, or one.
func (n *tenant) some() []int {
	if n.r.IntN(2) == 0 {
		return clustertest.UpTo(n.devices)
	}
	return []int{n.r.IntN(n.devices)}
}

func (n *tenant) put() {
	a := tightArray{object: n.s.Objects(1), size: 4 << n.r.IntN(2), on: n.some()}
	p := &client.PutSpec{Object: a.object, Shape: shape.Shape{DType: shape.F32, Dims: []int64{a.size}},
		Token: n.s.Tokens(1), Fill: func(_ uint32, dst []byte, written func(error)) {
			binary.LittleEndian.PutUint32(dst, 7)
			written(nil)
		}}
	for _, d := range a.on {
		p.Devices = append(p.Devices, uint32(d))
	}
	statustest.Check(n.t, n.s.Put(p))
	n.tokens = append(n.tokens, tightDeed{p.Token, fmt.Sprint("put of ", a.object, " to ", a.on)})
	n.arrays = append(n.arrays, a)
}

func (n *tenant) run(programs map[string]*client.Remote) {
	i := n.r.IntN(len(n.arrays))
	a := n.arrays[i]
	var fitting []tightProgram
	for _, p := range tightPrograms {
		if p.takes == a.size {
			fitting = append(fitting, p)
		}
	}
	p := fitting[n.r.IntN(len(fitting))]
	key := fmt.Sprint(p.Name, a.on)
	if programs[key] == nil {
		programs[key] = n.s.program(p.Program, a.on...)
	}
	token, output := n.s.Start(programs[key], a.object)
	if p.donates {
		n.free(i)
	}
	n.tokens = append(n.tokens, tightDeed{token, fmt.Sprint(p.Name, " of ", a.object, " into ", output, " on ", a.on)})
	n.arrays = append(n.arrays, tightArray{output, p.makes, a.on})
}

// move copies one shard of an array to another device.
func (n *tenant) move() {
	a := n.arrays[n.r.IntN(len(n.arrays))]
	to := n.r.IntN(n.devices)
	m := &wire.Transfer{Object: n.s.Objects(1), Array: &wire.Array{Dtype: uint32(shape.F32), Dims: []int64{a.size}},
		Moves: []*wire.Move{{Source: a.object, From: uint32(a.on[0]), To: uint32(to)}}}
	token := n.s.Tokens(1)
	statustest.Check(n.t, n.s.Transfer(m, token))
	n.tokens = append(n.tokens, tightDeed{token, fmt.Sprint("move of ", a.object, " into ", m.Object, " on ", to)})
	n.arrays = append(n.arrays, tightArray{m.Object, a.size, []int{to}})
}
