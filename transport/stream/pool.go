package stream

import (
	"slices"
	"time"

	"github.com/openpathways/pathways/core/wire"
)

const (
	// largestFrame is the default of Config.MaxFrame, which no part of the system makes larger.
	largestFrame = wire.MaxFrame
	// allowance is what a connection may always hold of a frame on its way. Nearly all programs are smaller, so that
	// they wait for no other; 256 sessions, a controller's bound, hold 256 MiB together.
	allowance = 1 << 20
	// stallTime is how long a frame that was granted room may do with less than stallBytes while others wait for room:
	// about a megabit a second, which a bad line has. A frame that others wait for then ends with its connection.
	stallTime  = 2 * time.Second
	stallBytes = 256 << 10
	// lookTime is how often frames are looked at while some wait.
	lookTime = stallTime / 4
)

// A claim is what a frame needs of a pool, beyond its connection's allowance.
type claim struct {
	need    int64 // bytes, all that the frame will take
	granted bool
	first   bool      // granted from the half of the frame that came first
	whole   bool      // all has come, and is being used
	came    int64     // bytes, since it was granted
	seen    int64     // came, at since
	since   time.Time // when the frame was granted, or last had stallBytes more
}

// pool decides which frames are read that are larger than their connections' allowances. It has no clock, lock or I/O.
//
// A frame is granted all that it needs at once, so that none holds room while it waits for more: there is no deadlock.
// The pool has two halves, of the largest frame each. One is for the frame that has waited longest, whatever its size:
// each frame gets its turn. The other is granted to the smallest frames first, as far as it reaches: one that is
// smaller than all others waits at most until the frames in its way end or are found to have stalled, and not for each
// of the others in turn.
type pool struct {
	half    int64    // bytes of each half
	first   *claim   // has the first half
	lent    int64    // bytes of the second
	holding []*claim // those that were granted
	waiting []*claim // as they came
	looked  time.Time
}

// ask adds a claim, and returns those that are granted now: none, or this one.
func (p *pool) ask(c *claim, now time.Time) []*claim {
	if len(p.waiting) == 0 {
		p.looked = now
	}
	p.waiting = append(p.waiting, c)
	return p.grant(now)
}

// end takes a claim away, whether it was granted or waits, and returns those that are granted in its place.
func (p *pool) end(c *claim, now time.Time) []*claim {
	gone := func(other *claim) bool { return other == c }
	p.waiting = slices.DeleteFunc(p.waiting, gone)
	p.holding = slices.DeleteFunc(p.holding, gone)
	switch {
	case c.first:
		p.first = nil
	case c.granted:
		p.lent -= c.need
	}
	c.granted, c.first = false, false
	return p.grant(now)
}

// grew counts bytes that have come of a frame that was granted.
func (p *pool) grew(c *claim, bytes int64, now time.Time) {
	if c.came += bytes; c.came-c.seen >= stallBytes {
		c.seen, c.since = c.came, now
	}
}

// stalled returns the frames that others wait for in vain. It is called each lookTime while some wait.
func (p *pool) stalled(now time.Time) (all []*claim) {
	late := now.Sub(p.looked) > 2*lookTime
	p.looked = now
	if len(p.waiting) == 0 {
		return nil
	}
	for _, c := range p.holding {
		if late { // this process did not run: it is not the peer that was slow
			c.since = now
		}
		if !c.whole && now.Sub(c.since) >= stallTime {
			all = append(all, c)
		}
	}
	return all
}

// grant divides what is free among those that wait, and returns them.
func (p *pool) grant(now time.Time) (all []*claim) {
	hold := func(c *claim) {
		p.waiting = slices.DeleteFunc(p.waiting, func(other *claim) bool { return other == c })
		p.holding = append(p.holding, c)
		c.granted, c.since = true, now
		all = append(all, c)
	}
	for len(p.waiting) > 0 {
		if p.first == nil {
			p.first = p.waiting[0]
			p.first.first = true
			hold(p.first)
			continue
		}
		least := slices.MinFunc(p.waiting, func(a, b *claim) int { return int(a.need - b.need) }) // the first of equals
		if p.lent+least.need > p.half {
			break
		}
		p.lent += least.need
		hold(least)
	}
	return all
}
