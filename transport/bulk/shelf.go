package bulk

import (
	"sync"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/shm"
)

// A shelf is memory of this process that peers on its host map once and then read in place. Blocks on it need no
// message of this process: the message that tells a peer what to do also says where the bytes are. It is one segment
// that stays until the exchange closes, so one number names it to all peers.
//
// A peer has the segment once it has acknowledged the message that showed it. Only then is a block put there for it,
// since the message about the block comes over another connection, and may come first.

// shelfNumber tells a shelf from memory that blocks are lent from.
const shelfNumber = 1 << 31

// shelf is the memory, which is made when it is first asked for.
type shelf struct {
	arena *shm.Arena

	mu    sync.Mutex // guards the rest
	asked bool       // it is being made, or was; or the exchange closes
	kept  *shm.Block // on it, so that it stays
}

var _ transport.Shelf = (*Exchange)(nil)

// Lay implements transport.Shelf.
func (x *Exchange) Lay(peers []uint64, size int64) (block transport.Block, offset int64, ok bool) {
	s := x.shelved()
	if ok = s != nil; !ok {
		return block, 0, false
	}
	for _, number := range peers {
		ok = x.showsShelf(number, s) && ok // all of them, so that the next block can be laid
	}
	if !ok {
		return block, 0, false
	}
	b := x.shelf.arena.Try(0, int(size))
	if b == nil {
		return block, 0, false
	}
	return transport.Block{Data: b.Data, Release: b.Release}, b.Offset, true
}

// shelved returns the shelf's segment. It is nil while the segment is being made, and if there is no memory for it.
func (x *Exchange) shelved() *shm.Segment {
	s := &x.shelf
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.asked {
		s.asked = true
		x.running.Go(func() {
			kept, err := s.arena.Make(1)
			if err != nil {
				return
			}
			s.mu.Lock()
			s.kept = kept
			s.mu.Unlock()
		})
	}
	if s.kept == nil {
		return nil
	}
	return s.kept.Segment
}

// close keeps a shelf from being made, or frees its memory once its blocks are released. When settled is true, no
// goroutine makes it any more.
func (s *shelf) close(why error, settled bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = true
	s.arena.Close(why)
	if settled && s.kept != nil {
		s.kept.Release()
		s.kept = nil
	}
}

// showsShelf reports whether a peer has the shelf, and shows it if it does not.
func (x *Exchange) showsShelf(number uint64, s *shm.Segment) bool {
	p, err := x.find(number, false)
	if err != nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.out
	if p.lost != nil || l == nil || !l.shared {
		return false
	}
	if l.shelf == 0 && l.postFile(kindShow, segmentFrame(shelfNumber, s.Size), s.File) == nil {
		l.shelf = l.sent.Count()
	}
	return l.shelf != 0 && l.sent.Acked() >= l.shelf
}

// Read implements transport.Mover.
func (x *Exchange) Read(peer uint64, offset, size int64) (transport.Block, error) {
	p, err := x.find(peer, false)
	if err != nil {
		return transport.Block{}, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lost != nil {
		return transport.Block{}, p.lost
	}
	for l := range p.links {
		if m := l.views[shelfNumber]; m != nil {
			data, done, err := m.Use(offset, size)
			return transport.Block{Data: data, Release: done}, err
		}
	}
	return transport.Block{}, status.New(status.InvalidArgument, "%s has shown no shelf to this process", p.title())
}
