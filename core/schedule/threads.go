package schedule

import "slices"

// Threads is the policy for devices that are not queues but share one pool of
// threads, as those of XLA's CPU client do. A shard that waits in a collective
// keeps its thread, so two gangs that run side by side can each hold the threads
// that the other one needs and deadlock, in whatever order they were launched.
//
// Threads prevents that: it places gangs in the order of submission, and lets one run
// beside others only if the pool has a thread for every shard of all of them. A gang
// that reads, on each of its devices, an output of the last gang of a chain needs no
// threads of its own: its shards begin when those of that gang have ended. So a loop
// of steps, each of which reads the one before, is in flight as a whole, and two loops
// take turns.
//
// A gang whose shards do not wait for each other needs no threads of its own either:
// it is placed at once, or in its turn if it comes after a gang that is still queued.
//
// With Apart, each device without a gang in flight may have a thread held by other work: on a worker, by collectives
// with other workers, which take no turns. Then chains in flight have no device in common. So each device has at most
// one thread that waits, and the pool has a thread for each device.
type Threads struct {
	Pool  int // threads; at least as many as a gang has devices
	Apart bool

	free   []*Gang // can be placed at once
	queue  []*Gang // wait for their turn, in the order of submission
	chains []*chain
	of     map[uint64]*chain // by the ID of a gang that is placed and has not ended
	used   int               // threads that the gangs in flight need
}

// chain is a sequence of gangs in flight, each of which reads the one before.
type chain struct {
	tail  uint64 // the last gang placed
	on    mask   // devices of all gangs placed
	width int    // threads
	gangs int    // not ended
}

// Push implements Policy.
func (t *Threads) Push(g *Gang) {
	if !g.Collective && !slices.ContainsFunc(t.queue, func(q *Gang) bool { return slices.Contains(g.After, q.ID) }) {
		t.free = append(t.free, g)
		return
	}
	// The slice is the submitter's, and the gang may have to wait.
	g.Reads = slices.Clone(g.Reads)
	t.queue = append(t.queue, g)
}

// CanPass reports whether the gang's shards run without waiting for each other, and
// so need no threads of their own.
func (t *Threads) CanPass(_ uint32, collective bool) bool { return !collective }

// Pop implements Policy.
func (t *Threads) Pop() *Gang {
	if n := len(t.free) - 1; n >= 0 {
		g := t.free[n]
		t.free = t.free[:n]
		return g
	}
	if len(t.queue) == 0 {
		return nil
	}
	g := t.queue[0]
	if !g.Collective {
		t.queue = slices.Delete(t.queue, 0, 1)
		return g
	}
	width := g.Devices.Len()
	at := slices.IndexFunc(t.chains, func(c *chain) bool { return slices.Contains(g.Reads, c.tail) })
	var c *chain
	switch {
	case t.Apart && slices.ContainsFunc(t.chains, func(o *chain) bool {
		return (at < 0 || o != t.chains[at]) && o.on.overlaps(&g.Devices.mask)
	}):
		return nil
	case at >= 0:
		c = t.chains[at]
		if more := width - c.width; more > 0 {
			if t.used+more > t.Pool && len(t.chains) > 1 {
				return nil
			}
			c.width += more
			t.used += more
		}
	case len(t.chains) == 0 || t.used+width <= t.Pool:
		c = &chain{width: width}
		t.chains = append(t.chains, c)
		t.used += width
	default:
		return nil
	}
	if t.of == nil {
		t.of = map[uint64]*chain{}
	}
	t.of[g.ID] = c
	c.on.add(&g.Devices.mask)
	c.tail = g.ID
	c.gangs++
	t.queue = slices.Delete(t.queue, 0, 1)
	return g
}

// Remove implements Policy.
func (t *Threads) Remove(g *Gang) {
	if k := slices.Index(t.queue, g); k >= 0 {
		t.queue = slices.Delete(t.queue, k, k+1)
	}
	if k := slices.Index(t.free, g); k >= 0 {
		t.free = slices.Delete(t.free, k, k+1)
	}
}

// Done implements Policy.
func (t *Threads) Done(g *Gang, _ int64) {
	c := t.of[g.ID]
	if c == nil {
		return
	}
	delete(t.of, g.ID)
	if c.gangs--; c.gangs == 0 {
		t.used -= c.width
		t.chains = slices.DeleteFunc(t.chains, func(d *chain) bool { return d == c })
	}
}
