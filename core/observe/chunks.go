package observe

import "sync"

// chunks is a list that grows without being copied. Computations wait while they are recorded, and most of that is for
// fresh memory; so memory is used again, too, by the recordings that follow.
type chunks[T any] struct {
	full [][]T
	last []T
	free *sync.Pool // of *[]T
	len  int
}

// inChunk is how many elements a chunk has: some 4 KiB of them, so that they are still in the processor's cache when
// they are written.
const inChunk = 64

var (
	freeSpans  = &sync.Pool{New: func() any { c := make([]keptSpan, 0, inChunk); return &c }}
	freeEvents = &sync.Pool{New: func() any { c := make([]keptEvent, 0, inChunk); return &c }}
)

// append appends an element. Its address does not change until all are taken.
func (l *chunks[T]) append(v T) *T {
	if len(l.last) == cap(l.last) {
		if l.last != nil {
			l.full = append(l.full, l.last)
		}
		l.last = *l.free.Get().(*[]T)
		// This brings the chunk into the processor's cache at once. Else each element is written to memory that is not
		// there, and the next lock or atomic waits for that.
		clear(l.last[:cap(l.last)])
	}
	l.last = append(l.last, v)
	l.len++
	return &l.last[len(l.last)-1]
}

// take calls f with each element, and leaves none.
func (l *chunks[T]) take(f func(*T)) {
	for _, c := range append(l.full, l.last) {
		for i := range c {
			f(&c[i])
		}
		if cap(c) > 0 {
			c = c[:0]
			l.free.Put(&c)
		}
	}
	l.full, l.last, l.len = nil, nil, 0
}
