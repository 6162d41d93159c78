package controller

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/openpathways/pathways/core/wire"
)

// A client or worker whose connection breaks keeps its place for the lease. transport/link makes the connection again
// and sends what was lost; the messages of a Conn stay complete and in order, so State need not do anything to mend a
// break. It hears of the break and of its end (Cut, Mended) for two reasons: to show both to people, and because a
// worker without a connection sends no heartbeats and must not be taken for one that hangs. Every Cut ends: with
// Mended, or with Lost when the lease is over or the process is known to have died.

// cuts is what State knows about the breaks of a connection.
type cuts struct {
	count uint64
	since int64 // of the last one, on State's clock
	ended int64 // when it was mended; 0: it is not
	why   error
	lease int64 // of Event; 0: the connection does not outlive a break
}

// isCut reports whether there is no connection now.
func (c *cuts) isCut() bool { return c.count > 0 && c.ended == 0 }

// left returns for how long the place of a process without a connection is still kept. A connection from an earlier
// start may not be Cut yet.
func (c *cuts) left(now int64) int64 {
	if c.isCut() {
		return max(c.lease-(now-c.since), 0)
	}
	return c.lease
}

// report returns what Report says; nil if the connection does not outlive a break.
func (c *cuts) report(now int64) *wire.Report_Link {
	if c.lease == 0 {
		return nil
	}
	r := &wire.Report_Link{Cuts: c.count, LeaseMs: c.lease / 1e6}
	if c.count == 0 {
		return r
	}
	r.LastMs, r.Why = (now-c.since)/1e6, c.why.Error()
	if c.isCut() {
		r.CutMs = max(r.LastMs, 1)
	} else {
		r.BackMs = (c.ended - c.since) / 1e6
	}
	return r
}

// breaks performs Cut and Mended.
func (st *State) breaks(ev *Event) {
	switch c := st.conns.Get(ev.Conn); {
	case c == nil: // it was dropped
	case ev.Kind == Cut:
		st.wasCut(c, ev.Err)
	default:
		st.mended(c)
	}
}

// wasCut records that a connection broke.
func (st *State) wasCut(c *conn, why error) {
	c.cuts.count++
	c.cuts.since, c.cuts.ended, c.cuts.why = st.now, 0, wire.Of(why).Err() // which bounds its length
	who, what := c.named(wire.EventCut)
	st.note(what, fmt.Sprintf("%s has no connection; its place is kept for %.3g s at most", who,
		float64(c.cuts.lease)/1e9), why)
}

// mended records that there is a connection again.
func (st *State) mended(c *conn) {
	c.cuts.ended = st.now
	if c.w != nil {
		c.w.heard = st.now
	}
	took := max(time.Millisecond, time.Duration(st.now-c.cuts.since).Round(time.Millisecond))
	who, what := c.named(wire.EventMended)
	st.note(what, fmt.Sprintf("%s has a connection again, after %v", who, took), nil)
}

// named returns the name of the other end of a connection, for people, and what an event of this kind is about.
func (c *conn) named(kind string) (who string, what about) {
	switch {
	case c.s != nil:
		return c.s.owner(), c.s.about(kind)
	case c.w != nil:
		return workerNamed(c.w.name), c.w.about(kind)
	}
	return "an operator", about{kind: kind}
}

// AwayText says, for people, which processes a State that has started again waits for.
func (st *State) AwayText() string {
	if st.comeback == nil {
		return ""
	}
	var names []string
	left := int64(0)
	for _, number := range slices.Sorted(maps.Keys(st.comeback.away)) {
		c := st.conns.Get(number)
		who, _ := c.named("")
		names, left = append(names, who), max(left, c.cuts.left(st.now))
	}
	if n := len(names); n > 3 {
		names = append(names[:2], fmt.Sprintf("%d others", n-2))
	}
	return fmt.Sprintf("the controller has started again, and waits for those that were there to come back, for %.3g s "+
		"more at most: %s", float64(left)/1e9, strings.Join(names, ", "))
}
