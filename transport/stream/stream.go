// Package stream is transport.Conn over sockets: unix, TCP, and TLS 1.3 over
// TCP.
//
// A frame is a little-endian uint32, the length of the payload, then a byte, its
// kind (never 0), then the payload. Each connection has one writer: a goroutine
// that swaps the buffer Send appends to for an empty one and writes it whole, so
// that a burst of messages leaves in one write. The reader is the caller of Recv.
//
// # Guarantees
//
// Order is kept. What a peer sends cannot make this side hold more than a frame and a read buffer. Of frames that have
// yet to end, or are in use, the connections of a listener hold an allowance each, and beyond that two of the largest
// frames together; see pool. Memory grows as bytes come, not as they are announced. A peer that has yet to say hello
// holds a few KiB, and shuts no other out. A frame longer than allowed, of kind 0, cut short, or not ended in time, a
// peer that does not read, and one that is silent for too long each fail this connection and no other. One timer a
// connection watches all of these; no call sets a deadline.
//
// An address is "unix:/path" or "tcp:host:port". Sockets of unix have mode 0600.
// A TCP address that is not loopback needs TLS.
package stream

import (
	"time"

	"github.com/openpathways/pathways/core/wire"
)

// Bounds of frames.
const (
	header    = wire.Header
	readSize  = 64 << 10 // that a read takes at most,
	quietSize = 4 << 10  // and of a connection by which fewer bytes have come at a time, as of most to a controller
	keepSize  = 2 << 20  // the writer's buffers that grew past it are not kept
	pieceSize = 1 << 20  // of a write, by which progress is counted
)

// Config bounds a connection. Zero fields take the defaults.
type Config struct {
	MaxFrame   int // bytes of a payload; 64 MiB
	MaxPending int // bytes that wait for the writer before Send waits; 1 MiB
	// a connection that has sent nothing for so long sends KindHeartbeat, with no payload, which Recv passes over; 0 is
	// never
	Heartbeat time.Duration
	// a peer that sends nothing for so long is gone; 0 is never. Three times its Heartbeat is usual
	Silence time.Duration
	// the dialing side takes the Silence of the listening side, if that states one: a cluster's bound is set in one place
	Follows   bool
	FrameTime time.Duration // a frame that was begun ends within it; 30 s
	WriteTime time.Duration // a peer reads something within it, or is gone; 30 s
	CloseTime time.Duration // how long Close tries to write what was sent; 2 s
}

func (c Config) filled() Config {
	set := func(d *time.Duration, to time.Duration) {
		if *d == 0 {
			*d = to
		}
	}
	if c.MaxFrame == 0 {
		c.MaxFrame = largestFrame
	}
	if c.MaxPending == 0 {
		c.MaxPending = 1 << 20
	}
	set(&c.FrameTime, 30*time.Second)
	set(&c.WriteTime, 30*time.Second)
	set(&c.CloseTime, 2*time.Second)
	return c
}

// tick is how often a connection is looked at: bounds are kept to a fourth.
func (c Config) tick() time.Duration {
	t := min(c.FrameTime, c.WriteTime)
	if c.Heartbeat > 0 {
		t = min(t, 2*c.Heartbeat) // half a heartbeat, below
	}
	if c.Silence > 0 {
		t = min(t, c.Silence)
	}
	return max(t/4, time.Millisecond)
}
