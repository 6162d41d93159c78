package stream

// Pending is the number of bytes that wait for the writer. Send waits where there
// are Config.MaxPending.
func (c *Conn) Pending() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.pending)
}

// Room blocks until fewer than n bytes wait for the writer, or nothing can be sent any more.
func (c *Conn) Room(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.pending) >= n && c.err == nil && !c.closing {
		if c.idle { // what fills it was for later, and its Flush may come from the caller
			c.writeOrWake(false)
		}
		c.room.Wait()
	}
}
