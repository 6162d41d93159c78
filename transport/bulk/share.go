package bulk

import (
	"sync/atomic"

	"github.com/openpathways/pathways/transport"
)

var _ transport.Sharer = (*Exchange)(nil)

// Shares implements transport.Sharer: of peers to which there is a link. The first block
// for a peer is pushed by itself, over whatever connects to it.
func (x *Exchange) Shares(peer uint64) bool {
	p, err := x.find(peer, false)
	if err != nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lost == nil && p.away == nil && p.out != nil && p.out.shared && p.out.lends
}

// Share implements transport.Sharer.
func (x *Exchange) Share(peers []uint64, key transport.Key, size int64, fill func(dst []byte) error, done func()) {
	if size < longCopy || !x.begins() {
		x.share(peers, key, size, fill, done)
		return
	}
	go func() {
		defer x.running.Done()
		x.share(peers, key, size, fill, done)
	}()
}

// begins counts a goroutine in that Close is to wait for, unless it has begun to.
func (x *Exchange) begins() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed != nil {
		return false
	}
	x.running.Add(1)
	return true
}

// share writes a block and lends it to all peers, whose last reader gives its memory back.
// Without memory at hand for it the peers give theirs, as for any block.
func (x *Exchange) share(peers []uint64, key transport.Key, size int64, fill func(dst []byte) error, done func()) {
	b, err := x.shared.Make(int(size))
	if err == nil {
		if err = fill(b.Data); err != nil {
			b.Release()
		}
	}
	left := new(atomic.Int64)
	left.Store(int64(len(peers)))
	if err != nil {
		for _, peer := range peers {
			x.Push(peer, key, size, func(dst []byte, written func(error)) { written(fill(dst)) }, func(error) {
				if left.Add(-1) == 0 {
					done()
				}
			})
		}
		return
	}
	for _, peer := range peers {
		x.Lend(peer, key, b.Data, func(error) { // the peer hears of an error
			if left.Add(-1) == 0 {
				b.Release()
			}
		})
	}
	done()
}
