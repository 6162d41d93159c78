package shm

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/transport/pages"
)

// Segment is memory that was made at once. A shared one has a file.
type Segment struct {
	Number uint32 // 1, 2, 3 … in its arena, never used again
	Size   int64
	File   *os.File // nil if it is not shared; the segment's own

	arena *Arena
	data  []byte
	free  []extent // by offset, never adjacent; guarded by the pool's mu, as all below
	live  int      // blocks
	since time.Time
	told  bool
	then  []func()
	unpin func() // nil if it is not pinned

	leaving int64 // of the pool's
	retired bool  // no more blocks come from it
}

// Retire has no more blocks come from the segment, which goes back to the system with its last one: for memory that
// a process may still write to although it was told to stop.
func (s *Segment) Retire() {
	p := s.arena.pool
	p.mu.Lock()
	if s.retired {
		p.mu.Unlock()
		return
	}
	s.retired = true
	s.arena.forgetSlabs(s)
	_, there := p.all[s]
	var gone []*Segment
	if there && s.live == 0 {
		p.remove(s)
		gone = append(gone, s)
	}
	p.mu.Unlock()
	unmap(gone)
}

// In reports whether the segment is of the arena.
func (s *Segment) In(a *Arena) bool { return s.arena == a }

// Then has f called when the segment goes back to the system, at once if it has. It
// may come from under any lock.
func (s *Segment) Then(f func()) {
	p := s.arena.pool
	p.mu.Lock()
	_, there := p.all[s]
	if there {
		s.then = append(s.then, f)
	}
	p.mu.Unlock()
	if !there {
		f()
	}
}

// extent is a run of free pages.
type extent struct{ offset, length int64 }

const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

func newSegment(a *Arena, number uint32, size int64) (_ *Segment, err error) {
	if err := a.admit(size); err != nil {
		return nil, err
	}
	s := &Segment{Number: number, Size: size, arena: a, free: []extent{{0, size}}}
	failed := func(what string, err error) error {
		return status.New(status.ResourceExhausted, "%d bytes of memory for %s could not be allocated (%s): %w", size,
			a.purpose, what, err)
	}
	flags, fd := unix.MAP_PRIVATE|unix.MAP_ANON, -1
	if a.shared {
		flags = unix.MAP_SHARED
		fd, err = unix.MemfdCreate("pathways", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		if err != nil {
			return nil, failed("memfd_create", err)
		}
		s.File = os.NewFile(uintptr(fd), fmt.Sprintf("segment %d for %s", number, a.purpose))
		if err := unix.Ftruncate(fd, size); err != nil {
			s.File.Close()
			return nil, failed("ftruncate", err)
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
			s.File.Close()
			return nil, failed("sealing", err)
		}
	}
	s.data, err = mapped(fd, size, flags, unix.PROT_READ|unix.PROT_WRITE)
	if err == nil {
		if err = a.fill(s.data); err == nil {
			s.unpin = a.pool.pin(s.data)
			return s, nil
		}
		_ = pages.Unmap(s.data)
	}
	if s.File != nil {
		s.File.Close()
	}
	if errors.Is(err, errShort) {
		return nil, err
	}
	return nil, failed("mmap", err)
}

// fill has the system give a new segment, which was admitted, its memory: as far as the host still has it.
func (a *Arena) fill(data []byte) error {
	for at := 0; at < len(data); at += step {
		if at > 0 {
			if err := a.admit(int64(len(data) - at)); err != nil {
				return err
			}
		}
		piece := data[at:min(at+step, len(data))]
		if a.shared {
			_ = pages.Collapse(piece) // or they are small
		}
		if err := touch(piece, unix.MADV_POPULATE_WRITE); err != nil {
			return err
		}
	}
	return nil
}

// pin tells devices of memory, if they want to know.
func (p *Pool) pin(data []byte) (unpin func()) {
	if p.config.Pin == nil {
		return nil
	}
	return p.config.Pin(data)
}

// release returns memory to the system, of which so many bytes count as leaving. Unpinning lasts until the devices have
// finished the work that they were given; only Settle waits for that.
func (p *Pool) release(data []byte, unpin func(), leaving int64) {
	if unpin == nil {
		_ = pages.Unmap(data)
		return
	}
	p.mu.Lock()
	p.releases++
	p.mu.Unlock()
	go func() {
		unpin()
		_ = pages.Unmap(data)
		p.mu.Lock()
		p.leaving -= leaving
		p.releases--
		p.settled.Broadcast()
		gone := p.serve()
		p.mu.Unlock()
		unmap(gone)
	}()
}

// Settle waits until all memory that is being unpinned has gone.
func (p *Pool) Settle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.releases > 0 {
		p.settled.Wait()
	}
}

// mapped maps memory. The system adds its pages when it is used, or at once in touch.
func mapped(fd int, size int64, flags, may int) ([]byte, error) {
	data, err := pages.Map(fd, size, may, flags)
	if err == nil {
		_ = unix.Madvise(data, unix.MADV_HUGEPAGE) // a hint
	}
	return data, err
}

// touch has pages behind memory, so that no later use faults.
func touch(data []byte, populate int) error {
	if err := unix.Madvise(data, populate); err != unix.EINVAL {
		return err
	}
	return nil // a kernel before 5.14; pages come when they are touched
}

func (s *Segment) unmap() {
	s.arena.pool.release(s.data, s.unpin, s.leaving)
	s.data = nil
	if s.File != nil {
		s.File.Close()
	}
}

// take finds a run of free pages, the shortest that is long enough. It returns its
// offset, or -1.
func (s *Segment) take(length int64) int64 {
	best := -1
	for i, e := range s.free {
		if e.length >= length && (best < 0 || e.length < s.free[best].length) {
			best = i
		}
	}
	if best < 0 {
		return -1
	}
	e := &s.free[best]
	offset := e.offset
	e.offset += length
	e.length -= length
	if e.length == 0 {
		s.free = slices.Delete(s.free, best, best+1)
	}
	return offset
}

// give puts a run back.
func (s *Segment) give(offset, length int64) {
	i, _ := slices.BinarySearchFunc(s.free, offset, func(e extent, at int64) int { return int(e.offset - at) })
	s.free = slices.Insert(s.free, i, extent{offset, length})
	if i+1 < len(s.free) && offset+length == s.free[i+1].offset {
		s.free[i].length += s.free[i+1].length
		s.free = slices.Delete(s.free, i+1, i+2)
	}
	if i > 0 && s.free[i-1].offset+s.free[i-1].length == offset {
		s.free[i-1].length += s.free[i].length
		s.free = slices.Delete(s.free, i, i+1)
	}
}

// Mapping is a peer's segment in this process.
type Mapping struct {
	mu    sync.Mutex
	pool  *Pool
	data  []byte
	unpin func() // nil if it is not pinned
	users int    // of its pieces
	gone  bool   // unmap when there are none
}

// Map maps the file of a peer's segment to be written, and closes it. A file that
// the peer could cut short, so that writing would crash this process, is refused; so are
// huge pages, of which there may be none left when one that the peer has given up is touched.
func (p *Pool) Map(file *os.File, size int64) (*Mapping, error) {
	m, err := p.mapFile(file, size, unix.PROT_READ|unix.PROT_WRITE, unix.MADV_POPULATE_WRITE)
	if err == nil {
		m.unpin = p.pin(m.data)
	}
	return m, err
}

// MapToRead is Map of a segment that is only to be read: writing to it is a fault, and so it cannot be pinned.
func (p *Pool) MapToRead(file *os.File, size int64) (*Mapping, error) {
	return p.mapFile(file, size, unix.PROT_READ, unix.MADV_POPULATE_READ)
}

func (p *Pool) mapFile(file *os.File, size int64, may, populate int) (*Mapping, error) {
	defer file.Close()
	fd := int(file.Fd())
	have, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || have&unix.F_SEAL_SHRINK == 0 {
		return nil, status.New(status.InvalidArgument, "the peer passed a file that is not sealed memory")
	}
	var kind unix.Statfs_t
	if err := unix.Fstatfs(fd, &kind); err != nil || kind.Type == unix.HUGETLBFS_MAGIC {
		return nil, status.New(status.InvalidArgument, "the peer passed memory of huge pages; share ordinary memory")
	}
	var info unix.Stat_t
	if err := unix.Fstat(fd, &info); err != nil || info.Size < size || size <= 0 {
		return nil, status.New(status.InvalidArgument, "the peer passed %d bytes of shared memory and announced %d",
			info.Size, size)
	}
	data, err := mapped(fd, size, unix.MAP_SHARED, may)
	if err == nil {
		if err = touch(data, populate); err != nil {
			_ = pages.Unmap(data)
		}
	}
	if err != nil {
		return nil, status.New(status.ResourceExhausted, "%d bytes of a peer's memory could not be mapped: %w", size, err)
	}
	return &Mapping{pool: p, data: data}, nil
}

// Use returns a piece of the segment, which stays until done is called.
func (m *Mapping) Use(offset, size int64) (_ []byte, done func(), err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.gone || offset < 0 || size < 0 || offset > int64(len(m.data)) || size > int64(len(m.data))-offset {
		return nil, nil, status.New(status.InvalidArgument,
			"the peer named %d bytes at %d of shared memory that is not there", size, offset)
	}
	m.users++
	return m.data[offset : offset+size : offset+size], m.done, nil
}

func (m *Mapping) done() {
	m.mu.Lock()
	m.users--
	last := m.gone && m.users == 0
	m.mu.Unlock()
	if last {
		m.pool.release(m.data, m.unpin, 0)
	}
}

// Close unmaps the segment once no piece of it is in use.
func (m *Mapping) Close() {
	m.mu.Lock()
	last := !m.gone && m.users == 0
	m.gone = true
	m.mu.Unlock()
	if last {
		m.pool.release(m.data, m.unpin, 0)
	}
}
