package controller

import (
	"maps"
	"slices"
)

// A session may have thousands of programs, each with facts on disk. When it ends, State drops them in parts, after
// everything else that the session had, and takes other events in between. Until the last one is dropped, the session's
// workers keep their slots, since State counts by slot on which workers a program is loaded.

// leftover is a session that has ended, with the programs that are not dropped yet.
type leftover struct {
	s        *session
	programs []*program
}

// weightOfProgram is the time to drop a program, in nanoseconds: measured by BenchmarkSteps.
const weightOfProgram = 1500

// leaveOver keeps the programs of a session that ends, to be dropped.
func (st *State) leaveOver(s *session) {
	l := leftover{s: s}
	for _, id := range slices.Sorted(maps.Keys(s.graphs)) {
		for _, p := range s.graphs[id].programs {
			if p.graphs--; p.forgotten && p.graphs == 0 {
				l.programs = append(l.programs, p)
			}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(s.programs)) {
		l.programs = append(l.programs, s.programs[id])
	}
	st.leftovers = append(st.leftovers, l)
}

// letLeftovers drops programs of sessions that have ended, for about the time that Weigh says.
func (st *State) letLeftovers() {
	for spent := int64(0); len(st.leftovers) > 0 && (st.weight == 0 || spent < st.weight); spent += weightOfProgram {
		l := &st.leftovers[0]
		switch s := l.s; {
		case len(l.programs) > 0:
			p := l.programs[0]
			l.programs = l.programs[1:]
			st.letProgram(p)
		case len(s.unkept) > 0:
			st.letFirst(s)
		default:
			st.leaveBindings(s)
			st.stir()
			st.leftovers = slices.Delete(st.leftovers, 0, 1)
		}
	}
}
