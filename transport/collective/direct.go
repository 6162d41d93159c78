package collective

import (
	"slices"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/xla/spmd"
)

// This file plans large collectives among members of a board that lend each other their memory (lent.go). Each reads
// what it needs where the others have it: hardly a byte is copied but into a result, and there are two or three rounds,
// however large the arrays are.
//
// In the first round each member tells where its operands are. If all can read all, each copies or folds from there,
// and says in the next round that it is through. Of an all-reduce each has folded a part by then, which the others copy
// from where it has told, and say so in a third. Otherwise the rounds by areas follow, as planned in together.go.

// directRounds is how many there are at most.
const directRounds = 3

// whereMax is how long a letter may be that tells where a member's arrays are: that of 8,190. If it is longer than
// letters else are, it goes by an area.
const whereMax = 64 << 10

// goesDirectly reports whether a group's arrays, of total bytes a rank, are large, and a letter has room to tell where
// those of a member are.
func (b *builder) goesDirectly(total int64) bool {
	large := len(b.table.rounds) > several
	for _, places := range b.members {
		if b.whereBytes(places) > whereMax {
			return false
		}
		if b.spec.Op == spmd.RaggedAllToAll { // all of which would be in one round
			large = large || total*int64(len(places)) > several*b.sizes.block
		}
	}
	return large
}

func (b *builder) whereBytes(places []int) int64 {
	return whereBytes(len(places)*len(b.spec.Operands) + len(partsOf(b.spec, 0, 1)))
}

// directly plans the direct rounds, the first before those that are planned and the others behind them.
func (b *builder) directly() error {
	b.cuts, b.table.member = b.whole(), b.own
	first := b.layout()
	first.where = true
	for p, places := range b.members {
		first.add(p, ref{kind: told, reg: dense(0, b.whereBytes(places))})
	}
	second := b.through()
	more := []*layout{second}
	var err error
	if b.spec.Op == spmd.AllReduce {
		b.foldLent(first)
		b.takeLent(second)
		more = append(more, b.through())
	} else {
		err = b.finishLent(first)
	}
	all := func(q, p int) bool { return q != p }
	b.table.rounds = slices.Insert(b.table.rounds, 0, first.meet(all))
	b.table.direct = len(b.table.rounds)
	for _, l := range more {
		b.table.rounds = append(b.table.rounds, l.meet(all))
	}
	return err
}

// through plans a round in which each member tells all others that it is through with the round before.
func (b *builder) through() *layout {
	l := b.layout()
	for p := range l.blocks {
		l.blocks[p].bytes = 8
	}
	return l
}

// lent is where process p has an operand of place s.
func (b *builder) lent(p, s, i int, reg region) ref {
	return ref{kind: lent, call: p, buf: slices.Index(b.members[p], s)*len(b.spec.Operands) + i, reg: reg}
}

// part is where process p has the part of a result that it folds.
func (b *builder) part(p, i int) ref {
	reg := dense(0, b.owned(i, p).bytes())
	if p == b.own {
		return ref{kind: folded, buf: i, reg: reg}
	}
	return ref{kind: lent, call: p, buf: len(b.members[p])*len(b.spec.Operands) + i, reg: reg}
}

// partsOf returns the parts of an all-reduce's results that a member of a group folds, of so many members. Others
// copy them; of other collectives they read operands alone.
func partsOf(spec *spmd.Spec, member, members int) []region {
	if spec.Op != spmd.AllReduce {
		return nil
	}
	parts := make([]region, len(spec.Results))
	for i, x := range spec.Results {
		parts[i] = cut{0, x.Bytes()}.part(member, members)
	}
	return parts
}

// finishLent plans what makes the results of the places here, out of all others' operands. Each begins with its own, so
// that not all read the same ones at a time.
func (b *builder) finishLent(l *layout) error {
	at := map[source]ref{}
	for p := range b.members {
		for _, x := range b.sources(p, b.own) {
			reg, err := b.region(x)
			if err != nil {
				return err
			}
			if p == b.own {
				at[x] = ref{kind: operand, call: b.call[x.s], buf: x.buf, reg: reg}
			} else {
				at[x] = b.lent(p, x.s, x.buf, reg)
			}
		}
	}
	for _, d := range b.members[b.own] {
		before := len(l.steps)
		if err := b.finish(&l.round, d, at); err != nil {
			return err
		}
		if steps := l.steps[before:]; b.spec.Op != spmd.ReduceScatter {
			k := len(steps) * d / b.n()
			copy(steps, slices.Concat(steps[k:], steps[:k]))
		}
	}
	return nil
}

// foldLent folds this process's part of all ranks.
func (b *builder) foldLent(l *layout) {
	for i := range b.spec.Operands {
		mine := b.owned(i, b.own)
		from := make([]ref, b.n())
		for p, places := range b.members {
			for _, s := range places {
				if p == b.own {
					from[s] = ref{kind: operand, call: b.call[s], buf: i, reg: mine}
				} else {
					from[s] = b.lent(p, s, i, mine)
				}
			}
		}
		l.step(folds, b.part(b.own, i), from...)
	}
}

// takeLent copies the parts that others have folded, and all to the other members here.
func (b *builder) takeLent(l *layout) {
	first := b.call[b.members[b.own][0]]
	for i := range b.spec.Operands {
		for k := range b.members {
			p := (b.own + k) % len(b.members)
			l.step(copies, ref{kind: result, call: first, buf: i, reg: b.owned(i, p)}, b.part(p, i))
		}
		b.copies(&l.round, b.mine(i))
	}
}

// lends lends the peers of the meeting what they read, and writes the letter that tells them where it is.
func (m *meeting) lends(board *Board) {
	t := m.table
	index := board.met.Load().index
	places := make([]int, len(t.peers))
	for i, p := range t.peers {
		places[i] = index[p]
	}
	var arrays [][]byte
	for _, c := range m.calls {
		arrays = append(arrays, c.Operands...)
	}
	operands := len(arrays)
	for i, part := range partsOf(m.calls[0].Spec, t.member, len(t.peers)+1) {
		arrays = append(arrays, m.calls[0].Results[i][part.off:][:part.run:part.run])
	}
	m.told = make([]byte, whereBytes(len(arrays)))
	m.loan = board.lending.lend(arrays, operands, places, m.told)
}

// borrows takes the memory of all peers for the meeting, if all are ready, and returns whether they are.
func (m *meeting) borrows() bool {
	b, spec := m.gang.engine.board, m.calls[0].Spec
	index, ready := b.met.Load().index, m.loan.ready
	for i, p := range m.table.peers {
		b.lending.learn(index[p])
		ready = ready && whereabouts(m.peers[i].block.Data).ready()
	}
	if !ready {
		return false
	}
	for i, p := range m.table.peers {
		if !b.enter() {
			m.fails(status.New(status.Cancelled, "the worker is stopping"))
			return true
		}
		f := &m.peers[i]
		w, ok := whereabouts(f.block.Data), false
		f.place = index[p]
		parts := partsOf(spec, m.table.members[i], len(m.table.peers)+1)
		operands := w.arrays() - len(parts)
		bytes := func(k int) int64 {
			if k < operands {
				return spec.Operands[k%len(spec.Operands)].Bytes()
			}
			return parts[k-operands].bytes()
		}
		if f.lease, ok = w.lease(); ok {
			f.lent, f.files = b.lending.borrow(f.place, w, bytes)
		}
		if f.lent != nil {
			continue
		}
		b.leave()
		if !ok || !b.lending.isGone(f.place) && b.holds(f.place, f.lease) {
			m.fails(status.New(status.Internal, "process %d tells of arrays that are in no memory which it lends", p))
			return true
		}
	}
	return true
}

// runLent runs steps that read what peers lend. It returns a peer that lent not all of it until they had ended, or -1.
func (m *meeting) runLent(r *round) (unlent int) {
	if p := m.unlent(); p >= 0 {
		return p
	}
	err := m.run(r)
	if p := m.unlent(); p >= 0 { // what was wrong, too, may not be what the peer had
		return p
	}
	if err != nil {
		m.fails(err) // when the peers have been told that this one is through
	}
	return -1
}

// unlent returns a peer whose arrays may be others by now, or that has gone; -1 if there is none.
func (m *meeting) unlent() int {
	for i := range m.peers {
		if f := &m.peers[i]; f.lent == nil || !m.gang.engine.board.holds(f.place, f.lease) {
			return i
		}
	}
	return -1
}

// stays has the meeting wait until its gang ends, as for a letter of a peer that does not come: the call has failed
// there, and why is told to all members.
func (m *meeting) stays(peer int) {
	g, b := m.gang, m.gang.engine.board
	if !b.enter() {
		m.end(status.New(status.Cancelled, "the worker is stopping"))
		return
	}
	defer b.leave()
	m.holds.Store(2) // one until the gang knows that it waits: who aborts it may be quicker
	b.mu.Lock()
	b.waits[mail{b.self, g.id, m.part()}] = wait{m, peer} // a key that no letter has
	b.open[m] = 1
	b.mu.Unlock()
	if err := g.wait(m); err != nil { // aborted while the above was told
		g.fail(err)
	}
	m.letGo(nil)
}

// giveBack returns the memory that the meeting has borrowed, and ends what it lends.
func (m *meeting) giveBack() {
	if m.table.direct > 0 {
		m.gang.engine.board.lending.end(&m.loan)
	}
	for i := range m.peers {
		if f := &m.peers[i]; f.lent != nil {
			m.gang.engine.board.lending.giveBack(f.files)
			m.gang.engine.board.leave()
			f.lent, f.files = nil, nil
		}
	}
}

// after returns the round that follows the one that has ended.
func (m *meeting) after() (round int, more bool) {
	t := m.table
	switch {
	case t.direct > 0 && m.round == 0 && m.direct:
		return t.direct, true
	case t.direct > 0 && m.round == t.direct-1:
		return 0, false
	}
	return m.round + 1, m.round+1 < len(t.rounds)
}
