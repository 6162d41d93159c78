package match

import "sync"

// Calls makes callbacks one after the other, in order, on a goroutine that is
// there as long as there are any. The zero value is ready.
type Calls struct {
	mu      sync.Mutex
	next    []func()
	spare   []func() // memory for next
	running bool
}

// Do makes a call soon. It never waits.
func (c *Calls) Do(f func()) {
	c.mu.Lock()
	c.next = append(c.next, f)
	start := !c.running
	c.running = true
	c.mu.Unlock()
	if start {
		go c.run()
	}
}

// Take has the calls of Do wait for Run, which the caller then owes, where there are
// none under way: for a caller that can make them itself, soon, which saves a goroutine.
func (c *Calls) Take() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running {
		return false
	}
	c.running = true
	return true
}

// Run makes the pending calls, and has a goroutine make those that come meanwhile.
func (c *Calls) Run() {
	if c.some() {
		go c.run()
	}
}

func (c *Calls) run() {
	for c.some() {
	}
}

// some makes the calls that there are, and reports whether there are more.
func (c *Calls) some() bool {
	c.mu.Lock()
	now := c.next
	c.next = c.spare[:0]
	c.mu.Unlock()
	for _, f := range now {
		f()
	}
	clear(now)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.spare = now
	c.running = len(c.next) > 0
	return c.running
}
