package client

import (
	"context"
	"math"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/grant"
	"github.com/openpathways/pathways/core/placement"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// remapping holds the requests for devices of slices that are there, by slice, in the order of their answers.
// A cancelled request stays until its answer comes; otherwise the next request would get
// that answer. remote.mu guards it.
type remapping map[uint64][]*request

// request is such a request. Its channel has room for the answer, and is closed
// without one if the session is lost.
type request struct {
	answer  chan *wire.SliceAnswer
	givenUp bool
}

// asking is a request for a slice that waits for its answer.
type asking struct {
	request *grant.Request
	message *wire.SliceRequest
	since   time.Time
}

// again returns the message that asks again, for the rest of the wait.
func (a *asking) again() *wire.SliceRequest {
	m := proto.CloneOf(a.message)
	if m.WaitMs != math.MaxUint64 {
		m.WaitMs -= min(m.WaitMs, uint64(time.Since(a.since).Milliseconds()))
	}
	return m
}

// Ask implements grant.Slices.
func (r *remote) Ask(w placement.Want, t grant.Terms) (*grant.Request, error) {
	if err := w.Check(); err != nil {
		return nil, err
	}
	m := &wire.SliceRequest{Slice: r.slices.Add(1), Devices: uint32(w.Devices), Island: w.Island, Kind: w.Kind,
		Exclusive: w.Exclusive, WaitMs: milliseconds(t.Wait), Priority: int32(t.Priority)}
	for _, n := range w.Topology {
		m.Topology = append(m.Topology, uint32(n))
	}
	a := &asking{request: grant.NewRequest(m.Slice), message: m, since: time.Now()}
	err := r.sendNoted(wire.KindSliceRequest, m, func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.lost == nil {
			r.asked[m.Slice] = a
		}
		return r.lost
	})
	if err != nil {
		r.takeSlice(m.Slice)
		return nil, err
	}
	return a.request, nil
}

// milliseconds rounds a wait up, so that a short one is not none.
func milliseconds(wait time.Duration) uint64 {
	if wait == grant.Forever {
		return math.MaxUint64
	}
	return uint64((max(wait, 0) + time.Millisecond - 1) / time.Millisecond)
}

// takeSlice forgets a slice, and a request for one, which it returns; nil if there is none of this number.
func (r *remote) takeSlice(number uint64) *asking {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.asked[number]
	delete(r.asked, number)
	delete(r.slicesOf, number)
	return a
}

// Remap implements grant.Slices.
func (r *remote) Remap(ctx context.Context, number uint64) ([]int, error) {
	return r.ask(ctx, &wire.SliceRequest{Slice: number})
}

// Release implements grant.Slices.
func (r *remote) Release(number uint64) {
	if a := r.takeSlice(number); a != nil {
		a.request.Cancelled()
	}
	// if it fails, the session has ended and its grants with it
	_ = r.sendMessage(wire.KindSliceRelease, &wire.SliceRelease{Slices: []uint64{number}})
}

// maxCancelled bounds how many cancelled requests for a slice still wait for their answers.
const maxCancelled = 16

// ask sends a request and waits for its answer.
func (r *remote) ask(ctx context.Context, m *wire.SliceRequest) (devices []int, err error) {
	q := &request{answer: make(chan *wire.SliceAnswer, 1)}
	err = r.sendNoted(wire.KindSliceRequest, m, func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		switch before := r.remapping[m.Slice]; {
		case r.lost != nil:
			return r.lost
		case len(before) > 0 && !before[len(before)-1].givenUp:
			return status.New(status.FailedPrecondition, "slice %d is being remapped by another thread", m.Slice)
		case len(before) == maxCancelled:
			return status.New(status.Unavailable,
				"the controller has not answered %d cancelled requests for slice %d; try again later", maxCancelled, m.Slice)
		default:
			r.remapping[m.Slice] = append(before, q)
		}
		return nil
	})
	sent := err == nil
	if sent {
		select {
		case a, ok := <-q.answer:
			if !ok {
				return nil, r.Lost()
			}
			return r.devicesOf(a)
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

// devicesOf returns what an answer says.
func (r *remote) devicesOf(m *wire.SliceAnswer) (devices []int, err error) {
	for _, d := range m.Devices {
		if int(d) >= len(r.Devices()) {
			return nil, status.New(status.Internal, "the controller granted device %d of %d", d, len(r.Devices()))
		}
		devices = append(devices, int(d))
	}
	return devices, m.Status.Err()
}

// forget removes a request that will have no answer from the pending ones.
func (r *remote) forget(slice uint64, q *request) {
	if list := slices.DeleteFunc(r.remapping[slice], func(o *request) bool { return o == q }); len(list) > 0 {
		r.remapping[slice] = list
	} else {
		delete(r.remapping, slice)
	}
}

// answered passes an answer to the request that waits for it.
func (r *remote) answered(m *wire.SliceAnswer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a := r.asked[m.Slice]; a != nil {
		if m.Position > 0 {
			a.request.At(int(m.Position), m.Lacks)
			return
		}
		delete(r.asked, m.Slice)
		if m.Status.Err() == nil {
			r.slicesOf[m.Slice] = true
		}
		a.request.End(r.devicesOf(m))
	} else if list := r.remapping[m.Slice]; len(list) > 0 {
		list[0].answer <- m
		r.forget(m.Slice, list[0])
	}
}
