package inproc

// Pending is the number of bytes that wait for the other end's Recv. Send waits
// where there are 4 MiB.
func (c *Conn) Pending() int {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	return c.out.waits()
}
