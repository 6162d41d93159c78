// Package grant is the part of a request for a slice that embedded sessions and those of clusters share: the calls, and
// a request that waits. core/placement decides who gets what.
//
// # Concurrency
//
// Any goroutine may call what is in this package. Only Wait blocks.
package grant

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/openpathways/pathways/core/placement"
	"github.com/openpathways/pathways/core/status"
)

// Slices grants slices to a session: sets of devices of its list, see package placement.
// Grants end with the session.
type Slices interface {
	// Ask asks for a slice and returns at once. Errors are those of placement.Map.Ask that need no controller, and the
	// session's error if it is lost.
	Ask(w placement.Want, t Terms) (*Request, error)
	// Remap asks for devices for a slice again. Errors are those of placement.Map.Remap,
	// and the session's error if it is lost.
	Remap(ctx context.Context, number uint64) (devices []int, err error)
	// Release ends a grant, if there is one, or cancels a request. It does not wait for an answer.
	Release(number uint64)
}

// Terms say how a request for a slice waits for devices that others have.
type Terms struct {
	Wait     time.Duration // how long; 0 is not at all, Forever without end
	Priority int           // see placement.Request
}

// Forever is a wait without end.
const Forever time.Duration = math.MaxInt64

// Request is a request for a slice. Any goroutine may call its methods.
type Request struct {
	Number uint64        // of the slice
	Done   chan struct{} // closed when the request has ended

	mu       sync.Mutex // guards the rest; read freely after Done
	position int
	lacks    string
	devices  []int
	err      error
}

// NewRequest returns a request for a slice of this number.
func NewRequest(number uint64) *Request { return &Request{Number: number, Done: make(chan struct{})} }

// At says that the request waits as the position-th, and which sessions have the devices that it lacks.
func (a *Request) At(position int, lacks string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.position, a.lacks = position, lacks
}

// End ends the request. Only the first call has an effect.
func (a *Request) End(devices []int, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	select {
	case <-a.Done:
	default:
		a.position, a.lacks, a.devices, a.err = 0, "", devices, err
		close(a.Done)
	}
}

// Position returns the request's place among those that wait, beginning with 1, and which sessions have the devices
// that it lacks, for people. It is 0 for a request that has ended, or that nothing has been heard of yet.
func (a *Request) Position() (position int, lacks string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.position, a.lacks
}

// HasEnded blocks until the request or ctx has ended, and reports whether the request has.
func (a *Request) HasEnded(ctx context.Context) bool {
	select {
	case <-a.Done:
		return true
	default:
	}
	select {
	case <-a.Done:
		return true
	case <-ctx.Done():
		return false
	}
}

// Wait blocks until the request has ended, and returns the slice's devices. If ctx ends first, the request goes on.
//
// Errors: those of placement.Map.Ask; RESOURCE_EXHAUSTED if others have the devices until the wait has passed;
// CANCELLED after Release; the session's error if it is lost; context.Cause.
func (a *Request) Wait(ctx context.Context) ([]int, error) {
	if !a.HasEnded(ctx) {
		return nil, context.Cause(ctx)
	}
	return a.devices, a.err
}

// errReleased is why a request ended that was cancelled.
var errReleased = status.New(status.Cancelled, "the request for a slice was cancelled")

// Cancelled ends a request that was released.
func (a *Request) Cancelled() { a.End(nil, errReleased) }
