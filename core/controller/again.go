package controller

import (
	"maps"
	"slices"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// If the last worker that had an artifact is lost, workers that have yet to load it need not fail: clients of sessions
// with the program still have its text. So when a worker asks for such an artifact, a worker of one of these sessions
// compiles the program again, under the same number, and that session's client sends it the text. The result is the
// same, so the descriptions that clients and workers have of it stay valid. If a client is gone, or cannot send the
// text, the next one is asked. Those that wait get an error only when no client is left.

// again starts to compile a program whose artifact no worker has any more, for those that wait for it, unless that is
// under way.
func (st *State) again(c *compiled) {
	if c.by != nil || c.artifact.next() == nil {
		return
	}
	for _, id := range slices.Sorted(maps.Keys(st.sessions)) {
		s := st.sessions[id]
		for p := range s.allPrograms.each {
			if p.of != c || p.forgotten || slices.Contains(c.asked, p) {
				continue
			}
			by, on := st.compilerOf(s, p)
			if by == nil {
				continue
			}
			c.asked = append(c.asked, p)
			st.startCompile(c, c.number, waiter{s: s, op: p.op, program: p.id}, by, on)
			return
		}
	}
	st.nowhere(c, status.New(status.Unavailable, "the workers that had the compiled program are gone, and no client that "+
		"is connected has its text; compile it again, for example with jax.clear_caches()"))
}

// compilerOf returns a worker that can compile a session's program again, and for which devices; nil if there is none.
func (st *State) compilerOf(s *session, p *program) (by *worker, on *place) {
	c := p.of
	on = p.place
	if p.portable {
		here := slices.IndexFunc(s.at, func(w *worker) bool { return w.gone == nil })
		if here < 0 {
			return nil, nil
		}
		one, err := st.place(s, []uint32{s.first(here)})
		if err != nil {
			return nil, nil
		}
		on = one
	} else if st.alive(p.place) != nil {
		return nil, nil
	}
	if c.loadable.Form == wire.Loadable_JOINED && !slices.EqualFunc(on.locate(), c.madeFor, samePlace) {
		return nil, nil // it would name other devices
	}
	return st.workers[on.slot], on
}

// compiledAgain handles the result of compiling a program again.
func (st *State) compiledAgain(c *compiled, by *worker, m *wire.Compiled) {
	err := m.Status.Err()
	if err == nil && !m.Loadable.GetKept() {
		err = status.New(status.Internal, "worker %s compiled the program again to something else", by.name)
	}
	forgotten := st.artifacts[c.number] != c
	switch {
	case forgotten && err == nil:
		st.send(by.to[:], wire.KindForget, &wire.Forget{Artifacts: []uint64{c.number}})
	case forgotten:
	case err == nil:
		st.noteCompiled(c, by, m)
		c.asked = nil
		c.artifact.senders.add(by)
		st.give(c)
	case m.NoText:
		st.again(c) // with another client's
	default:
		st.nowhere(c, status.Wrap(err, "the workers that had the compiled program are gone, and compiling it again failed"))
	}
}

// nowhere tells those that wait for an artifact why they do not get it.
func (st *State) nowhere(c *compiled, why error) {
	wants := c.artifact.wants
	c.artifact.wants, c.asked = nil, nil
	clear(c.artifact.wanted)
	for _, w := range wants {
		if w.gone == nil {
			st.noSource(w, c.number, why)
		}
	}
}
