package embedded

import (
	"context"
	"sync"

	"github.com/openpathways/pathways/core/placement"
)

// local grants slices of the devices of this process to its only session.
type local struct {
	mu     sync.Mutex // guards the rest
	layout placement.Map
	view   *placement.View
	last   uint64 // number of the last slice
	ended  error
}

// newLocal returns a local for devices of these kinds.
func newLocal(kinds []string) (*local, error) {
	l := new(local)
	if _, err := l.layout.Join(placement.Offer{Name: "this process", Devices: len(kinds), Kinds: kinds}); err != nil {
		return nil, err
	}
	l.view = l.layout.View()
	return l, nil
}

// Grant implements client.Slices.
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

// Remap implements client.Slices.
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

// Release implements client.Slices.
func (l *local) Release(number uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.layout.Release(0, number)
}

// end releases all slices; later calls return why.
func (l *local) end(why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = why
	l.layout.ReleaseAll(0)
}
