package shm

import (
	"slices"
	"time"
)

// rest keeps a segment without blocks for a while.
func (p *Pool) rest(s *Segment) {
	s.since = time.Now()
	p.idle = append(p.idle, s)
	if p.timer == nil {
		p.timer = time.AfterFunc(p.config.Idle, p.trim)
	}
}

// Trim returns all segments without blocks to the system.
func (p *Pool) Trim() {
	p.mu.Lock()
	gone := p.strip()
	if p.timer != nil {
		p.timer.Stop()
		p.timer = nil
	}
	p.mu.Unlock()
	unmap(gone)
}

// strip takes all segments without blocks out of the books.
func (p *Pool) strip() []*Segment {
	gone := slices.Clone(p.idle)
	for _, s := range gone {
		p.remove(s)
	}
	return gone
}

// trim is the timer's.
func (p *Pool) trim() {
	var gone []*Segment
	now := time.Now()
	p.mu.Lock()
	for len(p.idle) > 0 && now.Sub(p.idle[0].since) >= p.config.Idle {
		gone = append(gone, p.idle[0])
		p.remove(p.idle[0])
	}
	p.timer = nil
	if len(p.idle) > 0 {
		p.timer = time.AfterFunc(p.config.Idle-now.Sub(p.idle[0].since), p.trim)
	}
	p.mu.Unlock()
	unmap(gone)
}
