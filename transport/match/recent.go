package match

// remembered is the number of ends that a Recent remembers.
const remembered = 4096

// Recent remembers why the last few thousand of something have ended, in memory
// that does not grow. The zero value is ready. It has no lock.
type Recent[K comparable] struct {
	why   map[K]error
	order []K // a ring once it is full
	next  int
}

// Add remembers an end; the first error of a key stays. If Add forgets the oldest to make room, it returns that.
func (r *Recent[K]) Add(key K, err error) (oldest K, forgotten bool) {
	if _, ok := r.why[key]; ok {
		return oldest, false
	}
	if r.why == nil {
		r.why = map[K]error{}
	}
	r.why[key] = err
	if len(r.order) < remembered {
		r.order = append(r.order, key)
		return oldest, false
	}
	oldest = r.order[r.next]
	delete(r.why, oldest)
	r.order[r.next] = key
	r.next = (r.next + 1) % remembered
	return oldest, true
}

// Why is the error of a key, or nil.
func (r *Recent[K]) Why(key K) error { return r.why[key] }

// Len returns how many keys are remembered.
func (r *Recent[K]) Len() int { return len(r.why) }
