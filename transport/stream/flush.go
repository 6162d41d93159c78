package stream

import "github.com/openpathways/pathways/core/wire"

// Later implements transport.Batcher: for those who send to many, or many to one,
// and say when that is all.
func (c *Conn) Later(kind wire.Kind, payload []byte) error {
	return c.send(kind, payload, -1, waits|later)
}

// Join implements transport.Batcher.
func (c *Conn) Join(kind wire.Kind, payload []byte, held bool) error {
	how := waits | joins
	if held {
		how |= later
	}
	return c.send(kind, payload, -1, how)
}

// PostLater is Later that never waits for room, as Post is Send.
func (c *Conn) PostLater(kind wire.Kind, payload []byte) error {
	return c.send(kind, payload, -1, later)
}

// PostJoin is Join that never waits for room.
func (c *Conn) PostJoin(kind wire.Kind, payload []byte, held bool) error {
	how := joins
	if held {
		how |= later
	}
	return c.send(kind, payload, -1, how)
}

// Flush implements transport.Batcher.
func (c *Conn) Flush(here bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.idle && len(c.pending) > 0 && c.err == nil {
		c.writeOrWake(here && c.direct.due())
	}
}

// writeOrWake has pending written while the writer waits: at once if here is true, else by the writer, which it wakes.
// Called with mu.
func (c *Conn) writeOrWake(here bool) {
	if here {
		if n := c.direct.write(c.pending); n > 0 {
			c.wrote.Add(1)
			c.burst.Left()
			if c.pending = c.pending[:copy(c.pending, c.pending[n:])]; len(c.pending) == 0 {
				return
			}
		}
	}
	c.idle = false
	c.work.Signal()
}
