package controller

import "slices"

// A session may have thousands of programs, each with facts on disk. When it ends, State drops them in parts, after
// everything else that the session had, and takes other events in between. Until the last one is dropped, the session's
// workers keep their slots, since State counts by slot on which workers a program is loaded.

// weightOfProgram is the time to drop a program, in nanoseconds: measured by BenchmarkSteps.
const weightOfProgram = 1500

// letLeftovers drops programs of sessions that have ended, for about the time that Weigh says.
func (st *State) letLeftovers() {
	for spent := int64(0); len(st.leftovers) > 0 && (st.weight == 0 || spent < st.weight); spent += weightOfProgram {
		switch s := st.leftovers[0]; {
		case s.allPrograms.first != nil:
			st.letProgram(s.allPrograms.first)
		case len(s.unkept) > 0:
			st.letFirst(s)
		default:
			st.leaveBindings(s)
			st.stir()
			st.leftovers = slices.Delete(st.leftovers, 0, 1)
		}
	}
}
