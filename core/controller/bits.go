package controller

import (
	"math/bits"
	"slices"
)

// set is a set of small numbers: slots of workers, or virtual devices.
type set []uint64

// setOf returns the set of some numbers.
func setOf(numbers ...int) (s set) {
	for _, i := range numbers {
		s.add(i)
	}
	return s
}

func (s set) has(i int) bool { return i>>6 < len(s) && s[i>>6]>>(i&63)&1 != 0 }

func (s *set) add(i int) {
	for len(*s) <= i>>6 {
		*s = append(*s, 0)
	}
	(*s)[i>>6] |= 1 << (i & 63)
}

func (s set) remove(i int) {
	if i>>6 < len(s) {
		s[i>>6] &^= 1 << (i & 63)
	}
}

// count returns how many numbers there are.
func (s set) count() (n int) {
	for _, w := range s {
		n += bits.OnesCount64(w)
	}
	return n
}

// covers reports whether all of o is in s.
func (s set) covers(o set) bool {
	for i, w := range o {
		if i >= len(s) {
			if w != 0 {
				return false
			}
		} else if w&^s[i] != 0 {
			return false
		}
	}
	return true
}

// meets reports whether they have a number in common.
func (s set) meets(o set) bool {
	for i := range min(len(s), len(o)) {
		if s[i]&o[i] != 0 {
			return true
		}
	}
	return false
}

// without removes the members of o.
func (s set) without(o set) {
	for i := range min(len(s), len(o)) {
		s[i] &^= o[i]
	}
}

// cutTo removes the highest members, so that at most n are left.
func (s set) cutTo(n int) {
	for i := range s {
		for bits.OnesCount64(s[i]) > n {
			s[i] &^= 1 << (63 - bits.LeadingZeros64(s[i]))
		}
		n -= bits.OnesCount64(s[i])
	}
}

func (s *set) union(o set) {
	if len(*s) < len(o) {
		*s = slices.Grow(*s, len(o)-len(*s))
		for len(*s) < len(o) {
			*s = append(*s, 0)
		}
	}
	for i, w := range o {
		(*s)[i] |= w
	}
}

// copyOf makes s what o is, in s's memory where there is room.
func (s *set) copyOf(o set) { *s = append((*s)[:0], o...) }

// all returns the numbers, ascending.
func (s set) all() (numbers []int) {
	s.each(func(i int) { numbers = append(numbers, i) })
	return numbers
}

// each calls f in ascending order.
func (s set) each(f func(i int)) {
	for i, w := range s {
		for ; w != 0; w &= w - 1 {
			f(i<<6 + bits.TrailingZeros64(w))
		}
	}
}
