package inproc

import (
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport"
)

var _ transport.Batcher = (*Conn)(nil)

// Later implements transport.Batcher.
func (c *Conn) Later(kind wire.Kind, payload []byte) error { return c.send(kind, payload, waits|later) }

// Join implements transport.Batcher.
func (c *Conn) Join(kind wire.Kind, payload []byte, held bool) error {
	return c.send(kind, payload, joining(held)|waits)
}

// PostLater is Later that never waits for room.
func (c *Conn) PostLater(kind wire.Kind, payload []byte) error { return c.send(kind, payload, later) }

// PostJoin is Join that never waits for room.
func (c *Conn) PostJoin(kind wire.Kind, payload []byte, held bool) error {
	return c.send(kind, payload, joining(held))
}

func joining(held bool) how {
	if held {
		return joins | later
	}
	return joins
}

// Flush implements transport.Batcher.
func (c *Conn) Flush(bool) {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	c.out.flush()
}
