package embedded

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/openpathways/pathways/core/grant"
	"github.com/openpathways/pathways/core/placement"
	"github.com/openpathways/pathways/core/status"
)

// local grants slices of the devices of this process to its only session. A request that may wait does until other
// threads have released theirs.
type local struct {
	mu     sync.Mutex // guards the rest
	layout placement.Map
	view   *placement.View
	begun  time.Time
	last   uint64 // number of the last slice
	asked  map[*placement.Request]*grant.Request
	due    *time.Timer // fires when the next wait ends, and once in placement.LookAgain; nil until one waits
	ended  error
}

// newLocal returns a local for devices of these kinds.
func newLocal(kinds []string) (*local, error) {
	l := &local{begun: time.Now(), asked: map[*placement.Request]*grant.Request{}}
	if _, err := l.layout.Join(placement.Offer{Name: "this process", Devices: len(kinds), Kinds: kinds}); err != nil {
		return nil, err
	}
	l.view = l.layout.View()
	return l, nil
}

// Ask implements grant.Slices.
func (l *local) Ask(w placement.Want, t grant.Terms) (*grant.Request, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended != nil {
		return nil, l.ended
	}
	l.last++
	now := int64(time.Since(l.begun))
	r := &placement.Request{Number: l.last, View: l.view, Want: w, Priority: t.Priority, Asked: now,
		Until: now + min(int64(max(t.Wait, 0)), math.MaxInt64-now)}
	if err := l.layout.Ask(r); err != nil {
		return nil, err
	}
	a := grant.NewRequest(l.last)
	l.asked[r] = a
	l.serve()
	return a, nil
}

// serve ends the requests that can be met, or whose wait has ended. Called with the lock.
func (l *local) serve() {
	now := int64(time.Since(l.begun))
	ended, _ := l.layout.Serve(now, nil, math.MaxInt)
	for _, r := range ended {
		a := l.asked[r]
		delete(l.asked, r)
		switch granted, err := r.Result(); {
		case granted != nil:
			a.End(granted.Devices, nil)
		case err != nil:
			a.End(nil, err)
		default:
			a.End(nil, status.New(status.ResourceExhausted, "a slice of %s was asked for: %s; release it, pass a longer wait=, "+
				"or ask for fewer devices", status.Count(r.Want.Devices, "device"), lacks(r)))
		}
	}
	next := int64(math.MaxInt64)
	if len(l.asked) > 0 {
		next = now + placement.LookAgain
	}
	for _, r := range l.layout.Requests() {
		l.asked[r].At(r.Position(), lacks(r))
		next = min(next, r.Until)
	}
	switch {
	case next == math.MaxInt64:
		if l.due != nil {
			l.due.Stop()
		}
	case l.due == nil:
		l.due = time.AfterFunc(time.Duration(next-now), l.timeout)
	default:
		l.due.Reset(time.Duration(next - now))
	}
}

// lacks returns, for people, what has the devices that a request lacks, or comes first for them: see wire.LacksText.
func lacks(r *placement.Request) string {
	var parts []string
	for _, a := range r.Ahead() {
		parts = append(parts, status.Are(a.Devices)+" reserved for an earlier request of this process")
	}
	switch n := r.Lacks().Count(); {
	case n == 1:
		parts = append(parts, "1 is in another slice of this process")
	case n > 1:
		parts = append(parts, fmt.Sprintf("%d are in other slices of this process", n))
	case len(parts) == 0:
		return "devices are reserved for requests that come before it"
	}
	return strings.Join(parts, "; ")
}

func (l *local) timeout() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.serve()
}

// Remap implements grant.Slices.
func (l *local) Remap(_ context.Context, number uint64) ([]int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended != nil {
		return nil, l.ended
	}
	s, err := l.layout.Remap(0, number, nil)
	if err != nil {
		return nil, err
	}
	l.serve()
	return s.Devices, nil
}

// Release implements grant.Slices.
func (l *local) Release(number uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for r, a := range l.asked {
		if r.Number == number {
			delete(l.asked, r)
			a.Cancelled()
		}
	}
	l.layout.Cancel(0, number)
	l.layout.Release(0, number)
	if l.ended == nil {
		l.serve()
	}
}

// end releases all slices; later calls return why.
func (l *local) end(why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = why
	for r, a := range l.asked {
		delete(l.asked, r)
		a.End(nil, why)
	}
	if l.due != nil {
		l.due.Stop()
	}
	l.layout.ReleaseAll(0)
}
