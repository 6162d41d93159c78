package controller

import (
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// An assembled object is a name for shards of other objects, its members, as one argument of runs: for each device of a
// program, one shard of one member. It has no bytes, and is not in the ledger. So a run that reads shards which were
// put or computed separately is as short, and as quickly checked, as one that reads a whole array.
//
// Members may be freed, fail or be donated before it. At that moment, damage records this in the assembled object, so a
// run checks only that object, not its members.

// assembly is an object that was assembled from others.
type assembly struct {
	members []uint64
	rows    []int // of each member
	at      []int // of each member: where its list of memberships has this one
	unput   bool  // bytes of a member may have yet to come from the client
}

// membership is an object's entry about an array that it is assembled into.
type membership struct {
	of    uint64
	index int // among the members of that
}

// assembleLater assembles an object after the operations that came before. Many assemblies may come before one run, so
// they are bounded by their memory, and do not count in the queue.
func (st *State) assembleLater(s *session, ev *Event, m *wire.Assemble) error {
	if s.pieces += 1 + len(m.Pieces); s.pieces > 2*st.limits.Objects {
		return status.New(status.ResourceExhausted, "arrays of more than %d pieces wait to be assembled",
			2*st.limits.Objects)
	}
	s.unmade++
	st.enqueue(s, &queued{kind: ev.Wire, message: ev.Message}, nil)
	return nil
}

// assemble performs an Assemble. An invalid one makes an object with an error, or none; runs that read it report that.
func (st *State) assemble(s *session, m *wire.Assemble) {
	s.unmade, s.pieces = s.unmade-1, s.pieces-1-len(m.Pieces)
	st.assembleNow(s, m)
}

// assembleNow makes the object. If it is for a run that was dispatched before the controller started again, the workers
// are told of it, whatever has become of its members since.
func (st *State) assembleNow(s *session, m *wire.Assemble) {
	p := s.programs[m.Program]
	if p == nil || m.Object == 0 || s.objects[m.Object] != nil {
		return
	}
	var a *assembly
	err := fits(p.place, m.Pieces)
	tells := err == nil && st.known != nil
	if err == nil {
		a, err = st.members(s, p.place, m.Pieces)
	}
	if err == nil {
		err = st.alive(p.place)
	}
	if st.create(s, m.Object, []int64{0}, []int64{0}, p.place, err) != nil || err != nil && !tells {
		return
	}
	o := s.objects[m.Object]
	o.absent = false // though it may have failed
	if err == nil {
		o.of = a
		for i, id := range a.members {
			member := s.objects[id]
			a.at = append(a.at, len(member.in))
			member.in = append(member.in, membership{m.Object, i})
		}
	}
	st.tell(s, p.place.workers)
	st.gang++
	own := ownPieces(p.place, m)
	p.place.workers.each(func(slot int) {
		if w := st.workers[slot]; w.gone == nil {
			st.deliverDispatch(w.to[:], st.gang, 0, s, wire.KindAssemble, true, encoded(own[slot]))
		}
	})
}

// fits returns why pieces do not have one shard for each device of a place; nil if they have.
func fits(at *place, pieces []*wire.Piece) error {
	left := len(at.rows)
	for _, piece := range pieces {
		if piece == nil || piece.Rows == 0 || int(piece.Rows) > left {
			left = -1
			break
		}
		left -= int(piece.Rows)
	}
	if left != 0 {
		return invalid("an assembled array has other than %d rows, the devices of its program", len(at.rows))
	}
	return nil
}

// members checks the pieces of which an object is assembled. They fit the place.
func (st *State) members(s *session, at *place, pieces []*wire.Piece) (*assembly, error) {
	a := new(assembly)
	index, row := map[uint64]int{}, 0 // index says where a member is
	for _, piece := range pieces {
		var here set
		for _, d := range at.rows[row : row+int(piece.Rows)] {
			here.add(int(d))
		}
		row += int(piece.Rows)
		if err := s.has(piece.Object, ofAssembled, here, nil); err != nil {
			return nil, err
		}
		o := s.objects[piece.Object]
		if o.of != nil {
			return nil, invalid("array %d is assembled of others; name these", piece.Object)
		}
		a.unput = a.unput || o.put != 0
		if i, ok := index[piece.Object]; ok {
			a.rows[i] += int(piece.Rows)
			continue
		}
		index[piece.Object] = len(a.members)
		a.members, a.rows = append(a.members, piece.Object), append(a.rows, int(piece.Rows))
	}
	return a, nil
}

// membersOf returns what an object is assembled from, nothing if it is not.
func (s *session) membersOf(id uint64) []uint64 {
	if o := s.objects[id]; o != nil && o.of != nil {
		return o.of.members
	}
	return nil
}

// ownPieces returns an Assemble as workers are sent it, by slot.
func ownPieces(at *place, m *wire.Assemble) map[int]*wire.Assemble {
	own := map[int]*wire.Assemble{}
	row := 0
	for _, piece := range m.Pieces {
		for _, d := range at.rows[row : row+int(piece.Rows)] {
			part := own[at.in.slot(d)]
			if part == nil {
				part = &wire.Assemble{Object: m.Object}
				own[at.in.slot(d)] = part
			}
			part.Devices = append(part.Devices, d)
			if n := len(part.Pieces) - 1; n >= 0 && part.Pieces[n].Object == piece.Object {
				part.Pieces[n].Rows++
			} else {
				part.Pieces = append(part.Pieces, &wire.Piece{Object: piece.Object, Rows: 1})
			}
		}
		row += int(piece.Rows)
	}
	return own
}

// errMemberFreed is the error of operations that read an assembled array of which a member was freed.
var errMemberFreed = status.New(status.InvalidArgument,
	"an array was assembled of others, one of which was freed since")

// errMemberDonated is the same for a member that was donated to a computation.
var errMemberDonated = status.New(status.InvalidArgument,
	"an array was assembled of others, one of which was donated to a run since")

// damage fails what was assembled from an object, with err, and has the session's held gang, which may read it, checked
// again.
func (s *session) damage(o *object, err error) {
	if s.waiting != nil {
		s.waiting.held.spoiled = true
	}
	for _, m := range o.in {
		if a := s.objects[m.of]; a != nil && a.err == nil {
			a.err = err
		}
	}
}

// apart removes an object that is going away from its members and, with an error, from the objects that it is a member
// of.
func (s *session) apart(id uint64, o *object) {
	s.damage(o, errMemberFreed)
	if o.of == nil {
		return
	}
	for i, member := range o.of.members {
		m, at := s.objects[member], o.of.at[i]
		if m == nil || at >= len(m.in) || m.in[at].of != id {
			continue
		}
		last := m.in[len(m.in)-1]
		m.in[at] = last
		m.in = m.in[:len(m.in)-1]
		if a := s.objects[last.of]; a != nil && a.of != nil {
			a.of.at[last.index] = at
		}
	}
}

// awaitArgument makes a run wait for the puts of an argument, as awaitPut says.
func (st *State) awaitArgument(s *session, o *object) {
	if o.of == nil {
		if o.put != 0 {
			st.awaitPut(o)
		}
		return
	}
	if !o.of.unput {
		return
	}
	o.of.unput = false
	for _, id := range o.of.members {
		if m := s.objects[id]; m != nil && m.put != 0 {
			st.awaitPut(m)
			o.of.unput = o.of.unput || m.put != 0
		}
	}
}

// asMember is the error of an operation that can read only the members.
func (o *object) asMember(id uint64) error {
	if o.of == nil {
		return nil
	}
	return invalid("array %d is assembled of others, as an argument of runs; name the others", id)
}
