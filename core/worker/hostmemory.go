package worker

import (
	"maps"
	"runtime"
	"slices"
	"sync"

	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/content"
)

// The machine's memory that this worker has is counted when it is taken and returned, and reported with heartbeats. It
// is in five places, each with a bound:
//
//	blocks of the exchange   arrays and collectives that come or go; bounded by the exchange's pool, for whose memory
//	                         senders wait. A device that reads an array where it came keeps its block. Of a move in
//	                         pieces a few are there, see pieces.go
//	                         shards that transfers put together or take apart lie in blocks, too, as long as arrays
//	                         have not more than a quarter of the pool
//	assembling, below        such shards beyond that: those of results, and for each device one of a source that the
//	                         host cannot read in place
//	package content          programs that come or go: each is bounded by content.MaxSize, their number by the slots
//	                         of compiles and loads
//	the driver               memory of closed buffers, ready for the next; see device.Keeper
//	artifacts                programs that are kept: bounded by the controller, see its Limits.Store
//
// Other workers of the host map blocks and the driver's memory, to read arrays of collectives where they lie. That
// keeps none of it from going back to the system (transport/collective/lent.go), so it is counted here alone.
//
// Blocks and what is being assembled are also counted for the session whose operation they belong to.

// hostMemory counts the bytes that are being assembled.
type hostMemory struct {
	mu      sync.Mutex // guards the rest
	bytes   int64
	session map[uint32]int64
}

func (h *hostMemory) add(session uint32, bytes int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.bytes += bytes
	if n := h.session[session] + bytes; n != 0 {
		h.session[session] = n
	} else {
		delete(h.session, session)
	}
}

// pinned is host memory for a session's operation, which a driver may read and write.
func (w *Worker) pinned(session uint32, size int64) transport.Block {
	data := make([]byte, size)
	if size == 0 {
		return transport.Block{Data: data, Release: func() {}}
	}
	p := new(runtime.Pinner)
	p.Pin(&data[0])
	w.host.add(session, size)
	return transport.Block{Data: data, Release: func() {
		p.Unpin()
		w.host.add(session, -size)
	}}
}

// room is memory for an array of a session's operation, parts of which come from these processes, or none. It is warm
// memory of the exchange, which the senders on this host write to, unless arrays have much of that already.
func (w *Worker) room(session uint32, size int64, peers []uint64) transport.Block {
	if b, ok := w.config.Exchange.Room(transport.Transfers(session), size, peers); ok {
		return b
	}
	return w.pinned(session, size)
}

// HostMemory returns the host memory of this worker, by kind.
func (w *Worker) HostMemory() *wire.HostMemory {
	w.host.mu.Lock()
	m, sessions := &wire.HostMemory{Assembling: w.host.bytes}, maps.Clone(w.host.session)
	w.host.mu.Unlock()
	w.artifacts.mu.Lock()
	m.Programs = w.artifacts.bytes + content.Used()
	w.artifacts.mu.Unlock()
	if w.config.Memory != nil {
		x := w.config.Memory()
		m.Free, m.Limit, m.Lent = x.Free, x.Limit, x.Lent
		for space, bytes := range x.Used {
			session, isSession := transport.SessionOf(space)
			switch {
			case isSession:
				m.Blocks += bytes
				sessions[session] += bytes
			case space == transport.Contents():
				m.Programs += bytes
			default:
				m.Collectives += bytes
			}
		}
	}
	if k, ok := w.driver.(device.Keeper); ok {
		m.Free += k.Kept()
	}
	for _, session := range slices.Sorted(maps.Keys(sessions)) {
		m.Sessions = append(m.Sessions, &wire.HostShare{Session: session, Bytes: sessions[session]})
	}
	return m
}
