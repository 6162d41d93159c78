package stream

import "github.com/openpathways/pathways/core/wire"

// Later is Send of a message that may wait for Flush: for those who send to many,
// or many to one, and say when that is all. It leaves with Flush or with whatever
// else is sent.
func (c *Conn) Later(kind wire.Kind, payload []byte) error {
	return c.send(kind, payload, -1, true, true)
}

// Flush sees to it that what was sent leaves: here, as Send does, or by the
// connection's own goroutine.
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
