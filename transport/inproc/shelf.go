package inproc

import (
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/transport"
)

var _ transport.Shelf = (*Exchange)(nil)

// shelf holds the blocks that an exchange has put there. Only every other block finds room, so that users of an
// exchange are tried both ways.
type shelf struct {
	asked  int64            // blocks, each of which has an offset of its own
	blocks map[int64][]byte // by offset
}

// between is how far the offsets of blocks are apart, at least.
const between = 1 << 32

// Lay implements transport.Shelf.
func (x *Exchange) Lay(peers []uint64, size int64) (block transport.Block, offset int64, ok bool) {
	for _, peer := range peers {
		if x.hub.find(peer) == nil {
			return block, 0, false
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.shelf.asked++; x.shelf.asked%2 == 0 || size > between {
		return block, 0, false
	}
	offset = x.shelf.asked * between
	x.shelf.blocks[offset] = make([]byte, size)
	return transport.Block{Data: x.shelf.blocks[offset], Release: func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		delete(x.shelf.blocks, offset)
	}}, offset, true
}

// Read implements transport.Mover.
func (x *Exchange) Read(peer uint64, offset, size int64) (transport.Block, error) {
	from := x.hub.find(peer)
	if from == nil {
		return transport.Block{}, status.New(status.Unavailable, "%s has gone", x.name(peer))
	}
	from.mu.Lock()
	data := from.shelf.blocks[offset/between*between]
	from.mu.Unlock()
	if at := offset % between; offset >= 0 && size >= 0 && at <= int64(len(data)) && size <= int64(len(data))-at {
		return transport.Block{Data: data[at : at+size], Release: func() {}}, nil
	}
	return transport.Block{}, status.New(status.InvalidArgument, "%s has no %d bytes at %d of its shelf", x.name(peer),
		size, offset)
}
