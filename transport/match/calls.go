package match

import "sync"

// Calls makes callbacks one after the other, in order, on a goroutine that is
// there as long as there are any. The zero value is ready.
type Calls struct {
	mu      sync.Mutex
	next    []func()
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

func (c *Calls) run() {
	var now []func()
	for {
		c.mu.Lock()
		clear(now)
		now, c.next = c.next, now[:0]
		if len(now) == 0 {
			c.running = false
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
		for _, f := range now {
			f()
		}
	}
}
