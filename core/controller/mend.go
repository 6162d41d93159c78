package controller

import (
	"fmt"
	"time"

	"github.com/openpathways/pathways/core/wire"
)

// A client or a worker whose connection breaks keeps its place: transport/link makes the connection again and sends
// what was lost, so that State need not. State is told, for people, and so that it does not take such a worker for one
// that hangs. Where the connection is not made again in time, State hears that it is Lost.

// cuts is what is known of the breaks of a connection.
type cuts struct {
	count uint64
	since int64 // of the last one, on State's clock
	ended int64 // when it was mended; 0: it is not
	why   error
}

// isCut reports whether there is no connection now.
func (c *cuts) isCut() bool { return c.count > 0 && c.ended == 0 }

// report is for Report; nil where there was no break.
func (c *cuts) report(now int64) *wire.Report_Link {
	if c.count == 0 {
		return nil
	}
	r := &wire.Report_Link{Cuts: c.count, LastMs: (now - c.since) / 1e6, Why: c.why.Error()}
	if c.isCut() {
		r.CutMs = max(r.LastMs, 1)
	} else {
		r.BackMs = (c.ended - c.since) / 1e6
	}
	return r
}

// wasCut is told that a connection broke.
func (st *State) wasCut(c *conn, why error) {
	c.cuts.count++
	c.cuts.since, c.cuts.ended, c.cuts.why = st.now, 0, why
	who, what := c.named(wire.EventCut)
	st.note(what, who+" has no connection; its place is kept", why)
}

// mended is told that there is a connection again.
func (st *State) mended(c *conn) {
	c.cuts.ended = st.now
	if c.w != nil {
		c.w.heard = st.now
	}
	took := time.Duration(st.now - c.cuts.since).Round(time.Millisecond)
	who, what := c.named(wire.EventMended)
	st.note(what, fmt.Sprintf("%s has a connection again, after %v", who, took), nil)
}

// named returns who is at the other end of a connection, for people, and what an event of a kind is about.
func (c *conn) named(kind string) (who string, what about) {
	switch {
	case c.s != nil:
		return c.s.owner(), c.s.about(kind)
	case c.w != nil:
		return "worker " + c.w.name, c.w.about(kind)
	}
	return "an operator", about{kind: kind}
}
