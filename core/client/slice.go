package client

import (
	"context"
	"slices"

	"github.com/openpathways/pathways/core/placement"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// Slices grants slices to a session: sets of devices of its list, see package placement.
// Grants end with the session.
type Slices interface {
	// Grant asks for a slice, waits for the answer, and returns the slice's number and
	// devices. Errors are those of placement.Map.Grant, and the session's error if it is
	// lost.
	Grant(ctx context.Context, w placement.Want) (number uint64, devices []int, err error)
	// Remap asks for devices for a slice again. Errors are those of placement.Map.Remap,
	// and the session's error if it is lost.
	Remap(ctx context.Context, number uint64) (devices []int, err error)
	// Release ends a grant, if there is one. It does not wait for an answer.
	Release(number uint64)
}

// asking holds the pending requests for slices, by slice, in the order of their answers.
// A cancelled request stays until its answer comes; otherwise the next request would get
// that answer. remote.mu guards it.
type asking map[uint64][]*request

// request is a pending request. Its channel has room for the answer, and is closed
// without one if the session is lost.
type request struct {
	answer  chan *wire.SliceAnswer
	givenUp bool
}

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
		r.Release(m.Slice) // it may have been granted nevertheless
	}
	return m.Slice, devices, err
}

// Remap implements Slices.
func (r *remote) Remap(ctx context.Context, number uint64) ([]int, error) {
	return r.ask(ctx, &wire.SliceRequest{Slice: number})
}

// Release implements Slices.
func (r *remote) Release(number uint64) {
	// if it fails, the session has ended and its grants with it
	_ = r.sendMessage(wire.KindSliceRelease, &wire.SliceRelease{Slices: []uint64{number}})
}

// maxCancelled bounds how many cancelled requests for a slice still wait for their answers.
const maxCancelled = 16

// ask sends a request and waits for its answer.
func (r *remote) ask(ctx context.Context, m *wire.SliceRequest) (devices []int, err error) {
	q := &request{answer: make(chan *wire.SliceAnswer, 1)}
	r.mu.Lock()
	switch before := r.asking[m.Slice]; {
	case r.lost != nil:
		err = r.lost
	case len(before) > 0 && !before[len(before)-1].givenUp:
		err = status.New(status.FailedPrecondition, "slice %d is being remapped by another thread", m.Slice)
	case len(before) == maxCancelled:
		err = status.New(status.Unavailable,
			"the controller has not answered %d cancelled requests for slice %d; try again later", maxCancelled, m.Slice)
	default:
		r.asking[m.Slice] = append(before, q)
	}
	r.mu.Unlock()
	if err != nil {
		return nil, err
	}
	err = r.sendMessage(wire.KindSliceRequest, m)
	sent := err == nil
	if sent {
		select {
		case a, ok := <-q.answer:
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
			err = status.New(status.Cancelled, "the request for a slice was cancelled: %w", context.Cause(ctx))
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if q.givenUp = true; !sent {
		r.forget(m.Slice, q)
	}
	return nil, err
}

// forget removes a request that will have no answer from the pending ones.
func (r *remote) forget(slice uint64, q *request) {
	if list := slices.DeleteFunc(r.asking[slice], func(o *request) bool { return o == q }); len(list) > 0 {
		r.asking[slice] = list
	} else {
		delete(r.asking, slice)
	}
}

// answered passes an answer to the request that waits for it.
func (r *remote) answered(m *wire.SliceAnswer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if list := r.asking[m.Slice]; len(list) > 0 {
		list[0].answer <- m
		r.forget(m.Slice, list[0])
	}
}
