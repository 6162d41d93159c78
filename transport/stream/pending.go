package stream

// Pending is the number of bytes that wait for the writer. Send waits where there
// are Config.MaxPending.
func (c *Conn) Pending() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.pending)
}
