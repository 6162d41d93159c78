package controller

import (
	"container/list"
	"slices"

	"github.com/openpathways/pathways/core/wire"
)

// A program that its session has forgotten stays on disk, with the result of its compilation, while its runs may be
// sent again: a client sends each operation whose end it has not heard to the next start of the controller, and a run
// needs its program. From time to time the client says which operations it has heard the end of (Settled), and then the
// programs of these runs are removed.
//
// So compiled programs may take more than Limits.Store: forgotten ones may take up to Limits.Forgotten in addition.
// Beyond that, those that were forgotten first are removed, of any session; if one session has too many of them, its
// own first ones are removed. If the controller then starts again before the client has heard the end of a run of one
// of these, that run fails.

// unkept is a program that is gone and stays on disk. Its runs are operations above after, up to last.
type unkept struct {
	s           *session
	program     uint64
	after, last uint64
	of          *compiled
}

// unkeptPrograms are those of all sessions; each is in its session's list, too. Both lists begin with the program that
// was forgotten first.
type unkeptPrograms struct {
	all   list.List // of *unkept
	bytes int64     // of what they were compiled to, for each of them
}

// maxUnkept bounds the programs of a session that are gone and stay on disk. It is more than the operations whose end a
// client may not have confirmed: 2,048 that have ended, and those under way.
const maxUnkept = 4096

// letKeptProgram removes the fact of a program, and releases the result of its compilation: at once if it never ran or
// its session has ended, otherwise when the client has heard the ends of its runs.
func (st *State) letKeptProgram(p *program) {
	s := p.place.s
	u := &unkept{s: s, program: p.id, after: p.after, last: s.last, of: p.of}
	if !st.config.Keeps || u.after == u.last || st.sessions[s.id] != s {
		st.letFact(u)
		return
	}
	s.unkept = append(s.unkept, st.unkept.all.PushBack(u))
	st.unkept.bytes += u.of.bytes
	if len(s.unkept) > maxUnkept {
		st.letFirst(s)
	}
	for st.unkept.bytes > st.limits.Forgotten {
		st.letFirst(st.unkept.all.Front().Value.(*unkept).s)
	}
}

// letFirst removes what letKeptProgram left of the program that a session forgot first.
func (st *State) letFirst(s *session) {
	first := s.unkept[0]
	s.unkept[0], s.unkept = nil, s.unkept[1:]
	st.letUnkept(first)
}

// letUnkept removes what letKeptProgram left of a program. The caller removes it from its session's list.
func (st *State) letUnkept(e *list.Element) {
	u := st.unkept.all.Remove(e).(*unkept)
	st.unkept.bytes -= u.of.bytes
	st.letFact(u)
}

func (st *State) letFact(u *unkept) {
	st.keep(tablePrograms, programKey(u.s.id, u.program), nil) // before the fact that it names
	st.let(u.of)
}

// letSettled removes what letKeptProgram left of programs whose runs' ends a client has heard.
func (st *State) letSettled(s *session, m *wire.Settled) {
	if len(s.unkept) == 0 {
		return
	}
	slices.Sort(m.Pending)
	s.unkept = slices.DeleteFunc(s.unkept, func(e *list.Element) bool {
		u := e.Value.(*unkept)
		i, _ := slices.BinarySearch(m.Pending, u.after+1)
		settled := u.last < m.Next && (i == len(m.Pending) || m.Pending[i] > u.last)
		if settled {
			st.letUnkept(e)
		}
		return settled
	})
}
