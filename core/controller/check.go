package controller

import (
	"errors"
	"fmt"
)

// Check looks for what does not fit together: parties that have gone and are still
// named, counts that are not those of what they count. It is for tests, and looks
// at everything.
func (st *State) Check() error {
	var wrong []error
	say := func(format string, args ...any) { wrong = append(wrong, fmt.Errorf(format, args...)) }
	views, users := map[int]int{}, map[*compiled]int{}
	out, untold := map[*session]int{}, map[*session]int{}
	for n, g := range st.gangs {
		out[g.s]++
		if g.err == nil { // otherwise the client knows
			untold[g.s]++
		}
		left := 0
		g.waits.each(func(slot int) {
			left++
			if w := st.workers[slot]; w == nil || w.gone != nil {
				say("gang %d waits for the worker of slot %d, which is gone", n, slot)
			}
		})
		if st.sessions[g.s.id] != g.s || g.number != n || left != g.left || left == 0 {
			say("gang %d of session %d has number %d and waits for %d workers, %d by its count", n, g.s.id, g.number, left, g.left)
		}
	}
	for id, s := range st.sessions {
		if s.conn != 0 && (st.conns[s.conn] == nil || st.conns[s.conn].s != s) {
			say("session %d has connection %d, which is not its own", id, s.conn)
		}
		if s.out != out[s] {
			say("session %d has %d gangs under way, %d by its count", id, out[s], s.out)
		}
		if queue := len(s.queue) - s.head; (queue > 0 || s.play != nil) && st.may(s) {
			say("session %d has %d operations queued, or a play, and does not go on", id, queue)
		}
		nodes, inGraphs := 0, map[*program]int{}
		for _, g := range s.graphs {
			nodes += len(g.nodes)
			for _, p := range g.programs {
				inGraphs[p]++
			}
		}
		for p, n := range inGraphs {
			if p.graphs != n {
				say("program %d of session %d is of %d graphs, %d by its count", p.id, id, n, p.graphs)
			}
			if p.forgotten {
				users[p.of]++
			}
		}
		if nodes != s.nodes {
			say("session %d has %d nodes of graphs, %d by its count", id, nodes, s.nodes)
		}
		if s.waiting != nil && s.waiting.island.held[s.waiting.ticket] != s.waiting {
			say("session %d waits for a run that its island does not know", id)
		}
		if told := len(s.ok) + len(s.failed); s.underWay < told+untold[s] {
			say("session %d has %d operations under way of which %d were dispatched and %d have ended", id, s.underWay, untold[s], told)
		}
		seen := set{}
		for _, slot := range s.slots {
			if !seen.has(slot) {
				seen.add(slot)
				views[slot]++
			}
		}
		for _, p := range s.programs {
			users[p.of]++
		}
		for program, c := range s.compiling {
			if st.compiled[c.key] != c || c.ready {
				say("session %d waits for program %d, which nobody compiles", id, program)
			}
		}
	}
	for _, id := range st.layout.Holders() {
		if st.sessions[id] == nil {
			say("session %d has slices and is gone", id)
		}
	}
	if st.open.count > 0 {
		say("%d nodes of a play were not told to their workers", st.open.count)
	}
	present := 0
	for slot, w := range st.workers {
		switch {
		case w == nil:
			if views[slot] > 0 {
				say("%d sessions have devices of slot %d, which is free", views[slot], slot)
			}
			continue
		case w.gone == nil:
			present++
			if c := st.conns[w.to[0]]; c == nil || c.w != w {
				say("worker %s has connection %d, which is not its own", w.name, w.to[0])
			}
		case w.views == 0:
			say("worker %s is gone, no session knows it, and it keeps slot %d", w.name, slot)
		}
		if w.slot != slot || w.views != views[slot] {
			say("worker %s of slot %d is known to %d sessions, %d by its count", w.name, slot, views[slot], w.views)
		}
	}
	if present != len(st.present) {
		say("%d workers are there, %d by the list", present, len(st.present))
	}
	for op, c := range st.compiles {
		if c.by == nil || c.by.gone != nil || st.compiled[c.key] != c {
			say("compilation %d has no worker at it", op)
		}
	}
	for key, c := range st.compiled {
		if c.users != users[c] {
			say("program %s is of %d programs of sessions, %d by its count", key, users[c], c.users)
		}
		for _, w := range c.waiting {
			if st.sessions[w.s.id] != w.s {
				say("program %s is awaited by session %d, which is gone", key, w.s.id)
			}
		}
	}
	for _, is := range st.islands {
		for ticket, g := range is.held {
			if st.sessions[g.s.id] != g.s || g.s.waiting != g {
				say("island %q holds run %d, which nobody waits for", is.name, ticket)
			}
		}
	}
	return errors.Join(wrong...)
}
