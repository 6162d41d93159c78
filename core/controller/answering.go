package controller

import (
	"slices"

	"github.com/openpathways/pathways/core/wire"
)

// Hundreds of sessions may wait while a program compiles, each on thousands of workers. State then answers one session
// after another, in parts, and handles other events in between. First the workers are told of the session, then of each
// other; last they are told to load the program, and the client that it is compiled. If the session ends or a worker is
// lost before the last part, what was told is not undone.

// share begins to answer the sessions that wait for a program.
func (st *State) share(c *compiled) {
	c.ready = true
	c.users++          // until all have it
	st.keepCompiled(c) // before their clients hear of it
	st.enlist(c)
	st.answering = append(st.answering, c)
	if st.weight == 0 {
		st.answerWaiting()
	}
}

// What it takes to give a session a program, to tell a worker of the session, to have one know the others, and to have
// one load the program, in nanoseconds: measured by BenchmarkSteps.
const (
	weightOfInstall = 5000
	weightOfTelling = 400
	weightOfMeeting = 40
	weightOfLoad    = 15
)

// answerWaiting gives sessions the programs that they have waited for, for about the time that Weigh says.
func (st *State) answerWaiting() {
	for spent := int64(0); len(st.answering) > 0 && (st.weight == 0 || spent < st.weight); {
		c := st.answering[0]
		if len(c.waiting) == 0 {
			st.answering = slices.Delete(st.answering, 0, 1)
			st.let(c)
			continue
		}
		w := c.waiting[0]
		if weight := st.prepare(c, w); weight > 0 {
			spent += weight
			continue
		}
		c.waiting = c.waiting[1:]
		delete(w.s.compiling, w.program)
		st.install(c, w)
		spent += weightOfInstall + weightOfLoad*int64(len(w.place.conns))
	}
}

// prepare does a part of what the workers that will load a program for a session have to be told first. It returns
// about how many nanoseconds that takes, 0 if nothing is left.
func (st *State) prepare(c *compiled, w waiter) (weight int64) {
	switch {
	case st.alive(w.place) != nil: // it is not loaded
		return 0
	case !w.s.told.covers(w.place.workers):
		fresh := slices.Clone(w.place.workers)
		fresh.without(w.s.told)
		fresh.cutTo(pairsAtOnce)
		st.tell(w.s, fresh)
		return weightOfTelling * int64(fresh.count())
	case c.exchanges(w.place) && !w.place.met && st.like(w.place, w.place.workers) == nil:
		st.haveMet(w.place)
		return weightOfMeeting * int64(len(w.place.conns))
	}
	return 0
}

// exchanges reports whether the workers of a place exchange bytes while they run a program.
func (c *compiled) exchanges(at *place) bool {
	return at.workers.count() > 1 && (c.collective || c.loadable.Form == wire.Loadable_JOINED)
}

// install adds a program to a session: its workers load it, and its client is told.
func (st *State) install(c *compiled, w waiter) {
	answer, devices := &wire.Compiled{Op: w.op, Program: w.program}, []byte(nil)
	if err := st.alive(w.place); err != nil {
		answer.Status = wire.Of(err)
	} else {
		if c.users++; c.users == 1 {
			st.idle = slices.DeleteFunc(st.idle, func(o *compiled) bool { return o == c })
		}
		p := st.newProgram(c, w)
		st.keepProgram(w.s, p)
		st.load(w.s, p, p.place)
		answer.Info, devices = p.describe(), p.place.named()
	}
	st.sendKeptWith(w.s.to(), wire.KindCompiled, answer, devices) // as tellOffer does
}
