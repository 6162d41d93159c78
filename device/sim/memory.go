package sim

import "github.com/openpathways/pathways/core/status"

// memory is one memory of one device; the island's lock guards it.
type memory struct {
	kind               string
	inUse, peak, limit int64
}

// storage is the bytes behind a buffer. The island's lock guards all but the
// contents of data, which the one whose turn it is may write before anybody can
// see them.
type storage struct {
	on      *dev
	mem     *memory
	charge  int64    // of mem
	data    []byte   // as on the host; nil is all zeros
	refs    int      // the buffer, and work that has yet to read
	shared  bool     // others see data too: it is never written
	takes   *storage // until it is written: the donated argument whose place it takes
	inPlace bool     // it is written where that argument is
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
		return status.New(status.ResourceExhausted, "device %d memory %q: %d bytes needed, %d in use of the limit %d: delete arrays, donate arguments or spread the program over more devices", d.id, m.kind, n, m.inUse, m.limit)
	}
	m.inUse += n
	m.peak = max(m.peak, m.inUse)
	return nil
}

// uncharge gives the bytes back, as soon as it is known that nobody will have them.
func (s *storage) uncharge() {
	s.mem.inUse -= s.charge
	s.charge = 0
}

// release takes back one reference; the last one frees the bytes.
func (s *storage) release() {
	if s.refs--; s.refs > 0 {
		return
	}
	s.uncharge()
	s.data = nil
	s.letGo()
}

// letGo tells the host that its bytes are not used any more.
func (s *storage) letGo() {
	if s.done != nil {
		s.on.drv.is.calls = append(s.on.drv.is.calls, s.done)
		s.done = nil
	}
	delete(s.on.drv.borrowed, s)
}

// script fails scripted calls: the nth from when it was written.
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
