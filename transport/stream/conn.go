package stream

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
)

// A Conn sends frames, whole and in the order in which send took mu, and receives the peer's in the peer's order. A
// send that returned nil promises no more: the frame is written unless the connection breaks first. What must survive
// that is numbered, kept and sent again by a protocol above, such as transport/resume.
//
// # Why frames never mix
//
// A send appends a whole frame to pending, under mu. One goroutine at a time writes to the socket. That is the writer,
// which takes all of pending under mu and writes it without. While it sleeps (idle, under mu) everything that it took
// has been written, and the holder of mu may write in its place: writeOrWake does, for a message on a quiet connection,
// and wakes the writer for what the socket did not take. A file belongs to the byte at its offset of pending; the
// writer alone sends those, so a file never passes its message.
//
// # What bounds memory and waits
//
// pending grows to MaxPending, and one message more; then Send waits for room, which the writer makes whenever it takes
// pending. Post does not wait: its callers read from the peer, and two that waited for each other would never go on;
// their own protocols bound them. The lock is held for no system call but writeOrWake's, on a socket that never blocks.
//
// # How it ends
//
// err is set once, under mu, and is the answer to every later Send. What ends it:
//
//	Close    closing: nothing more is accepted, the writer writes what is pending and ends, in CloseTime at most
//	fail     the peer is silent, broke the protocol or closed, or Close is over: the socket is closed, which ends a
//	         read and a write under way
//	deaf     a write failed: the socket stays open (hears), because what the peer said last may tell why; Recv ends
//	         with it
//	Detach   the writer has ended, and the socket is the caller's (detached)
//
// Whatever waits ends with these: each sets err or closing and wakes the writer (work) and senders (room). The timer
// looks as long as the connection can end by it: a peer that takes nothing, says nothing or stops inside a frame is
// lost, so every write and every Recv ends.

// Conn is a transport.Conn over a socket.
type Conn struct {
	net    net.Conn
	quiet  *quiet // in the place of net, if that is a unix socket
	peer   string
	config Config

	mu       sync.Mutex // guards all up to watch
	work     sync.Cond  // the writer waits for something to write
	room     sync.Cond  // Send waits for room
	pending  []byte     // frames for the next write
	burst    wire.Burst // the last of them
	direct   direct     // writes by Send itself
	files    []passed   // files that go with them
	idle     bool       // the writer waits in work
	closing  bool       // nothing more is sent; the writer ends when pending is empty
	spoke    bool       // this side has sent a message, or read the peer's Hello: heartbeats may follow
	err      error      // why the connection has ended
	hears    bool       // err is that of a write: what the peer said before is still received
	detached bool       // the socket is Detach's caller's
	timer    *time.Timer
	watch    watch

	spare  []byte        // the writer's: the buffer it wrote last, to be pending next
	ended  chan struct{} // closed when the writer has ended
	detach bool          // the socket outlives the writer
	shut   func()        // closes the socket, once
	gone   chan struct{} // closed when the socket is

	wrote atomic.Uint64 // writes that have ended
	busy  atomic.Bool   // a write is under way

	reader reader
}

// passed is a file that leaves with the byte at an offset of pending.
type passed struct {
	at, fd int
}

// watch is what the timer saw last, and when that changed.
type watch struct {
	looked                 time.Time
	wrote, read, frames    uint64
	sent, moved, got, done time.Time
}

// New makes a Conn of a socket, which it owns from now on. Trusted is true where
// the other side need not be let in by Greet or Incoming first. It sends no heartbeat
// before its first message: a listener expects a Hello, and reads nothing else.
func New(socket net.Conn, peer string, config Config, trusted bool) *Conn {
	return newConn(socket, peer, config, trusted, nil)
}

// newConn is New of a socket of which something was read, which is received first.
func newConn(socket net.Conn, peer string, config Config, trusted bool, begin []byte) *Conn {
	c := &Conn{net: socket, peer: peer, config: config.filled(), spoke: begin != nil, ended: make(chan struct{}),
		gone: make(chan struct{})}
	raw, shut := rawOf(socket), socket.Close
	if local, ok := socket.(*net.UnixConn); ok {
		if q, err := quieted(local); err != nil {
			c.err = c.lost(err)
		} else {
			c.quiet, raw, shut = q, q, q.Close
		}
	}
	c.shut = sync.OnceFunc(func() {
		_ = shut()
		close(c.gone)
		c.reader.release()
	})
	c.work.L, c.room.L = &c.mu, &c.mu
	c.reader.init(c, raw, trusted, begin)
	c.direct.init(raw)
	now := time.Now()
	c.watch = watch{looked: now, sent: now, moved: now, got: now, done: now}
	c.mu.Lock()
	c.timer = time.AfterFunc(c.config.tick(), c.look)
	c.mu.Unlock()
	go c.write()
	return c
}

// Peer is the address of the other side.
func (c *Conn) Peer() string { return c.peer }

// Greeted sets the bound of frames to that of a peer which has been let in.
func (c *Conn) Greeted(atMost int) { c.reader.max.Store(int64(min(c.config.MaxFrame, atMost))) }

// Send implements transport.Conn.
func (c *Conn) Send(kind wire.Kind, payload []byte) error {
	return c.send(kind, payload, -1, waits)
}

// Post is Send that never waits for room: for those who read from the peer and
// must not wait for it, and whose protocol bounds what they send.
func (c *Conn) Post(kind wire.Kind, payload []byte) error {
	return c.send(kind, payload, -1, 0)
}

// PassesFiles reports whether files can be passed.
func (c *Conn) PassesFiles() bool {
	return c.quiet != nil
}

// PostFile is Post of a message and an open file with it, over a unix socket.
// The peer takes the file with File after it received the message. The caller may
// close the file when PostFile has returned.
func (c *Conn) PostFile(kind wire.Kind, payload []byte, file *os.File) error {
	if !c.PassesFiles() {
		return status.New(status.FailedPrecondition, "a file cannot be passed to %s: only unix sockets pass files", c.peer)
	}
	fd, err := duplicate(file)
	if err != nil {
		return status.New(status.Internal, "a file cannot be passed to %s: %w", c.peer, err)
	}
	if err := c.send(kind, payload, fd, 0); err != nil {
		syscall.Close(fd)
		return err
	}
	return nil
}

// duplicate opens a file once more.
func duplicate(file syscall.Conn) (fd int, err error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return 0, err
	}
	if e := raw.Control(func(old uintptr) { fd, err = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) }); e != nil {
		return 0, e
	}
	return fd, err
}

// how a message is sent.
type how uint8

const (
	waits how = 1 << iota // for room
	later                 // not written yet
	joins                 // may be in one message with others
)

// send queues a message, and a file with it unless fd is -1, and has it written
// unless it is for later.
func (c *Conn) send(kind wire.Kind, payload []byte, fd int, how how) error {
	if len(payload) > wire.MaxFrame {
		return wire.TooLong(kind, len(payload), wire.MaxFrame)
	}
	if len(payload) > c.config.MaxFrame || kind == 0 {
		return status.New(status.InvalidArgument,
			"a message of kind %v with %d bytes cannot be sent: at most %d bytes, and no kind 0", kind, len(payload),
			c.config.MaxFrame)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for how&waits != 0 && len(c.pending) >= c.config.MaxPending && c.err == nil && !c.closing {
		if c.idle { // what fills it was for later, and its Flush may come from the goroutine that waits here
			c.writeOrWake(false)
		}
		c.room.Wait()
	}
	if c.err != nil {
		return c.err
	}
	if c.closing {
		return c.closedHere()
	}
	if fd >= 0 {
		c.files = append(c.files, passed{len(c.pending), fd})
	}
	c.spoke = true
	c.pending = c.burst.Append(c.pending, kind, payload, how&joins != 0)
	if c.idle && how&later == 0 {
		c.writeOrWake(fd < 0 && c.direct.due())
	}
	return nil
}

func (c *Conn) closedHere() error {
	return status.New(status.Cancelled, "the connection to %s was closed on this side", c.peer)
}

// write is the writer. It takes all that is pending at once, so that a burst costs few system calls; the buffer that it
// wrote before becomes pending meanwhile.
func (c *Conn) write() {
	defer close(c.ended)
	for {
		c.mu.Lock()
		for len(c.pending) == 0 && c.err == nil && !c.closing {
			c.idle = true
			c.work.Wait()
		}
		c.idle = false
		if c.err != nil || len(c.pending) == 0 {
			c.mu.Unlock()
			break
		}
		out, files := c.pending, c.files
		c.pending, c.files = c.spare[:0], nil
		c.burst.Left()
		c.room.Broadcast()
		c.mu.Unlock()

		c.busy.Store(true)
		err := c.put(out, files)
		closeAll(files)
		c.wrote.Add(1)
		c.busy.Store(false)
		if err != nil {
			c.deaf(c.lost(err))
			break
		}
		if c.spare = out; cap(out) > keepSize {
			c.spare = nil
		}
	}
	c.mu.Lock()
	files := c.files
	c.files = nil
	c.mu.Unlock()
	closeAll(files) // Send adds none: it fails, or is closing
	if !c.detach && c.failure() == nil {
		c.fail(c.closedHere())
	}
}

func closeAll(files []passed) {
	for _, f := range files {
		syscall.Close(f.fd)
	}
}

// put writes a buffer, in pieces that progress is counted by.
func (c *Conn) put(out []byte, files []passed) error {
	at := 0
	for i := 0; i <= len(files); i++ {
		end := len(out)
		if i < len(files) {
			end = files[i].at
		}
		for at < end {
			n, err := c.some(out[at:min(end, at+pieceSize)])
			at += n
			c.wrote.Add(1)
			if err != nil {
				return err
			}
		}
		if i < len(files) {
			n, err := c.quiet.send(out[at:at+header], syscall.UnixRights(files[i].fd))
			at += n
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// some writes some of the bytes.
func (c *Conn) some(out []byte) (n int, err error) {
	if c.quiet != nil {
		return c.quiet.send(out, nil)
	}
	return c.net.Write(out)
}

// Close implements transport.Conn.
func (c *Conn) Close() error {
	c.mu.Lock()
	if !c.closing && c.err == nil {
		c.closing = true
		c.work.Signal()
		c.room.Broadcast()
	}
	c.mu.Unlock()
	late := time.NewTimer(c.config.CloseTime)
	defer late.Stop()
	select {
	case <-c.ended:
	case <-late.C:
		c.fail(c.closedHere())
		<-c.ended
	}
	c.fail(c.closedHere())
	return nil
}

// Drop is Close that writes nothing any more: for a connection that has broken.
func (c *Conn) Drop() { c.fail(c.closedHere()) }

// Detach ends the connection but not its socket, which it returns with the bytes that were read and not received.
// Nothing may be in Recv. The last message, unless its kind is 0, is what the connection sends behind all others: no
// heartbeat follows. A side that detaches without one, after a message of the peer, must send no heartbeats from the
// start.
func (c *Conn) Detach(last wire.Kind, payload []byte) (net.Conn, []byte, error) {
	c.mu.Lock()
	if c.err != nil {
		defer c.mu.Unlock()
		return nil, nil, c.err
	}
	if last != 0 {
		c.pending = wire.AppendFrame(c.pending, last, payload)
	}
	c.closing, c.detach = true, true
	c.work.Signal()
	c.mu.Unlock()
	<-c.ended
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return nil, nil, c.err
	}
	c.err, c.detached = c.closedHere(), true
	c.reader.release()
	c.timer.Stop()
	socket := c.net
	if c.quiet != nil {
		var err error
		if socket, err = c.quiet.loud(); err != nil {
			return nil, nil, c.lost(err)
		}
	}
	return socket, c.reader.rest(), nil
}

// deaf ends the sending half, because the peer takes nothing any more. It may have
// said why, which Recv returns before it fails.
func (c *Conn) deaf(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err, c.hears = err, true
		c.room.Broadcast()
	}
}

// fail ends the connection, and the socket has been closed when it returns. The
// first error stays.
func (c *Conn) fail(err error) {
	c.mu.Lock()
	if c.err == nil || c.hears {
		if c.err == nil {
			c.err = err
		}
		c.hears = false
		c.timer.Stop()
		c.work.Signal()
		c.room.Broadcast()
	}
	gone := c.detached
	c.mu.Unlock()
	if !gone {
		c.shut()
	}
}

// failure is why the connection has ended, or nil.
func (c *Conn) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// lost puts a socket's error into words.
func (c *Conn) lost(err error) error {
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return transport.LostPeer(c.peer, transport.Ended)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return transport.LostPeer(c.peer, "closed the connection in the middle of a message")
	}
	return status.New(status.Unavailable, "the connection to %s failed: %w", c.peer, err)
}

// beat has heartbeats go at least as often as this, if there are any, and allows the peer as long a silence if
// Config.Follows is set; 0 changes nothing.
func (c *Conn) beat(every, silence time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := &c.config
	if every > 0 && every < o.Heartbeat {
		o.Heartbeat = every
	}
	if o.Follows && silence > 0 {
		o.Silence = silence
	}
	if c.err == nil && !c.detached {
		c.timer.Reset(o.tick())
	}
}

// look is the timer's: it sends a heartbeat, and ends a connection whose peer is
// silent, does not read, or does not end a frame.
func (c *Conn) look() {
	now := time.Now()
	wrote, read, frames := c.wrote.Load(), c.reader.reads.Load(), c.reader.frames.Load()
	busy, inside, reading := c.busy.Load(), c.reader.inside.Load(), c.reader.reading.Load()

	c.mu.Lock()
	if c.err != nil && !c.hears {
		c.mu.Unlock()
		return
	}
	w, o := &c.watch, &c.config
	if late := now.Sub(w.looked) - 2*o.tick(); late > 0 {
		// This process did not run: it is not the peer that was silent.
		w.sent, w.moved, w.got, w.done = w.sent.Add(late), w.moved.Add(late), w.got.Add(late), w.done.Add(late)
	}
	w.looked = now
	if wrote != w.wrote {
		w.wrote, w.sent, w.moved = wrote, now, now
	} else if !busy {
		w.moved = now
	}
	if read != w.read || !reading {
		w.read, w.got = read, now
	}
	if frames != w.frames || !inside {
		w.frames, w.done = frames, now
	}
	var err error
	switch {
	case o.Silence > 0 && now.Sub(w.got) >= o.Silence:
		err = transport.LostPeer(c.peer, "has been silent for %v; it has stopped, hangs, or the network is cut", o.Silence)
	case now.Sub(w.moved) >= o.WriteTime:
		err = transport.LostPeer(c.peer, "has read nothing for %v; it has stopped or hangs", o.WriteTime)
	case now.Sub(w.done) >= o.FrameTime:
		err = transport.LostPeer(c.peer, "began a message and did not end it in %v", o.FrameTime)
	}
	if err == nil && c.err == nil && o.Heartbeat > 0 && c.spoke && !busy && len(c.pending) == 0 && !c.closing &&
		now.Sub(w.sent) >= o.Heartbeat/2 {
		c.pending = wire.AppendFrame(c.pending, wire.KindHeartbeat, nil) // there is nothing before it to join
		if c.idle {
			c.idle = false
			c.work.Signal()
		}
	}
	c.timer.Reset(o.tick())
	c.mu.Unlock()
	if err != nil {
		c.fail(err)
	}
}
