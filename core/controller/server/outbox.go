package server

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/openpathways/pathways/core/controller"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
)

const (
	// directBytes that wait in a connection are few enough for Send not to wait:
	// below any connection's bound.
	directBytes = 1 << 20
	// linkBytes is the same for a connection of transport/link, which keeps what it sends.
	linkBytes = 512 << 10
	// maxOutbox bounds what waits for a peer that reads too slowly. It is more than the largest program together with
	// everything that sessions may have under way.
	maxOutbox = 256 << 20
	// endTime is how long the peer of a connection that ends may take to read what was sent.
	endTime = 5 * time.Second
)

// outbox sends to a connection without ever waiting for it. As long as the connection has room, messages go straight to
// it. Otherwise they wait here, in order, for a goroutine that lives until all are sent. A peer that lets too much pile
// up here is dropped. Calls of put and end are serialized by the caller.
type outbox struct {
	conn    transport.Conn
	pending func() int        // bytes that wait in the connection
	direct  int               // directBytes, or linkBytes
	later   transport.Batcher // conn, or nil
	running *sync.WaitGroup
	room    int // bytes that the connection takes before it is asked again, see hasRoom

	// A goroutine sends, or start has yet to be called. It becomes true in put alone, so put needs no lock while it is
	// false.
	busy atomic.Bool

	mu     sync.Mutex
	frames []frame
	bytes  int
	ended  bool        // changed by put and end alone
	late   *time.Timer // of an end that waits for the goroutine
}

type frame struct {
	kind    wire.Kind
	payload []byte
	own     []byte           // behind payload
	late    *controller.Late // in place of payload, or nil
}

// encodedOnce returns l with an encoding that all its receivers share: the first one's goroutine encodes it. It returns
// nil if l is nil.
func encodedOnce(l *controller.Late) *controller.Late {
	if l == nil {
		return nil
	}
	return &controller.Late{Size: l.Size, Encode: sync.OnceValue(l.Encode)}
}

// open begins an outbox. Messages are sent from start on.
func (o *outbox) open(in *transport.Incoming, running *sync.WaitGroup) {
	o.conn, o.running, o.direct = in.Conn, running, directBytes
	o.busy.Store(true)
	if _, ok := in.Conn.(transport.Watched); ok {
		o.direct = linkBytes
	}
	if c, ok := in.Conn.(interface{ Pending() int }); ok {
		o.pending = c.Pending
	}
	o.later, _ = in.Conn.(transport.Batcher)
}

// start sends what was put so far, and everything that follows.
func (o *outbox) start() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.frames) > 0 || o.ended {
		o.running.Go(o.drain)
	} else {
		o.busy.Store(false)
	}
}

// put sends a copy of payload, or, in its place, a message that the goroutine encodes, and reports whether it waits for
// a flush of the connection. The connection's reader notices errors. A message that is too long for a frame ends the
// connection, and the peer is told why; that short goodbye is the only message that is encoded under the lock.
func (o *outbox) put(kind wire.Kind, payload []byte, l *controller.Late) (waits bool) {
	if o.ended {
		return false
	}
	if size := len(payload); l == nil && size <= wire.MaxFrame && !o.busy.Load() && o.hasRoom(size) {
		if o.later != nil {
			_ = o.later.Later(kind, payload)
			return true
		}
		_ = o.conn.Send(kind, payload)
		return false
	}
	if l == nil {
		payload = append([]byte(nil), payload...) // it may change
	}
	o.putBehind(frame{kind: kind, payload: payload, late: l})
	return false
}

// putParts is put of a message in two parts, which do not change; the goroutine puts them together.
func (o *outbox) putParts(kind wire.Kind, head, own []byte) {
	if !o.ended {
		o.putBehind(frame{kind: kind, payload: head, own: own})
	}
}

// putBehind puts a frame that waits for the goroutine.
func (o *outbox) putBehind(f frame) {
	o.mu.Lock()
	defer o.mu.Unlock()
	size := len(f.payload) + len(f.own)
	if f.late != nil {
		size = f.late.Size
	}
	if size > wire.MaxFrame { // State sends none; a peer that waited for it would wait for good
		why := wire.Encode(nil, &wire.Goodbye{Status: wire.Of(status.Wrap(wire.TooLong(f.kind, size, wire.MaxFrame),
			"the controller cannot answer"))})
		f, size = frame{kind: wire.KindGoodbye, payload: why}, len(why)
		defer o.finish()
	}
	if o.bytes += size; o.bytes > maxOutbox {
		o.frames = nil
		o.finish()
		return
	}
	o.frames = append(o.frames, f)
	o.room = 0 // which does not count what the goroutine sends
	if !o.busy.Load() {
		o.busy.Store(true)
		o.running.Go(o.drain)
	}
}

// hasRoom reports whether Send would not wait, and then counts a frame of that size as sent. The bytes that wait in the
// connection grow only by what is sent here, and by drain, which leaves no room. So the connection, which needs its
// lock to answer, is asked only when as much was sent as it had room for.
func (o *outbox) hasRoom(size int) bool {
	if o.room <= 0 && o.pending != nil {
		o.room = o.direct - o.pending()
	}
	if o.room <= 0 {
		return false
	}
	o.room -= wire.Header + size
	return true
}

func (o *outbox) drain() {
	for {
		o.mu.Lock()
		frames := o.frames
		o.frames, o.bytes = nil, 0
		if len(frames) == 0 {
			o.busy.Store(false)
			ended, late := o.ended, o.late
			o.mu.Unlock()
			if ended {
				if late != nil {
					late.Stop()
				}
				o.conn.Close()
			}
			return
		}
		o.mu.Unlock()
		for _, f := range frames {
			if o.conn.Send(f.kind, f.bytes()) != nil {
				break
			}
		}
	}
}

// end closes the connection when everything that was put has been sent.
func (o *outbox) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.finish()
}

func (o *outbox) finish() {
	if o.ended {
		return
	}
	o.ended = true
	if !o.busy.Load() {
		o.running.Go(func() { o.conn.Close() })
		return
	}
	o.late = time.AfterFunc(endTime, func() { o.conn.Close() }) // drain learns of it
}

// bytes returns what is sent.
func (f *frame) bytes() []byte {
	if f.late != nil {
		return f.late.Encode()
	}
	if f.own != nil {
		return slices.Concat(f.payload, f.own)
	}
	return f.payload
}
