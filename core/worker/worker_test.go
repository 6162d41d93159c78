package worker_test

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/device/sim"
)

// store is a rendezvous store.
type store struct {
	mu      sync.Mutex
	changed *sync.Cond
	values  map[string][]byte
}

func newStore() *store {
	s := &store{values: map[string][]byte{}}
	s.changed = sync.NewCond(&s.mu)
	return s
}

func (s *store) Put(_ context.Context, key string, value []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.values[key] = value
	s.changed.Broadcast()
	return nil
}

func (s *store) Get(ctx context.Context, key string) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.values[key] == nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		s.changed.Wait()
	}
	return s.values[key], nil
}

var vector = []sim.Param{{DType: "f32", Dims: []int64{4}}}

func addOne() sim.Program {
	return sim.Program{Name: "add_one", Params: vector, Results: []sim.Result{{Op: "add", Args: []int{0}, Value: 1}}}
}

func sum() sim.Program {
	return sim.Program{Name: "sum", Params: vector, Results: []sim.Result{{Op: "all-reduce", Args: []int{0}}}}
}

func ramp(d int) []float32 { f := float32(d); return []float32{f, f + 1, f + 2, f + 3} }

func TestRun(t *testing.T) {
	for _, c := range []struct{ workers, each int }{{1, 1}, {1, 2}, {2, 2}, {4, 2}} {
		s := start(t, simDrivers(t, c.workers, c.each, sim.Options{}), nil)
		var devices, all []int
		for d := range c.workers * c.each {
			devices = append(devices, d)
		}
		all = s.of(devices)
		options := sim.CompileOptions(devices)
		for id, p := range []sim.Program{addOne(), sum()} {
			m := s.compile(1, uint64(id+1), p.Source(), options, devices...)
			if err := m.Status.Err(); err != nil {
				t.Fatal(err)
			}
		}
		put := s.put(1, 1, 1, devices, ramp)
		one := s.dispatch(1, wire.KindRun, &wire.Run{Op: 2, Program: 1, Inputs: []uint64{1}, FirstOutput: 2}, all...)
		two := s.dispatch(1, wire.KindRun, &wire.Run{Op: 3, Program: 2, Inputs: []uint64{2}, FirstOutput: 3}, all...)
		s.dispatch(1, wire.KindFree, &wire.Free{Objects: []uint64{1, 2}}, all...)
		for _, g := range []uint64{put, one, two} {
			if err := s.wait(g, all...); err != nil {
				t.Fatalf("gang %d: %v", g, err)
			}
		}
		want := make([]float32, 4)
		for _, d := range devices {
			for k, v := range ramp(d) {
				want[k] += v + 1
			}
		}
		for _, d := range devices {
			got, err := s.fetch(1, uint64(10+d), 3, d, 4)
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("%d workers, device %d: %v, %v, want %v", c.workers, d, got, err, want)
			}
		}
		if _, err := s.fetch(1, 100, 2, 0, 4); status.CodeOf(err) != status.NotFound {
			t.Errorf("a freed array: %v", err)
		}
		s.dispatch(1, wire.KindFree, &wire.Free{Objects: []uint64{3}}, all...)
		s.empty()
	}
}
