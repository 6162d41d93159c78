// Package series keeps values by numbers that ascend, like those of connections and of gangs: what a map does, several
// times as fast, if most numbers between the lowest and the highest are in use.
package series

import (
	"iter"
	"slices"
)

const (
	pageBits = 7
	pageSize = 1 << pageBits
	// maxPages bounds the room between the lowest number and the highest, in pages: 2 MiB of pointers. Values with other
	// numbers are in a map.
	maxPages = 1 << 18
)

// Of is a series of pointers. Its zero value is empty.
type Of[T any] struct {
	first uint64 // page, unless pages is empty
	pages []*page[T]
	spare *page[T] // empty
	far   map[uint64]*T
	count int
}

type page[T any] struct {
	count int
	at    [pageSize]*T
}

// Get returns the value of a number, or nil.
func (s *Of[T]) Get(number uint64) *T {
	if i := number>>pageBits - s.first; i < uint64(len(s.pages)) {
		if p := s.pages[i]; p != nil && p.at[number%pageSize] != nil {
			return p.at[number%pageSize]
		}
	}
	if s.far != nil { // it may have been far once
		return s.far[number]
	}
	return nil
}

// Set sets the value of a number, which is not nil.
func (s *Of[T]) Set(number uint64, v *T) {
	if s.far[number] != nil {
		s.far[number] = v
		return
	}
	at := s.page(number >> pageBits)
	if at == nil {
		if s.far == nil {
			s.far = map[uint64]*T{}
		}
		s.far[number] = v
		s.count++
		return
	}
	if at.at[number%pageSize] == nil {
		at.count++
		s.count++
	}
	at.at[number%pageSize] = v
}

// page returns a page, which it makes if there is none, or nil if it is too far from the others.
func (s *Of[T]) page(number uint64) *page[T] {
	if len(s.pages) == 0 {
		s.first = number
	}
	last := s.first + uint64(len(s.pages))
	switch {
	case number < s.first:
		if last-number > maxPages {
			return nil
		}
		s.pages = slices.Insert(s.pages, 0, make([]*page[T], s.first-number)...)
		s.first = number
	case number-s.first >= maxPages:
		return nil
	case number >= last:
		s.pages = append(s.pages, make([]*page[T], number-last+1)...)
	}
	p := &s.pages[number-s.first]
	if *p == nil {
		if *p, s.spare = s.spare, nil; *p == nil {
			*p = new(page[T])
		}
	}
	return *p
}

// Delete removes a number and its value, if there is one.
func (s *Of[T]) Delete(number uint64) {
	if s.far[number] != nil {
		delete(s.far, number)
		s.count--
		return
	}
	if s.Get(number) == nil {
		return
	}
	i := number>>pageBits - s.first
	p := s.pages[i]
	p.at[number%pageSize] = nil
	s.count--
	if p.count--; p.count > 0 {
		return
	}
	s.pages[i], s.spare = nil, p
	used := slices.IndexFunc(s.pages, func(p *page[T]) bool { return p != nil })
	if used < 0 {
		s.pages = s.pages[:0]
		return
	}
	s.pages = s.pages[used:]
	s.first += uint64(used)
}

// Len returns how many values there are.
func (s *Of[T]) Len() int { return s.count }

// All returns all values by number, in ascending order. Values may be set and deleted meanwhile; those with higher
// numbers are then seen or not.
func (s *Of[T]) All() iter.Seq2[uint64, *T] {
	return func(yield func(uint64, *T) bool) {
		far := make([]uint64, 0, len(s.far))
		for number := range s.far {
			far = append(far, number)
		}
		slices.Sort(far)
		next := s.first << pageBits
		until := func(end uint64) bool { // yields what pages have below a number
			for ; next < end && next>>pageBits < s.first+uint64(len(s.pages)); next++ {
				if next < s.first<<pageBits {
					next = s.first << pageBits
				}
				if s.pages[next>>pageBits-s.first] == nil {
					next |= pageSize - 1
					continue
				}
				if v := s.Get(next); v != nil && !yield(next, v) {
					return false
				}
			}
			return true
		}
		for _, number := range far {
			if !until(number) {
				return
			}
			if v := s.far[number]; v != nil && !yield(number, v) {
				return
			}
		}
		until(^uint64(0))
	}
}

// Numbers returns all numbers, in ascending order.
func (s *Of[T]) Numbers() []uint64 {
	all := make([]uint64, 0, s.count)
	for number := range s.All() {
		all = append(all, number)
	}
	return all
}
