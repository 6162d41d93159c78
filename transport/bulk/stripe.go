package bulk

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"io"
	"net"
	"slices"
	"time"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport/stream"
)

// moveTime is how long a piece that was begun may not move, where the options name no bound.
const moveTime = 30 * time.Second

// stripeTime is how long a connection may outlive a stripe that broke.
const stripeTime = time.Second

// A stripe is a TCP connection of a link that carries long blocks, in pieces, in both directions. The side that dialed
// the link makes the stripes, when the first long block is offered. They belong to a carrier, and end with it.
//
// # What is guaranteed, and why
//
// Each byte of a block is sent once over a carrier: piece takes it from the block's end of what was given, under the
// peer's mu, for one stripe alone. So pieces of one block never overlap, whichever stripes they go over, and the
// receiver may write each where it belongs without asking what came before. begin counts what pieces have begun: a peer
// that sends more than a block has, or outside of it, is lost.
//
// The end of a block (kindWritten, on the link) is sent when all of its pieces have been written, by sent. It can
// overtake the last pieces, which travel on other connections, so the receiver waits for its own count as well.
//
// Long blocks take turns: a block that has more to send goes to the end of sending after each piece, so a short one
// waits for a piece of each other block, and not for the whole of any.
//
// Memory of a block is released only when no stripe writes into it or reads from it: pieces and writing count those
// that do, and settle waits for them.
//
// A full line has one stripe: see line.
//
// A stripe is silent where there is nothing to send: whether the peer lives shows on the link. A piece that was begun
// has to move, by the deadlines of the socket: a peer that stops in the middle of one breaks the stripe, and one that
// is slow does not (see steady.go).

// reach begins to make stripes, where this is the side that does. The peer's mu is
// held.
func (l *link) reach() {
	c := l.carrier
	if l.shared || l.accepted || c == nil || c.dialing || l.peer.lost != nil {
		return
	}
	c.dialing = true
	l.x.running.Go(func() {
		for range streams {
			if err := l.dial(c); err != nil {
				l.broke(c, err)
				return
			}
		}
	})
}

func (l *link) dial(c *carrier) error {
	ctx, cancel := context.WithTimeout(l.x.ctx, l.x.config.DialTime)
	defer cancel()
	o := l.x.config.Options
	o.Heartbeat = 0 // what follows is no message
	conn, err := l.peer.connect(ctx, l.address, o)
	if err != nil {
		return err
	}
	if err := l.x.announce(conn, kindStream, l.token); err != nil {
		return err
	}
	return l.addStripe(c, conn, 0)
}

// addStripe makes a stripe of a connection, which it owns. The last message on it
// tells a peer that dialed; 0 is none.
func (l *link) addStripe(c *carrier, conn *stream.Conn, last wire.Kind) error {
	if l.shared {
		conn.Close()
		return wrong("a stream for a link with shared memory")
	}
	socket, rest, err := conn.Detach(last, l.token[:])
	if err != nil {
		conn.Close()
		return err
	}
	if err := l.join(c, socket, bytes.Clone(rest)); err != nil {
		socket.Close()
		return err
	}
	return nil
}

// join adds a stripe, of which rest was read already, to a connection.
func (l *link) join(c *carrier, socket net.Conn, rest []byte) error {
	l.peer.mu.Lock()
	defer l.peer.mu.Unlock()
	switch {
	case l.peer.lost != nil:
		return l.peer.lost
	case c == nil || c.over:
		return status.New(status.Unavailable, "the connection of the stream has broken")
	case len(c.stripes) >= maxStreams:
		return wrong("more than %d streams", maxStreams)
	}
	c.stripes = append(c.stripes, socket)
	first := len(c.stripes) == 1
	c.running.Add(2)
	l.x.running.Go(func() {
		defer c.running.Done()
		err := l.readStripe(socket, rest)
		if status.CodeOf(err) == status.InvalidArgument {
			l.lost(err)
		} else {
			l.broke(c, status.New(status.Unavailable, "a stream from it broke: %w", err))
		}
	})
	l.x.running.Go(func() {
		defer c.running.Done()
		if err := l.writeStripe(c, socket, first); err != nil {
			l.broke(c, status.New(status.Unavailable, "a stream to it broke: %w", err))
		}
	})
	return nil
}

// broke is told that a stripe has. If the peer has gone, the connection says soon how.
func (l *link) broke(c *carrier, why error) {
	l.peer.mu.Lock()
	over := c.over
	l.peer.mu.Unlock()
	if over {
		return
	}
	time.AfterFunc(stripeTime, func() { l.breaks(c, why) })
}

// spread sends the bytes of a block over the stripes. The peer's mu is held, and
// writing is set.
func (t *outgoing) spread() {
	if t.size == 0 {
		t.writing = false
		t.end()
		t.settle()
		return
	}
	if t.stale {
		return
	}
	t.link.sending = append(t.link.sending, t)
	t.link.more.Broadcast()
}

// piece takes the next piece to send. It waits until there is one, and the line has room for another stripe than the
// first, or the carrier is over.
func (l *link) piece(c *carrier, first bool) (t *outgoing, offset, size int64) {
	l.peer.mu.Lock()
	defer l.peer.mu.Unlock()
	for (len(l.sending) == 0 || c.full && !first) && !c.over {
		l.more.Wait()
	}
	if c.over {
		return nil, 0, 0
	}
	t = l.sending[0]
	l.sending[0] = nil
	l.sending = l.sending[1:]
	offset = t.given
	size = min(int64(chunk), t.size-offset)
	t.pieces++
	if t.given += size; t.given < t.size {
		l.sending = append(l.sending, t)
	}
	return t, offset, size
}

// skip leaves out the pieces that were not begun.
func (t *outgoing) skip() {
	t.given = t.size
	t.link.sending = slices.DeleteFunc(t.link.sending, func(other *outgoing) bool { return other == t })
	t.sent()
}

// sent looks whether all pieces have ended. The peer's mu is held.
func (t *outgoing) sent() {
	if t.given < t.size || t.pieces > 0 {
		return
	}
	t.writing = false
	if t.err == nil {
		t.end()
	}
	t.settle()
}

func (l *link) writeStripe(c *carrier, socket net.Conn, first bool) error {
	header := make([]byte, chunkHeader)
	var runs net.Buffers
	var scratch []byte
	line, bound := l.x.line(socket), cmp.Or(l.x.config.Options.WriteTime, moveTime)
	for {
		t, offset, size := l.piece(c, first)
		if t == nil {
			return nil
		}
		binary.LittleEndian.PutUint64(header, t.n)
		binary.LittleEndian.PutUint64(header[8:], uint64(offset))
		binary.LittleEndian.PutUint32(header[16:], uint32(size))
		runs = append(runs[:0], header)
		if isVector(socket, t.lies) {
			runs = t.lies.Slices(runs, t.bytes, offset, size)
		} else {
			scratch = gather(scratch, t.bytes, t.lies, offset, size)
			runs = append(runs, scratch)
		}
		err := writeSteadily(socket, runs, bound)
		full := line.isFull()
		l.peer.mu.Lock()
		if first && full != c.full {
			c.full = full
			l.more.Broadcast()
		}
		t.pieces--
		t.sent() // the peer asks again for what did not arrive
		l.peer.mu.Unlock()
		if err != nil {
			return err
		}
	}
}

func (l *link) readStripe(socket net.Conn, rest []byte) error {
	bound := cmp.Or(l.x.config.Options.FrameTime, moveTime)
	from := &steady{socket: socket, from: io.MultiReader(bytes.NewReader(rest), socket)}
	if len(rest) == 0 {
		from.from = socket
	}
	header := make([]byte, chunkHeader)
	var nowhere, scratch []byte
	for {
		// The first byte may take long to come, the bytes after it may not.
		from.bound = 0
		got, err := from.Read(header)
		if err != nil {
			return err
		}
		from.bound = bound
		if _, err := io.ReadFull(from, header[got:]); err != nil {
			return err
		}
		n, offset, size := binary.LittleEndian.Uint64(header), binary.LittleEndian.Uint64(header[8:]),
			int64(binary.LittleEndian.Uint32(header[16:]))
		t, err := l.begin(n, offset, size)
		if err != nil {
			return err
		}
		if t != nil {
			scratch, err = scatter(from, scratch, t.into, t.at, int64(offset), size)
			l.peer.mu.Lock()
			t.writing--
			if err == nil {
				t.got += size
			}
			t.settle()
			l.peer.mu.Unlock()
		} else { // it failed here
			if nowhere == nil {
				nowhere = make([]byte, 64<<10)
			}
			for size > 0 && err == nil {
				var n int
				n, err = from.Read(nowhere[:min(size, int64(len(nowhere)))])
				size -= int64(n)
			}
		}
		if err != nil {
			return err
		}
	}
}

// begin records that a piece begins to come, and returns its block; nil if the piece is to be skipped.
func (l *link) begin(n, offset uint64, size int64) (*incoming, error) {
	l.peer.mu.Lock()
	defer l.peer.mu.Unlock()
	t := l.incoming[n]
	switch {
	case t == nil || t.err != nil:
		return nil, nil
	case !t.granted || offset > uint64(t.size) || size > t.size-int64(offset) || size > t.size-t.begun:
		return nil, wrong("%d bytes at %d of block %d, which has %d", size, offset, n, t.size)
	}
	t.writing++
	t.begun += size
	return t, nil
}
