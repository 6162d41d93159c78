package sim_test

import (
	"context"
	"encoding/binary"
	"math"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/sim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// store is the rendezvous of one process.
type store struct {
	mu     sync.Mutex
	values map[string][]byte
	put    chan struct{} // closed at each Put
}

func newStore() *store { return &store{values: map[string][]byte{}, put: make(chan struct{})} }

func (s *store) Put(_ context.Context, key string, value []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.values[key] = value
	close(s.put)
	s.put = make(chan struct{})
	return nil
}

func (s *store) Get(ctx context.Context, key string) ([]byte, error) {
	for {
		s.mu.Lock()
		v, ok := s.values[key]
		put := s.put
		s.mu.Unlock()
		if ok {
			return v, nil
		}
		select {
		case <-put:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func open(t testing.TB, o sim.Options) *sim.Driver {
	t.Helper()
	d, err := sim.Open(o)
	statustest.OKf(t, err, "Open")
	t.Cleanup(func() { d.Close() })
	return d
}

// join makes all members of an epoch, of n devices each.
func join(t testing.TB, is *sim.Island, members, n int) []*sim.Driver {
	t.Helper()
	kv := newStore()
	ds, errs := make([]device.Driver, members), make([]error, members)
	var all sync.WaitGroup
	for i := range members {
		all.Go(func() {
			kind := sim.Kind{Options: sim.Options{Devices: n, Island: is}}
			ds[i], errs[i] = kind.Join(context.Background(), device.Membership{Epoch: 3, Node: i, Nodes: members, Store: kv})
		})
	}
	all.Wait()
	out := make([]*sim.Driver, members)
	for i := range members {
		if errs[i] != nil {
			t.Fatalf("Join of member %d: %v", i, errs[i])
		}
		out[i] = ds[i].(*sim.Driver)
	}
	t.Cleanup(func() { // together, as Close waits for what members share
		for _, d := range out {
			all.Go(func() { d.Close() })
		}
		all.Wait()
	})
	return out
}

func compile(t testing.TB, d *sim.Driver, p sim.Program, devices ...int) device.Executable {
	t.Helper()
	exe, err := d.Compile(context.Background(), p.Source(), sim.CompileOptions(devices))
	statustest.OKf(t, err, "Compile of %s for %v", p.Name, devices)
	return exe
}

func execute(t testing.TB, exe device.Executable, launch int32, rows ...[]device.Buffer) *device.Results {
	t.Helper()
	out, err := exe.Execute(device.Run{LaunchID: launch, Inputs: rows, Only: -1})
	statustest.OKf(t, err, "Execute of %s", exe.Name())
	return out
}

// noInputs is n rows of no inputs.
func noInputs(n int) [][]device.Buffer { return make([][]device.Buffer, n) }

func put(t testing.TB, d *sim.Driver, dev int, values ...float32) device.Buffer {
	t.Helper()
	var data []byte
	for _, v := range values {
		data = binary.NativeEndian.AppendUint32(data, math.Float32bits(v))
	}
	b, err := d.FromHost(device.Host{Shape: shape.Shape{DType: shape.F32, Dims: []int64{int64(len(values))}}, Data: data,
		Device: dev})
	statustest.OKf(t, err, "FromHost")
	return b
}

func get(t testing.TB, b device.Buffer) []float32 {
	t.Helper()
	dst := make([]byte, b.Shape().HostBytes())
	e, err := b.ToHost(dst)
	statustest.OKf(t, err, "ToHost")
	statustest.OKf(t, e.Wait(context.Background()), "ToHost's event")
	return values(dst)
}

// values are the f32 of some bytes.
func values(b []byte) (v []float32) {
	for ; len(b) > 0; b = b[4:] {
		v = append(v, math.Float32frombits(binary.NativeEndian.Uint32(b)))
	}
	return v
}

// gang is a program whose devices wait for each other.
func gang(name string, cost time.Duration) sim.Program {
	return sim.Program{Name: name, Gang: true, Cost: &cost}
}

// plain is a program whose devices do not.
func plain(name string, cost time.Duration) sim.Program {
	return sim.Program{Name: name, Cost: &cost}
}

// sum is an all-reduce of one f32.
func sum() sim.Program {
	return sim.Program{Name: "sum", Params: []sim.Param{{DType: "f32", Dims: []int64{1}}},
		Results: []sim.Result{{Op: "all-reduce", Args: []int{0}}}}
}
