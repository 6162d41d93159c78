package shm

import (
	"errors"
	"time"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/device/host"
)

// The bounds of a host's pools do not add up to one: each has its own, and some processes of a host know nothing of
// each other. What they all see is the memory that the host has left. So each looks at that whenever it makes a
// segment, before every step of it: of those that make long ones at once, none then takes more than a step of the
// memory that they should leave. There are no locks and no files that a process that is stopped or killed could leave
// behind.

const (
	step       = 64 << 20 // of a segment
	retryAfter = 50 * time.Millisecond
)

// shortage is what a pool knows of a lack of memory on its host. Nothing tells of memory that other processes return,
// so requests that wait for it try again.
type shortage struct {
	since time.Time   // nothing has come back to the pool; zero: there is none
	retry *time.Timer // nil: requests may make segments
}

// errShort is of a segment that the host has no memory for.
var errShort = errors.New("this host is short of memory")

// spare returns a function that returns how many bytes segments may yet take of this host, which leave it so many.
func spare(leave int64) func() int64 {
	return func() int64 { return host.Available() - leave }
}

// left returns how much of a host's memory, or of a control group's, segments of a process leave to everything else.
func left(memory int64, client bool) int64 {
	leave := min(memory/16, 4<<30)
	if client {
		leave /= 2
	}
	return leave
}

// cut shortens a segment that is being made to what requests have been promised of it, for which the host may have
// memory. It reports whether that is less.
func (a *Arena) cut(c *coming) bool {
	p := a.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	less := c.left / huge * huge
	c.size -= less
	c.left -= less
	a.mapped -= less
	p.mapped -= less
	return less > 0
}

// admit reports, as an error, that the host has no memory for the rest of a segment.
func (a *Arena) admit(rest int64) error {
	spare := a.pool.config.Spare()
	if rest <= spare {
		return nil
	}
	return status.New(status.ResourceExhausted, "%w: %d bytes for %s are needed, and %d may be taken; release arrays "+
		"and what was fetched, end other programs, run fewer workers here, or give the machine or its control group more "+
		"memory", errShort, rest, a.purpose, max(spare, 0))
}

// lacks has the requests that wait try again in a while, unless they have waited for too long: it returns false then.
func (p *Pool) lacks() bool {
	now := time.Now()
	if p.short.since.IsZero() {
		p.short.since = now
	}
	if now.Sub(p.short.since) >= p.config.Wait {
		return false
	}
	if p.short.retry == nil {
		p.short.retry = time.AfterFunc(retryAfter, func() {
			p.mu.Lock()
			p.short.retry = nil
			gone := p.serve()
			p.mu.Unlock()
			unmap(gone)
		})
	}
	return true
}
