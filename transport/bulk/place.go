package bulk

import (
	"io"
	"net"

	"github.com/openpathways/pathways/core/shape/strided"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/transport"
)

// A block that is a part of an array is copied straight from its place in the source to its place in the destination:
// one copy on a host, and none between hosts but those of the sockets.
//
// On one host the array lies in a room: memory of the receiver that all senders of its parts map, and into which each
// writes its own. So a room is protected from its senders by what they are told alone, unlike other shared memory,
// which one peer writes to. A sender that was told to stop, or that is lost, may still be writing; the segment of its
// room then takes no new blocks, and goes back to the system with those that it has (shm.Segment.Retire). So what a
// sender writes late goes to the array that it was for, which has failed, or to no one.
//
// Between hosts the stripes read the runs of bytes of a piece in place, and write them to their destinations.

// Room implements transport.Exchange.
func (x *Exchange) Room(space uint64, size int64, peers []uint64) (transport.Block, bool) {
	if !x.Keeps(size) {
		return transport.Block{}, false
	}
	arena := x.arena
	for _, number := range peers {
		if p, err := x.find(number, false); err == nil && p.shares() {
			arena = x.rooms
		}
	}
	b, err := arena.MakeFor(space, int(size))
	if err != nil {
		return transport.Block{}, false
	}
	return transport.Block{Data: b.Data, Release: b.Release}, true
}

// Keeps implements transport.Mover.
func (x *Exchange) Keeps(size int64) bool { return x.pool.Keeps(size) }

// place has the peer write a block into the array that it is a part of, if that lies in a room. The peer's mu is held.
func (t *incoming) place() bool {
	l, e := t.link, t.expected
	if t.size == 0 {
		return false
	}
	s, offset := l.x.pool.Find(e.Into)
	if s == nil || !s.In(l.x.rooms) || l.rooms[s] == 0 && len(l.rooms) >= maxShared/2 {
		return false
	}
	if l.rooms[s] == 0 {
		l.roomed++
		if err := l.postFile(kindSegment, segmentFrame(roomNumber|l.roomed, s.Size), s.File); err != nil {
			t.fail(err)
			return true
		}
		l.rooms[s] = roomNumber | l.roomed
		s.Then(func() { l.withdraw(s, kindUnmap, l.rooms) })
	}
	t.room, t.granted = s, true
	l.postAbout(t.size, kindPlace, placeFrame(t.n, l.rooms[s], offset, e.At))
	return true
}

// roomNumber tells the numbers of rooms from those of segments for one peer.
const roomNumber = 1 << 31

// onPlace is onGrant of a part of an array.
func (l *link) onPlace(n uint64, segment uint32, offset int64, at strided.Layout) (then func(), err error) {
	if !l.shared || segment < roomNumber || at.Run == 0 {
		return nil, wrong("a place for block %d in shared memory %d", n, segment)
	}
	return l.onGrant(n, segment, offset, at)
}

// longRun is the size from which a run is read and written in place. The kernel takes some 30 ns for each run, in which
// a processor copies as much.
const longRun = 1 << 10

// isVector reports whether the runs of a layout go to a socket as they lie. TLS would send each by itself.
func isVector(socket net.Conn, at strided.Layout) bool {
	_, plain := socket.(*net.TCPConn)
	return at.IsDense() || plain && at.Run >= longRun
}

// gather returns bytes of a region, copied together into scratch, which it makes where it is nil.
func gather(scratch, memory []byte, at strided.Layout, offset, size int64) []byte {
	if scratch == nil {
		scratch = make([]byte, chunk)
	}
	scratch = scratch[:0]
	c := at.From(offset)
	for size > int64(len(scratch)) {
		from, n := c.Take(size - int64(len(scratch)))
		scratch = append(scratch, memory[from:from+n]...)
	}
	copied.Add(size)
	return scratch
}

// scatter reads bytes of a region into memory, by way of scratch where they are not contiguous. It returns scratch,
// which it makes if it was nil.
func scatter(socket io.Reader, scratch, memory []byte, at strided.Layout, offset, size int64) ([]byte, error) {
	if at.IsDense() {
		_, err := io.ReadFull(socket, memory[at.Offset+offset:at.Offset+offset+size])
		return scratch, err
	}
	if scratch == nil {
		scratch = make([]byte, scratchSize)
	}
	c := at.From(offset)
	for size > 0 {
		got, err := socket.Read(scratch[:min(size, scratchSize)])
		size -= int64(got)
		copied.Add(int64(got))
		for rest := scratch[:got]; len(rest) > 0; {
			to, n := c.Take(int64(len(rest)))
			copy(memory[to:], rest[:n])
			rest = rest[n:]
		}
		if err != nil && size > 0 {
			return scratch, status.New(status.Unavailable, "%w", err)
		}
	}
	return scratch, nil
}

// scratchSize fits into a processor's own cache, so that the bytes are still there when they are copied on.
const scratchSize = 256 << 10
