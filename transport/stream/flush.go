package stream

import "github.com/openpathways/pathways/core/wire"

// Later implements transport.Batcher: for those who send to many, or many to one,
// and say when that is all.
func (c *Conn) Later(kind wire.Kind, payload []byte) error {
	return c.send(kind, payload, -1, true, true)
}

// Flush implements transport.Batcher.
func (c *Conn) Flush(here bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.idle && len(c.pending) > 0 && c.err == nil {
		c.leave(here && c.direct.due())
	}
}

// leave has pending written while the writer waits, at once or by the writer.
// Called with mu.
func (c *Conn) leave(here bool) {
	if here {
		if n := c.direct.write(c.pending); n > 0 {
			c.wrote.Add(1)
			if c.pending = c.pending[:copy(c.pending, c.pending[n:])]; len(c.pending) == 0 {
				return
			}
		}
	}
	c.idle = false
	c.work.Signal()
}
