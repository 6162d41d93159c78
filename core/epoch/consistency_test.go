package epoch

import "fmt"

// Check looks for what does not fit together, see State.
func (s *Server) Check() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.Check()
}

// Check says what does not fit together, or nil.
func (st *State) Check() error {
	seen, bad := 0, func(format string, args ...any) error { return fmt.Errorf(format, args...) }
	for name, is := range st.islands {
		if is.name != name || is.epoch == nil && (len(is.waiting) == 0 || len(is.waiting) >= is.nodes) {
			return bad("island %q: %d members wait for an epoch of %d", name, len(is.waiting), is.nodes)
		}
		for _, m := range is.waiting {
			if seen++; st.members[m.number] != m || m.island != is || m.epoch != nil || len(m.waits) > 0 {
				return bad("island %q: member %d waits for an epoch and for more", name, m.number)
			}
		}
		e := is.epoch
		if e == nil {
			continue
		}
		if len(e.members) != is.nodes || len(e.values) > st.limits.Keys || e.bytes > st.limits.Bytes {
			return bad("epoch %d has %d of %d members, %d keys of %d bytes", e.number, len(e.members), is.nodes, len(e.values),
				e.bytes)
		}
		waits, size := 0, int64(0)
		for k, v := range e.values {
			size += int64(len(k) + len(v))
		}
		for _, m := range e.members {
			if seen++; st.members[m.number] != m || m.island != is || m.epoch != e || len(m.waits) > st.limits.Waits {
				return bad("epoch %d has member %d, which is not there", e.number, m.number)
			}
			waits += len(m.waits)
		}
		for key, list := range e.waiting {
			waits -= len(list)
			if _, there := e.values[key]; there || len(list) == 0 {
				return bad("epoch %d: %d members wait for key %q, which is there", e.number, len(list), key)
			}
		}
		if waits != 0 || size != e.bytes {
			return bad("epoch %d: %d waits and %d bytes too many", e.number, waits, e.bytes-size)
		}
	}
	if seen != len(st.members) {
		return bad("%d members, and islands have %d", len(st.members), seen)
	}
	return nil
}
