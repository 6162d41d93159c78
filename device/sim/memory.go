package sim

import "github.com/openpathways/pathways/core/status"

// memory is one memory of one device; the island's lock guards it.
type memory struct {
	kind         string
	inUse, limit int64
}

// storage holds the bytes of a buffer. The island's lock guards everything except the
// contents of data, which the shard that makes them writes before they are visible.
type storage struct {
	on      *dev
	mem     *memory
	charge  int64    // of mem
	data    []byte   // in host format; nil means all zeros
	refs    int      // the buffer, and work that has not read it yet
	shared  bool     // data has other users, so it is never written
	takes   *storage // until it is written: the donated argument that it replaces
	inPlace bool     // whether it is written over that argument
	done    func()   // Host.Done of borrowed bytes
}

// alloc charges n bytes of a memory to a new storage.
func (d *dev) alloc(m *memory, n int64) (*storage, error) {
	if d.lost != nil {
		return nil, d.lost
	}
	if err := d.allocs.next(); err != nil {
		return nil, err
	}
	if err := d.charge(m, n); err != nil {
		return nil, err
	}
	return &storage{on: d, mem: m, charge: n, refs: 1}, nil
}

func (d *dev) charge(m *memory, n int64) error {
	if n > m.limit-m.inUse {
		return status.New(status.ResourceExhausted, "device %d memory %q: %d bytes needed, %d in use of the limit %d: "+
			"delete arrays, donate arguments or spread the program over more devices", d.id, m.kind, n, m.inUse, m.limit)
	}
	m.inUse += n
	return nil
}

// uncharge returns the bytes to the memory, once it is known that they will not be used.
func (s *storage) uncharge() {
	s.mem.inUse -= s.charge
	s.charge = 0
}

// release drops one reference; the last one frees the bytes.
func (s *storage) release() {
	if s.refs--; s.refs > 0 {
		return
	}
	s.uncharge()
	s.data = nil
	s.letGo()
}

// letGo reports to the host that its bytes are no longer used.
func (s *storage) letGo() {
	if s.done != nil {
		s.on.drv.is.calls = append(s.on.drv.is.calls, s.done)
		s.done = nil
	}
	delete(s.on.drv.borrowed, s)
}

// script makes the nth call after it was set fail.
type script struct {
	count int
	at    map[int]error
}

func (s *script) fail(n int, err error) {
	if s.at == nil {
		s.at = map[int]error{}
	}
	s.at[s.count+n] = err
}

func (s *script) next() error {
	s.count++
	err := s.at[s.count]
	delete(s.at, s.count)
	return err
}
