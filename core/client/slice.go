package client

import (
	"context"
	"sync"

	"github.com/openpathways/pathways/core/placement"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// Slices is a session's slices: devices of its list that it was granted
// together, see package placement. Grants end with the session.
type Slices interface {
	// Grant asks for a slice, waits for the answer, and gives the slice's number and
	// devices. Errors are those of placement.Map.Grant, and the session's end.
	Grant(ctx context.Context, w placement.Want) (number uint64, devices []int, err error)
	// Remap asks for a slice's devices again. Errors are those of
	// placement.Map.Remap, and the session's end.
	Remap(ctx context.Context, number uint64) (devices []int, err error)
	// Release ends a grant, if there is one. It waits for no answer.
	Release(number uint64)
}

// local grants slices of the devices of this process to its only session.
type local struct {
	mu     sync.Mutex // guards the rest
	layout placement.Map
	view   *placement.View
	last   uint64 // number given last
	ended  error
}

// newLocal makes it for devices of these kinds.
func newLocal(kinds []string) (*local, error) {
	l := new(local)
	if _, err := l.layout.Join(placement.Offer{Name: "this process", Devices: len(kinds), Kinds: kinds}); err != nil {
		return nil, err
	}
	l.view = l.layout.View()
	return l, nil
}

// Grant implements Slices.
func (l *local) Grant(_ context.Context, w placement.Want) (uint64, []int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended != nil {
		return 0, nil, l.ended
	}
	l.last++
	s, err := l.layout.Grant(0, l.last, l.view, w)
	if err != nil {
		return 0, nil, err
	}
	return s.Number, s.Devices, nil
}

// Remap implements Slices.
func (l *local) Remap(_ context.Context, number uint64) ([]int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended != nil {
		return nil, l.ended
	}
	s, err := l.layout.Remap(0, number, l.view)
	if err != nil {
		return nil, err
	}
	return s.Devices, nil
}

// Release implements Slices.
func (l *local) Release(number uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.layout.Release(0, number)
}

// end ends all grants.
func (l *local) end(why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = why
	l.layout.ReleaseAll(0)
}

// asking is requests for slices under way, by slice; each channel holds one
// answer, and is closed without one where the session is lost. Under remote.mu.
type asking map[uint64]chan *wire.SliceAnswer

// Grant implements Slices.
func (r *remote) Grant(ctx context.Context, w placement.Want) (uint64, []int, error) {
	if err := w.Check(); err != nil {
		return 0, nil, err
	}
	m := &wire.SliceRequest{Slice: r.slices.Add(1), Devices: uint32(w.Devices), Island: w.Island, Kind: w.Kind}
	for _, n := range w.Topology {
		m.Topology = append(m.Topology, uint32(n))
	}
	devices, err := r.ask(ctx, m)
	if err != nil && ctx.Err() != nil {
		r.Release(m.Slice) // it may have been granted all the same
	}
	return m.Slice, devices, err
}

// Remap implements Slices.
func (r *remote) Remap(ctx context.Context, number uint64) ([]int, error) {
	return r.ask(ctx, &wire.SliceRequest{Slice: number})
}

// Release implements Slices.
func (r *remote) Release(number uint64) {
	_ = r.sendMessage(wire.KindSliceRelease, &wire.SliceRelease{Slices: []uint64{number}}) // it went with the session otherwise
}

// ask sends a request and waits for its answer.
func (r *remote) ask(ctx context.Context, m *wire.SliceRequest) (devices []int, err error) {
	answer := make(chan *wire.SliceAnswer, 1)
	r.mu.Lock()
	switch {
	case r.lost != nil:
		err = r.lost
	case r.asking[m.Slice] != nil:
		err = status.New(status.FailedPrecondition, "slice %d is being remapped by another thread", m.Slice)
	default:
		r.asking[m.Slice] = answer
	}
	r.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if err = r.sendMessage(wire.KindSliceRequest, m); err == nil {
		select {
		case a, ok := <-answer:
			if !ok {
				return nil, r.Lost()
			}
			for _, d := range a.Devices {
				if int(d) >= len(r.welcome.Devices) {
					return nil, status.New(status.Internal, "the controller granted device %d of %d", d, len(r.welcome.Devices))
				}
				devices = append(devices, int(d))
			}
			return devices, a.Status.Err()
		case <-ctx.Done():
			err = status.New(status.Cancelled, "asking for a slice was given up: %w", context.Cause(ctx))
		}
	}
	r.mu.Lock()
	if r.asking[m.Slice] == answer {
		delete(r.asking, m.Slice)
	}
	r.mu.Unlock()
	return nil, err
}

// answered brings an answer to who waits for it.
func (r *remote) answered(m *wire.SliceAnswer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if answer := r.asking[m.Slice]; answer != nil {
		delete(r.asking, m.Slice)
		answer <- m
	}
}
