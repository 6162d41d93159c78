package base

import (
	"sync"
	"sync/atomic"
)

// Sessions are the sessions of a frontend, numbered from 1 in the order in which they were made. A number is never used
// again. The zero value has none. Every method may be called from any goroutine; those that only read take no lock.
type Sessions[S any] struct {
	mu  sync.Mutex // guards writes of the rest
	all atomic.Pointer[[]*S]
}

// Get returns a session by its number; nil if it has ended or never existed.
func (t *Sessions[S]) Get(number uint64) *S {
	if all := t.all.Load(); all != nil && number > 0 && number <= uint64(len(*all)) {
		return (*all)[number-1]
	}
	return nil
}

// Add returns the number of a new session.
func (t *Sessions[S]) Add(s *S) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := append(t.list(), s)
	t.all.Store(&all)
	return uint64(len(all))
}

// Remove removes a number, and returns its session; nil if there is none.
func (t *Sessions[S]) Remove(number uint64) *S {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.Get(number)
	if s != nil {
		all := t.list()
		all[number-1] = nil
		t.all.Store(&all)
	}
	return s
}

// list returns a copy of all, with room for one more. The caller holds mu.
func (t *Sessions[S]) list() []*S {
	var all []*S
	if old := t.all.Load(); old != nil {
		all = append(make([]*S, 0, len(*old)+1), *old...)
	}
	return all
}

// Open returns the sessions that have not ended, in the order of their numbers.
func (t *Sessions[S]) Open() []*S {
	var out []*S
	if all := t.all.Load(); all != nil {
		for _, s := range *all {
			if s != nil {
				out = append(out, s)
			}
		}
	}
	return out
}

// Numbered returns the sessions that have not ended by their numbers.
func (t *Sessions[S]) Numbered() map[uint64]*S {
	out := map[uint64]*S{}
	if all := t.all.Load(); all != nil {
		for i, s := range *all {
			if s != nil {
				out[uint64(i)+1] = s
			}
		}
	}
	return out
}

// Latest returns the greatest number of a session that has not ended and that can be used; 0 if there is none.
func (t *Sessions[S]) Latest(canUse func(*S) bool) uint64 {
	if all := t.all.Load(); all != nil {
		for i := len(*all); i > 0; i-- {
			if s := (*all)[i-1]; s != nil && canUse(s) {
				return uint64(i)
			}
		}
	}
	return 0
}

// Any reports whether there has been a session.
func (t *Sessions[S]) Any() bool { return t.all.Load() != nil }
