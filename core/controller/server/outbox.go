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
	// shortBytes are copied faster than a goroutine starts.
	shortBytes = 1 << 10
	// endTime is how long the peer of a connection that ends may take to read what was sent.
	endTime = 5 * time.Second
)

// outbox sends to a connection without ever waiting for it. As long as the connection has room, messages go straight
// to it. Otherwise they wait here, in order, until leave sends them, or starts a goroutine that lives until all are
// sent. A peer that lets too much pile up here is dropped.
//
// Calls of put, putBehind and end are serialized by a lock of the caller's. Any goroutine may call leave, without it.
type outbox struct {
	// Messages wait here, or start has yet to be called. It becomes true in putBehind alone, so put needs no lock while
	// it is false.
	busy  atomic.Bool
	ended bool // changed by put, putBehind and end alone, with mu

	mu      sync.Mutex
	sending bool // by begin or a goroutine, or start has yet to be called
	frames  []frame
	bytes   int
	late    *time.Timer // of an end that waits until all is sent

	conn    transport.Conn
	pending func() int        // bytes that wait in the connection
	direct  int               // directBytes, or linkBytes
	later   transport.Batcher // conn, or nil
	running *sync.WaitGroup
	room    int // bytes that the connection takes before it is asked again, see hasRoom
}

// frame is a message in an outbox. It is small, since thousands are put under the lock at a time.
type frame struct {
	*message
	own []byte // behind payload
}

// message is what is the same for all receivers of a message.
type message struct {
	kind    wire.Kind
	payload []byte
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
	o.sending = true
	if _, ok := in.Conn.(transport.Watched); ok {
		o.direct = linkBytes
	}
	if c, ok := in.Conn.(interface{ Pending() int }); ok {
		o.pending = c.Pending
	}
	o.later, _ = in.Conn.(transport.Batcher)
}

// start sends what was put so far, and everything that follows.
func (o *outbox) start() { o.drainApart(o.take()) }

// put sends a copy of payload, and reports whether the caller must call leave.
func (o *outbox) put(kind wire.Kind, payload []byte) (waits bool) {
	if o.ended {
		return false
	}
	if size := len(payload); size <= wire.MaxFrame && !o.busy.Load() && o.hasRoom(size) {
		if o.later != nil {
			_ = o.later.Later(kind, payload)
			return true
		}
		_ = o.conn.Send(kind, payload)
		return false
	}
	return o.putBehind(frame{message: &message{kind: kind, payload: slices.Clone(payload)}}, nil)
}

// putBehind puts a frame, which does not change, behind those that wait for leave, and reports whether the caller must
// call it. Room is for one frame, or nil. The connection's reader notices errors. A message that is too long for a
// frame ends the connection, and the peer is told why; that short goodbye is the only message that is encoded under the
// lock.
func (o *outbox) putBehind(f frame, room []frame) (waits bool) {
	if o.ended {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	size := len(f.payload) + len(f.own)
	if f.late != nil {
		size = f.late.Size
	}
	if size > wire.MaxFrame { // State sends none; a peer that waited for it would wait for good
		why := wire.Encode(nil, &wire.Goodbye{Status: wire.Of(status.Wrap(wire.TooLong(f.kind, size, wire.MaxFrame),
			"the controller cannot answer"))})
		f, size = frame{message: &message{kind: wire.KindGoodbye, payload: why}}, len(why)
		defer o.finish()
	}
	if o.bytes += size; o.bytes > maxOutbox {
		o.frames = nil
		o.finish()
		return !o.sending
	}
	if o.frames == nil {
		o.frames = room
	}
	o.frames = append(o.frames, f)
	o.room = 0 // which does not count what is sent from here
	o.busy.Store(true)
	return !o.sending
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

// leave has what waits for it sent, without the caller's lock: what is short by the caller, the rest by a goroutine. It
// flushes the connection; here is as in transport.Batcher.
func (o *outbox) leave(here bool) {
	if o.busy.Load() {
		o.begin()
	}
	if o.later != nil {
		o.later.Flush(here)
	}
}

// begin begins to send what waits, unless a goroutine sends or another caller has begun.
func (o *outbox) begin() {
	o.mu.Lock()
	if o.sending || !o.busy.Load() {
		o.mu.Unlock()
		return
	}
	o.sending = true
	short := o.bytes <= shortBytes
	o.mu.Unlock()
	frames := o.take()
	if short && o.later != nil && o.pending != nil && o.pending()+shortBytes <= o.direct {
		for i := range frames {
			_ = o.later.Later(frames[i].kind, frames[i].bytes())
		}
		frames = o.take()
	}
	o.drainApart(frames)
}

// take returns the frames that wait, for the caller to send. If there are none, it ends the sending.
func (o *outbox) take() []frame {
	o.mu.Lock()
	defer o.mu.Unlock()
	frames := o.frames
	o.frames, o.bytes = nil, 0
	if len(frames) == 0 {
		o.busy.Store(false)
		o.sending = false
		if o.ended {
			if o.late != nil {
				o.late.Stop()
			}
			o.close()
		}
	}
	return frames
}

// drainApart starts a goroutine that sends some frames, if there are any, and all that follow.
func (o *outbox) drainApart(frames []frame) {
	if len(frames) == 0 {
		return
	}
	o.running.Go(func() {
		for ; len(frames) > 0; frames = o.take() {
			for i := range frames {
				if o.conn.Send(frames[i].kind, frames[i].bytes()) != nil {
					break
				}
			}
		}
	})
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
		o.close()
		return
	}
	o.late = time.AfterFunc(endTime, func() { o.conn.Close() }) // take learns of it
}

// close closes the connection, which may take time.
func (o *outbox) close() { o.running.Go(func() { o.conn.Close() }) }

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
