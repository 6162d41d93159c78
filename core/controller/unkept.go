package controller

import (
	"slices"

	"github.com/openpathways/pathways/core/wire"
)

// A program that its session has forgotten stays on disk, with what it was compiled to, while its runs may be sent
// again: a client sends the next start of the controller each operation whose end it has not heard, and nothing can be
// run without its program. From time to time the client says of which operations it has heard the end (Settled), and
// the programs go whose runs these were.
//
// So compiled programs may take more than Limits.Store: by what forgotten ones were compiled to, up to
// Limits.Forgotten. Above that, or with too many of them, a session that forgets one more lets go of those that it
// forgot first. If the controller then starts again before the client has heard the end of a run of one of these, that
// run fails.

// unkept is a program that is gone and stays on disk. Its runs are operations above after, up to last.
type unkept struct {
	program     uint64
	after, last uint64
	of          *compiled
}

// maxUnkept bounds the programs of a session that are gone and stay on disk. It is more than the operations of which a
// client says nothing for a while: 2,048 that have ended, and those under way.
const maxUnkept = 4096

// letKeptProgram removes the fact of a program, and lets what it was compiled to: at once if it never ran, else when
// the client has heard the end of its runs.
func (st *State) letKeptProgram(p *program) {
	s := p.place.s
	u := unkept{program: p.id, after: p.after, last: s.last, of: p.of}
	st.forgotten += u.of.bytes
	if !st.config.Keeps || u.after == u.last {
		st.letUnkept(s, u)
		return
	}
	s.unkept = append(s.unkept, u)
	for len(s.unkept) > maxUnkept || len(s.unkept) > 0 && st.forgotten > st.limits.Forgotten {
		first := s.unkept[0]
		s.unkept = slices.Delete(s.unkept, 0, 1)
		st.letUnkept(s, first)
	}
}

// letUnkept removes what letKeptProgram left of a program. The caller takes it out of s.unkept.
func (st *State) letUnkept(s *session, u unkept) {
	st.forgotten -= u.of.bytes
	st.keep(tablePrograms, programKey(s.id, u.program), nil) // before the fact that it names
	st.let(u.of)
}

// letSettled removes what letKeptProgram left of programs of whose runs a client has heard the end.
func (st *State) letSettled(s *session, m *wire.Settled) {
	if len(s.unkept) == 0 {
		return
	}
	slices.Sort(m.Pending)
	s.unkept = slices.DeleteFunc(s.unkept, func(u unkept) bool {
		i, _ := slices.BinarySearch(m.Pending, u.after+1)
		settled := u.last < m.Next && (i == len(m.Pending) || m.Pending[i] > u.last)
		if settled {
			st.letUnkept(s, u)
		}
		return settled
	})
}
